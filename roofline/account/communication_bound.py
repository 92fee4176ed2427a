"""The pace of a sharded model, set by the chips or by the links between them, and the tokens from which on it is which.

The forward pass of one block, D -> F -> D: its FLOP, and what it gathers and scatters. Every term is fixed, or grows
with the tokens B, so that the bound is where two straight lines meet. All collectives run beside the matmuls. The
backward pass has twice the FLOP for twice the weights and 3/2 of the activations, so that the forward pass sets the
bound of training too.

A collective crosses a torus of chips, or nodes of GPUs with a network between the nodes. Only bandwidth counts: the
latency of hops and launches is left out. In an all-gather or a reduce-scatter over P devices, each receives (P - 1) / P
of V, the whole array. Where a collective is not `exact`, the part that a device has already counts as if it were sent,
as the source does.

Source: J. Austin et al., How to Scale Your Model, chapters "Sharded Matrices" and "GPUs".
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

from roofline.account.question import BF16_BYTES, Question


class Crossing(NamedTuple):
    """The fraction of V that one device receives over a fabric in a collective, and the rate."""

    fabric: str
    received_fraction: float
    bytes_per_s: float

    @property
    def s_per_byte(self) -> float:
        """The seconds for each byte of V."""
        return self.received_fraction / self.bytes_per_s


class Collective(NamedTuple):
    """A collective of a block, whose V is `fixed_bytes` + `bytes_per_token` B."""

    name: str
    fixed_bytes: float
    bytes_per_token: float
    crossings: list[Crossing]

    @property
    def slowest(self) -> Crossing:
        """The fabric that it waits for."""
        return max(self.crossings, key=lambda crossing: crossing.s_per_byte)

    def array_bytes(self, tokens: float) -> float:
        return self.fixed_bytes + self.bytes_per_token * tokens


class Forward(NamedTuple):
    """The times of the forward pass of a block on one device, at all tokens."""

    math_s: float
    link_s: float
    chips_wait: bool
    """For a link. Rounding does not decide at the bound itself."""
    serial_s: float
    """Where every collective waits for the matmuls before it, and they for it."""


class Bound(NamedTuple):
    """The tokens (on all devices) from which on the chips set the pace; `fabric` is the last to hold them up.

    `tokens` is infinite where a token takes longer on the fabric than on the chip: then no number of them helps.
    """

    tokens: float
    fabric: str | None
    serial_use: float | None
    """The fraction of time for which chips work at the bound where gathers do not overlap."""


def collectives(question: Question) -> list[Collective]:
    """The gathers and scatters of a block."""
    weights = question.gathers * question.block_weights * question.gathered_weight_bytes
    activations = question.model.d_model * BF16_BYTES / question.fsdp  # of each token, on one device
    rows = []
    if question.fsdp > 1:
        rows.append(Collective("gather weights", weights, 0, crossings(question, "fsdp")))
    if question.tp > 1:
        crossed = crossings(question, "tp")
        rows.append(Collective("gather activations", 0, activations, crossed))
        rows.append(Collective("scatter partial sums", 0, activations, crossed))
    return rows


def crossings(question: Question, kind: str) -> list[Crossing]:
    """A collective of the devices of `kind`, two or more, on each fabric that it crosses.

    On a torus, tensor parallelism beside FSDP has one axis, and FSDP the rest; either of them alone has all.
    On nodes, NVLink runs inside a node, and each GPU has a port to a network between nodes. A collective over several
    nodes uses the ports of all its devices in a node, and runs through both fabrics at the same time, piece by piece.
    """
    chip: Any = question.chip
    degree = question.degrees[kind]

    def received(parts: float) -> float:
        return (parts - 1) / parts if question.exact else 1

    if axes := chip.torus_axes:
        ways = chip.links // axes
        if len(question.degrees) > 1:
            axes = axes - 1 if kind == "fsdp" else 1
        return [Crossing(f"{kind} axes", received(degree), axes * (ways * chip.link_bandwidth_bytes_per_s))]
    neighbours = question.tp if kind == "fsdp" else 1
    inside = min(degree, max(1, chip.node_size / neighbours))
    nodes = degree / inside
    fabrics = []
    if inside > 1:
        fabrics.append(Crossing("node", received(inside), chip.received_bytes_per_s))
    if nodes > 1 and chip.port_bytes_per_s:
        fabrics.append(Crossing("network", received(nodes) / inside, chip.port_bytes_per_s))
    return fabrics


def forward(question: Question) -> Forward:
    tokens = question.tokens
    math_s = question.flop_per_token * tokens / question.flop_per_s
    link_s = 0.0
    for fixed_s, s_per_token in _lines(question).values():
        link_s = max(link_s, fixed_s + s_per_token * tokens)
    serial_s = math_s
    for collective in collectives(question):
        serial_s += collective.array_bytes(tokens) * collective.slowest.s_per_byte
    return Forward(math_s, link_s, link_s > math_s * (1 + 1e-9), serial_s)


def bound(question: Question) -> Bound:
    """From how many tokens on the chips set the pace."""
    meets = {}
    for fabric, line in _lines(question).items():
        meets[fabric] = _meet(question, *line)
    fabric = max(meets, key=meets.__getitem__, default="")
    tokens = meets.get(fabric, 0.0)
    use = None
    if 0 < tokens < math.inf:
        at_bound = forward(replace(question, tokens=tokens))
        use = at_bound.math_s / at_bound.serial_s
    return Bound(tokens, fabric or None, use)


def least_d_ff(question: Question) -> float | None:
    """The F above which activations take less time than matmuls; None without tensor parallelism."""
    activations_s = 0.0
    for collective in collectives(question):
        activations_s += collective.bytes_per_token * collective.slowest.s_per_byte
    return question.model.d_ff * activations_s / question.s_per_token if activations_s else None


def best_split(question: Question) -> Question:
    """`question` with its devices divided between FSDP (X) and tensor parallelism (Y) so that its bound is the least.
    Both are whole, Y divides F, and both fit the mesh. docs/exercise.md has the best of the reals in closed form."""
    devices = round(question.devices)
    most = math.gcd(devices, question.model.d_ff)
    splits = []
    for tp in range(1, most + 1):
        split = replace(question, tp=tp, fsdp=devices // tp)
        if most % tp == 0 and not split.misfit():
            splits.append(split)
    return min(splits, key=lambda split: bound(split).tokens)  # FSDP alone has a bound


def _meet(question: Question, fixed_s: float, s_per_token: float) -> float:
    """The tokens from which on the matmuls take longer than a line."""
    spare_s = question.s_per_token - s_per_token
    if spare_s > 0:
        return fixed_s / spare_s
    return math.inf if fixed_s or spare_s else 0.0


def _lines(question: Question) -> dict[str, tuple[float, float]]:
    """{fabric: (seconds, seconds for each token)}, or the sum of all where fabrics do not work side by side."""
    lines: dict[str, tuple[float, float]] = {}
    for collective in collectives(question):
        for crossing in collective.crossings if question.fabrics_overlap else [collective.slowest]:
            fabric = crossing.fabric if question.fabrics_overlap else "links"
            fixed_s, s_per_token = lines.get(fabric, (0.0, 0.0))
            fixed_s += collective.fixed_bytes * crossing.s_per_byte
            lines[fabric] = fixed_s, s_per_token + collective.bytes_per_token * crossing.s_per_byte
    return lines
