"""What a device receives in a collective: on a torus of chips, or on nodes of GPUs with a network between the nodes.

Only bandwidth counts: the latency of hops and launches is left out. V is the size of the whole array, all shards
together. In an all-gather or a reduce-scatter over P devices, each receives (P - 1) / P of V. Where a collective is not
`exact`, the part that a device has already counts as if it were sent, as the source does.

Source: J. Austin et al., How to Scale Your Model, chapters "Sharded Matrices" and "GPUs".
"""

from dataclasses import dataclass
from typing import NamedTuple

from roofline.theory.chips import Chip

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
    def used(self) -> dict[str, float]:
        """The kinds that cut anything, with their degrees."""
        return {kind: degree for kind in KINDS if (degree := getattr(self, kind)) > 1}


class Crossing(NamedTuple):
    """What one device receives over one fabric in a collective: a share of V, at a rate."""

    fabric: str
    received_share: float
    bytes_per_s: float


def misfit(chip: Chip, sharding: Sharding) -> str | None:
    """Return why `sharding` does not fit the chip's torus or nodes, if it does not.

    On nodes, groups have to divide a node or to fill nodes: the traffic of others is not counted right.
    """
    if chip.torus_axes:
        degrees = ", ".join(f"{kind}={degree:g}" for kind, degree in sharding.used.items())
        axes = f"{degrees}: each needs an axis of its own, and the torus has {chip.torus_axes}: leave one out"
        return axes if len(sharding.used) > chip.torus_axes else None
    node, groups = chip.node_size, {"tp": sharding.tp, "fsdp": sharding.devices}
    for kind, degree in sharding.used.items():
        if node % groups[kind] and groups[kind] % node:
            return (
                f"{kind}={degree:g}: groups of {groups[kind]:g} devices do not pack into nodes of {node}: let them "
                "divide it, or be a multiple of it"
            )
    if sharding.devices > node and not chip.port_bytes_per_s:
        return (
            f"{sharding.devices:g} devices span nodes of {node}, and the chip's network is not known: shard over at "
            f"most {node}, or take a --chip with a network"
        )
    return None


def crossings(kind: str, sharding: Sharding, chip: Chip, exact: bool) -> list[Crossing]:
    """Return what a collective of the devices of `kind`, two or more, takes on each fabric that it crosses.

    On a torus, tensor parallelism beside FSDP has one axis, and FSDP the rest; either of them alone has all.
    On nodes, NVLink runs inside a node, and each GPU has a port to a network between nodes. A collective over several
    nodes uses the ports of all its devices in a node, and runs through both fabrics at the same time, piece by piece.
    """
    if chip.torus_axes:
        axes = chip.torus_axes if len(sharding.used) == 1 else chip.torus_axes - 1 if kind == "fsdp" else 1
        bytes_per_s = axes * (chip.links // chip.torus_axes * chip.link_bandwidth_bytes_per_s)
        return [Crossing(f"{kind} axes", _received(sharding.used[kind], exact), bytes_per_s)]
    parts = sharding.used[kind]
    inside = min(parts, max(1, chip.node_size / (sharding.tp if kind == "fsdp" else 1)))
    nodes = parts / inside
    fabrics = [Crossing("node", _received(inside, exact), chip.received_bytes_per_s)] if inside > 1 else []
    if nodes > 1 and chip.port_bytes_per_s:
        fabrics.append(Crossing("network", _received(nodes, exact) / inside, chip.port_bytes_per_s))
    return fabrics


def _received(parts: float, exact: bool) -> float:
    return (parts - 1) / parts if exact else 1
