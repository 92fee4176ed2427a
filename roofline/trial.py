"""Contenders are tried before they are trusted: called once on each of their shapes in a process beside the run.

What hangs, dies or breaks the device there costs that process, and its own row of the run: the next process goes on
with the others. Kernels are compiled on the way, on a GPU by several processes at once, into the cache of the run.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from roofline import operations, worker
from roofline.measure import device_errors
from roofline.measure.machine import cores
from roofline.measure.prepared import FAILED, Rejection
from roofline.measure.session import FIRST_CALL_S, HUNG, PREPARE_S, Session
from roofline.stats import grouped

PROCESSES = 4
"""At once on a GPU at most, a process for four cores: compiling takes most of a first call."""

BOX_S = 300.0
"""For each process and those that follow it: what is left by then is not tried."""
LOOK_S, TELL_S, DEATH_S = 0.05, 1.0, 10.0
TOPIC = "trial"

Shapes = dict[str, list[str]]
"""Shape -> contenders."""


def run(session: Session, runners: operations.Runners, root: Path, say: Callable[[str], None]) -> None:
    """Try what is left of `session`'s planned cases and not trusted, and have those that fail get no number, each with
    its reason. `root` is where pytest runs."""
    if not (untrusted := _untrusted(session, runners)):
        return
    began, device = time.monotonic(), session.options.device
    calls = sum(map(len, untrusted.values()))
    say(f"trying {calls} cases beside the run, which compiles what is not in the cache")
    trials = [Trial(part, session.run.metadata["options"], root, device) for part in _parts(untrusted, device)]
    pool = ThreadPoolExecutor(len(trials))
    try:
        for group in (trials[:-1], trials[-1:]):
            futures = [pool.submit(trial.run) for trial in group]
            while wait(futures, TELL_S).not_done:
                session.at()
            for future in futures:
                future.result()
    finally:  # Ctrl-C, too: what is known by then is kept
        for trial in trials:
            trial.stop("it was interrupted")
        pool.shutdown()
        lost = {case: rejection for trial in trials for case, rejection in trial.lost.items()}
        for case, rejection in lost.items():
            session.not_measured("-".join(case), *rejection)
    text = f"Tried beside the run, before it: {calls} cases in {time.monotonic() - began:.0f} s, {len(lost)} lost"
    untried = grouped((why, case) for trial in trials for case, why in trial.untried.items())
    text = "; ".join([text, *(f"{len(cases)} not tried, {why}" for why, cases in untried.items())])
    session.note(TOPIC, f"{text}.")
    say(text)


def _parts(shapes: Shapes, device: str) -> list[Shapes]:
    """What each process tries. The last one does so once the others are done: its shapes go over a link, which keeps
    no pace beside other processes."""
    gathers = {op for op, one in operations.OPERATIONS.items() if one.analysis == "overlap"}
    linked = {shape: names for shape, names in shapes.items() if shape.partition("-")[0] in gathers}
    others = [item for item in shapes.items() if item[0] not in linked]
    count = max(1, min(PROCESSES, cores() // 4)) if device == "cuda" else 1
    return [dict(others[i::count]) for i in range(count)] + [linked]


def _untrusted(session: Session, runners: operations.Runners) -> Shapes:
    """Of operations whose runner another process finds, too."""
    found = {}
    for shape in session.planned:
        try:
            operation = operations.find(shape.partition("-")[0])
        except ValueError:  # a test that measures no operation
            continue
        if isinstance(operation.runner, str) and (names := session.left(shape)):
            found[shape] = runners.of(operation).untrusted(names)
    return {shape: names for shape, names in found.items() if names}


@dataclass
class Trial:
    """Tries `shapes`, one process after the other. `options` are a run's, as its metadata has them."""

    shapes: Shapes
    options: dict
    root: Path
    device: str
    lost: dict[worker.Case, Rejection] = field(default_factory=dict)
    untried: dict[worker.Case, str] = field(default_factory=dict)
    """Why not: the run calls them first, and its watchdog looks after it."""
    _stopped: str = ""
    _process: subprocess.Popen | None = None

    def run(self) -> None:
        left = {shape: list(names) for shape, names in self.shapes.items()}
        deadline, died = time.monotonic() + BOX_S, set()
        while left and not self._stopped:
            cases = [(shape, name) for shape, names in left.items() for name in names]
            refused = {case: rejection.reason for case, rejection in self.lost.items()}
            before = len(cases), len(self.lost), len(died)
            try:
                with tempfile.TemporaryDirectory() as name:
                    why = self._watch(Path(name), worker.request(Path(name), self.options, cases, refused), deadline)
                    self._settle(left, worker.progress(Path(name)), why, died)
            except Exception as error:  # no room for its files, for one: the run does without
                self._stopped = device_errors.reason(error)
            if (sum(map(len, left.values())), len(self.lost), len(died)) == before:
                self._stopped = self._stopped or f"the process that was to do it came no further: {why}"
        for shape, names in left.items():
            self.untried |= dict.fromkeys([(shape, name) for name in names], self._stopped)

    def stop(self, why: str = "") -> None:
        """Kill the process, with all that it began; where there is a reason `why`, begin no other."""
        self._stopped = self._stopped or why
        if self._process and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            try:
                self._process.wait(DEATH_S)
            except subprocess.TimeoutExpired:
                self._stopped = "a process that was killed does not end"

    def _watch(self, folder: Path, command: list[str], deadline: float) -> str:
        """Run `command` until it ends, or hangs; returns how it ended, or "" where it was stopped."""
        with (folder / "said").open("w+", encoding="utf-8", errors="replace") as said:
            self._process = subprocess.Popen(
                command, cwd=self.root, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
            lines, since = 0, time.monotonic()
            while self._process.poll() is None:
                time.sleep(LOOK_S)
                steps = worker.progress(folder)
                if len(steps) > lines:
                    lines, since = len(steps), time.monotonic()
                if time.monotonic() > deadline:
                    self.stop(f"the {BOX_S:g} s that this may take were over")
                elif time.monotonic() - since > (limit := self._limit_s(steps[-1] if steps else None)):
                    self.stop()
                    return f"{HUNG} for {limit:g} s"
            if self._stopped:
                self.stop()
                return ""
            return worker.ended(self._process.returncode, said)

    def _limit_s(self, step: dict | None) -> float:
        if step and step["step"] == worker.CALL:
            return step.get("within_s") or FIRST_CALL_S[self.device]
        return PREPARE_S[self.device]

    def _settle(self, left: Shapes, steps: list[dict], why: str, died: set[str]) -> None:
        """Take out of `left` what has an answer by `steps`, the last of which may have been the end, by `why`. A shape
        that was being prepared is tried again, once: others at the same time may have taken what it needed."""
        for step in steps:
            shape, name = step["case"]
            if step["step"] == worker.LOST:
                self._lose(left, shape, name, step["reason"], step["outcome"])
            elif step["step"] == worker.DONE:
                self._take_out(left, shape, name)
            elif step["step"] == worker.UNTRIED and self._take_out(left, shape, name):
                self.untried[shape, name] = step["reason"]
        step, (shape, name) = (steps[-1]["step"], steps[-1]["case"]) if steps and why else ("", ("", ""))
        if step == worker.CALL:
            self._lose(left, shape, name, f"{name}: {why}, in its first call beside the run")
        elif step == worker.PREPARE and shape in died:
            for name in list(left[shape]):
                self._lose(left, shape, name, f"{name}: {why}, while its shape was prepared beside the run")
        elif step == worker.PREPARE:
            died.add(shape)
            left[shape] = left.pop(shape)  # the last now
        for shape in [shape for shape, names in left.items() if not names]:
            del left[shape]

    def _lose(self, left: Shapes, shape: str, name: str, reason: str, outcome: str = FAILED) -> None:
        self.lost.setdefault((shape, name), Rejection(outcome, reason))
        self._take_out(left, shape, name)

    @staticmethod
    def _take_out(left: Shapes, shape: str, name: str) -> bool:
        """Whether it was in: a baseline comes along unasked."""
        if was_in := name in left.get(shape, ()):
            left[shape].remove(name)
        return was_in
