"""The question of `roofline account` and its answer, in SI units. `--json` prints the fields, `text` formats them."""

import math
from dataclasses import asdict, dataclass, replace

from roofline.account import splits, techniques
from roofline.account.communication_bound import WIRES, Bound, Setting, Term
from roofline.account.memory import Memory
from roofline.account.meshes import Sharding
from roofline.theory.chips import GB, GIB, Chip

SCHEMA = 2

GIVEN = ("flops", "bandwidth", "network", "node", "memory")
"""Constants of the chip that an option overrides."""


@dataclass(frozen=True)
class Question:
    """What is asked: the memory, the setting, and how large a device is. `given`: constants of the chip overridden."""

    chip: Chip
    memory: Memory
    setting: Setting
    tokens: int
    device_bytes: int | None
    given: dict[str, float]
    chosen: str = ""
    """How the devices were divided, where the question left it open."""


@dataclass(frozen=True)
class Reading:
    """One of `memory.READINGS`. `device_bytes`: on each device of the largest stage."""

    name: str
    sharded_bytes: int
    whole_bytes: int
    least_devices: dict[str, int | None]
    device_bytes: float
    fits: bool | None


@dataclass(frozen=True)
class Pass:
    """One pass through a block: FLOP and seconds of its matmuls for each token, and seconds of it at `tokens`."""

    step: str
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
class Lever:
    """What a technique does to the bound, and its cost. `tokens` is None where it cannot be used."""

    name: str
    why: str
    helps: bool
    tokens: float | None
    of_the_bound_now: float | None
    memory_bytes: float
    flop: float
    wire_bytes: float | None
    """What a device receives in a step of as many tokens as the bound is now."""


@dataclass(frozen=True)
class Answer:
    """All that is known of a question."""

    schema: int
    question: Question
    devices: float
    stage_blocks: int
    parameters: int
    state_bytes: int
    parts_bytes: dict[str, int]
    saved_bytes: int
    gathered_bytes: float
    """Of weights, at a time: a block's, or where a pipeline keeps them a stage's."""
    readings: list[Reading]
    passes: list[Pass]
    terms: tuple[Term, ...]
    bounds: dict[str, Bound]
    """By what adds up: `communication_bound.WIRES`."""
    least_d_ff: float | None
    """The F above which the activations of tensor parallelism take less time than the matmuls; None without it."""
    devices_without_tokens: int
    best_splits: dict[str, SplitBound]
    levers: list[Lever]

    @property
    def bound(self) -> Bound:
        return self.bounds[self.question.setting.wires]

    def as_json(self) -> dict:
        """All fields; null where there is no such number of tokens."""
        return _finite(asdict(self))


def answer(question: Question) -> Answer:
    """All terms and answers."""
    memory, setting = question.memory, question.setting
    best = {"whole": splits.best_whole(setting), "real": splits.best_real(setting)}
    idle = 1 - question.tokens / setting.gathers / setting.sharding.batch_parts
    return Answer(
        schema=SCHEMA,
        question=question,
        devices=setting.sharding.devices,
        stage_blocks=setting.stage_blocks,
        parameters=memory.parameters,
        state_bytes=memory.state_bytes,
        parts_bytes=memory.parts,
        saved_bytes=memory.saved_bytes,
        gathered_bytes=techniques.gathered_bytes(setting),
        readings=[_reading(question, name) for name in memory.readings],
        passes=[_pass(setting, step, question.tokens) for step in setting.steps],
        terms=setting.terms,
        bounds={wires: replace(setting, wires=wires).bound() for wires in WIRES},
        least_d_ff=_least_d_ff(setting),
        devices_without_tokens=math.floor(setting.sharding.devices * max(0.0, idle)) if question.tokens else 0,
        best_splits={name: SplitBound(split.setting.sharding, split.tokens) for name, split in best.items() if split},
        levers=_levers(question),
    )


def _reading(question: Question, name: str) -> Reading:
    memory, setting, device_bytes = question.memory, question.setting, question.device_bytes
    whole = memory.whole_bytes(name)
    on_device = techniques.held_bytes(setting, memory) + whole
    if techniques.keeps_stage(setting):
        on_device += techniques.gathered_bytes(setting)
    least = {size: memory.least_degree(count, name) for size, count in _sizes(device_bytes).items()}
    return Reading(
        name, memory.sharded_bytes, whole, least, on_device, on_device <= device_bytes if device_bytes else None
    )


def _sizes(device_bytes: int | None) -> dict[str, int]:
    """The device's memory, and the same figure in the other unit: {"80 GB": 80000000000, "80 GiB": 85899345920}."""
    if not device_bytes:
        return {}
    figure = min((device_bytes / unit for unit in (GB, GIB)), key=lambda figure: len(f"{figure:g}"))
    return {f"{figure:g} GB": round(figure * GB), f"{figure:g} GiB": round(figure * GIB)}


def _pass(setting: Setting, step: str, tokens: int) -> Pass:
    math_s, wire_s = setting.math_s(step, tokens), setting.wire_s(step, tokens)
    times = math_s, wire_s, setting.serial_s(step, tokens), max(math_s, wire_s)
    return Pass(step, setting.math_flop(step), setting.math_s(step, 1), *times)


def _least_d_ff(setting: Setting) -> float | None:
    needs = []
    for step in setting.steps:
        activations = [term for term in setting.terms if (term.step, term.kind) == (step, "tp")]
        wire_s = sum(term.token_bytes * term.slowest.seconds for term in activations)
        needs += [setting.model.d_ff * wire_s / setting.math_s(step, 1)] * bool(activations)
    return max(needs, default=None)


def _levers(question: Question) -> list[Lever]:
    now = question.setting
    before = now.bound().tokens

    def lever(technique: techniques.Technique) -> Lever:
        after = technique.setting
        tokens = after.bound().tokens if after else None
        return Lever(
            name=technique.name,
            why=technique.why,
            helps=technique.helps(now),
            tokens=tokens,
            of_the_bound_now=tokens / before if after and 0 < before < math.inf > tokens else None,
            memory_bytes=technique.memory_bytes,
            flop=technique.flop,
            wire_bytes=_wire_bytes(after, before if before < math.inf else 0) if after else None,
        )

    return [lever(technique) for technique in techniques.ranked(now, question.memory, question.device_bytes)]


def _wire_bytes(setting: Setting, tokens: float) -> float:
    """What a device receives in a step of so many tokens, for all blocks of its stage."""
    return setting.stage_blocks * sum(
        (term.fixed_bytes + term.token_bytes * tokens) * crossing.amount
        for term in setting.terms
        for crossing in term.crossings
    )


def _finite(value):
    """`value` with None for infinity, which JSON has not."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if value == math.inf else value
