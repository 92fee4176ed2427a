"""How long a collective takes: on a torus of chips, or on nodes of GPUs with a network between the nodes.

Bandwidth only: the latency of hops and launches is left out. V is the size of the whole array, all shards together;
docs/accounting.md lists what share of it a device receives in each collective. Where a collective is not `exact`, what
a device has already is counted as if it were sent, as the source does.

Source: J. Austin et al., How to Scale Your Model, chapters "Sharded Matrices" and "GPUs".
"""

import math
from dataclasses import astuple, dataclass

KINDS = ("tp", "fsdp", "dp", "pp")
"""Tensor, fully sharded data, data and pipeline parallelism. On nodes the first are the innermost: their
devices are neighbours."""


@dataclass(frozen=True)
class Sharding:
    """Into how many parts each kind of parallelism cuts the work. (Whole numbers, or real ones for a best split.)

    >>> Sharding(fsdp=16, tp=4).devices
    64
    """

    tp: float = 1
    fsdp: float = 1
    dp: float = 1
    pp: float = 1

    @property
    def devices(self) -> float:
        return math.prod(astuple(self))

    @property
    def batch_parts(self) -> float:
        """Into how many parts the tokens are cut."""
        return self.fsdp * self.dp

    @property
    def used(self) -> list[str]:
        """The kinds that cut anything."""
        return [kind for kind in KINDS if getattr(self, kind) > 1]

    def inside(self, kind: str) -> float:
        """Devices between two neighbours of `kind`: all the parts of the kinds within it."""
        return math.prod(getattr(self, inner) for inner in KINDS[: KINDS.index(kind)])


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
    """Chips in rings along axes. Each kind of parallelism in use has an axis of its own, and FSDP all that are left
    (without FSDP: the first kind).

    `axis_bytes_per_s`: one axis, in as many directions (`ways`) as are used. `all_axes`: how many the torus has.
    """

    axis_bytes_per_s: float
    ways: int = 2
    exact: bool = False
    all_axes: int = 3

    def axes_of(self, kind: str, sharding: Sharding) -> int:
        used = sharding.used
        widest = "fsdp" if "fsdp" in used else used[0] if used else None
        return self.all_axes - len(used) + 1 if kind == widest else 1

    def misfit(self, sharding: Sharding) -> str | None:
        """The first kind for which no axis is left.

        >>> Torus(180e9).misfit(Sharding(tp=4, fsdp=16, dp=2, pp=2))
        'pp'
        """
        return next(iter(sharding.used[self.all_axes :]), None)

    def crossings(self, kind: str, op: str, sharding: Sharding) -> tuple[Crossing, ...]:
        """What a collective `op` of the devices of `kind`, two or more, takes."""
        if op == "send":
            return (Crossing(f"{kind} axes", 1, self.axis_bytes_per_s / self.ways),)
        amount = _amount(op, getattr(sharding, kind), self.exact)
        return (Crossing(f"{kind} axes", amount, self.axes_of(kind, sharding) * self.axis_bytes_per_s),)


@dataclass(frozen=True)
class Nodes:
    """GPUs in nodes of `size`: NVLink inside a node, a network port for each GPU between nodes.

    `sharp`: the switches reduce. A collective over several nodes uses the ports of all its devices in a node, and runs
    through both fabrics at the same time, piece by piece.
    """

    size: int
    link_bytes_per_s: float
    network_bytes_per_s: float | None = None
    sharp: bool = False
    exact: bool = True

    def misfit(self, sharding: Sharding) -> str | None:
        """The innermost kind whose groups neither divide a node nor fill nodes: their traffic is not counted right.

        >>> Nodes(8, 450e9).misfit(Sharding(tp=4, fsdp=3))
        'fsdp'
        """
        groups = {kind: sharding.inside(kind) * getattr(sharding, kind) for kind in sharding.used}
        return next((kind for kind, group in groups.items() if self.size % group and group % self.size), None)

    def crossings(self, kind: str, op: str, sharding: Sharding) -> tuple[Crossing, ...]:
        """What a collective `op` of the devices of `kind`, two or more, takes: both fabrics run at the same time."""
        parts = getattr(sharding, kind)
        here = min(parts, max(1, self.size / sharding.inside(kind)))
        away = parts / here
        if away > 1 and not self.network_bytes_per_s:
            raise ValueError(
                f"{kind}={parts:.0f} spans {math.ceil(away)} nodes of {self.size}, and the chip's network is not "
                "known; give --network BYTES/s, or larger nodes by --node N"
            )
        if op == "send":
            fabric, rate = ("node", self.link_bytes_per_s) if away <= 1 else ("network", self.network_bytes_per_s)
            return (Crossing(fabric, 1, rate),)
        reduces = self.sharp and op == "all-reduce"
        inner, outer = (_amount(op, count, self.exact, reduces) if count > 1 else 0 for count in (here, away))
        both = (
            Crossing("node", inner, self.link_bytes_per_s),
            Crossing("network", outer / here, self.network_bytes_per_s),
        )
        return tuple(crossing for crossing in both if crossing.amount)


Mesh = Torus | Nodes


def _amount(op: str, parts: float, exact: bool, switch_reduces: bool = False) -> float:
    """The share of V that one device receives."""
    share = (parts - 1) / parts if exact else 1
    return share if op != "all-reduce" else 1 if switch_reduces else 2 * share
