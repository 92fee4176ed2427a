"""Several ranks, as their supervisors see them. Without torchrun there is one, and none of this is made.

Rank 0 alone is pytest: it plans, journals and reports. The other ranks' processes `follow`. A run of workers, one
on each rank, is an epoch: rank 0 asks for it in torchrun's store, and each rank begins its worker. A rank whose worker
raises or dies reports that, rank 0 waits until it is known who was the first, and the epoch is over: all end their
workers, and rank 0 asks for the next one with the rest.

Each rank shows a sign of life in the store: a rank that is stopped or lost ends the run, and no case is blamed.
"""

import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from roofline.store.outcome import Outcome
from roofline.supervise import metadata, signals
from roofline.supervise.blame import HUNG, WorkerEnd
from roofline.supervise.child import STOPPED, Child
from roofline.worker.messages import Broke, Done, Request, Step, StepBegan
from roofline.worker.ranks import LATE_S, PATIENCE_S, wait_for

BEAT_S, LOST_S = 1.0, PATIENCE_S / 4
"""From one sign of life of a supervisor to the next, and without one for so long it is lost."""
LEAVING_S = 5.0
"""For all to leave at the end of a run."""
FIRST_S = 4.0
"""After the worker of one rank raised or hung, so long is waited for word that another rank's has died, which is the
likelier cause."""
LOOK_S = 0.05
"""From one look of a follower at its worker and at the store to the next."""

WAITING = ("/torch/", "/collectives/", "/roofline/worker/")
"""Code in which ranks wait for one another."""


class RankLostError(RuntimeError):
    """A rank has left, or says nothing any more: nothing more can be measured with it."""


class Epochs:
    """What a supervisor says to those of other ranks, and hears of them."""

    def __init__(self, store, rank: int, size: int):
        from torch.distributed import PrefixStore

        self.rank, self.size, self.store = rank, size, PrefixStore("supervisors", store)
        self.number, self.loopback = 0, True
        """`number` is that of the epoch that was begun last."""
        self._beats = dict.fromkeys(set(range(size)) - {rank} if rank == 0 else [0], (None, time.monotonic()))
        """{rank that this one listens to: (its last sign of life, since when that is known)}."""
        self._ends = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        count = 0
        while not self._ends.wait(BEAT_S):
            count += 1
            try:
                self.store_set(f"beat {self.rank}", count)
            except RankLostError:  # which the supervisor notices, too
                return

    def store_set(self, key: str, value: Any = "") -> None:
        """Let all ranks read `value`, plain data. Raises `RankLostError` where the store is gone."""
        with self._store_lost():
            self.store.set(key, json.dumps(value))

    def store_get(self, key: str) -> Any:
        """The value that a rank has set; None where none has. Raises `RankLostError` where the store is gone."""
        with self._store_lost():
            return json.loads(self.store.get(key)) if self.store.check([key]) else None

    @contextmanager
    def _store_lost(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError:  # it goes with torchrun's agent on rank 0's node
            place = "rank 0's node" if self.rank else "torchrun"
            raise RankLostError(f"{place} is gone: its store answers no more") from None

    def check_heartbeats(self) -> list[int]:
        """The ranks whose sign of life is late. Raises RankLostError where one is lost."""
        now, late = time.monotonic(), []
        for rank, (beat, since) in self._beats.items():
            if (latest := self.store_get(f"beat {rank}")) != beat:
                self._beats[rank] = latest, now
            elif now - since > LOST_S:
                raise RankLostError(f"rank {rank} of {self.size} has said nothing for {LOST_S:g} s")
            elif now - since > 3 * BEAT_S:
                late.append(rank)
        return late

    # Of rank 0.

    def rendezvous(self, mine: dict) -> None:
        """Wait for the others, and raise ValueError where one cannot take part, or differs from `mine`."""
        for rank in range(1, self.size):
            theirs = wait_for(partial(self.store_get, f"hello {rank}"), PATIENCE_S)
            if not theirs:
                raise ValueError(f"rank {rank} of {self.size} has said nothing for {PATIENCE_S:g} s")
            for name, value in mine.items():
                if theirs[name] != value:
                    raise ValueError(f"rank {rank} has another {name} than rank 0: {_difference(theirs[name], value)}")

    def begin(self, request: Request) -> Request:
        """Ask all ranks for a worker that does what `request` says; returns that, with what workers are told of
        ranks."""
        self.number += 1
        request = replace(request, world={"size": self.size, "epoch": self.number, "loopback": self.loopback})
        self.store_set(f"epoch {self.number}", asdict(request))
        return request

    def report(self, end: WorkerEnd) -> None:
        """Tell rank 0 how this rank's worker ended."""
        self.store_set(f"ended {self.number} {self.rank}", asdict(end))

    def reports(self) -> list[WorkerEnd]:
        """How workers of other ranks ended in this epoch, but well."""
        ends = []
        for rank in range(1, self.size):
            if report := self.store_get(f"ended {self.number} {rank}"):
                report["step"] = StepBegan(**report["step"])
                if broke := report["broke"]:
                    report["broke"] = Broke(**broke | {"outcome": Outcome(**broke["outcome"])})
                ends.append(WorkerEnd(**report))
        return ends

    def end(self, mine: WorkerEnd | None, child: Child, signals: list) -> WorkerEnd | None:
        """End the epoch, once it is known what ended it, and return that: how this rank's worker, `child`, ended, if it
        has, or another's; None where a signal came first. Raises RankLostError where it was no worker."""
        began, ends, late = time.monotonic(), [], []
        while not signals:
            late = self.check_heartbeats()
            ends = [mine, *self.reports()] if mine else self.reports()
            is_clear = any(end.has_died for end in ends) or time.monotonic() - began > FIRST_S
            if is_clear and not late:
                break
            time.sleep(LOOK_S)
        if signals:
            ends = [mine] if mine else []
        end = min(ends, key=lambda end: (end.is_hung, not end.has_died), default=None)  # the likelier cause first
        if end and end.may_be_of_another:
            end = self.hung(end, child)
        self.store_set(f"over {self.number}")
        return end

    def hung(self, end: WorkerEnd, child: Child) -> WorkerEnd:
        """Who made a worker `end` that came to its limit, or that waited for another rank in vain: the ranks that hang.

        All are asked where their workers stand, this rank's `child` too. Those hang that do not answer, or else those
        that are in no code in which ranks wait for one another. Where all wait, what was lost is not known: then any of
        them came to its limit, and what raised keeps its word."""
        stands = self._stands(child)
        stopped = [rank for rank, (place, _) in stands.items() if place == STOPPED]
        busy = [rank for rank, (place, _) in stands.items() if not any(folder in place for folder in WAITING)]
        ranks = stopped or busy
        if not ranks and end.broke:
            return end
        ranks = ranks or list(stands)
        _, marked = stands[ranks[0]]
        return WorkerEnd(
            rank=" or ".join(map(str, ranks)),
            step=end.step,
            how=HUNG,
            marked=marked if len(ranks) == 1 else end.marked,
            limit=f"{LATE_S:.4g} s, for which rank {end.rank} waited" if end.broke else "",
        )

    def _stands(self, child: Child) -> dict[int, tuple[str, int]]:
        """{rank: where its worker stands, and what it has marked}, of this rank's `child` too."""
        self.store_set(f"hung {self.number}")
        stands = {0: (child.stands_at(), child.marked)}
        keys = {rank: f"stands {self.number} {rank}" for rank in range(1, self.size)}
        wait_for(lambda: None not in map(self.store_get, keys.values()), 3 * BEAT_S)
        for rank, key in keys.items():
            stands[rank] = self.store_get(key) or (STOPPED, 0)
        return stands

    def close(self) -> list[int]:
        """End the run for all ranks, once; returns those that did not leave, or had no chance to."""
        if self._ends.is_set():
            return []
        silent = list(range(1, self.size))

        def have_left() -> bool:
            silent[:] = [rank for rank in silent if self.store_get(f"left {rank}") is None]
            return not silent

        with suppress(RankLostError):
            self.store_set("over")
            wait_for(have_left, LEAVING_S)
        self._ends.set()
        return silent

    def leave(self) -> None:
        """Take no further part."""
        with suppress(RankLostError):
            self.store_set(f"left {self.rank}")
        self._ends.set()


def _difference(theirs: str | list[str], mine: str | list[str]) -> str:
    if isinstance(mine, str):
        return f"{theirs} and not {mine}"
    return f"{' '.join(sorted({*theirs} ^ {*mine}))} is given to one of them"


class Follower:
    """A rank other than 0: its workers begin and end as rank 0 says."""

    def __init__(self, epochs: Epochs, root: Path):
        self._epochs, self._root = epochs, root
        self._child: Child | None = None

    def run(self, mine: dict) -> int:
        """Follow until rank 0 says that the run is over; returns an exit code. `mine` is what rank 0 compares."""
        epochs = self._epochs
        signals.answer(self._hand_on)
        try:
            epochs.store_set(f"hello {epochs.rank}", mine)
            while epochs.store_get("over") is None:
                epochs.check_heartbeats()
                if self._child:
                    self._tend(self._child)
                elif asked := epochs.store_get(f"epoch {epochs.number + 1}"):
                    epochs.number += 1
                    self._child = Child(Request(**asked), self._root)
                    self._step = StepBegan(Step.START)
                    self._is_done = self._has_told = False
                else:
                    time.sleep(LOOK_S)
        except RankLostError as lost:
            if epochs.rank == 1:
                print(f"{lost}; what rank 0 has journalled is kept", file=sys.stderr)
            return 1
        finally:
            if self._child:
                self._child.end()
            epochs.leave()
        return 0

    def _tend(self, child: Child) -> None:
        """Let the worker go on with what it tells, unless it raised; report how it ends, if not well."""
        epochs = self._epochs
        if not self._has_told and epochs.store_get(f"hung {epochs.number}") is not None:
            self._has_told = True
            epochs.store_set(f"stands {epochs.number} {epochs.rank}", [child.stands_at(), child.marked])
        if epochs.store_get(f"over {epochs.number}") is not None:
            child.end()
            self._child = None
        elif child.is_over or wait([child.waits_at], LOOK_S):
            try:
                if child.is_over:
                    raise EOFError
                if child.channel:
                    self._let_go_on(child, child.channel.receive())
                else:
                    child.connect()
            except (EOFError, OSError):
                how, self._child = child.end(2.0), None
                if not self._is_done:
                    epochs.report(WorkerEnd(self._step, how, child.marked, rank=epochs.rank))

    def _let_go_on(self, child: Child, message: object) -> None:
        if isinstance(message, Broke):
            end = WorkerEnd(self._step, broke=message, rank=self._epochs.rank)
            return self._epochs.report(end)
        if isinstance(message, StepBegan):
            self._step = message
        self._is_done = isinstance(message, Done)
        child.channel.acknowledge(stop=False)

    def _hand_on(self, number: int, frame) -> None:
        """Tell rank 0 of a signal: it ends the run."""
        with suppress(RankLostError):
            self._epochs.store_set("interrupted", signal.Signals(number).name)


def identity(root: Path, words: list[str]) -> dict:
    """What ranks have in common: versions, commit, and the `words` of the command line."""
    return {
        "Python": platform.python_version(),
        "torch": version("torch"),
        "commit": metadata.commit_of(root),
        "command line": [word for word in words if not word.startswith("--ffn-results")],
    }


def of_environment() -> Epochs | None:
    """This process's part among the ranks that torchrun started; None where it is alone. Keeps it off the cores
    of other ranks.

    Raises ValueError where torchrun's variables are incomplete, and OSError where its store does not answer.
    """
    if os.environ.get("WORLD_SIZE", "1") in ("", "1"):
        return None
    if lacking := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
        raise ValueError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} without {', '.join(lacking)}: start several ranks with torchrun "
            "--nproc-per-node N -m pytest ..., or unset WORLD_SIZE"
        )
    from torch.distributed import rendezvous

    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=timedelta(seconds=PATIENCE_S))))
    except RuntimeError as error:
        raise OSError(f"torchrun's store does not answer: {error}") from None
    del os.environ["WORLD_SIZE"]  # a process that this one begins is no rank
    here, count = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if of_rank := cores[here * len(cores) // count : (here + 1) * len(cores) // count]:
        os.sched_setaffinity(0, of_rank)
    return Epochs(store, rank, size)
