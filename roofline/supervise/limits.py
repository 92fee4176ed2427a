"""Limits on the time of a step, behind which a worker counts as hung."""

from roofline.operations.options import Options
from roofline.protocol.messages import Step, StepBegan

BASELINE_CALLS, TIMES_OF_RULE = 100, 3
LIMIT_S = {
    Step.START: {"cpu": 120.0, "cuda": 180.0},  # imports, and on a GPU its context
    Step.IDLE: {"cpu": 20.0, "cuda": 30.0},
    Step.CEILINGS: {"cpu": 180.0, "cuda": 240.0},
    Step.PREPARE: {"cpu": 60.0, "cuda": 180.0},  # on a GPU also matmuls that are compiled and timed to choose one
    Step.CALL: {"cpu": 120.0, "cuda": 120.0},  # Triton compiles a kernel within half a minute
    Step.RECHECK: {"cpu": 20.0, "cuda": 60.0},
    Step.TURNS: {"cpu": 10.0, "cuda": 20.0},
    Step.STEADY: {"cpu": 10.0, "cuda": 20.0},
}
"""Seconds that a step may take on a device.

The rule: limit = this + `BASELINE_CALLS` calls of the baseline for each entrant that the step calls + `TIMES_OF_RULE`
the seconds that the step's own rule names. The second and third are of steps at a shape. A first call has no rule: it
may take as long as its contender (`contenders.FIRST_CALL_S`) or --ffn-first-call-seconds says."""


def limit_s(step: StepBegan, options: Options, baseline_call_s: float) -> float:
    """The seconds that `step` may take, where a call of the baseline takes `baseline_call_s`."""
    limit = LIMIT_S[step.step][options.device]
    if not step.shape:
        return limit
    limit += BASELINE_CALLS * (len(step.entrants) or 1) * baseline_call_s
    said_s = step.seconds or 0.0
    if step.step == Step.CALL:
        return options.first_call_seconds or max(limit, said_s)
    return limit + TIMES_OF_RULE * said_s
