"""The question of `roofline account`: which model trains, on which chips, and how it is sharded over them."""

from dataclasses import dataclass

from roofline.theory.chips import Chip
from roofline.theory.models import Model

BF16_BYTES = 2
"""The size of an element that is saved, or that crosses a fabric."""


@dataclass(frozen=True)
class Question:
    """A model in training, sharded over chips."""

    model: Model
    chip: Chip
    """As in the datasheet, or with other FLOP/s and another memory."""
    tp: float = 1
    """Into how many parts tensor parallelism cuts F. On nodes the devices of a group are neighbours."""
    fsdp: float = 1
    """Into how many parts fully sharded data parallelism cuts the weights and the tokens."""
    exact: bool = True
    """A collective sends a device no more than what it lacks: (P - 1) / P of V, and not V."""
    tokens: float = 0
    """Alive at once, on all devices: those of a step, or of each of its microbatches."""
    saved: str = "all"
    """A policy of `memory.SAVED`."""
    fabrics_overlap: bool = True
    """The axes of a kind, NVLink and the network work beside each other; else collectives one after the other."""
    gathers: int = 1
    """Gathers of the weights in a step: one for each of its microbatches."""
    gathered_weight_bytes: int = BF16_BYTES
    """The size of one weight on its way to those who need it."""
    gathered_blocks: int = 1
    """Blocks whose gathered weights a device holds at a time."""

    @property
    def degrees(self) -> dict[str, float]:
        """The kinds of parallelism that cut anything, the inner one first."""
        degrees = {"tp": self.tp, "fsdp": self.fsdp}
        return {kind: degree for kind, degree in degrees.items() if degree > 1}

    @property
    def devices(self) -> float:
        return self.tp * self.fsdp

    @property
    def flop_per_s(self) -> float:
        return self.chip.flops["bf16"]

    @property
    def parameters(self) -> int:
        """The weights of all blocks, and with a vocabulary those of the embedding and of the output matrix."""
        model = self.model
        return model.d_model * (model.blocks * model.matrices * model.d_ff + 2 * model.vocabulary)

    @property
    def block_weights(self) -> float:
        """Weights of a block that the devices of an FSDP group share."""
        return self.model.matrices * self.model.d_model * self.model.d_ff / self.tp

    @property
    def block_gathered_bytes(self) -> float:
        """The bytes of a block's gathered weights, which a device holds for a moment."""
        return self.block_weights * self.gathered_weight_bytes if self.fsdp > 1 else 0.0

    @property
    def flop_per_token(self) -> float:
        """The FLOP of one device in the forward pass of one block."""
        return 2 * self.block_weights / self.fsdp

    @property
    def s_per_token(self) -> float:
        """The time of one device's matmuls in the forward pass of one block."""
        return self.flop_per_token / self.flop_per_s

    def misfit(self) -> str | None:
        """Why the degrees do not divide what they cut, or do not fit the chip's torus or nodes; None where they do.

        On nodes, groups have to divide a node or to fill nodes: the traffic of others is not counted right.
        """
        if self.model.d_ff % self.tp:
            return f"--tp {self.tp} does not divide F = {self.model.d_ff}: take a divisor of it"
        node = self.chip.node_size
        axes = self.chip.torus_axes
        if axes:
            degrees = ", ".join(f"{kind}={degree:g}" for kind, degree in self.degrees.items())
            sentence = f"{degrees}: each needs an axis of its own, and the torus has {axes}: leave one out"
            return sentence if len(self.degrees) > axes else None
        for kind, degree in self.degrees.items():
            group = self.tp if kind == "tp" else self.devices
            if node % group and group % node:
                return (
                    f"{kind}={degree:g}: groups of {group:g} devices do not pack into nodes of {node}: let them "
                    "divide it, or be a multiple of it"
                )
        if self.devices > node and not self.chip.port_bytes_per_s:
            return (
                f"{self.devices:g} devices span nodes of {node}, and the chip's network is not known: shard over at "
                f"most {node}, or take a --chip with a network"
            )
        return None
