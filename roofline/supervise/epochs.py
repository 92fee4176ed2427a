"""Several ranks, as their supervisors see them. Without torchrun there is one, and none of this is made.

Rank 0 alone is pytest: it plans, journals and reports. The other ranks' processes `follow`. A run of workers, one
on each rank, is an epoch: rank 0 asks for it in torchrun's store, and each rank begins its worker. A worker that
raises, dies or hangs ends the run. All ranks then leave, each with a word on its own worker, by which rank 0 blames the
likeliest. Where a rank is stopped or lost, the workers of others wait for its own until they break, or their limit is
over; it does not leave, and no case is blamed.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from roofline.host import orphans
from roofline.host.waiting import PATIENCE_S, wait_for
from roofline.protocol.messages import Request
from roofline.store import typed
from roofline.supervise import signals
from roofline.supervise.child import Child, WorkerEnd

LEAVING_S = 5.0
"""For rank 0 to end a run in which a worker failed, and for all to leave it then: who does not is lost."""
LOOK_S = 0.05
"""From one look of a follower at its worker and at the store to the next."""


class RankLostError(RuntimeError):
    """A rank has left, or says nothing any more: nothing more can be measured with it."""


class Epochs:
    """The supervisors of all ranks, as one of them speaks to the others and hears of them."""

    def __init__(self, store, rank: int, size: int):
        from torch.distributed import PrefixStore

        self.rank, self.size, self.store = rank, size, PrefixStore("supervisors", store)
        self.number = 0
        """That of the epoch that was begun last."""
        self._has_left = False

    def store_set(self, key: str, value: Any = True) -> None:
        """Let all ranks read `value`, plain data or a dataclass. Raises `RankLostError` where the store is gone."""
        with self._store_lost():
            self.store.set(key, typed.encoded(value))

    def store_get(self, key: str) -> Any:
        """The value that a rank has set; None where none has. Raises `RankLostError` where the store is gone."""
        with self._store_lost():
            return typed.decoded(self.store.get(key)) if self.store.check([key]) else None

    @contextmanager
    def _store_lost(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError:  # it goes with torchrun's agent on rank 0's node
            place = "rank 0's node" if self.rank else "torchrun"
            raise RankLostError(f"{place} is gone: its store answers no more") from None

    # Of rank 0.

    def rendezvous(self, mine: dict) -> None:
        """Wait for the others, and raise ValueError where one cannot take part, or differs from `mine`."""
        for rank in range(1, self.size):
            theirs = wait_for(partial(self.store_get, f"hello {rank}"), PATIENCE_S)
            if not theirs:
                raise ValueError(f"rank {rank} of {self.size} has said nothing for {PATIENCE_S:g} s")
            for name, value in mine.items():
                if theirs[name] != value:
                    raise ValueError(f"rank {rank} has another {name} than rank 0: {theirs[name]} and not {value}")

    def begin(self, request: Request) -> Request:
        """Ask all ranks for a worker that does what `request` says; returns that, with what workers are told of
        ranks."""
        self.number += 1
        request = replace(request, world={"size": self.size, "epoch": self.number})
        self.store_set(f"epoch {self.number}", request)
        return request

    def end(self, mine: WorkerEnd) -> WorkerEnd:
        """End the run for all ranks, since this one's worker or another's did not end well. Returns the end that caused
        it, most likely. Raises RankLostError where a rank does not leave."""
        if silence := self.close():
            raise RankLostError(silence)
        ends = {"0": mine}
        for rank in range(1, self.size):
            if left := self.store_get(f"left {rank}"):
                ends[str(rank)] = typed.read(WorkerEnd, left)
        likeliest = min(ends, key=lambda rank: ends[rank].excuse)
        cause = ends[likeliest]
        if cause.is_hung:  # so do all
            return replace(cause, stands="; ".join(f"rank {rank}: {end.stands}" for rank, end in ends.items()))
        return replace(cause, rank=likeliest)

    def close(self) -> str:
        """End the run for all ranks, once; returns which did not leave, in words."""
        if self._has_left:
            return ""
        silent = ", ".join(map(str, self._part("over", True)))
        return f"rank {silent} of {self.size} has said nothing for {LEAVING_S:g} s" if silent else ""

    def leave(self, end: WorkerEnd | None = None) -> None:
        """Take no further part, and say how this rank's worker ended, or that it goes on. Returns once all ranks have:
        a worker that is ended sooner breaks those that wait for it."""
        self._part(f"left {self.rank}", end or "")

    def _part(self, key: str, value: Any) -> list[int]:
        """Set `key`, and wait until all ranks have left; returns those that have not."""

        def silent() -> list[int]:
            return [rank for rank in others if self.store_get(f"left {rank}") is None]

        others = list(range(1, self.size))
        with suppress(RankLostError):
            self.store_set(key, value)
            wait_for(lambda: not silent(), LEAVING_S)
            others = silent()
        self._has_left = True
        return others


def follow(epochs: Epochs, root: Path, mine: dict) -> int:
    """Be a rank other than 0, whose workers begin and end as rank 0 says, until that says that the run is over. Returns
    an exit code. `mine` is what rank 0 compares."""
    child = end = None
    # Rank 0 is told of a signal, and ends the run.
    signals.answer(lambda number, frame: epochs.store_set("interrupted", signals.name_of(number)))
    with orphans.adopted():
        try:
            epochs.store_set(f"hello {epochs.rank}", mine)
            while not epochs.store_get("over"):
                if asked := epochs.store_get(f"epoch {epochs.number + 1}"):
                    epochs.number += 1
                    child = Child(typed.read(Request, asked), root)
                    end = _end_of(epochs, child)
                else:
                    time.sleep(LOOK_S)
        except RankLostError as lost:
            if epochs.rank == 1:
                print(f"{lost}; what rank 0 has journalled is kept", file=sys.stderr)
            return 1
        finally:
            epochs.leave(end)
            if child:
                child.end()
    return 0


def _end_of(epochs: Epochs, child: Child) -> WorkerEnd | None:
    """How a worker ends, or stands when rank 0 ends the run; None where it did well. It goes on with what it tells;
    where it ends otherwise, rank 0 is told, and waited for. Raises RankLostError."""
    while not epochs.store_get("over"):
        if not child.has_told(LOOK_S):
            continue
        message = child.hear()
        if not isinstance(message, WorkerEnd):
            child.go_on()
        elif message.is_well:
            return None
        else:
            epochs.store_set("failed")
            if wait_for(partial(epochs.store_get, "over"), LEAVING_S):
                return message
            raise RankLostError(f"rank 0 of {epochs.size} has said nothing for {LEAVING_S:g} s")
    return None if child.is_done else child.stand()
