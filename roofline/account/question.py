"""The question of `roofline account`: which model trains, on which chips, and how it is sharded over them."""

import bisect
import math
from dataclasses import dataclass

from roofline.account import meshes
from roofline.account.meshes import Sharding
from roofline.theory.chips import Chip
from roofline.theory.models import Model

BF16_BYTES = 2
"""Of an element that is saved, or that crosses a fabric."""


@dataclass(frozen=True)
class Question:
    """A model in training, sharded over chips.

    `check` refuses what nobody could build. What is only compared, as the best real split, need not pass it.
    """

    model: Model
    chip: Chip
    """As in the datasheet, or with other FLOP/s and another memory."""
    sharding: Sharding
    exact: bool = True
    """Whether a collective sends a device no more than what it lacks: (P - 1) / P of V, and not V."""
    tokens: int = 0
    """Alive at once, on all devices: those of a step, or of each of its microbatches."""
    saved: str = "all"
    """A policy of `memory.SAVED`."""
    fabrics_overlap: bool = True
    """Whether the axes of a kind, NVLink and the network work beside each other, or collectives one after the other."""
    gathers: int = 1
    """How often the weights are gathered in a step: once for each of its microbatches."""
    gathered_weight_bytes: int = BF16_BYTES
    """Of one weight, on its way to those who need it."""
    gathered_blocks: int = 1
    """Of how many blocks a device holds the gathered weights at a time."""

    @property
    def flop_per_s(self) -> float:
        return self.chip.flops["bf16"]

    @property
    def devices(self) -> float:
        return self.sharding.devices

    @property
    def parameters(self) -> int:
        return self.model.blocks * self.model.matrices * self.model.d_model * self.model.d_ff

    @property
    def block_weights(self) -> float:
        """Of one block, those that the devices of an FSDP group share."""
        return self.model.matrices * self.model.d_model * self.model.d_ff / self.sharding.tp

    @property
    def block_gathered_bytes(self) -> float:
        """Of a block's gathered weights, which a device holds for a moment."""
        return self.block_weights * self.gathered_weight_bytes if self.sharding.fsdp > 1 else 0.0

    @property
    def flop_per_token(self) -> float:
        """Of one device, in the forward pass of one block."""
        return 2 * self.block_weights / self.sharding.fsdp

    @property
    def s_per_token(self) -> float:
        """Of one device's matmuls, in the forward pass of one block."""
        return self.flop_per_token / self.flop_per_s

    def check(self) -> None:
        """Raise ValueError where the degrees do not divide what they cut, or do not fit the chip's torus or nodes."""
        for kind in ("tp", "fsdp"):
            if (degree := getattr(self.sharding, kind)) < 1:
                raise ValueError(f"--{kind} {degree} is below 1: leave it out where nothing is cut")
        if self.model.d_ff % self.sharding.tp:
            choices = divisors(self.model.d_ff)
            below = bisect.bisect(choices, self.sharding.tp)
            near = " or ".join(map(str, choices[below - 1 : below + 1]))
            raise ValueError(f"--tp {self.sharding.tp} does not divide F = {self.model.d_ff}: take {near}")
        if misfit := meshes.misfit(self.chip, self.sharding):
            raise ValueError(misfit)


def divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
