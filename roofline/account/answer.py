"""The answer of `roofline account`, as plain data in SI units: what `--json` prints, and the text and plots show.

roofline/README.md documents the fields.
"""

import math
from dataclasses import asdict, replace

from roofline.account import splits, techniques
from roofline.account.command import Question
from roofline.account.communication_bound import Bound, Setting
from roofline.account.memory import READINGS
from roofline.account.meshes import Torus
from roofline.account.utilisation import ARMS, step_s
from roofline.theory.chips import GB, GIB

SCHEMA = 1


def answer(question: Question) -> dict:
    """All terms and answers."""
    return {
        "schema": SCHEMA,
        "model": asdict(question.setting.model)
        | {"experts": question.setting.experts, "top_k": question.setting.top_k},
        "chip": _chip(question),
        "sharding": _degrees(question.setting)
        | {"stage_blocks": question.setting.stage_blocks, "chosen": question.chosen},
        "memory": _memory(question),
        "pace": _pace(question),
        "techniques": _techniques(question),
    }


def _chip(question: Question) -> dict:
    chip, mesh = question.chip, question.setting.mesh
    about = {"name": chip.name, "source": chip.source, "given": question.given, "flops": question.setting.flops}
    if isinstance(mesh, Torus):
        axes = {kind: mesh.axes_of(kind, question.setting.sharding) for kind in question.setting.sharding.used}
        about |= {"mesh": "torus", "axes": axes, "axis_bytes_per_s": mesh.axis_bytes_per_s, "ways": mesh.ways}
        network = mesh.network_bytes_per_s
    else:
        about |= {
            "mesh": "nodes",
            "node_size": mesh.size,
            "link_bytes_per_s": mesh.link_bytes_per_s,
            "sharp": mesh.sharp,
        }
        network = mesh.port_bytes_per_s
    collectives = "exact" if mesh.exact else "whole"
    return about | {"network_bytes_per_s": network, "collectives": collectives, "memory_bytes": question.device_bytes}


def _memory(question: Question) -> dict:
    memory, setting = question.memory, question.setting
    gathered = techniques.gathered_bytes(setting)
    kept = gathered if techniques.keeps_stage(setting) else 0
    found = {
        "dtypes": asdict(memory.dtypes),
        "parameters": memory.parameters,
        **{
            f"{kind}_bytes": getattr(memory, f"{kind}_bytes") for kind in ("weights", "gradients", "optimizer", "state")
        },
        "saved": memory.saved,
        "tokens": memory.tokens,
        "saved_bytes_per_token": replace(memory, tokens=1).saved_bytes,
        "all_saved_bytes_per_token": memory.saved_bytes_per_token,
        "saved_bytes": memory.saved_bytes,
        "readings": [],
        "gathered_bytes": gathered,
    }
    for reading in READINGS[memory.saved]:
        whole = memory.whole_bytes(reading)
        least = {label: memory.least_degree(size, reading) for label, size in _sizes(question).items()}
        on_device = techniques.held_bytes(setting, memory) + whole + kept
        found["readings"].append(
            {
                "reading": reading,
                "sharded_bytes": memory.sharded_bytes(),
                "whole_bytes": whole,
                "least_devices": least,
                "device_bytes": on_device,
                "fits": on_device <= question.device_bytes if question.device_bytes else None,
            }
        )  # fmt: skip
    return found


def _sizes(question: Question) -> dict[str, int]:
    """The device's memory, and the same figure in the other unit: {"80 GB": 80000000000, "80 GiB": 85899345920}."""
    device_bytes = question.device_bytes
    if not device_bytes:
        return {}
    units = {"GB": GB, "GiB": GIB}
    figure = min((device_bytes / scale for scale in units.values()), key=lambda figure: len(f"{figure:g}"))
    return {f"{figure:g} {unit}": round(figure * scale) for unit, scale in units.items()}


def _pace(question: Question) -> dict:
    setting, tokens = question.setting, question.tokens
    return {
        "step": setting.step,
        "wires": setting.wires,
        "gathers": setting.gathers,
        "recompute": setting.recompute,
        "math": [
            {"step": step, "flop_per_token": setting.math_flop(step), "s_per_token": setting.math_s(step, 1)}
            for step in setting.steps
        ],
        "terms": [_term(term) for term in setting.terms],
        "bound": _bound(setting, setting.bound()),
        "bounds": {wires: _bound(other, other.bound()) for wires, other in _conventions(setting)},
        "least_d_ff": _least_d_ff(setting),
        "at_tokens": _at(setting, tokens) if tokens else None,
        "best_split": {
            "whole": _split(splits.least_bound(setting)),
            "real": _split(splits.least_bound_real(setting)),
            "least_wire_whole": _wire_split(splits.least_wire(setting, tokens)) if tokens else None,
            "least_wire_real": _wire_split(splits.least_wire_real(setting, tokens)) if tokens else None,
        },
    }


def _conventions(setting: Setting) -> list[tuple[str, Setting]]:
    return [(wires, replace(setting, wires=wires)) for wires in ("separate", "fabric", "shared")]


def _term(term) -> dict:
    slowest = max(term.crossings, key=lambda crossing: crossing.seconds)
    return {
        **{key: getattr(term, key) for key in ("step", "name", "op", "kind", "fixed_bytes")},
        "bytes_per_token": term.token_bytes,
        "crossings": [crossing._asdict() for crossing in term.crossings],
        "fabric": slowest.fabric,
        "fixed_s": term.fixed_bytes * slowest.seconds,
        "s_per_token": term.token_bytes * slowest.seconds,
    }


def _bound(setting: Setting, bound: Bound) -> dict:
    of_device = None if bound.tokens is None else bound.tokens / setting.sharding.devices
    return bound._asdict() | {"tokens_per_device": of_device}


def _least_d_ff(setting: Setting) -> float | None:
    """The F above which the activations of tensor parallelism take less time than the matmuls; None without it."""
    found = []
    for step in setting.steps:
        own = [term for term in setting.terms if (term.step, term.kind) == (step, "tp")]
        wire_s = sum(term.token_bytes * max(crossing.seconds for crossing in term.crossings) for term in own)
        found += [setting.model.d_ff * wire_s / setting.math_s(step, 1)] * bool(own)
    return max(found, default=None)


def _at(setting: Setting, tokens: int) -> dict:
    steps = [
        {
            "step": step,
            "math_s": setting.math_s(step, tokens),
            "wire_s": setting.wire_s(step, tokens),
            **{f"{arm}_s": step_s(setting, step, tokens, arm) for arm in ARMS},
            # Rounding does not decide at the bound itself.
            "pace": "chips" if setting.wire_s(step, tokens) <= setting.math_s(step, tokens) * (1 + 1e-9) else "wire",
        }
        for step in setting.steps
    ]
    sharding = setting.sharding
    idle = sharding.devices * max(0.0, 1 - tokens / setting.gathers / sharding.batch_parts)
    return {
        "tokens": tokens,
        "tokens_per_device": tokens / sharding.devices,
        "devices_without_tokens": math.floor(idle),
        "steps": steps,
    }


def _degrees(setting: Setting) -> dict:
    return asdict(setting.sharding) | {"devices": setting.sharding.devices}


def _split(split: splits.Split | None) -> dict | None:
    return split and _degrees(split.setting) | {
        "tokens": split.least,
        "tokens_per_device": split.least / split.setting.sharding.devices,
    }


def _wire_split(split: splits.Split) -> dict:
    return _degrees(split.setting) | {"wire_s": split.least}


def _techniques(question: Question) -> list[dict]:
    now = question.setting
    before = now.bound().tokens
    found = []
    for technique in techniques.ranked(now, question.memory, question.device_bytes):
        bound = technique.bound
        tokens = bound.tokens if bound else None
        found.append(
            {
                "name": technique.name,
                "helps": technique.helps(now),
                "possible": bound is not None,
                "tokens": tokens,
                "tokens_per_device": tokens / technique.setting.sharding.devices if tokens is not None else None,
                "of_the_bound_now": tokens / before if before and tokens is not None else None,
                "memory_bytes": technique.memory_bytes,
                "flop": technique.flop,
                "wire_bytes": _wire_bytes(technique.setting, before) if technique.setting else None,
                "why": technique.why,
            }
        )
    return found


def _wire_bytes(setting: Setting, tokens: float | None) -> float:
    """What a device receives in a step of so many tokens, for all blocks of its stage."""
    return setting.stage_blocks * sum(
        (term.fixed_bytes + term.token_bytes * (tokens or 0)) * crossing.amount
        for term in setting.terms
        for crossing in term.crossings
    )
