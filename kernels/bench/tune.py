"""What the tunings bring to the harness: the configurations to try, sound and checked, and the table to save what wins.

Behind those of each kernel come those of `matmul`, which takes one of our kernels: with the configurations just saved.
"""

import dataclasses
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from kernels import CONTENDERS, Contender, configs, tuning
from kernels.bench import matmul
from kernels.configs import Config
from kernels.configs.table_writer import Shape, save, save_pick
from kernels.registry import ahead_of, preferred, tunable
from roofline.measure import device_errors
from roofline.measure.observer import Observer
from roofline.measure.prepared import SKIPPED, PreparedCase, Rejection, unwatched
from roofline.operations.tune import Tuning, sweep
from roofline.report.tuning import INCUMBENT, PRUNED, Verdict, line, verdict
from roofline.store.run import NOT_RUN, SAVED
from roofline.theory.chips import find
from roofline.theory.waves import GpuSpec
from roofline.theory.work import ITEMSIZE

WORKERS = 16
"""Processes that compile candidates, at most; each holds torch and Triton, half a gigabyte."""

COMPILE_S = 1800.0
"""Longest that preparing a shape may take: all candidates of a kernel are compiled then, on however few cores."""

MATMUL = "matmul"
"""`kernels.matmul`: what is tuned is which kernel it takes."""


def kernels() -> list[str]:
    """Those that can be tuned, in the order they are, and `MATMUL`."""
    return [*tunable(), MATMUL]


def cases(options) -> list[Tuning]:
    """What is to be tuned: none unless that was asked for. What was not measured before comes first."""
    if not options.tune_s:
        return []
    arch, machine = hardware()
    wanted = [name for name in kernels() if name in (options.contenders or kernels())]
    known = configs.table(arch)

    def is_open(case: Tuning) -> bool:
        if case.kernel == MATMUL:
            return len(able(case)) > 1
        better = any(known.admits(name, *shape(case)) for name in ahead_of(case.kernel))
        return known.admits(case.kernel, *shape(case)) and (options.contenders is not None or not better)

    def is_measured(case: Tuning) -> bool:
        if case.kernel == MATMUL:
            return known.picked(*shape(case), machine) in able(case)
        return any(entry.measured_on(machine) and entry.admits(case.kernel, *shape(case)) for entry in known.entries)

    return sorted(filter(is_open, sweep(options, wanted)), key=is_measured)


def shape(case: Tuning) -> Shape:
    return case.m, case.n, case.k, case.dtype


def able(case: Tuning) -> list[str]:
    """Our kernels that have a tile for the case's shape, those first that are taken where nothing was measured."""
    known = configs.table(hardware()[0])
    return [name for name in dict.fromkeys([*preferred(), *tunable()]) if known.admits(name, *shape(case))]


@functools.cache
def hardware() -> tuple[str, GpuSpec]:
    """The table and the machine to tune for: this one's; an H200's where there is no GPU, to list what it would try."""
    if not torch.cuda.is_available():
        return "sm90", GpuSpec.of_chip(find("H200"))
    device = torch.device("cuda", torch.cuda.current_device())
    return configs.arch_of(device), configs.machine_of(device)


@functools.cache
def contenders(case: Tuning) -> dict:
    """{name: configuration} of the incumbent and all candidates that are not run alike; of `MATMUL` {name: kernel}."""
    if case.kernel == MATMUL:
        arch, machine = hardware()
        names, picked = able(case), configs.table(arch).picked(*shape(case), machine)
        now = picked if picked in names else names[0]  # a pick may name a kernel that is gone
        return {INCUMBENT: now} | {name: name for name in names if name != now}
    now, others, _ = plan(case)
    return {INCUMBENT: now} | {tuning.token(config): config for config in others}


@functools.cache
def plan(case: Tuning) -> tuple[Config, list[Config], dict[str, str]]:
    """The configuration that the case's kernel takes at present, the candidates that are not run like it, and
    {name: reason} of what was left out when they were listed."""
    arch, machine = hardware()
    now = configs.choose(case.kernel, arch, case.m, case.n, case.k, matmul.DTYPES[case.dtype], machine)
    found = tuning.candidates(case.kernel, *shape(case), machine, arch, now)
    problem = tuning.Problem(case.m, case.n, case.k, ITEMSIZE[case.dtype], machine)
    others = [config for config in found.configs if problem.schedule(config) != problem.schedule(now)]
    return now, others, {tuning.token(config): reason for config, reason in found.pruned.items()}


class Runner(matmul.Runner):
    """Runs tunings: the incumbent, and beside it the candidates."""

    def cases(self) -> list[Tuning]:
        return cases(self.options)

    def known(self) -> list[str]:
        return kernels()

    here = known

    def names(self, case: Tuning) -> list[str]:
        return list(contenders(case))

    def untrusted(self, names: list[str]) -> list[str]:
        """None: they are too many to be called twice. A tuning in which one hung is gone on with, without it."""
        return []

    def prepare(self, case: Tuning, names: list[str], first_call=unwatched) -> PreparedCase:
        """The incumbent, which is the baseline, and those of `names` that compile as they should, checked. Of `MATMUL`
        these are kernels, each with what it takes for the shape by now.

        All candidates of a kernel that the run selected are compiled before its first shape is measured, so that
        nothing else runs while there is timing.
        """
        known, names = contenders(case), list(dict.fromkeys([INCUMBENT, *names]))
        prepared = PreparedCase(case, INCUMBENT, self.options.device, first_call=first_call)
        prepared.facts = {"table": hardware()[0]}
        if case.kernel == MATMUL:
            facts = {name: {"kernel": known[name]} for name in names}
            found = {name: _with_config(CONTENDERS[known[name]]) for name in names}
        else:
            unsound, trouble = compile_all(case.kernel, self._wanted(case.kernel))
            prepared.facts |= {"pruned": plan(case)[2]} | ({"not_compiled": trouble} if trouble else {})
            for name in names:
                reason = unsound.get((case.dtype, known[name]))
                if reason and name != INCUMBENT:  # that one is what runs at present
                    prepared.rejected[name] = Rejection(SKIPPED, PRUNED + reason)
            sound = [name for name in names if name not in prepared.rejected]
            facts = {name: {"tile": dataclasses.asdict(known[name])} for name in sound}
            found = {name: _with_config(CONTENDERS[case.kernel], known[name]) for name in sound}
        matmul.enter(prepared, case.matmul, self.options, found, facts)
        return prepared

    def _wanted(self, kernel: str) -> tuple[tuning.Wanted, ...]:
        """All candidates of `kernel` that the run selected."""
        return tuple(
            (other.dtype, contenders(other)[name])
            for other in sorted(self.cases(), key=lambda other: other.id)  # else another order once an entry is saved
            if other.kernel == kernel
            for name in self.selected.get(other.id, ())
            if name in contenders(other)
        )

    def observers(self, session) -> list:
        return [Campaign(session)]


def _with_config(kernel: Contender, config: Config | None = None) -> Contender:
    """`kernel` with `config`; without one as it chooses, saying its name beside its choice."""
    if config is None:
        return dataclasses.replace(kernel, config=lambda x, w: f"{kernel.name} {kernel.config(x, w)}")
    run = functools.partial(kernel.run, config=config)
    return dataclasses.replace(kernel, run=run, config=lambda x, w: str(config))


@functools.cache
def compile_all(kernel: str, wanted: tuple[tuning.Wanted, ...]) -> tuple[dict[tuning.Wanted, str], str]:
    """The reasons of those in `wanted` that are not sound; and "", or why none could be looked at: the compiler's tools
    being out of order is no reason to time nothing."""
    try:
        found = tuning.unsound(kernel, hardware()[0], wanted, min(WORKERS, os.cpu_count() or 1))
    except Exception as error:  # a process that was killed for its memory, for one
        return {}, device_errors.reason(error)
    if found.keys() >= set(wanted) and all(reason.startswith(tuning.FAILED) for reason in found.values()):
        return {}, next(iter(found.values()), "")
    return found, ""


class Campaign(Observer):
    """A tuning, as its run goes: it ends when its time is up, and what the rounds of a shape say is kept at once."""

    def __init__(self, session):
        self._session = session
        session.prepare_s = COMPILE_S

    def begun(self) -> None:
        """The time of the tuning begins. Shapes whose rounds a killed run had, but not their entry, are kept now."""
        session, tune_s = self._session, self._session.options.tune_s
        session.close_after(tune_s, f"the {tune_s:g} s of --ffn-tune were over")
        for shape in session.run.shapes:
            self.shape_done(shape, lambda text: None)
        for case in dropped(session.run, session.options):
            session.not_measured(case, SKIPPED, "the table was changed meanwhile: it is no candidate any more")

    def shape_done(self, shape: str, say: Callable[[str], None]) -> None:
        """Keep what the rounds of `shape` say, once: somebody may save another one later. A failure is an entry of its
        own; no sample is lost."""
        session = self._session
        if session.run.shapes[shape].saved:
            return
        try:
            if line := keep(session.run, shape, session.folder):
                session.add({"kind": "saved", "shape": shape})
                say(line)
        except (OSError, ValueError) as error:
            session.not_measured(f"{shape}-{SAVED}", "failed", device_errors.reason(error))


def dropped(run, options) -> list[str]:
    """Cases of a `run` that is gone on with whose turn never came, and never will: by the table as it is now, which
    somebody changed meanwhile, they are no candidates any more."""
    known = {f"{case.id}-{name}" for case in cases(options) for name in contenders(case)}
    return [e["case"] for e in run.missing if e["outcome"] == NOT_RUN and e["case"] not in known]


def keep(run, shape: str, folder: Path) -> str:
    """Save what the rounds of `shape` say in the checked-in table, and a copy of that in the run's folder; returns a
    line to be told, "" where there is nothing to save."""
    found = verdict(run, shape)
    if found is None or not found.tried:  # alone, as in a resumed run with another table, it was compared with nothing
        return ""
    of = run.shapes[shape]
    path, measured = configs.FOLDER / f"{of.facts['table']}.json", conditions(run, found)
    winner, case = of.entrants[found.winner], (of.get("m"), of.get("n"), of.get("k"), of.dtype)
    if found.kernel == MATMUL:
        save_pick(path, winner["kernel"], case, measured)
    else:
        save(path, found.kernel, case, Config(**winner["tile"]), measured)
    shutil.copy(path, folder / path.name)
    return line(found)


def conditions(run, found: Verdict) -> dict:
    """What a measured entry says of its measurement. `over` is what it was compared with, and `ratio` the best
    candidate's speed over that with its interval; an incumbent that stays has a ratio of about 1, or below."""
    machine = run.metadata["machine"]
    versions = machine["versions"]
    ratio = found.ratio and [round(x, 4) for x in (found.ratio.value, found.ratio.low, found.ratio.high)]
    return {
        "chip": machine["chip"],
        "sms": machine.get("sms"),
        "date": run.metadata["started"][:10],
        "shape": found.case.partition("-")[2],
        "triton": versions.get("triton"),
        "torch": versions.get("torch"),
        "commit": run.metadata["commit"],
        "ratio": ratio,
        "over": None if found.stays else found.over,
        "tried": found.tried,
    }
