"""The question of `roofline account` and its answer, in SI units. `--json` prints the fields, `text` formats them."""

from dataclasses import dataclass, replace

from roofline.account import splits, techniques
from roofline.account.communication_bound import WIRES, Bound, Setting, Term
from roofline.account.memory import Memory
from roofline.account.meshes import Sharding
from roofline.theory.chips import GB, GIB, Chip

SCHEMA = 3


@dataclass(frozen=True)
class Question:
    """What is asked: the memory, the setting, and how large a device is."""

    chip: Chip
    memory: Memory
    setting: Setting
    device_bytes: int | None


@dataclass(frozen=True)
class Reading:
    """One of `memory.READINGS`: what each device holds."""

    name: str
    whole_bytes: int
    least_devices: dict[str, int | None]
    device_bytes: float
    fits: bool | None


@dataclass(frozen=True)
class Pass:
    """The forward pass through a block: FLOP and seconds of its matmuls for each token, and seconds at all tokens."""

    flop_per_token: float
    s_per_token: float
    math_s: float
    wire_s: float
    serial_s: float
    overlapped_s: float
    """Where matmuls and wires run beside each other, as the bound has it."""


@dataclass(frozen=True)
class SplitBound:
    """How the devices are divided, and from how many tokens on the chips set the pace then."""

    sharding: Sharding
    tokens: float


@dataclass(frozen=True)
class Answer:
    """All that is known of a question."""

    schema: int
    question: Question
    devices: float
    parameters: int
    parts_bytes: dict[str, int]
    state_bytes: int
    saved_bytes: int
    gathered_bytes: float
    """Of a block's weights, which a device holds for a moment."""
    readings: list[Reading]
    forward: Pass
    terms: tuple[Term, ...]
    bounds: dict[str, Bound]
    """By what adds up: `communication_bound.WIRES`. The first is the one taken."""
    least_d_ff: float | None
    """The F above which the activations of tensor parallelism take less time than the matmuls; None without it."""
    best_splits: dict[str, SplitBound]
    levers: list[techniques.Lever]

    @property
    def bound(self) -> Bound:
        return self.bounds[self.question.setting.wires]


def answer(question: Question) -> Answer:
    """All terms and answers."""
    memory, setting = question.memory, question.setting
    best = {"whole": splits.best_whole(setting), "real": splits.best_real(setting)}
    return Answer(
        schema=SCHEMA,
        question=question,
        devices=setting.sharding.devices,
        parameters=memory.parameters,
        parts_bytes=memory.parts,
        state_bytes=memory.state_bytes,
        saved_bytes=memory.saved_bytes,
        gathered_bytes=setting.gathered_bytes,
        readings=[_reading(question, name) for name in memory.readings],
        forward=_forward(setting, memory.tokens),
        terms=setting.terms,
        bounds={wires: replace(setting, wires=wires).bound() for wires in WIRES},
        least_d_ff=_least_d_ff(setting),
        best_splits={name: SplitBound(split.sharding, split.bound().tokens) for name, split in best.items()},
        levers=techniques.levers(setting, memory, question.device_bytes),
    )


def _reading(question: Question, name: str) -> Reading:
    memory, size = question.memory, question.device_bytes
    whole = memory.whole_bytes(name)
    on_device = memory.sharded_bytes / question.setting.sharding.devices + whole
    least = {text: memory.least_degree(count, name) for text, count in _sizes(size).items()}
    return Reading(name, whole, least, on_device, on_device <= size if size else None)


def _sizes(device_bytes: int | None) -> dict[str, int]:
    """The device's memory, and the same figure in the other unit: {"80 GB": 80000000000, "80 GiB": 85899345920}."""
    if not device_bytes:
        return {}
    figure = min((device_bytes / unit for unit in (GB, GIB)), key=lambda figure: len(f"{figure:g}"))
    return {f"{figure:g} GB": round(figure * GB), f"{figure:g} GiB": round(figure * GIB)}


def _forward(setting: Setting, tokens: int) -> Pass:
    math_s, wire_s = setting.math_s(tokens), setting.wire_s(tokens)
    times = math_s, wire_s, setting.serial_s(tokens), max(math_s, wire_s)
    return Pass(setting.math_flop, setting.math_s(1), *times)


def _least_d_ff(setting: Setting) -> float | None:
    wires_s = [term.token_bytes * term.slowest.seconds for term in setting.terms if term.kind == "tp"]
    return setting.model.d_ff * sum(wires_s) / setting.math_s(1) if wires_s else None
