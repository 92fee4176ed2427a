"""pytest under torchrun: all ranks select the same, and rank 0 alone prints and saves.

torchrun sends SIGTERM to all ranks as soon as one ends with an exit code. So rank 0 is deaf from where its end begins,
and the others have an exit code only where all are refused, or rank 0 is lost: the verdict is rank 0's.
"""

import importlib.metadata
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from roofline import operations
from roofline.measure import device_errors, metadata, ranks, signals

UNSUITED = ("steady", "counters", "processes", "copier_programs")
"""Options of what one process does by itself."""


def refuse_unsuited(given) -> None:
    """Raises ValueError for the `given` options (names) that real ranks have no use for."""
    for name in UNSUITED:
        if given(name):
            raise ValueError(f"--ffn-{name.replace('_', '-')} under torchrun: it is of a run of one process")


def own_gpu(own: ranks.Ranks) -> None:
    """Give the rank its GPU, before anything of it is used."""
    from roofline.measure.device_ranks import World

    own.world = World(own)


def refuse_restarts() -> None:
    """Raises ValueError where torchrun may begin the ranks anew: what was measured before would be lost."""
    if (restarts := os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) != "0":
        raise ValueError(f"torchrun --max-restarts {restarts}: a run begins once, and is gone on with; leave it out")


def or_exit(own: ranks.Alone | ranks.Ranks, about: str, call: Callable[[], Any]) -> Any:
    """What `call()` returns. Ends all ranks where it refuses on any, or one is lost: with the words of this one, if it
    refused."""
    said = []

    def plainly() -> Any:
        try:
            return call()
        except (ValueError, OSError, pytest.exit.Exception) as error:
            said.append(str(error))
            raise device_errors.RankError(str(error)) from error

    if own is ranks.ALONE:
        return call()
    try:
        return own.agreed(about, plainly)
    except device_errors.RankError as error:
        signals.deafen()
        own.leave()
        if own.rank:  # rank 0 tells, and is let do so
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        own.await_left()
        pytest.exit(said[0] if said else str(error), 2)


def own_cores() -> None:
    """Keep the ranks of this machine off one another's cores."""
    here, count = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if own := cores[here * len(cores) // count : (here + 1) * len(cores) // count]:
        os.sched_setaffinity(0, own)


def is_shared(item) -> bool:
    """Whether all ranks run the test `item`, since it gathers. Others are rank 0's alone."""
    shape = getattr(getattr(item, "callspec", None), "params", {}).get("shape")
    if not shape or "ffn_benchmark" not in item.fixturenames:
        return False
    return operations.find(shape.partition("-")[0]).between_ranks


class Together:
    """Registered where there are several ranks, of which this is `own`."""

    def __init__(self, state, own: ranks.Ranks):
        self._state, self._own, self._broken, self._refused = state, own, "whole", False

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session):
        if self._own.rank:
            session.config.get_terminal_writer()._file = open(os.devnull, "w")  # noqa: SIM115

    def pytest_collectreport(self, report):
        if report.failed:
            self._broken = f"{report.nodeid}: {(report.longreprtext.split(chr(10)) or [''])[-1].strip()}"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        """What all ranks run comes first: nobody waits for what rank 0 runs alone."""
        if not self._state.options.timed:
            shared = [item for item in items if is_shared(item)]
            others = [item for item in items if item not in shared]
            if self._own.rank:
                config.hook.pytest_deselected(items=others)
                others = []
            items[:] = shared + others

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session):
        """End all ranks where one of them has something else in mind."""
        options = {f"option {name}": repr(own) for name, own in vars(self._state.options).items() if name != "results"}
        shared = [item.nodeid for item in session.items if self._state.options.timed or is_shared(item)]
        mine = {
            "Python": platform.python_version(),
            "torch": importlib.metadata.version("torch"),
            "commit": metadata.commit_of(session.config.rootpath),
            **options,
            "collection": self._broken,
            "selection": sorted(shared),
        }
        first, *others = or_exit(self._own, "comparing what was collected", lambda: self._own.gather(mine))
        for rank, other in enumerate(others, 1):
            for what, theirs in other.items():
                if theirs != first[what]:
                    pytest.exit(f"rank {rank} has another {what} than rank 0: {_difference(theirs, first[what])}", 2)

    @pytest.hookimpl(trylast=True)
    def pytest_keyboard_interrupt(self, excinfo):
        signals.deafen()
        traceback.clear_frames(excinfo.tb)  # they keep the group, and so others that wait in it
        self._refused = isinstance(excinfo.value, pytest.exit.Exception)
        self._own.leave()
        self._own.await_left()
        if self._own.silent:
            self._state.problems.append(self._lost)

    @property
    def _lost(self) -> str:
        return f"rank {', '.join(map(str, self._own.silent))} of {self._own.size} gave no verdict: lost, or hangs"

    def pytest_internalerror(self, excrepr, excinfo):
        self._refused = True
        self._own.leave()
        if self._own.rank:
            print(f"rank {self._own.rank}: {device_errors.reason(excinfo.value)}", file=sys.stderr)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session):
        signals.deafen()
        self._own.leave()
        yield
        silent, rank = self._own.silent, self._own.rank
        if rank and not self._refused:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED if 0 in silent else pytest.ExitCode.OK
        if 0 in silent and rank == min({*range(self._own.size)} - {*silent}, default=0):
            why = (self._state.session and self._state.session.over) or self._lost
            print(f"{why}; what rank 0 has journalled is kept", file=sys.stderr)

    def pytest_unconfigure(self):
        """Of one that never came as far as its session's end, too. With an exit code or the store, none ends before all
        are deaf."""
        self._own.leave()
        self._own.await_left()


def _difference(theirs, first) -> str:
    if isinstance(theirs, str):
        return f"{theirs} and not {first}"
    more, less = sorted(set(theirs) - set(first)), sorted(set(first) - set(theirs))
    return f"it {'has' if more else 'lacks'} {(more or less)[0]}"


def nowhere() -> Path:
    """Where a rank journals whose journal nobody reads."""
    _KEPT.append(tempfile.TemporaryDirectory(prefix="roofline-rank-"))
    return Path(_KEPT[-1].name) / "run"


_KEPT: list[tempfile.TemporaryDirectory] = []


class Quiet:
    """In the place of a narrator."""

    plan, uncaptured = None, nullcontext

    def say(self, text: str) -> None:
        pass

    def at(self, *step) -> None:
        pass
