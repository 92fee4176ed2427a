"""A pytest plugin that plants one fault in one of several ranks: FAULT in the environment, as in `1 call SIGKILL`.

Places of a share are `start` (before it tells anything), `prepare` (operands of the weight prefetch), `plan` (in the
middle of preparing the all-gather), `check` and `call` (of an arm of the all-gather: its first call, and one that is
timed), `matmul` (of another arm in a call that is timed, while its link brings the rest). Those of a rank's own process
are `hello` (as it says what it is), `turns` (a pass was told) and `end` (it leaves); of rank 0's, which is pytest,
`report`. In `commit` and `words` the rank has something else in mind.

All ranks make few rounds, as many on a machine that is busy, and wait for what hangs a few seconds.
"""

import itertools
import os
import signal
import time

import forked

RANK, PLACE, WHAT = (os.environ.get("FAULT") or "none nowhere nothing").split()
ROUNDS, PASSES = 6, 2
TIMED_CALL = 6
"""In a share that checks it is called five times, in one that measures once before it is timed."""
LIMIT_S = 15.0


def is_struck(place: str) -> bool:
    return (os.environ["RANK"], place) == (RANK, PLACE)


def strike(place: str) -> None:
    if not is_struck(place):
        return
    if WHAT.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, WHAT))
    elif WHAT == "python":
        while True:
            time.sleep(0.01)
    elif WHAT == "c":
        forked.hang()
    else:
        raise ArithmeticError("planted")


def before(place, of, name):
    kept = getattr(of, name)
    setattr(of, name, lambda *given, **more: strike(place) or kept(*given, **more))


def few_rounds():
    from roofline.worker import ranks, rounds

    rounds.StopRule.min_rounds, rounds.PATIENCE = ROUNDS, 1e6
    ranks.RanksCpuClock.passes = PASSES


def in_share():
    strike("start")
    from collectives.bench import all_gather_matmul, weight_prefetch

    few_rounds()
    before("prepare", weight_prefetch.Prefetch, "make")
    kept, calls = all_gather_matmul.AllGather.cut, itertools.count(1)
    all_gather_matmul.AllGather.cut = lambda self: kept(self) | (strike("plan") or {})
    arm, arms = all_gather_matmul.all_gather_matmul.ARMS["chunk_launches"], all_gather_matmul.Runner.own_arms
    places = {1: "check", TIMED_CALL: "call"}
    arms["chunk_launches"] = lambda *given: strike(places.get(next(calls), "")) or arm(*given)
    by_blocks, block_calls = all_gather_matmul.all_gather_matmul.ARMS["row_block_launches"], itertools.count(1)

    def struck(operands, link):
        place = "matmul" if next(block_calls) == TIMED_CALL else ""
        return by_blocks(operands, link, lambda *given: strike(place) or operands.matmul(*given))

    arms["row_block_launches"] = struck


def pytest_addoption():
    """Of a rank that only follows, the last that pytest asks for."""
    from roofline.host import checkout
    from roofline.pytest_plugin import hooks, narrator
    from roofline.supervise import child, epochs, limits

    few_rounds()
    forked.install(in_share)
    if is_struck("commit"):
        checkout.commit_of = lambda *given, **more: WHAT
    before("hello", hooks, "identity")
    before("end", epochs.Epochs, "leave")
    receive = child.Channel.receive
    child.Channel.receive = lambda channel: _told(receive(channel))
    for step in set(limits.LIMIT_S) - {limits.Step.START, limits.Step.PREPARE}:
        limits.LIMIT_S[step] = {"cpu": LIMIT_S}
    limits.TIMES_OF_RULE = limits.BASELINE_CALLS = 0
    before("report", narrator, "write")


def _told(line):
    from roofline.protocol.messages import JournalLines

    if isinstance(line, JournalLines) and line.lines[-1]["kind"] == "round":
        strike("turns")
    return line
