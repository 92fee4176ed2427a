"""A pytest plugin that plants one fault in one of several ranks: FAULT in the environment, as in `1 call SIGKILL`.

Places of a share are `prepare` (operands of the weight prefetch), `plan` (in the middle of preparing the all-gather),
`check` and `call` (of an arm of the all-gather: its first call, and one that is timed). Those of pytest's process are
`configure`, `collect`, `begin` (of the run), `turns` (a pass was told), `report`, `finish` and `end` (before and after
the rank leaves). In `seed`, `commit`, `Python` and `select` the rank has something else in mind.

All ranks make few rounds, as many on a machine that is busy, and wait for what hangs a few seconds.
"""

import ctypes
import itertools
import os
import platform
import signal
import time

import pytest

RANK, PLACE, WHAT = (os.environ.get("FAULT") or "none nowhere nothing").split()
ROUNDS, PASSES = 6, 2
TIMED_CALL = 6
"""In a share that checks it is called five times, in one that measures once before it is timed."""
LIMIT_S = 6.0
SITE = "import sys\nif sys.orig_argv[-2] == 'roofline.measure.share':\n    import planted\n    planted.in_share()\n"
"""What Python imports as it starts."""
LATE_S = 2.0


def strike(place: str) -> None:
    if (os.environ["RANK"], place) != (RANK, PLACE):
        return
    if WHAT.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, WHAT))
    elif WHAT == "late":
        time.sleep(LATE_S)
    elif WHAT == "python":
        while True:
            time.sleep(0.01)
    elif WHAT == "c":
        mutex = ctypes.create_string_buffer(64)
        for _ in range(2):
            ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # with Python's lock held
    else:
        raise ArithmeticError("planted")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    from roofline.measure import metadata

    if os.environ["RANK"] == RANK and PLACE == "seed":
        config.option.ffn_seed = WHAT
    if os.environ["RANK"] == RANK and PLACE == "commit":
        metadata.commit_of = lambda *given, **more: WHAT
    if os.environ["RANK"] == RANK and PLACE == "Python":
        platform.python_version = lambda: WHAT


def pytest_collection_modifyitems(items):
    if os.environ["RANK"] == RANK and PLACE == "select":
        del items[-1]


def before(place, of, name):
    kept = getattr(of, name)
    setattr(of, name, lambda *given, **more: strike(place) or kept(*given, **more))


def few_rounds():
    from roofline.measure import ranks, rounds

    rounds.StopRule.min_rounds, rounds.PATIENCE = ROUNDS, 1e6
    ranks.RanksCpuClock.passes = PASSES


def in_share():
    from collectives.bench import all_gather_matmul, weight_prefetch

    few_rounds()
    before("prepare", weight_prefetch.Prefetch, "_operands")
    kept, calls = all_gather_matmul.AllGather.grid_facts, itertools.count(1)
    all_gather_matmul.AllGather.grid_facts = lambda self: kept(self) | (strike("plan") or {})
    arm, arms = all_gather_matmul.all_gather_matmul.ARMS["chunk_launches"], all_gather_matmul.Runner.own_arms
    places = {1: "check", TIMED_CALL: "call"}
    arms["chunk_launches"] = lambda *given: strike(places.get(next(calls), "")) or arm(*given)


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    strike("configure")
    from roofline.measure import metadata, ranks, supervisor
    from roofline.pytest_plugin import narrator

    few_rounds()
    for step in set(supervisor.LIMIT_S) - {supervisor.START, supervisor.PREPARE}:
        supervisor.LIMIT_S[step] = {"cpu": LIMIT_S}
    supervisor.RULE_TIMES = supervisor.HUNG_TIMES = 0
    if WHAT == "late":
        ranks.LEAVING_S = 0.0
    before("begin", metadata, "make")
    before("turns", supervisor.Measure, "take_turns")
    before("report", narrator, "write")
    if not config.option.benchmark_only:
        in_share()


def pytest_pycollect_makeitem():
    strike("collect")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish():
    strike("finish")
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    strike("end")
