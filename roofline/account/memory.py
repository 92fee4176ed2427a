"""How many bytes training takes, and on how many devices they fit.

Counted: master weights, gradients and the optimizer's moments in fp32, and what the forward pass saves in bf16 for the
backward one. Not counted: what is alive for a moment only, as gathered weights and the outputs of the block at hand.
"""

from dataclasses import dataclass

from roofline.theory.models import Model

STATE_BYTES = {"weights": 4, "gradients": 4, "optimizer": 2 * 4}
"""Of each parameter, in fp32. The optimizer, AdamW, has two moments."""

BF16_BYTES = 2
"""Of an element that is saved, or that crosses a wire."""

SAVED = {
    "all": "the inputs of both layers",
    "half": "the inputs of both layers of every second block",
    "checkpointed": "the blocks' inputs, and one block's inner ones",
}
"""What is saved for each token: D + F elements a block, or D elements and the F of the block that is computed again.
Of a block with a gate, F counts twice: the outputs of `gate` and `up`, whose product is the input of `down`."""

READINGS = {
    "sharded": "all sharded",
    "dropped": "the other half dropped, and computed again",
    "whole": "the other half kept, whole on every device",
}
"""Where the saved activations are. Of `half` there are the last two readings; what is saved is sharded in each."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one model in training, on all devices together.

    >>> from roofline.theory.models import parse
    >>> xxl = Memory(parse("xxl"))
    >>> xxl.parameters, round(xxl.state_bytes / 1e9, 2), xxl.state_bytes / 2**30
    (219848638464, 3517.58, 3276.0)
    """

    model: Model
    tokens: int = 0
    """Alive at once, on all devices: those of a step, or of each of its microbatches."""
    saved: str = "all"

    @property
    def parameters(self) -> int:
        return self.model.blocks * self.model.matrices * self.model.d_model * self.model.d_ff

    @property
    def parts(self) -> dict[str, int]:
        """Bytes of the weights, the gradients and the optimizer."""
        return {part: self.parameters * size for part, size in STATE_BYTES.items()}

    @property
    def state_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def saved_bytes_per_token(self) -> int:
        """What the policy saves. Under `half` the other half comes on top where it is `whole`."""
        inner = (self.model.matrices - 1) * self.model.d_ff
        if self.saved == "checkpointed":
            return (self.model.blocks * self.model.d_model + inner) * BF16_BYTES
        return self.model.blocks * (self.model.d_model + inner) * BF16_BYTES // (2 if self.saved == "half" else 1)

    @property
    def saved_bytes(self) -> int:
        return self.tokens * self.saved_bytes_per_token

    @property
    def readings(self) -> list[str]:
        """Those of `READINGS` that the policy has."""
        return ["dropped", "whole"] if self.saved == "half" else ["sharded"]

    @property
    def sharded_bytes(self) -> int:
        """All that is divided among the devices."""
        return self.state_bytes + self.saved_bytes

    def whole_bytes(self, reading: str) -> int:
        """What every device holds, however many there are, in a reading of the policy."""
        return self.saved_bytes if reading == "whole" else 0

    def least_degree(self, device_bytes: int, reading: str) -> int | None:
        """The fewest devices of `device_bytes` that hold it all; None where no number does, since what stays whole
        leaves no room.

        >>> from roofline.theory.models import parse
        >>> [Memory(parse("xxl"), tokens=t, saved="half").least_degree(95 * 10**9, "dropped") for t in (0, 131072)]
        [38, 50]
        """
        room = device_bytes - self.whole_bytes(reading)
        return -(-self.sharded_bytes // room) if room > 0 else None
