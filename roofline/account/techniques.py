"""What lowers the tokens at which the chips set the pace, how far, and at what cost; and what does not, and why."""

import math
from dataclasses import dataclass, replace

from roofline.account import splits
from roofline.account.communication_bound import Setting
from roofline.account.memory import Memory
from roofline.account.meshes import Torus
from roofline.theory.chips import GB

MICROBATCHES = 4
"""Of a step, in what is said of gradient accumulation; of a pipeline, for each of its stages."""

STAGES = 4
"""Of a pipeline."""


@dataclass(frozen=True)
class Technique:
    """`setting` and `memory` with a technique, on one stage of a pipeline where that is it. `setting`: None where it
    cannot be used. `gathered_blocks`: of how many blocks a device holds the gathered weights at a time."""

    why: str
    setting: Setting | None = None
    memory: Memory | None = None
    gathered_blocks: int = 1

    @property
    def device_bytes(self) -> float:
        """What a device holds, with weights that are gathered."""
        return self.memory.sharded_bytes / self.setting.sharding.devices + (
            self.gathered_blocks * self.setting.gathered_bytes
        )


@dataclass(frozen=True)
class Lever:
    """What a technique does to the bound, and what it costs a device. `tokens` is None where it cannot be used."""

    name: str
    why: str
    helps: bool
    tokens: float | None = None
    memory_bytes: float = 0.0
    """More than now, or less."""
    wire_bytes: float | None = None
    """What a device receives in a forward pass of as many tokens as the bound is now."""


def levers(now: Setting, memory: Memory, device_bytes: int | None = None) -> list[Lever]:
    """All techniques, those that lower the bound of `now` most first. `memory`: of the same model, what is saved now.
    What takes more memory than now, and more than `device_bytes`, cannot be used."""
    techniques = {
        "overlap gathers with matmuls": overlap_matmuls(now, memory),
        "a better split of X and Y": better_split(now, memory),
        f"{STAGES} pipeline stages": pipeline(now, memory),
        "8-bit gathers of weights": short_gathers(now, memory),
        "activation checkpointing": checkpointing(now, memory),
        "gradient accumulation": accumulation(now, memory),
    }
    plain = Technique("", now, memory)
    rows = [_lever(name, technique, plain, device_bytes) for name, technique in techniques.items()]
    return sorted(rows, key=lambda lever: (0, lever.tokens) if lever.helps else (1, 0.0))


def _lever(name: str, technique: Technique, now: Technique, device_bytes: int | None) -> Lever:
    """`technique` beside `now`."""
    after, before = technique.setting, now.setting.bound().tokens
    if not after:
        return Lever(name, technique.why, helps=False)
    more = technique.device_bytes - now.device_bytes
    if device_bytes and more > 0 and technique.device_bytes > device_bytes:
        used = f"{technique.device_bytes / GB:,.2f} GB do not fit a device of {device_bytes / GB:,.2f} GB"
        return Lever(name, f"{used}; {technique.why}", helps=False, memory_bytes=more)
    tokens = after.bound().tokens
    return Lever(
        name,
        technique.why,
        helps=tokens < before * (1 - 1e-9),  # by more than rounding
        tokens=tokens,
        memory_bytes=more,
        wire_bytes=_wire_bytes(after, before if before < math.inf else 0),
    )


def _wire_bytes(setting: Setting, tokens: float) -> float:
    """What a device receives in a forward pass of so many tokens, for all its blocks."""
    return setting.model.blocks * sum(
        (term.fixed_bytes + term.token_bytes * tokens) * crossing.amount
        for term in setting.terms
        for crossing in term.crossings
    )


def overlap_matmuls(now: Setting, memory: Memory) -> Technique:
    """The subject of this project; the bound takes it for granted."""
    tokens = now.bound().tokens
    why = "the bound takes it for granted"
    if 0 < tokens < math.inf:
        share = now.math_s(tokens) / now.serial_s(tokens)
        why += f": there chips are used to {100 * share:.0f} % by serial gathers, to 100 % by overlapped ones"
    return Technique(why, now, memory)


def better_split(now: Setting, memory: Memory) -> Technique:
    best = splits.best_whole(now)
    return Technique(
        f"X = {best.sharding.fsdp:g}, Y = {best.sharding.tp:g} is the best of the whole ones", best, memory
    )


def pipeline(now: Setting, memory: Memory) -> Technique:
    """The largest stage: fewer blocks, on fewer devices. On a torus the stages have an axis of their own."""
    sharding, torus = now.sharding, isinstance(now.mesh, Torus)
    if sharding.fsdp % STAGES:
        return Technique(f"fsdp={sharding.fsdp:g} does not divide into {STAGES}")
    if now.model.blocks < STAGES:
        return Technique(f"the model has fewer blocks, {now.model.blocks}")
    stage = replace(now.model, blocks=math.ceil(now.model.blocks / STAGES))
    cut = replace(sharding, fsdp=sharding.fsdp / STAGES)
    mesh = replace(now.mesh, all_axes=now.mesh.all_axes - 1) if torus else now.mesh
    if kind := mesh.misfit(cut):
        no_axis, no_nodes = "the torus has no axis left for stages", f"the groups of {kind} then do not pack into nodes"
        return Technique(no_axis if torus else no_nodes)
    why = "a device holds all the weights of its stage (or of a part of F), and gathers none"
    if cut.fsdp > 1:
        why = f"{STAGES} times fewer devices gather the weights of a stage, once for all microbatches, and keep them"
        why += "; they take an axis from FSDP" if torus else ""
    # A stage works for as many slots as there are microbatches, and waits while the others fill and drain.
    idle, slots = STAGES - 1, MICROBATCHES * STAGES + STAGES - 1
    why += f"; the largest stage has {stage.blocks} blocks; a bubble of {idle}/{slots} = {100 * idle / slots:.0f} % "
    why += f"of the time at {slots - idle} microbatches"
    setting = replace(now, model=stage, sharding=cut, mesh=mesh)
    return Technique(why, setting, replace(memory, model=stage), gathered_blocks=stage.blocks)


def short_gathers(now: Setting, memory: Memory) -> Technique:
    if now.sharding.fsdp <= 1:
        return Technique("no weights are gathered")
    why = "half the bytes (of training three quarters, whose gradients are scattered in 16 bits); the scales, and the "
    why += "digits lost, are not counted"
    return Technique(why, replace(now, gathered_itemsize=1), memory)


def checkpointing(now: Setting, memory: Memory) -> Technique:
    if memory.saved == "checkpointed":
        return Technique("it is used already", now, memory)
    why = "the forward pass stays as it is; in training it adds FLOP to the backward pass"
    why += ", and no gather of weights" if now.sharding.fsdp > 1 else ""
    return Technique(why, now, replace(memory, saved="checkpointed"))


def accumulation(now: Setting, memory: Memory) -> Technique:
    """In microbatches, for each of which the weights are gathered again."""
    alive = replace(memory, tokens=math.ceil(memory.tokens / MICROBATCHES))
    if now.sharding.fsdp <= 1:
        return Technique("no weights are gathered, for one microbatch or for many", now, alive)
    why = f"each of {MICROBATCHES} microbatches gathers the weights again: it needs the bound's tokens by itself"
    return Technique(why, replace(now, gathers=MICROBATCHES), alive)
