"""What sets the pace of a sharded model, the chips or the links between them, and from how many tokens on.

The forward pass of one block, D -> F -> D: its FLOP, and what it gathers and scatters. Every term is fixed, or grows
with the tokens B, so that the bound is where two straight lines meet. All collectives run beside the matmuls. The
backward pass has twice the FLOP for twice the weights and 3/2 of the activations, so that the forward pass sets the
bound of training too.
"""

import math
from dataclasses import dataclass, replace

from roofline.account.meshes import crossings
from roofline.account.question import BF16_BYTES, Question


@dataclass(frozen=True)
class Term:
    """A collective of a block over one of the fabrics that it crosses: V is `fixed_bytes` + `bytes_per_token` B."""

    name: str
    fixed_bytes: float
    bytes_per_token: float
    fabric: str
    received_fraction: float
    """What one device receives over the fabric, over V."""
    bytes_per_s: float

    @property
    def s_per_byte(self) -> float:
        """The seconds for each byte of V."""
        return self.received_fraction / self.bytes_per_s


@dataclass(frozen=True)
class Forward:
    """The times of the forward pass of a block on one device, at all tokens."""

    math_s: float
    link_s: float
    chips_wait: bool
    """For a link. Rounding does not decide at the bound itself."""
    serial_s: float
    """Where every collective waits for the matmuls before it, and they for it."""
    overlapped_s: float
    """Where matmuls and collectives run beside each other, as the bound has it."""


@dataclass(frozen=True)
class Bound:
    """The tokens (on all devices) from which on the chips set the pace; `fabric` is the last to hold them up.

    `tokens` is infinite where a token takes longer on the fabric than on the chip: then no number of them helps.
    """

    name: str
    fsdp: float
    tp: float
    tokens: float
    tokens_per_device: float
    fabric: str | None
    serial_use: float | None
    """The share of time for which chips work at the bound where gathers do not overlap."""


def terms(question: Question) -> list[Term]:
    """All that a block's collectives take, a row for each fabric that they cross."""
    weights = question.gathers * question.block_weights * question.gathered_weight_bytes
    activations = question.model.d_model * BF16_BYTES / question.fsdp  # of each token, on one device
    collectives = (
        ("gather weights", "fsdp", weights, 0),
        ("gather activations", "tp", 0, activations),
        ("scatter partial sums", "tp", 0, activations),
    )
    rows = []
    for name, kind, fixed, per_token in collectives:
        if kind in question.degrees:
            for crossing in crossings(question, kind):
                rows.append(Term(name, fixed, per_token, *crossing))
    return rows


def slowest(rows: list[Term]) -> list[Term]:
    """One row of each collective: that of the fabric which it waits for."""
    slowest: dict[str, Term] = {}
    for row in rows:
        if row.name not in slowest or row.s_per_byte > slowest[row.name].s_per_byte:
            slowest[row.name] = row
    return [*slowest.values()]


def forward(question: Question) -> Forward:
    tokens = question.tokens
    math_s = question.flop_per_token * tokens / question.flop_per_s
    link_s = 0.0
    for fixed_s, s_per_token in _lines(question).values():
        link_s = max(link_s, fixed_s + s_per_token * tokens)
    chips_wait = link_s > math_s * (1 + 1e-9)
    collectives_s = 0.0
    for row in slowest(terms(question)):
        collectives_s += (row.fixed_bytes + row.bytes_per_token * tokens) * row.s_per_byte
    return Forward(math_s, link_s, chips_wait, math_s + collectives_s, overlapped_s=max(math_s, link_s))


def bound(question: Question, name: str = "") -> Bound:
    """From how many tokens on the chips set the pace."""
    meets = {fabric: _meet(question, *line) for fabric, line in _lines(question).items()}
    fabric = max(meets, key=meets.get, default=None)
    tokens = meets.get(fabric, 0.0)
    use = None
    if 0 < tokens < math.inf:
        at_bound = forward(replace(question, tokens=tokens))
        use = at_bound.math_s / at_bound.serial_s
    return Bound(name, question.fsdp, question.tp, tokens, tokens / question.devices, fabric, serial_use=use)


def least_d_ff(question: Question) -> float | None:
    """The F above which activations take less time than matmuls; None without tensor parallelism."""
    activations_s = 0.0
    for row in slowest(terms(question)):
        activations_s += row.bytes_per_token * row.s_per_byte
    return question.model.d_ff * activations_s / question.s_per_token if activations_s else None


def _meet(question: Question, fixed_s: float, s_per_token: float) -> float:
    if not fixed_s:
        return 0.0 if s_per_token <= question.s_per_token else math.inf
    return fixed_s / (question.s_per_token - s_per_token) if s_per_token < question.s_per_token else math.inf


def _lines(question: Question) -> dict[str, tuple[float, float]]:
    """{fabric: (seconds, seconds for each token)}, or the sum of all where fabrics do not work side by side."""
    rows = terms(question)
    lines: dict[str, tuple[float, float]] = {}
    for row in rows if question.fabrics_overlap else slowest(rows):
        fabric = row.fabric if question.fabrics_overlap else "links"
        fixed_s, s_per_token = lines.get(fabric, (0.0, 0.0))
        fixed_s += row.fixed_bytes * row.s_per_byte
        lines[fabric] = fixed_s, s_per_token + row.bytes_per_token * row.s_per_byte
    return lines
