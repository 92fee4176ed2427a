"""A pytest plugin that plants one fault in one of several ranks: FAULT in the environment, as in `1 call SIGKILL`.

Places are `configure`, `collect`, `begin` (of the run), `prepare` (operands of the weight prefetch), `plan` (in the
middle of preparing the all-gather), `check` and `call` (of an arm of the all-gather: its first call, and one that is
timed), `report`, `finish` and `end` (before and after the rank leaves). In `seed`, `commit`, `Python` and `select` the
rank has something else in mind.

All ranks make few rounds, as many on a machine that is busy.
"""

import ctypes
import itertools
import math
import os
import platform
import signal
import time

import pytest

RANK, PLACE, WHAT = (os.environ.get("FAULT") or "none nowhere nothing").split()
ROUNDS, PASSES = 6, 2
TIMED_CALL = 4 + 4
"""Four check the arm; then it is in the second pass."""
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


@pytest.hookimpl(trylast=True)
def pytest_configure():
    strike("configure")
    from collectives.bench import all_gather_matmul, weight_prefetch
    from roofline.measure import metadata, ranks, rounds
    from roofline.pytest_plugin import narrator

    rounds.StopRule.min_rounds, rounds.PATIENCE = ROUNDS, math.inf
    ranks.RanksCpuClock.passes = PASSES
    if WHAT == "late":
        ranks.LEAVING_S = 0.0

    def before(place, of, name):
        kept = getattr(of, name)
        setattr(of, name, lambda *given, **more: strike(place) or kept(*given, **more))

    before("prepare", weight_prefetch.Prefetch, "_operands")
    before("begin", metadata, "make")
    before("report", narrator, "write")
    kept, calls = all_gather_matmul.AllGather.grid_facts, itertools.count(1)
    all_gather_matmul.AllGather.grid_facts = lambda self: kept(self) | (strike("plan") or {})
    arm, arms = all_gather_matmul.all_gather_matmul.ARMS["chunk_launches"], all_gather_matmul.Runner.own_arms
    places = {1: "check", TIMED_CALL: "call"}
    arms["chunk_launches"] = lambda *given: strike(places.get(next(calls), "")) or arm(*given)


def pytest_pycollect_makeitem():
    strike("collect")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish():
    strike("finish")
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    strike("end")
