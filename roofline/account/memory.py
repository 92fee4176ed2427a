"""The bytes of training, and the devices on which they fit.

Counted: master weights, gradients and the optimizer's moments in fp32, and what the forward pass saves in bf16 for the
backward one. Not counted: what is alive for a moment only, as gathered weights and the outputs of the block at hand.
"""

from roofline.account.question import BF16_BYTES, Question
from roofline.theory.chips import GB, GIB

STATE_BYTES = {"weights": 4, "gradients": 4, "optimizer": 2 * 4}
"""Bytes of each parameter, in fp32. The optimizer, AdamW, has two moments."""

SAVED = {
    "all": "{inputs}",
    "half": "{inputs} of every second block",
    "checkpointed": "the blocks' inputs, and one block's inner ones",
}
"""The elements that are saved for each token: D + F a block, or D, and the F of the block that is computed again. F
counts twice in a block with a gate: the outputs of `gate` and `up`, whose product is the input of `down`."""

INPUTS = {2: "the inputs of both layers", 3: "the input and the gate's and up's outputs"}
"""Elements that a block of so many matrices saves."""


Part = tuple[str, float, str]
"""(name, bytes, note) of what takes memory, on all devices together or as its note says."""


def parts(question: Question) -> list[Part]:
    """The rows of memory: the state in parts and their sum, what is saved, and what is alive for a moment. There are
    none of a model whose blocks nobody counted."""
    if not question.model.blocks:
        return []
    rows: list[Part] = []
    for name, size in STATE_BYTES.items():
        rows.append((f"{name}, fp32", question.parameters * size, ""))
    policy = SAVED[question.saved].format(inputs=INPUTS[question.model.matrices])
    note = f"of B = {question.tokens:,}: {saved_bytes_per_token(question):,} bytes a token, {policy}"
    rows.append(("state", state_bytes(question), "the three together"))
    rows.append(("saved activations, bf16", saved_bytes(question), note))
    if question.block_gathered_bytes:
        rows.append(("gathered weights", question.block_gathered_bytes, "of a block, on each device; not counted"))
    return rows


def readings(question: Question) -> dict[str, float]:
    """{way to read the policy: bytes that each device holds whole, since they are not sharded}: of `half` there are
    two."""
    if question.saved != "half":
        return {"all sharded": 0}
    return {
        "the other half dropped, and computed again": 0,
        "the other half kept, whole on every device": saved_bytes(question),
    }


def state_bytes(question: Question) -> int:
    return question.parameters * sum(STATE_BYTES.values())


def saved_bytes_per_token(question: Question) -> int:
    model = question.model
    inner = (model.matrices - 1) * model.d_ff
    if question.saved == "checkpointed":
        return (model.blocks * model.d_model + inner) * BF16_BYTES
    return model.blocks * (model.d_model + inner) * BF16_BYTES // (2 if question.saved == "half" else 1)


def saved_bytes(question: Question) -> float:
    return question.tokens * saved_bytes_per_token(question)


def sharded_bytes(question: Question) -> float:
    """All that is divided among the devices."""
    return state_bytes(question) + saved_bytes(question)


def least_devices(sharded_bytes: float, whole_bytes: float, device_bytes: float) -> int | None:
    """The fewest devices of `device_bytes` that hold it all, or None where what stays whole leaves no room.

    >>> least_devices(3_517_578_215_424, 0, 95 * 10**9)
    38
    """
    room = device_bytes - whole_bytes
    return -int(-sharded_bytes // room) if room > 0 else None


def sizes(device_bytes: int | None) -> dict[str, int]:
    """The device's memory, and the same figure in the other unit: {"80 GB": 80000000000, "80 GiB": ...}. Empty where
    it is not known."""
    if not device_bytes:
        return {}
    figure = min(device_bytes / GB, device_bytes / GIB, key=lambda figure: len(f"{figure:g}"))
    return {f"{figure:g} GB": round(figure * GB), f"{figure:g} GiB": round(figure * GIB)}
