"""How long a collective takes: on a torus of chips, or on nodes of GPUs with a network between the nodes.

Bandwidth only: the latency of hops and launches is left out. V is the size of the whole array, all shards together;
docs/accounting.md lists what share of it a device receives in each collective. Where a collective is not `exact`, what
a device has already is counted as if it were sent, as the source does.

Source: J. Austin et al., How to Scale Your Model, chapters "Sharded Matrices" and "GPUs".
"""

import math
from dataclasses import astuple, dataclass
from typing import NamedTuple

KINDS = ("tp", "ep", "fsdp", "dp", "pp")
"""Tensor, expert, fully sharded data, data and pipeline parallelism. On nodes the first are the innermost: their
devices are neighbours."""


@dataclass(frozen=True)
class Sharding:
    """Into how many parts each kind of parallelism cuts the work. (Whole numbers, or real ones for a best split.)

    >>> Sharding(fsdp=16, tp=4).devices
    64
    """

    tp: float = 1
    ep: float = 1
    fsdp: float = 1
    dp: float = 1
    pp: float = 1

    @property
    def devices(self) -> float:
        return math.prod(astuple(self))

    @property
    def batch_parts(self) -> float:
        """Into how many parts the tokens are cut."""
        return self.ep * self.fsdp * self.dp

    @property
    def used(self) -> list[str]:
        """The kinds that cut anything."""
        return [kind for kind in KINDS if getattr(self, kind) > 1]

    def inside(self, kind: str) -> float:
        """Devices between two neighbours of `kind`: all the parts of the kinds within it."""
        return math.prod(getattr(self, inner) for inner in KINDS[: KINDS.index(kind)])


class Crossing(NamedTuple):
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
    """Chips in rings along axes. `axes` deals them out to the kinds of parallelism, and a kind with 0 is on the
    network; by default each kind in use has one, and FSDP what is left (without FSDP: the first kind). Kinds with too
    many axes together share them all, and take turns.

    `axis_bytes_per_s`: one axis, in as many directions (`ways`) as are used. `network_bytes_per_s`: of one chip.
    `all_axes`: how many the torus has.
    """

    axis_bytes_per_s: float
    axes: dict[str, int] | None = None
    ways: int = 2
    network_bytes_per_s: float | None = None
    exact: bool = False
    all_axes: int = 3

    def axes_of(self, kind: str, sharding: Sharding) -> int:
        if self.axes is not None:
            return self.axes.get(kind, 1)
        used = sharding.used
        widest = "fsdp" if "fsdp" in used else used[0] if used else None
        return max(1, self.all_axes - len(used) + 1) if kind == widest else 1

    def taken(self, sharding: Sharding) -> int:
        """Axes of all kinds in use."""
        return sum(self.axes_of(kind, sharding) for kind in sharding.used)

    def crossings(self, kind: str, op: str, sharding: Sharding, top_k: int = 1) -> tuple[Crossing, ...]:
        """What a collective `op` of the devices of `kind`, two or more, takes. To how many experts a token goes does
        not matter here: each copy takes its own way round the rings."""
        parts, axes = getattr(sharding, kind), self.axes_of(kind, sharding)
        fabric = f"{kind} axes" if self.taken(sharding) <= self.all_axes else "axes"
        if not axes:
            if not self.network_bytes_per_s:
                raise ValueError(f"axes {kind}=0: the chip's network is not known; give --network BYTES/s, or an axis")
            return (Crossing("network", _amount(op, parts, self.exact), self.network_bytes_per_s),)
        if op == "send":
            return (Crossing(fabric, 1, self.axis_bytes_per_s / self.ways),)
        if op == "all-to-all":  # axis by axis, pipelined: the data of a chip goes round a ring of parts^(1/axes)
            around = parts ** (1 / axes) / parts / (2 * self.ways)
            return (Crossing(fabric, around, self.axis_bytes_per_s),)
        return (Crossing(fabric, _amount(op, parts, self.exact), axes * self.axis_bytes_per_s),)


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

    def crossings(self, kind: str, op: str, sharding: Sharding, top_k: int = 1) -> tuple[Crossing, ...]:
        """What a collective `op` of the devices of `kind`, two or more, takes: both fabrics run at the same time. Of an
        all-to-all V holds a copy of a token for each device that has some of its `top_k` experts."""
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
        if op == "all-to-all":
            inner = (here - 1) / here / parts
            outer = (away - 1) / away / parts * min(top_k, away) / min(top_k, parts)
        else:
            reduces = self.sharp and op == "all-reduce"
            inner, outer = (_amount(op, count, self.exact, reduces) if count > 1 else 0 for count in (here, away))
            outer /= here
        both = Crossing("node", inner, self.link_bytes_per_s), Crossing("network", outer, self.network_bytes_per_s)
        return tuple(crossing for crossing in both if crossing.amount)


Mesh = Torus | Nodes


def _amount(op: str, parts: float, exact: bool, switch_reduces: bool = False) -> float:
    """The share of V that one device receives."""
    share = (parts - 1) / parts if exact else 1
    others = {"all-reduce": 1 if switch_reduces else 2 * share, "all-to-all": (parts - 1) / parts**2, "send": 1}
    return others.get(op, share)
