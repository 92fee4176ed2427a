"""What sets the pace of a sharded model, the chips or the wires between them, and from how many tokens on.

The forward pass of one block, D -> F -> D: its FLOP, and what it gathers and scatters. Every term is fixed, or grows
with the tokens B, so that the bound is where two straight lines meet. All that crosses a wire is taken to run beside
the matmuls; `wires` says what of it also runs beside each other. The backward pass has twice the FLOP for twice the
weights and 3/2 of the activations, so that the forward pass sets the bound of training too.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from roofline.account.memory import BF16_BYTES
from roofline.account.meshes import Crossing, Mesh, Sharding
from roofline.theory.models import Model

WIRES = {
    "fabric": "fabrics beside each other (max), as taken here",
    "shared": "one after the other (sum)",
}
"""What adds up: all that crosses one fabric (the axes of a kind, NVLink, the network), or all that crosses any."""


@dataclass(frozen=True)
class Term:
    """One collective of a block: V is `fixed_bytes` + `token_bytes` B."""

    name: str
    kind: str
    fixed_bytes: float
    token_bytes: float
    crossings: tuple[Crossing, ...]

    @property
    def slowest(self) -> Crossing:
        return max(self.crossings, key=lambda crossing: crossing.seconds)

    def seconds(self, tokens: float) -> float:
        """Of the slowest fabric that it crosses."""
        return (self.fixed_bytes + self.token_bytes * tokens) * self.slowest.seconds


@dataclass(frozen=True)
class Bound:
    """From `tokens` (on all devices) on the chips set the pace, and `fabric` is the last to hold them up.

    `tokens` is infinite where the wire takes longer for a token than the chip does: then no number of them helps.
    """

    tokens: float
    fabric: str | None


@dataclass(frozen=True)
class Setting:
    """A model, sharded over a mesh of chips of `flops` FLOP/s each.

    Degrees may be real numbers, as a best split has them: whether they divide what they cut is not checked here.
    """

    model: Model
    flops: float
    mesh: Mesh
    sharding: Sharding
    wires: str = "fabric"
    gathers: int = 1
    """How often the weights are gathered in a step: once for each of its microbatches."""
    gathered_itemsize: int = BF16_BYTES
    """Bytes of a weight on its way to those who need it."""

    @property
    def block_weights(self) -> float:
        """Of one block, those that the devices of an FSDP group share."""
        return self.model.matrices * self.model.d_model * self.model.d_ff / self.sharding.tp

    @property
    def gathered_bytes(self) -> float:
        """Of a block's gathered weights, which a device holds for a moment."""
        return self.block_weights * self.gathered_itemsize if self.sharding.fsdp > 1 else 0.0

    @property
    def math_flop(self) -> float:
        """Of one device in one block, for each token (of all devices)."""
        return 2 * self.block_weights / self.sharding.fsdp

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """All that crosses a wire in a block."""
        return tuple(
            Term(name, kind, fixed, of_token, self.mesh.crossings(kind, self.sharding))
            for name, kind, fixed, of_token in self._collectives()
            if getattr(self.sharding, kind) > 1
        )

    def _collectives(self) -> Iterator[tuple[str, str, float, float]]:
        activations = self.model.d_model * BF16_BYTES / self.sharding.fsdp  # of each token, what is on one device
        yield "gather weights", "fsdp", self.gathers * self.block_weights * self.gathered_itemsize, 0
        yield "gather activations", "tp", 0, activations
        yield "scatter partial sums", "tp", 0, activations

    def math_s(self, tokens: float) -> float:
        """Seconds of one block's matmuls on one device, for `tokens` on all devices."""
        return self.math_flop * tokens / self.flops

    def wire_s(self, tokens: float) -> float:
        """Seconds in which a block's collectives cross the wires, beside each other or not as `wires` says."""
        return max((fixed + slope * tokens for fixed, slope in self._lines().values()), default=0.0)

    def serial_s(self, tokens: float) -> float:
        """Seconds of one block where every collective waits for the matmuls before it, and they for it."""
        return self.math_s(tokens) + sum(term.seconds(tokens) for term in self.terms)

    def bound(self) -> Bound:
        """From how many tokens on the chips set the pace."""
        bounds = [Bound(self._meet(fixed, slope), fabric) for fabric, (fixed, slope) in self._lines().items()]
        return max(bounds, key=lambda bound: bound.tokens, default=Bound(0.0, None))

    def _meet(self, fixed: float, slope: float) -> float:
        rate = self.math_flop / self.flops
        if not fixed:
            return 0.0 if slope <= rate else math.inf
        return fixed / (rate - slope) if slope < rate else math.inf

    def _lines(self) -> dict[str, tuple[float, float]]:
        """{what waits in line: (seconds, seconds for each token)}: the terms, added up as `wires` says."""
        lines: dict[str, tuple[float, float]] = {}
        for term in self.terms:
            for crossing in (term.slowest,) if self.wires == "shared" else term.crossings:
                name = "wires" if self.wires == "shared" else crossing.fabric
                fixed, slope = lines.get(name, (0.0, 0.0))
                fixed += term.fixed_bytes * crossing.seconds
                lines[name] = (fixed, slope + term.token_bytes * crossing.seconds)
        return lines
