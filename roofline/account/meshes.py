"""What a device receives in a collective: on a torus of chips, or on nodes of GPUs with a network between the nodes.

Only bandwidth counts: the latency of hops and launches is left out. V is the size of the whole array, all shards
together. In an all-gather or a reduce-scatter over P devices, each receives (P - 1) / P of V. Where a collective is not
`exact`, the part that a device has already counts as if it were sent, as the source does.

Source: J. Austin et al., How to Scale Your Model, chapters "Sharded Matrices" and "GPUs".
"""

from typing import NamedTuple

from roofline.account.question import Question


class Crossing(NamedTuple):
    """The share of V that one device receives over a fabric in a collective, and the rate."""

    fabric: str
    received_fraction: float
    bytes_per_s: float


def crossings(question: Question, kind: str) -> list[Crossing]:
    """What a collective of the devices of `kind`, two or more, takes on each fabric that it crosses.

    On a torus, tensor parallelism beside FSDP has one axis, and FSDP the rest; either of them alone has all.
    On nodes, NVLink runs inside a node, and each GPU has a port to a network between nodes. A collective over several
    nodes uses the ports of all its devices in a node, and runs through both fabrics at the same time, piece by piece.
    """
    chip = question.chip
    degrees = question.degrees

    def received(parts: float) -> float:
        return (parts - 1) / parts if question.exact else 1

    if chip.torus_axes:
        axes = chip.torus_axes
        if len(degrees) > 1:
            axes = axes - 1 if kind == "fsdp" else 1
        bytes_per_s = axes * (chip.links // chip.torus_axes * chip.link_bandwidth_bytes_per_s)
        return [Crossing(f"{kind} axes", received(degrees[kind]), bytes_per_s)]
    neighbours = question.tp if kind == "fsdp" else 1
    inside = min(degrees[kind], max(1, chip.node_size / neighbours))
    nodes = degrees[kind] / inside
    fabrics = []
    if inside > 1:
        fabrics.append(Crossing("node", received(inside), chip.received_bytes_per_s))
    if nodes > 1 and chip.port_bytes_per_s:
        fabrics.append(Crossing("network", received(nodes) / inside, chip.port_bytes_per_s))
    return fabrics
