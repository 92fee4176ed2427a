"""What lowers the tokens at which the chips set the pace, how far, and at what cost; and what does not, and why."""

import math
from dataclasses import dataclass, replace

from roofline.account import splits
from roofline.account.communication_bound import Bound, Setting
from roofline.account.memory import BYTES, Memory
from roofline.account.meshes import Nodes, Sharding, Torus
from roofline.account.utilisation import utilisation
from roofline.theory.chips import GB

MICROBATCHES = 4
"""Of a step, in what is said of gradient accumulation and of pipelines."""

STAGES = 4
"""In place of each stage now."""

NOT_GATHERED = "no weights are gathered, for one microbatch or for many"


@dataclass(frozen=True)
class Technique:
    """One technique. `setting` with it; None where it cannot be used. Costs are of one device, beside what it has now.

    `flop`: times the FLOP of a step. `memory_bytes`: more, or less; `ranked` adds what follows from `setting`, and from
    `microbatches`, which are times those of a step now: so many fewer activations are alive at once. What it does to
    the bytes on the wire is in the terms of `setting`.
    """

    name: str
    setting: Setting | None
    why: str
    memory_bytes: float = 0.0
    flop: float = 1.0
    microbatches: float = 1.0

    @property
    def bound(self) -> Bound | None:
        return self.setting and self.setting.bound()

    def helps(self, now: Setting) -> bool:
        """Whether it lowers the bound of `now` by more than rounding."""
        if not self.bound or self.bound.tokens is None:
            return False
        before = now.bound().tokens
        return before is None or self.bound.tokens < before * (1 - 1e-9)


def ranked(now: Setting, memory: Memory, device_bytes: int | None = None) -> list[Technique]:
    """All techniques for `now`, those that lower the bound most first. `memory`: of the same model, what is saved now.
    What takes more memory than now, and more than `device_bytes`, cannot be used."""
    found = [
        overlap_matmuls(now),
        overlap_wires(now),
        more_axes(now),
        better_split(now),
        more_tensor_parallel(now),
        pipeline(now),
        short_gathers(now),
        checkpointing(now, memory),
        switch_reductions(now, memory.tokens),
        accumulation(now),
        accumulation_kept(now),
        sequence_parallel(now),
    ]
    found = [_with_memory(technique, now, memory, device_bytes) for technique in found]
    return sorted(found, key=lambda technique: _rank(technique, now))


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


def _rank(technique: Technique, now: Setting) -> tuple:
    helps = technique.helps(now)
    return not helps, technique.bound.tokens if helps else 0


def overlap_matmuls(now: Setting) -> Technique:
    """The subject of this project; the bound takes it for granted."""
    tokens = now.bound().tokens
    why = "the bound takes it for granted"
    if tokens:
        serial, overlapped = (100 * utilisation(now, tokens, arm) for arm in ("serial", "overlapped"))
        why += f": there chips are used to {serial:.0f} % by serial gathers, to {overlapped:.0f} % by overlapped ones"
    return Technique("overlap gathers with matmuls", now, why)


def overlap_wires(now: Setting) -> Technique:
    name = "overlap the wires with each other"
    if now.wires == "shared":
        after = replace(now, wires="fabric")
        return Technique(name, after, "what crosses different fabrics does so at the same time")
    if now.wires == "separate":
        return Technique(name, now, "taken for granted, even of what shares a fabric")
    users = {(term.kind, crossing.fabric) for term in now.terms for crossing in term.crossings}
    if len(users) > len({fabric for _, fabric in users}):
        return Technique(name, now, "what crosses different fabrics does so already; what shares one has to take turns")
    return Technique(name, now, "each kind has wires of its own, and they already run beside each other")


def more_axes(now: Setting) -> Technique:
    name = "more mesh axes for FSDP"
    if not isinstance(now.mesh, Torus):
        return Technique(name, None, "a GPU's links are all used by every collective already")
    sharding, most = now.sharding, now.mesh.all_axes
    if sharding.fsdp <= 1:
        return Technique(name, None, "no weights are gathered")
    axes = {kind: now.mesh.axes_of(kind, sharding) for kind in sharding.used}
    own = axes["fsdp"]
    if now.mesh.taken(sharding) < most:
        after = replace(now, mesh=replace(now.mesh, axes={**axes, "fsdp": own + 1}))
        instead = f"{own + 1} axes in place of {own}" if own else "an axis in place of the network"
        return Technique(name, after, f"the weights come over {instead}")
    if own < most and axes.get("tp") == 1:
        alone = replace(sharding, fsdp=sharding.fsdp * sharding.tp, tp=1)
        after = replace(now, sharding=alone, mesh=replace(now.mesh, axes={**axes, "fsdp": own + 1}))
        return Technique(name, after, f"all {most} axes are taken: it costs tensor parallelism its own")
    return Technique(name, None, f"the torus has no more than {most}" if own >= most else f"all {most} axes are taken")


def better_split(now: Setting) -> Technique:
    best = splits.least_bound(now)
    if best is None:
        return Technique("a better split of X and Y", None, "no split of these devices has a bound")
    x, y = best.setting.sharding.fsdp, best.setting.sharding.tp
    text = f"X = {x:g}, Y = {y:g} is the best of the whole ones"
    return Technique("a better split of X and Y", best.setting, text)


def more_tensor_parallel(now: Setting) -> Technique:
    """Y as far as the wire of the activations keeps up with the chips: F / alpha on a torus."""
    name, here = "tensor parallelism, as far as it goes", now.sharding.tp
    able = [split for split in splits.whole(now) if split.bound().tokens is not None]
    if not able:
        return Technique(name, None, "the activations take longer on the wire than the matmul at any Y")
    most = max(able, key=lambda split: split.sharding.tp)
    text = f"Y = {most.sharding.tp:g} is the most at which the activations keep up (now {here:g})"
    return Technique(name, most, text)


def pipeline(now: Setting) -> Technique:
    sharding, stages = now.sharding, STAGES * now.sharding.pp
    name = f"{stages:g} pipeline stages"
    if sharding.fsdp % STAGES:
        return Technique(name, None, f"fsdp={sharding.fsdp:g} does not divide into {STAGES}")
    if now.model.blocks < stages:
        return Technique(name, None, f"the model has fewer blocks, {now.model.blocks}")
    cut = replace(sharding, fsdp=sharding.fsdp / STAGES, pp=stages)
    after = replace(now, sharding=cut, gathers=1)
    if cut.fsdp > 1:
        why = f"{STAGES} times fewer devices gather the weights of a stage, once for all microbatches, and keep them"
    else:
        why = "a device holds all the weights of its stage (of a part of F, of some experts), and gathers none"
    why += _axes_of_stages(now, cut)
    why += f"; the largest stage has {after.stage_blocks} blocks" if now.model.blocks % stages else ""
    why += (
        f"; a bubble of {100 * (stages - 1) / (MICROBATCHES * stages):.0f} % at {MICROBATCHES * stages:g} microbatches"
    )
    return Technique(name, after, why, microbatches=1 / now.gathers)  # what those of a pipeline save is alive at once


def _axes_of_stages(now: Setting, cut: Sharding) -> str:
    """What the stages of `cut` take from the other kinds on a torus."""
    if not isinstance(now.mesh, Torus):
        return ""
    if now.mesh.taken(cut) > now.mesh.all_axes >= now.mesh.taken(now.sharding):
        return "; counted as if all kinds now took turns on the torus"
    fewer = cut.fsdp > 1 and now.mesh.axes_of("fsdp", cut) < now.mesh.axes_of("fsdp", now.sharding)
    return "; they take an axis from FSDP" if fewer else ""


def short_gathers(now: Setting) -> Technique:
    name = "8-bit gathers of weights"
    if now.sharding.fsdp <= 1:
        return Technique(name, None, "no weights are gathered")
    if BYTES[now.dtypes.gathers] <= 1:
        return Technique(name, now, "they are gathered in 8 bits already")
    after = replace(now, dtypes=replace(now.dtypes, gathers="fp8"))
    share = {2: "half", 4: "a quarter of"}[BYTES[now.dtypes.gathers]]
    return Technique(name, after, f"{share} the bytes; the scales, and the digits lost, are not counted")


def checkpointing(now: Setting, memory: Memory) -> Technique:
    name = "activation checkpointing"
    if now.recompute:
        return Technique(name, now, "it is used already")
    less = (replace(memory, saved="checkpointed").saved_bytes - memory.saved_bytes) / now.sharding.devices
    gathered = now.sharding.fsdp > 1
    if now.step == "forward":
        why = "the forward pass stays as it is; in training it adds FLOP to the backward pass"
        return Technique(name, now, why + ", and no gather of weights" * gathered, memory_bytes=less)
    after = replace(now, recompute=True)
    why = f"the backward pass computes more{' for the weights that it gathers' * gathered}; the forward pass does not"
    return Technique(name, after, why, memory_bytes=less, flop=7 / 6)  # D -> F once more, beside six products


def switch_reductions(now: Setting, tokens: float) -> Technique:
    name = "reductions in the switch (SHARP)"
    if not isinstance(now.mesh, Nodes):
        return Technique(name, None, "a torus has no switch")
    if now.mesh.sharp:
        return Technique(name, now, "it is used already")
    after = replace(now, mesh=replace(now.mesh, sharp=True))
    why = (
        "all-reduces are V in place of 2 V (P - 1) / P: of gradients under dp, and of activations under tp, which stay "
        "whole; gathers and scatters of weights are what they were"
    )
    copies = tokens / now.sharding.batch_parts * now.top_k
    whole = copies * now.model.d_model * now.stage_blocks * BYTES[now.dtypes.activations]
    return Technique(name, after, why, memory_bytes=whole * (1 - 1 / now.sharding.tp))


def accumulation(now: Setting) -> Technique:
    name = "gradient accumulation"
    if now.sharding.fsdp <= 1:
        return Technique(name, now, NOT_GATHERED, microbatches=MICROBATCHES)
    after = replace(now, gathers=now.gathers * MICROBATCHES)
    why = f"each of {MICROBATCHES} microbatches gathers the weights again: it needs the bound's tokens by itself"
    return Technique(name, after, why, microbatches=MICROBATCHES)


def accumulation_kept(now: Setting) -> Technique:
    name, several = "gradient accumulation, weights kept gathered", now.gathers > 1 or keeps_stage(now)
    microbatches = 1 if several else MICROBATCHES
    if now.sharding.fsdp <= 1:
        return Technique(name, now, NOT_GATHERED, microbatches=microbatches)
    after = replace(now, gathers=1)
    why = "one gather for all microbatches: a microbatch may be below the bound, the step may not; it saves activations"
    kept = gathered_bytes(after, whole_stage=True) - gathered_bytes(after)
    return Technique(name, after, why, memory_bytes=kept, microbatches=microbatches)


def sequence_parallel(now: Setting) -> Technique:
    name = "sequence parallelism"
    gain = "it keeps what is saved between the layers sharded, and lets X be more than the sequences"
    if now.sharding.tp <= 1:
        return Technique(name, now, "there is no tensor parallelism that it could go with")
    if getattr(now.mesh, "sharp", False):
        after = replace(now, mesh=replace(now.mesh, sharp=False))
        return Technique(name, after, f"a gather and a scatter in place of an all-reduce in the switch; {gain}")
    why = f"a gather and a scatter in place of an all-reduce are the same bytes, and are counted so; {gain}"
    return Technique(name, now, why)


def gathered_bytes(setting: Setting, whole_stage: bool | None = None) -> float:
    """Of the gathered weights that a device holds at a time: those of one block, or those of its whole stage, as by
    default where the microbatches of a pipeline share one gather."""
    model, sharding = setting.model, setting.sharding
    if sharding.fsdp <= 1:
        return 0.0
    if whole_stage is None:
        whole_stage = keeps_stage(setting)
    parameters = 2 * model.d_model * model.d_ff * setting.experts / (sharding.tp * sharding.ep)
    return parameters * BYTES[setting.dtypes.gathers] * (setting.stage_blocks if whole_stage else 1)


def held_bytes(setting: Setting, memory: Memory) -> float:
    """Of the state and of what is saved, on each device of the largest stage. Data parallel replicas each hold the
    state, and all devices share what is saved."""
    sharding = setting.sharding
    of_average = setting.stage_blocks * sharding.pp / setting.model.blocks
    return (memory.state_bytes * sharding.dp + memory.saved_bytes) / sharding.devices * of_average


def keeps_stage(setting: Setting) -> bool:
    """Whether the microbatches of a pipeline share one gather, so that a stage's weights stay gathered."""
    return setting.sharding.pp > 1 and setting.gathers == 1
