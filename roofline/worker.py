"""Prepares cases by their ids in a process of its own, without pytest, and calls their contenders once each.

    python3 -m roofline.worker FOLDER

FOLDER has a request, which `request` writes: the options of the run, the runner of each operation, and the cases, to be
counted by a tool that the worker runs under, or to be tried before a run trusts them. What the worker does, it says in
a file there, line by line, since what it does next may be its end; it journals nothing and times nothing.

Or the worker is one of the processes of a run (`measure`): it makes its share of the passes, and journals them in the
run's folder while the process that began the run waits.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Thread

from roofline import operations
from roofline.measure import device_errors, runner, telemetry
from roofline.measure.prepared import FAILED, Entrant, Prepare
from roofline.measure.session import Session
from roofline.measure.watchdog import Watchdog
from roofline.options import of_values
from roofline.store import journal
from roofline.store.run import INTERRUPTED

REQUEST, PROGRESS = "request.json", "progress.jsonl"
PREPARE, CALL, DONE, LOST, UNTRIED = "prepare", "call", "done", "lost", "untried"
"""Steps that are said of a case. One of the last three is, unless the process ends there; the last two have a reason.
"""

MARKER_CYCLES = 1000

LOOK_S = 2.0
"""How often the run looks how far a process of its own is. It takes a millisecond of a core."""

Case = tuple[str, str]
"""(shape, contender)."""


def request(
    folder: Path, options: dict, cases: list[Case], refused: dict[Case, str] | None = None, share: dict | None = None
) -> list[str]:
    """Ask for `cases` by the `options` of a run, as its metadata has them; returns the command that does it. They are
    called to be counted; where there are `refused` (or {}), to be tried, but for these, each with its reason. Where
    there is a `share`, that is measured."""
    (folder / PROGRESS).unlink(missing_ok=True)
    runners = {name: one.runner for name, one in operations.OPERATIONS.items() if isinstance(one.runner, str)}
    asked = {"options": options, "runners": runners, "cases": cases}
    asked |= {"share": share} if share else {}
    if refused is not None:
        asked["refused"] = {"-".join(case): reason for case, reason in refused.items()}
    (folder / REQUEST).write_text(json.dumps(asked), encoding="utf-8")
    return [sys.executable, "-m", "roofline.worker", str(folder)]


def measure(session: Session, process: int, root: Path) -> str:
    """Have a worker make the share of `process` of the run of `session`; returns why it ended early, or ""."""
    clock = type(session.clock)
    share = {"folder": str(session.folder.resolve()), "planned": session.planned, "process": process}
    share["clock"] = f"{clock.__module__}:{clock.__qualname__}"
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile("w+", errors="replace") as said:
        command = request(Path(name), session.run.metadata["options"], [], share=share)
        child = subprocess.Popen(
            command, cwd=root, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
        )
        try:
            waiter = Thread(target=child.wait, daemon=True)  # `wait` with a time limit would poll
            waiter.start()
            while waiter.is_alive():
                session.follow(process)
                waiter.join(LOOK_S)
        finally:
            child.kill()
            child.wait()
        return ended(child.returncode, said) if child.returncode else ""


def ended(code: int, said) -> str:
    """How a process ended, in words: by its exit code, and the last line of the file that has its output."""
    if code < 0:
        return f"signal {-code} ({signal.Signals(-code).name})"
    said.seek(0)
    last = (said.read().strip().splitlines() or ["it said nothing"])[-1]
    return f"exit code {code}: {last}"


def take_share(asked: dict, options, runners: operations.Runners) -> None:
    """Make the passes that `asked` says, as `measure` writes it."""
    folder = Path(asked["folder"])
    run = journal.load(folder)
    own = [name for name, shape in run.shapes.items() if shape.stopped_by == INTERRUPTED and name in asked["planned"]]
    for name in own:
        run.shapes[name].keep_whole_shares()
        runners.of(operations.find(run.shapes[name].op)).earlier[name] = run.shapes[name]
    module, _, name = asked["clock"].partition(":")
    clock, any_runner = getattr(import_module(module), name)(), next(iter(runners.known.values()))
    runner.equip(clock, any_runner.instruments())
    readings = telemetry.for_device(options.device)
    session = Session(options, folder, clock, readings, run, asked["planned"], process=asked["process"])
    watchdog = Watchdog(folder) if sys.platform == "linux" else None
    session.expect = watchdog.expect if watchdog else session.expect
    session.prepare = runners.prepare
    session.begin(any_runner.probes, when="")
    session.take_share(own)
    if watchdog:
        watchdog.close()
    sys.exit(session.over or None)


def progress(folder: Path) -> list[dict]:
    """What the worker said: {step, case: [shape, contender], reason}, and of a trial what a first call may take
    (`within_s`) and the `outcome` of what was lost. A line that its end cut off is left out."""
    if not (folder / PROGRESS).exists():
        return []
    lines = (folder / PROGRESS).read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def call_each(cases: list[Case], prepare: Prepare, folder: Path, device: str) -> None:
    """Prepare and call one case after the other on `device`: what one of them does is not laid on the others. Says in
    `folder` what it does. Exits where a call raised, since a new process is safer then."""

    for shape, name in cases:
        say = partial(_say, folder, shape, name)
        say(PREPARE)
        try:
            found = prepare(shape, [name])
        except Exception as error:  # operands that do not fit beside those of the run that began this, for one
            say(LOST, device_errors.reason(error))
            continue
        if name in found.entrants:
            try:
                with _counted(device):
                    say(CALL)
                    found.entrants[name].call()
                say(DONE)
            except Exception as error:
                say(LOST, device_errors.reason(error))
                sys.exit(f"{shape}-{name}: {device_errors.reason(error)}")
        else:
            rejection = found.rejected.get(name)
            say(LOST, rejection.reason if rejection else found.device_lost or "it was left out")
        found.entrants.clear()  # lets go of operands that are not shared with other cases


def try_each(cases: list[Case], prepare: Prepare, folder: Path, device: str, refused: dict[str, str]) -> None:
    """Prepare each shape with its contenders, as a run does, and call once more what is right. Exits where the device
    is lost: its culprit is said, the others have no answer."""
    for shape, own in groupby(cases, key=itemgetter(0)):
        names = [name for _, name in own]

        def first_call(name: str, within_s: float | None = None, shape: str = shape) -> None:
            if reason := refused.get(f"{shape}-{name}"):
                raise RuntimeError(reason)
            _say(folder, shape, name, CALL, within_s=within_s)

        _say(folder, shape, "", PREPARE)
        try:
            found = prepare(shape, names, first_call)
        except Exception as error:  # operands that do not fit beside those of others that try, for one
            for name in names:
                _say(folder, shape, name, UNTRIED, device_errors.reason(error))
            if device_errors.device_lost(device):
                sys.exit(device_errors.reason(error))
            continue
        for name in [name for name in names if name in found.entrants]:
            _say(folder, shape, name, CALL)
            found.take(name, partial(_called, found.entrants[name], device))
        for name, rejection in found.rejected.items():
            if rejection.outcome == FAILED or device == "cpu":
                _say(folder, shape, name, LOST, rejection.reason, outcome=rejection.outcome)
            elif "out of memory" in rejection.reason:  # where several try at once
                _say(folder, shape, name, UNTRIED, rejection.reason)
        if found.device_lost:
            sys.exit(found.device_lost)
        for name in names:
            _say(folder, shape, name, DONE)
        found.entrants.clear()


def _called(entrant: Entrant, device: str) -> Entrant:
    entrant.call()
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
    return entrant


def _say(folder: Path, shape: str, name: str, step: str, reason: str = "", **more) -> None:
    line = {"step": step, "case": [shape, name], "reason": reason} | more
    with (folder / PROGRESS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


@contextmanager
def _counted(device: str) -> Iterator[None]:
    """Count the kernels launched inside, after a marker by which `profile.parse.by_call` tells calls apart."""
    if device != "cuda":
        yield  # there is nothing to count; tests come this way
        return
    import torch

    torch.cuda.synchronize()
    with torch.cuda.profiler.profile():  # cudaProfilerStart and cudaProfilerStop
        torch.cuda._sleep(MARKER_CYCLES)
        yield
        torch.cuda.synchronize()


def _bound(device: str) -> None:
    """Have this process end with the one that began it, and on a CPU refuse it memory before the machine has none."""
    with suppress(ImportError, OSError, AttributeError):  # not on Linux
        import ctypes
        import resource

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if device == "cpu":
            most = resource.getrlimit(resource.RLIMIT_DATA)[1]
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            memory = memory if most == resource.RLIM_INFINITY else min(memory, most)
            resource.setrlimit(resource.RLIMIT_DATA, (memory, most))


def main(folder: Path) -> None:
    """Do what the request in `folder` asks for."""
    asked = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    options = of_values(asked["options"])
    if options.device == "cpu" and not options.timed:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton, which decorates its helpers at import
    for name, own in asked["runners"].items():
        operations.OPERATIONS[name] = replace(operations.OPERATIONS[name], runner=own)
    runners, cases = operations.Runners(options), [tuple(case) for case in asked["cases"]]
    prepare = runners.prepare
    if "share" in asked:
        _bound(options.device)
        take_share(asked["share"], options, runners)
    if "refused" not in asked:
        return call_each(cases, prepare, folder, options.device)
    _bound(options.device)
    try_each(cases, prepare, folder, options.device, asked["refused"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
