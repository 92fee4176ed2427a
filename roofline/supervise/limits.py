"""Limits on the time of a step, behind which a worker counts as hung."""

import math
import os
import time
from contextlib import suppress
from pathlib import Path

from roofline.operations.contenders import FIRST_CALL_S
from roofline.operations.options import Options
from roofline.protocol.messages import Step, StepBegan

BASELINE_CALLS, TIMES_OF_RULE = 100, 3
LIMIT_S = {
    Step.START: {"cpu": 120.0, "cuda": 180.0},  # imports, and on a GPU its context
    Step.IDLE: {"cpu": 20.0, "cuda": 30.0},
    Step.CEILINGS: {"cpu": 180.0, "cuda": 240.0},
    Step.PREPARE: {"cpu": 60.0, "cuda": 180.0},  # on a GPU also matmuls that are compiled and timed to choose one
    Step.CALL: {"cpu": 60.0, "cuda": 120.0},  # without the CPU: one that uses it has `contenders.FIRST_CALL_S`
    Step.RECHECK: {"cpu": 20.0, "cuda": 60.0},
    Step.TURNS: {"cpu": 10.0, "cuda": 20.0},
    Step.STEADY: {"cpu": 10.0, "cuda": 20.0},
}
"""Seconds that a step may take on a device.

The rule: limit = this + `BASELINE_CALLS` calls of the baseline for each entrant that the step calls + `TIMES_OF_RULE`
the seconds that the step's own rule names. The second and third are of steps at a shape. A first call has no rule: it
may take `FIRST_CALL_S`, or what its contender or the option says, as long as it uses `BUSY` of a core."""

BUSY = 0.02
"""A first call that takes this fraction of a core, with all that it began, is at work."""


def limit_s(step: StepBegan, device: str, baseline_call_s: float) -> float:
    """The seconds that `step` may take, where a call of the baseline takes `baseline_call_s`."""
    limit = LIMIT_S[step.step][device]
    if not step.shape:
        return limit
    calls = len(step.entrants) or 1
    of_rule_s = 0.0 if step.step == Step.CALL else step.seconds or 0.0
    return limit + BASELINE_CALLS * calls * baseline_call_s + TIMES_OF_RULE * of_rule_s


class Patience:
    """The rest of a worker's limit at its present step."""

    def __init__(self, step: StepBegan, options: Options, baseline_call_s: float, process: int):
        self._began, self._process, self._step = time.monotonic(), process, step
        self._limit_s = self._idle_s = self._most_s = limit_s(step, options.device, baseline_call_s)
        self._used_s = 0.0
        if step.step == Step.CALL:
            chosen_s, are_ranks = options.first_call_seconds, options.world > 1
            usual_s = 0.0 if are_ranks else FIRST_CALL_S["usual"]
            self._most_s = chosen_s or max(self._limit_s, step.seconds or usual_s)
            if chosen_s or are_ranks:  # one sleeps while another compiles
                self._limit_s = self._most_s
            self._used_s = cpu_s(process)

    @property
    def left_s(self) -> float:
        """The seconds until the worker hangs."""
        return self._began + self._limit_s - time.monotonic()

    def is_over(self) -> bool:
        """True where the worker hangs. A first call gets as much again while it uses the CPU."""
        if self.left_s > 0:
            return False
        used_s = cpu_s(self._process)
        if self._limit_s >= self._most_s or used_s - self._used_s < BUSY * self._idle_s:
            return True
        self._used_s, self._limit_s = used_s, min(self._limit_s + self._idle_s, self._most_s)
        return False

    @property
    def words(self) -> str:
        """The limit, and what sets another."""
        words = f"{self._limit_s:.4g} s, the limit"
        if self._step.step != Step.CALL:
            return words
        if self._limit_s < self._most_s:
            words += " of one that uses no CPU"
        return f"{words}; --ffn-first-call-seconds sets another"


def cpu_s(process: int | str) -> float:
    """The seconds of the CPU that a process has used, with its children of any session, those that ended, too.
    NaN where it is gone, or the system does not say: outside of Linux."""
    folder, seconds = Path("/proc", str(process)), math.nan
    with suppress(OSError):
        ticks = (folder / "stat").read_text().rpartition(")")[2].split()[11:15]
        seconds = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        for children in folder.glob("task/*/children"):
            others = [cpu_s(child) for child in children.read_text().split()]
            seconds += sum(other for other in others if other == other)
    return seconds
