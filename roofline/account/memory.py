"""How many bytes training takes, and on how many devices they fit.

Counted: master weights, gradients, the optimizer's moments, and what the forward pass saves for the backward one. Not
counted: what is alive for a moment only, as gathered weights and the outputs of the block at hand.
"""

from dataclasses import dataclass, fields, replace

from roofline.theory.models import Model

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "none": 0}
"""Bytes of one element."""

SAVED = {
    "all": "the inputs of both layers",
    "half": "the inputs of both layers of every second block",
    "checkpointed": "the blocks' inputs, and one block's inner ones",
}
"""What is saved for each token: D + F elements a block, or D elements and the F of the block that is computed again.
Of a block with a gate, F counts twice: the outputs of `gate` and `up`, whose product is the input of `down`."""

MOMENTS = 2
"""Of the optimizer, AdamW, for each parameter."""

READINGS = {
    "sharded": "all sharded",
    "dropped": "the other half dropped, and computed again",
    "whole": "the other half kept, whole on every device",
}
"""Where the saved activations are. Of `half` there are the last two readings; what is saved is sharded in each."""


@dataclass(frozen=True)
class Dtypes:
    """The dtype of each kind of bytes. `copy` is a second, shorter copy of the weights to compute with.

    >>> parse_dtypes("optimizer=bf16,copy=fp8") == Dtypes(optimizer="bf16", copy="fp8")
    True
    """

    weights: str = "fp32"
    copy: str = "none"
    gradients: str = "fp32"
    optimizer: str = "fp32"
    activations: str = "bf16"
    gathers: str = "bf16"
    """Of weights on their way to those who need them."""
    wire: str = "bf16"
    """Of all else that is reduced, gathered or sent: gradients and activations."""


PLAIN = Dtypes()


def parse_dtypes(text: str) -> Dtypes:
    """The plan that `text` changes (`weights=bf16,optimizer=fp32`). Raises ValueError for unknown kinds or dtypes."""
    kinds = {field.name for field in fields(Dtypes)}
    changes = {}
    for part in filter(None, text.split(",")):
        kind, _, dtype = part.strip().partition("=")
        if kind not in kinds or dtype not in BYTES or (dtype == "none" and kind != "copy"):
            known = f"{', '.join(sorted(kinds))} and {', '.join(BYTES).removesuffix(', none')}"
            raise ValueError(f"dtypes {part.strip()!r}: it is KIND=DTYPE, of {known} (or copy=none)")
        changes[kind] = dtype
    return replace(PLAIN, **changes)


@dataclass(frozen=True)
class Memory:
    """Bytes of one model in training, on all devices together.

    >>> from roofline.theory.models import parse
    >>> xxl = Memory(parse("xxl"))
    >>> xxl.parameters, round(xxl.state_bytes / 1e9, 2), xxl.state_bytes / 2**30
    (219848638464, 3517.58, 3276.0)
    """

    model: Model
    dtypes: Dtypes = PLAIN
    tokens: int = 0
    """Alive at once, on all devices: those of a step, or of each of its microbatches."""
    saved: str = "all"

    @property
    def parameters(self) -> int:
        return self.model.blocks * self.model.matrices * self.model.d_model * self.model.d_ff

    @property
    def parts(self) -> dict[str, int]:
        """Bytes of the weights (the master ones, and a copy to compute with), the gradients and the optimizer."""
        plan, parameters = self.dtypes, self.parameters
        return {
            "weights": parameters * (BYTES[plan.weights] + BYTES[plan.copy]),
            "gradients": parameters * BYTES[plan.gradients],
            "optimizer": parameters * MOMENTS * BYTES[plan.optimizer],
        }

    @property
    def state_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def _inner(self) -> int:
        """Elements of a token that a block saves beside its input."""
        return (self.model.matrices - 1) * self.model.d_ff

    @property
    def all_saved_bytes_per_token(self) -> int:
        """What the forward pass saves under `saved="all"`, of which `half` keeps one half."""
        return self.model.blocks * (self.model.d_model + self._inner) * BYTES[self.dtypes.activations]

    @property
    def saved_bytes_per_token(self) -> int:
        """What the policy saves. Under `half` the other half comes on top where it is `whole`."""
        if self.saved == "checkpointed":
            elements = self.model.blocks * self.model.d_model + self._inner
            return elements * BYTES[self.dtypes.activations]
        return self.all_saved_bytes_per_token // (2 if self.saved == "half" else 1)

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
