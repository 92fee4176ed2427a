"""What a link moves, and the protocol by which a consumer learns that it is here.

A link makes transfers one after another, in the order it is given. The producer is started before the consumer. The
consumer says with `wait(count)` how many transfers it needs next; a transfer that never comes is an error that names
its chunk, within a bound.

    link.start(transfers)      # the producer begins
    here = link.wait(3)        # the consumer goes on once three have arrived; here >= 3 of them are
    ...                        # or a kernel looks itself, at link.signals(), where the link is one of a GPU
    link.finish()              # all have arrived
    link.timeline()            # when they did, and when the consumer waited

What is still to be computed is started as not ready, `link.start(transfers, ready=0)`, and `link.ready(count)` lets the
first `count` transfers go. Where the consumer is stopped before that, `link.abandon()` ends the run: a GPU's stream
would wait for ever. Arms are run as `ended(arm)`, which sees to it.

Kinds: `preset` moves nothing, its data is there and its flags are up. `paced` moves real bytes at a bandwidth that is
asked for, by a thread (`collectives.paced`) or by a kernel (`collectives.device`): an emulation, whatever its
bandwidth, which is never called NVLink or InfiniBand. The others are between real ranks: `collectives.ranks`,
`collectives.device_ranks`.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernels.contract import Signals

SLICE_BYTES = 2**20
"""A transfer is cut in slices of at most this, each in its slot of time: traffic as even as a wire's."""

PATIENCE_S = 2.0
"""A transfer that is this much later than it was due will not come."""


class LinkError(RuntimeError):
    """A transfer did not arrive: the message names its chunk and the ranks it goes from and to."""


@dataclass(frozen=True)
class Transfer:
    """`source[rows, columns]` is copied to `target`; rows are contiguous. It is of the rank `chunk`'s shard; where the
    shard goes in several pieces, this is the one of row block `block`.

    Between real ranks this one sends a piece meanwhile, `sent`, to a rank that lies as far before it as `chunk` lies
    behind it. In a gather that is the piece of its own `shard`. In a scatter it is the `source`, this rank's part for
    another, and the target takes the part that comes from `chunk`: in one process the two are the same, since each rank
    is the measured one, turned by its number.
    """

    chunk: int
    block: int
    source: Tensor
    target: Tensor
    shard: Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self.source.numel() * self.source.element_size()

    @property
    def row_bytes(self) -> int:
        return self.nbytes // len(self.source)

    def slices(self, nbytes: int) -> list[tuple[Tensor, Tensor]]:
        """(source, target) of whole rows, of at most so many bytes where a row has no more."""
        rows = max(1, nbytes // self.row_bytes)
        return list(zip(self.source.split(rows), self.target.split(rows), strict=True))

    @property
    def sent(self) -> Tensor:
        return self.source if self.shard is None else self.shard

    def receiver(self, rank: int, ranks: int) -> int:
        """The one of `ranks` ranks that `rank` sends to meanwhile."""
        return (2 * rank - self.chunk) % ranks


class Transfers(list[Transfer]):
    """Transfers to one rank, in their order. So many of them that follow one another are waited for `together`. `into`
    has the targets of a gather and this rank's own shard, in the order of ranks, where these are contiguous parts of
    it."""

    def __init__(self, transfers: Iterable[Transfer] = (), *, together: int = 1, into: Tensor | None = None):
        super().__init__(transfers)
        self.together, self.into = together, into


def ended(arm: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`arm(operands, link)`, made so that it leaves nothing waiting: where it is refused, runs out of memory or is
    interrupted, the link's run is abandoned."""

    def run(operands, link) -> Tensor:
        try:
            return arm(operands, link)
        except BaseException:
            with suppress(RuntimeError):  # the device is lost, and nothing waits there
                link.abandon()
            raise

    return run


def missing(kind: str, transfer: Transfer, rank: int, why: str) -> LinkError:
    """The error of a link of `kind` to `rank` on which `transfer` did not arrive."""
    return LinkError(
        f"the {kind} link is dead: chunk {transfer.chunk} (row block {transfer.block}), which rank {transfer.chunk} "
        f"sends to rank {rank}, has not arrived: {why}"
    )


@dataclass
class Timeline:
    """What happened on a link from its start to the consumer's end, in seconds after the start."""

    transfers: Transfers
    arrivals_s: list[float]
    waits: list[tuple[int, float, float]]
    """(count, from, to): the consumer waited for the first `count` transfers. Between two waits it computed."""
    end_s: float
    ready_s: list[float] = field(default_factory=list)
    """When each transfer could go; empty where all could from the start."""

    def as_dict(self) -> dict:
        """Plain values, times to the nanosecond."""
        values: dict[str, Any] = {}
        if self.ready_s:
            values["ready_s"] = [round(time, 9) for time in self.ready_s]
        values["transfers"] = [(transfer.chunk, transfer.block) for transfer in self.transfers]
        values["arrivals_s"] = [round(time, 9) for time in self.arrivals_s]
        values["waits"] = [(count, round(start, 9), round(end, 9)) for count, start, end in self.waits]
        values["end_s"] = round(self.end_s, 9)
        return values


class Preset:
    """Nothing moves and all flags are up: what waiting for chunks costs where none is ever late. `fill(transfers)`
    brings the data, once, before anything is timed."""

    kind, bytes_per_s = "preset", None
    _transfers = Transfers()

    @staticmethod
    def fill(transfers: Transfers) -> None:
        for transfer in transfers:
            transfer.target.copy_(transfer.source)

    def start(self, transfers: Transfers, **about) -> None:
        if self._transfers is not transfers:
            device = transfers[0].target.device
            self._transfers, self._flags = transfers, torch.zeros(len(transfers), dtype=torch.int32, device=device)
            self._lost, self._times = self._flags.new_zeros(1), self._flags.long()

    def ready(self, count: int) -> None:
        pass

    def signals(self, count: int | None = None) -> Signals:
        return Signals(self._flags, 0, self._lost, 1)

    def counters(self) -> tuple[Tensor, Tensor]:
        return self._flags, self._times

    def wait(self, count: int) -> int:
        return len(self._transfers)

    def finish(self) -> None:
        pass

    def abandon(self) -> None:
        pass

    def timeline(self) -> Timeline:
        return Timeline(self._transfers, [0.0] * len(self._transfers), [], 0.0)


class WarmUp(Preset):
    """Takes an arm through the launches of a link that brings just what is waited for. Each kernel is loaded then: that
    may wait for the device, where over a link another one spins until what was to be launched next has run."""

    def wait(self, count: int) -> int:
        return count
