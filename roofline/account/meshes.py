"""How long a collective takes: on a torus of chips, or on nodes of GPUs with a network between the nodes.

Bandwidth only: the latency of hops and launches is left out. V is the size of the whole array, all shards together. Of
an all-gather or a reduce-scatter over P devices, each receives (P - 1) / P of V; where a collective is not `exact`,
what a device has already is counted as if it were sent, as the source does.

Source: J. Austin et al., How to Scale Your Model, chapters "Sharded Matrices" and "GPUs".
"""

import math
from dataclasses import dataclass

KINDS = ("tp", "fsdp")
"""Tensor and fully sharded data parallelism. On nodes the first is the inner one: its devices are neighbours."""


@dataclass(frozen=True)
class Sharding:
    """Into how many parts each kind of parallelism cuts the work. (Whole numbers, or real ones for a best split.)

    >>> Sharding(fsdp=16, tp=4).devices
    64
    """

    tp: float = 1
    fsdp: float = 1

    @property
    def devices(self) -> float:
        return self.tp * self.fsdp

    @property
    def used(self) -> list[str]:
        """The kinds that cut anything."""
        return [kind for kind in KINDS if getattr(self, kind) > 1]


@dataclass(frozen=True)
class Crossing:
    """What one device receives over one fabric in a collective: `amount` of V bytes, at `bytes_per_s`."""

    fabric: str
    amount: float
    bytes_per_s: float

    @property
    def seconds(self) -> float:
        """For each byte of V."""
        return self.amount / self.bytes_per_s


@dataclass(frozen=True)
class Torus:
    """Chips in rings along `all_axes` axes, on each of which a chip receives `axis_bytes_per_s`. Tensor parallelism
    beside FSDP has one axis, and FSDP the rest; either of them alone has all."""

    axis_bytes_per_s: float
    exact: bool = False
    all_axes: int = 3

    def axes_of(self, kind: str, sharding: Sharding) -> int:
        if sharding.used == [kind]:
            return self.all_axes
        return self.all_axes - 1 if kind == "fsdp" else 1

    def misfit(self, sharding: Sharding) -> str | None:
        """The kind for which no axis is left.

        >>> Torus(180e9, all_axes=1).misfit(Sharding(tp=4, fsdp=16))
        'fsdp'
        """
        return next(iter(sharding.used[self.all_axes :]), None)

    def crossings(self, kind: str, sharding: Sharding) -> tuple[Crossing, ...]:
        """What a collective of the devices of `kind`, two or more, takes."""
        amount = _amount(getattr(sharding, kind), self.exact)
        return (Crossing(f"{kind} axes", amount, self.axes_of(kind, sharding) * self.axis_bytes_per_s),)


@dataclass(frozen=True)
class Nodes:
    """GPUs in nodes of `size`: NVLink inside a node, a network port for each GPU between nodes.

    A collective over several nodes uses the ports of all its devices in a node, and runs through both fabrics at the
    same time, piece by piece.
    """

    size: int
    link_bytes_per_s: float
    network_bytes_per_s: float | None = None
    exact: bool = True

    def misfit(self, sharding: Sharding) -> str | None:
        """The innermost kind whose groups neither divide a node nor fill nodes: their traffic is not counted right.

        >>> Nodes(8, 450e9).misfit(Sharding(tp=4, fsdp=3))
        'fsdp'
        """
        groups = {"tp": sharding.tp, "fsdp": sharding.devices}
        return next((kind for kind in sharding.used if self.size % groups[kind] and groups[kind] % self.size), None)

    def crossings(self, kind: str, sharding: Sharding) -> tuple[Crossing, ...]:
        """What a collective of the devices of `kind`, two or more, takes: both fabrics run at the same time."""
        parts = getattr(sharding, kind)
        here = min(parts, max(1, self.size / (sharding.tp if kind == "fsdp" else 1)))
        away = parts / here
        if away > 1 and not self.network_bytes_per_s:
            raise ValueError(
                f"{kind}={parts:.0f} spans {math.ceil(away)} nodes of {self.size}, and the chip's network is not "
                "known: shard over fewer devices, or take a --chip with a network"
            )
        inner, outer = (_amount(count, self.exact) if count > 1 else 0 for count in (here, away))
        both = (
            Crossing("node", inner, self.link_bytes_per_s),
            Crossing("network", outer / here, self.network_bytes_per_s),
        )
        return tuple(crossing for crossing in both if crossing.amount)


Mesh = Torus | Nodes


def _amount(parts: float, exact: bool) -> float:
    """The share of V that one device receives."""
    return (parts - 1) / parts if exact else 1
