"""What a new user's machine and kernels do: kinds of events, each with its smallest input and the right outcome."""

import pytest

FIRST_CALL = """
from roofline.measure import jobs

jobs.LIMIT_S[jobs.Step.CALL], jobs.HUNG_TIMES, jobs.FIRST_CALL_S = {"cpu": 1.0}, 0, {"usual": 3.5}


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def compile_elsewhere():
    if pid := os.fork():
        return os.waitpid(pid, 0)
    os.setsid()
    spin(1.5)
    os._exit(0)


def strike(place, number, later=False):
    if (place, later) == ("first-numpy", False) and not Path("struck").exists():
        Path("struck").touch()
        DEED
"""
"""What is usual is a second without the CPU, and 3.5 with it."""
IDLE = "in its first call: it was not over in 1 s, the limit of one that uses no CPU; --ffn-first-call-seconds sets"
BUSY = "in its first call: it was not over in 3.5 s, the limit; --ffn-first-call-seconds sets another"

CALLS = [  # what a first call does, options, why it has no number
    ("spin(1.5)", "", ""),
    ("compile_elsewhere()", "", ""),
    ("time.sleep(1.5)", "--ffn-first-call-seconds=30", ""),
    ("time.sleep(60)", "", IDLE),
    ("spin(60)", "", BUSY),
    ("spin(60)", "--ffn-first-call-seconds=0.5", "it was not over in 0.5 s"),
]


@pytest.mark.parametrize(("deed", "option", "reason"), CALLS)
def test_a_first_call_has_patience_while_it_uses_the_cpu(three_shapes, deed, option, reason):
    run = three_shapes("-k", "m64", *option.split(), more=FIRST_CALL.replace("DEED", deed), shares="forks")
    assert [*run.reasons] == ["m64-numpy"] * bool(reason)
    assert run.code == bool(reason)
    assert reason in run.text
