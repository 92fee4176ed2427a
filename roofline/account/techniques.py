"""What lowers the tokens at which the chips set the pace, how far, and at what cost; and what does not, and why."""

import math
from dataclasses import dataclass, replace

from roofline.account import splits
from roofline.account.communication_bound import Setting
from roofline.account.memory import BYTES, Memory
from roofline.account.meshes import Nodes, Torus
from roofline.theory.chips import GB

MICROBATCHES = 4
"""Of a step, in what is said of gradient accumulation and of pipelines."""

STAGES = 4
"""In place of each stage now."""


@dataclass(frozen=True)
class Technique:
    """One technique. `setting` with it; None where it cannot be used. Costs are of one device, beside what it has now.

    `flop`: times the FLOP of a step. `memory_bytes`: more, or less; `ranked` adds what follows from `setting`, and from
    `microbatches`, which are times those of a step now: so many fewer activations are alive at once. What it does to
    the bytes on the wire is in the terms of `setting`.
    """

    why: str
    setting: Setting | None = None
    memory_bytes: float = 0.0
    flop: float = 1.0
    microbatches: float = 1.0
    name: str = ""

    def helps(self, now: Setting) -> bool:
        """Whether it lowers the bound of `now` by more than rounding."""
        return self.setting is not None and self.setting.bound().tokens < now.bound().tokens * (1 - 1e-9)


def ranked(now: Setting, memory: Memory, device_bytes: int | None = None) -> list[Technique]:
    """All techniques for `now`, those that lower the bound most first. `memory`: of the same model, what is saved now.
    What takes more memory than now, and more than `device_bytes`, cannot be used."""
    found = {
        "overlap gathers with matmuls": overlap_matmuls(now),
        "overlap the wires with each other": overlap_wires(now),
        "more mesh axes for FSDP": more_axes(now),
        "a better split of X and Y": better_split(now),
        "tensor parallelism, as far as it goes": more_tensor_parallel(now),
        f"{STAGES * now.sharding.pp:g} pipeline stages": pipeline(now),
        "8-bit gathers of weights": short_gathers(now),
        "activation checkpointing": checkpointing(now, memory),
        "reductions in the switch (SHARP)": switch_reductions(now, memory.tokens),
        "gradient accumulation": accumulation(now, kept=False),
        "gradient accumulation, weights kept gathered": accumulation(now, kept=True),
        "sequence parallelism": sequence_parallel(now),
    }
    every = [_with_memory(replace(found[name], name=name), now, memory, device_bytes) for name in found]
    return sorted(every, key=lambda one: (0, one.setting.bound().tokens) if one.helps(now) else (1, 0.0))


def _with_memory(technique: Technique, now: Setting, memory: Memory, device_bytes: int | None) -> Technique:
    """`technique` with all that it costs a device; without a setting where that does not fit."""
    after = technique.setting
    if not after:
        return technique
    alive = replace(memory, tokens=math.ceil(memory.tokens / technique.microbatches))
    before = held_bytes(now, memory) + gathered_bytes(now)
    more = technique.memory_bytes + held_bytes(after, alive) + gathered_bytes(after) - before
    technique = replace(technique, memory_bytes=more)
    if not device_bytes or more <= 0 or before + more <= device_bytes:
        return technique
    why = f"{(before + more) / GB:,.2f} GB do not fit a device of {device_bytes / GB:,.2f} GB; {technique.why}"
    return replace(technique, setting=None, why=why)


def overlap_matmuls(now: Setting) -> Technique:
    """The subject of this project; the bound takes it for granted."""
    tokens = now.bound().tokens
    why = "the bound takes it for granted"
    if 0 < tokens < math.inf:
        serial_s = sum(now.serial_s(step, tokens) for step in now.steps)
        share = sum(now.math_s(step, tokens) for step in now.steps) / serial_s
        why += f": there chips are used to {100 * share:.0f} % by serial gathers, to 100 % by overlapped ones"
    return Technique(why, now)


def overlap_wires(now: Setting) -> Technique:
    if now.wires == "shared":
        return Technique("what crosses different fabrics does so at the same time", replace(now, wires="fabric"))
    if now.wires == "separate":
        return Technique("taken for granted, even of what shares a fabric", now)
    users = {(term.kind, crossing.fabric) for term in now.terms for crossing in term.crossings}
    if len(users) > len({fabric for _, fabric in users}):
        return Technique("what crosses different fabrics does so already; what shares one has to take turns", now)
    return Technique("each kind has wires of its own, and they already run beside each other", now)


def more_axes(now: Setting) -> Technique:
    if not isinstance(now.mesh, Torus):
        return Technique("a GPU's links are all used by every collective already")
    sharding, most = now.sharding, now.mesh.all_axes
    if sharding.fsdp <= 1:
        return Technique("no weights are gathered")
    if now.mesh.axes_of("fsdp", sharding) == most:
        return Technique(f"the torus has no more than {most}")
    if sharding.tp <= 1:
        return Technique(f"all {most} axes are taken")
    alone = replace(sharding, fsdp=sharding.fsdp * sharding.tp, tp=1)
    why = f"all {most} axes are taken: it costs tensor parallelism its own"
    return Technique(why, replace(now, sharding=alone))


def better_split(now: Setting) -> Technique:
    best = splits.best_whole(now)
    if best is None:
        return Technique("no split of these devices has a bound")
    sharding = best.setting.sharding
    return Technique(f"X = {sharding.fsdp:g}, Y = {sharding.tp:g} is the best of the whole ones", best.setting)


def more_tensor_parallel(now: Setting) -> Technique:
    """Y as far as the wire of the activations keeps up with the chips: F / alpha on a torus."""
    able = [split for split in splits.whole(now) if split.bound().tokens < math.inf]
    if not able:
        return Technique("the activations take longer on the wire than the matmul at any Y")
    most = max(able, key=lambda split: split.sharding.tp)
    here, there = now.sharding.tp, most.sharding.tp
    return Technique(f"Y = {there:g} is the most at which the activations keep up (now {here:g})", most)


def pipeline(now: Setting) -> Technique:
    sharding, stages = now.sharding, STAGES * now.sharding.pp
    if sharding.fsdp % STAGES:
        return Technique(f"fsdp={sharding.fsdp:g} does not divide into {STAGES}")
    if now.model.blocks < stages:
        return Technique(f"the model has fewer blocks, {now.model.blocks}")
    cut = replace(sharding, fsdp=sharding.fsdp / STAGES, pp=stages)
    if kind := now.mesh.misfit(cut):
        torus, nodes = "the torus has no axis left for stages", f"the groups of {kind} then do not pack into nodes"
        return Technique(torus if isinstance(now.mesh, Torus) else nodes)
    after = replace(now, sharding=cut)
    if cut.fsdp > 1:
        why = f"{STAGES} times fewer devices gather the weights of a stage, once for all microbatches, and keep them"
        takes_axis = isinstance(now.mesh, Torus) and now.mesh.axes_of("fsdp", cut) < now.mesh.axes_of("fsdp", sharding)
        why += "; they take an axis from FSDP" if takes_axis else ""
    else:
        why = "a device holds all the weights of its stage (or of a part of F), and gathers none"
    why += f"; the largest stage has {after.stage_blocks} blocks" if now.model.blocks % stages else ""
    # A stage works for as many slots as there are microbatches, and waits while the others fill and drain.
    idle, slots = stages - 1, MICROBATCHES * stages + stages - 1
    why += f"; a bubble of {idle:g}/{slots:g} = {100 * idle / slots:.0f} % of the time at {slots - idle:g} microbatches"
    return Technique(why, after)


def short_gathers(now: Setting) -> Technique:
    if now.sharding.fsdp <= 1:
        return Technique("no weights are gathered")
    if BYTES[now.dtypes.gathers] <= 1:
        return Technique("they are gathered in 8 bits already", now)
    share = {2: "half", 4: "a quarter of"}[BYTES[now.dtypes.gathers]]
    why = f"{share} the bytes; the scales, and the digits lost, are not counted"
    return Technique(why, replace(now, dtypes=replace(now.dtypes, gathers="fp8")))


def checkpointing(now: Setting, memory: Memory) -> Technique:
    if now.recompute:
        return Technique("it is used already", now)
    matrices = now.model.matrices  # three passes multiply with each; D -> F is multiplied once more
    less = (replace(memory, saved="checkpointed").saved_bytes - memory.saved_bytes) / now.sharding.devices
    gathered = now.sharding.fsdp > 1
    if now.step == "forward":
        why = "the forward pass stays as it is; in training it adds FLOP to the backward pass"
        return Technique(why + ", and no gather of weights" * gathered, now, less)
    why = f"the backward pass computes more{' for the weights that it gathers' * gathered}; the forward pass does not"
    return Technique(why, replace(now, recompute=True), less, flop=1 + (matrices - 1) / (3 * matrices))


def switch_reductions(now: Setting, tokens: float) -> Technique:
    if not isinstance(now.mesh, Nodes):
        return Technique("a torus has no switch")
    why = (
        "all-reduces are V in place of 2 V (P - 1) / P: of gradients under dp, and of activations under tp, which stay "
        "whole; gathers and scatters of weights are what they were"
    )
    elements = tokens / now.sharding.batch_parts * now.model.d_model * now.stage_blocks
    whole = elements * BYTES[now.dtypes.activations]
    return Technique(why, replace(now, mesh=replace(now.mesh, sharp=True)), whole * (1 - 1 / now.sharding.tp))


def accumulation(now: Setting, kept: bool) -> Technique:
    """In microbatches, for each of which the weights are gathered again, unless they are `kept` gathered."""
    microbatches = 1 if kept and keeps_stage(now) else MICROBATCHES
    if now.sharding.fsdp <= 1:
        return Technique("no weights are gathered, for one microbatch or for many", now, microbatches=microbatches)
    if not kept:
        why = f"each of {MICROBATCHES} microbatches gathers the weights again: it needs the bound's tokens by itself"
        return Technique(why, replace(now, gathers=MICROBATCHES), microbatches=microbatches)
    why = "one gather for all microbatches: a microbatch may be below the bound, the step may not; it saves activations"
    more = gathered_bytes(now, whole_stage=True) - gathered_bytes(now)
    return Technique(why, now, more, microbatches=microbatches)


def sequence_parallel(now: Setting) -> Technique:
    gain = "it keeps what is saved between the layers sharded, and lets X be more than the sequences"
    if now.sharding.tp <= 1:
        return Technique("there is no tensor parallelism that it could go with", now)
    return Technique(
        f"a gather and a scatter in place of an all-reduce are the same bytes, and are counted so; {gain}", now
    )


def gathered_bytes(setting: Setting, whole_stage: bool = False) -> float:
    """Of the gathered weights that a device holds at a time: those of one block, or those of its whole stage, where
    the microbatches of a pipeline share one gather."""
    blocks = setting.stage_blocks if whole_stage or keeps_stage(setting) else 1
    return setting.block_weights * BYTES[setting.dtypes.gathers] * blocks * (setting.sharding.fsdp > 1)


def held_bytes(setting: Setting, memory: Memory) -> float:
    """Of the state and of what is saved, on each device of the largest stage. Data parallel replicas each hold the
    state, and all devices share what is saved."""
    sharding = setting.sharding
    of_average = setting.stage_blocks * sharding.pp / setting.model.blocks
    return (memory.state_bytes * sharding.dp + memory.saved_bytes) / sharding.devices * of_average


def keeps_stage(setting: Setting) -> bool:
    """Whether the microbatches of a pipeline share one gather, so that a stage's weights stay gathered."""
    return setting.sharding.pp > 1 and setting.gathers == 1
