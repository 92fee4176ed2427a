"""What runners of operations that gather over a wire share: arms that were checked, and what to compare them with.

Beside the arms take turns: the unsplit matmul on data that is here (the vendor's and ours; the fastest is T_gemm), the
link alone (T_comm), and the unsplit matmul while the link brings something else, for what the two take from each other.
On a CPU all of them compute on all cores but one, which is the link's; the arm `ALL_CORES` alone takes that too.
"""

import functools
import math
from collections.abc import Callable
from contextlib import suppress
from statistics import median

import torch

from collectives.bench import setting as settings
from collectives.bench.operands import CALIBRATIONS, computing
from collectives.links import LinkError, WarmUp
from kernels.bench import checks, matmul
from kernels.registry import CONTENDERS
from roofline.measure.prepared import SKIPPED, Entrant, PreparedCase, Rejection, unwatched, verdict
from roofline.operations.gathering import OFF_PACE
from roofline.store.run import REQUESTED
from roofline.theory.arms import ALL_CORES, BY_PERSISTENT, PERSISTENT, base_arm

LONGEST_GATHER_S = 2.0
TRIES = 3
"""A virtual machine may keep the link's thread from its core for a while."""


class Call:
    """An arm, or what it is compared with, as a clock calls it: on each set of operands by turns. What goes over a link
    has `notes`, its timeline."""

    long = True
    """Milliseconds: a clock need not call it once more to wake its threads."""

    def __init__(self, runs: list[Callable], device: str, link, *, all_cores: bool = False):
        self._all_cores = all_cores
        if all_cores and torch.get_num_threads() > 2:  # the others' pool is one thread short, and that one is made anew
            self.long = False
        self._runs, self._device, self._link, self._next = runs, device, link, 0
        if link and link.kind != "preset":  # which on a GPU knows only when the host enqueued
            self.notes = self._timeline

    def __call__(self):
        self._next = (self._next + 1) % len(self._runs)
        with computing(self._device, all_cores=self._all_cores):
            return self._runs[self._next]()

    def _timeline(self) -> dict:
        timeline = self._link.timeline()
        first = {"first_wait_s": timeline.waits[0][1]} if timeline.waits else {}
        return {"last_arrival_s": max(timeline.arrivals_s), **first, "timeline": timeline.as_dict()}


def persistent_arms(arms: dict[str, Callable]) -> dict[str, Callable]:
    """Return those of `arms` that are `BY_PERSISTENT`, by our persistent matmul. The fastest is mostly the vendor's,
    whose programs leave the copier no room on an SM: they stay off those that it is on, and tiles that were dealt to
    them begin late."""
    matmul = CONTENDERS["persistent"].load()
    return {arm + PERSISTENT: functools.partial(arms[arm], matmul=matmul) for arm in BY_PERSISTENT if arm in arms}


class Runner(matmul.Runner):
    """Runs the arms of one operation, `op`. A subclass says what they work on, and how each is called."""

    setting: type[settings.Setting]
    own_arms: dict[str, Callable]
    baseline = "serial"

    def arms(self, device: str) -> dict[str, Callable]:
        """Name -> arm(operands, link) on `device`."""
        if device == "cpu":
            return self.own_arms | {ALL_CORES: self.own_arms["serial"]}
        return self.own_arms | persistent_arms(self.own_arms)

    def _why_not(self, wire: str) -> str | None:
        """Return why the GPUs of ranks cannot take the link `wire`; None if they can, or are none."""
        return self.ranks.world.why_not(wire) if self.ranks.world else None

    def prepare(self, case, names: list[str], first_call=unwatched) -> PreparedCase:
        """Each arm of `names` checked; where timed, `serial` with them, and beside them what to compare with."""
        return self.ranks.agreed(f"preparing {case.id}", lambda: self._prepare(case, names, first_call))

    def _prepare(self, case, names: list[str], first_call) -> PreparedCase:
        options = self.options
        prepared = PreparedCase(case, self.baseline, options.device, first_call=first_call)
        names = list(dict.fromkeys([self.baseline, *names] if options.timed else names))
        if options.device == "cpu" and case.dtype != "fp32":
            reason = f"on a CPU the arms take fp32, not {case.dtype}: torch's CPU matmul does not sum it in fp32"
        else:
            reason = self._why_not(case.wire) or self._fill(prepared, names)
        if reason:
            prepared.rejected |= dict.fromkeys(names, Rejection(SKIPPED, reason))
        return prepared

    def _fill(self, prepared: PreparedCase, names: list[str]) -> str | None:
        """Check `names` and enter them, and where timed the references; returns why nobody can be, None if they are."""
        options, case = self.options, prepared.case
        setting = self.setting(options, case, earlier := self.earlier.get(case.id), self.ranks)
        prepared.facts = setting.facts
        if options.timed and not earlier and (reason := too_slow(setting) or off_pace(setting)):
            return reason
        for name in names:
            self.enter(prepared, setting, name)
        if options.timed:
            prepared.entrants |= _references(setting)
        setting.restore()  # what a wrong arm left
        prepared.cache = setting.cache

    def enter(self, prepared: PreparedCase, setting, name: str) -> None:
        """Take the arm `name` in if its result is right, twice on each set of operands; in a later process, on one."""
        sets = setting.sets[:1] if prepared.case.id in self.earlier else 2 * setting.sets
        arm, all_cores = (self.arms("cuda") | self.arms("cpu"))[name], name == ALL_CORES

        def check() -> Entrant | Rejection:
            if reason := setting.why_not(name):
                return Rejection(SKIPPED, f"{name}: {reason}")
            link = setting.link(setting.gather if base_arm(name) == prepared.baseline else None)
            if setting.device == "cuda":  # compiles and loads, first what the arm has and then what the link has
                setting.relative_error(arm, WarmUp(), sets[0])
                with suppress(LinkError):  # one that waits for what is computed may give up
                    setting.relative_error(arm, link, sets[0])
            error = checks.worst(
                [setting.relative_error(arm, link, operands, all_cores=all_cores) for operands in sets]
            )
            if wrong := verdict(name, error, prepared.case.dtype, setting.limit):
                return wrong
            runs = [functools.partial(arm, operands, link) for operands in setting.sets]
            call = Call(runs, setting.device, link, all_cores=all_cores)
            facts = setting.facts_of(name)
            return Entrant(name, call, config=setting.config(name), relative_error=error, facts=facts)

        self.together(prepared, name, check)

    def together(self, prepared: PreparedCase, name: str, check: Callable[[], Entrant | Rejection]) -> None:
        """Take `name` in where all ranks' `check()` does."""

        def check_together() -> Entrant | Rejection:
            entrant, refused = self.ranks.together(f"checking {name} on {prepared.case.id}", check)
            return refused._replace(reason=f"{name}: {refused.reason}") if refused else entrant

        prepared.enter(name, check_together)


def too_slow(setting) -> str | None:
    """Return why nothing is run: one gather would take longer than anybody means it to. None if it does not."""
    expected_s = setting.case.work.wire_bytes / (setting.bytes_per_s or math.inf)
    if expected_s <= LONGEST_GATHER_S:
        return None
    return (
        f"one gather at {setting.bytes_per_s / 1e9:.3g} GB/s takes {expected_s:.3g} s, and {LONGEST_GATHER_S:g} s is "
        "the limit: choose another bandwidth with --ffn-link-bandwidth"
    )


def off_pace(setting) -> str | None:
    """Return why the link voids the case: it misses the bandwidth that it is asked for, `TRIES` times in a row. None if
    it keeps it."""
    if not setting.bytes_per_s:
        return None
    for _ in range(TRIES):
        reached = setting.case.work.wire_bytes / median(setting.gathers_s(CALIBRATIONS))
        if abs(reached / setting.bytes_per_s - 1) <= OFF_PACE:
            return None
    return (
        f"the paced link reaches {reached / 1e9:.3g} GB/s alone, asked for are {setting.bytes_per_s / 1e9:.3g}, "
        f"and {100 * OFF_PACE:.0f} % is the limit: choose another with --ffn-link-bandwidth"
    )


def _references(setting) -> dict[str, Entrant]:
    references = {
        name: Entrant(name, Call(runs, setting.device, link), role, setting.config("serial"))
        for name, (role, runs, link) in setting.references().items()
        if not (link and link.kind == "preset")  # that takes no time, and brings nothing
    }
    if setting.keeps_step:
        unsplit = references[f"gemm {setting.best.name}"].call
        unsplit.listen, unsplit.notes = setting.keep_step, lambda: {REQUESTED: setting.bytes_per_s}
    return references
