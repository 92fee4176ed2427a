"""The answer of `roofline account`, as plain data in SI units: what `--json` prints, and the text and plots show.

docs/accounting.md documents the fields.
"""

import math
from dataclasses import asdict, replace

from roofline.account import splits, techniques
from roofline.account.command import Hidden, Question
from roofline.account.communication_bound import WIRES, Setting, Term
from roofline.account.meshes import Torus
from roofline.account.utilisation import ARMS, COMPUTING, computing_tokens, hidden_s, step_s
from roofline.theory.chips import GB, GIB

SCHEMA = 1


def answer(question: Question) -> dict:
    """All terms and answers."""
    setting = question.setting
    return {
        "schema": SCHEMA,
        "model": asdict(setting.model) | {"experts": setting.experts, "top_k": setting.top_k},
        "chip": _chip(question),
        "sharding": _degrees(setting) | {"stage_blocks": setting.stage_blocks, "chosen": question.chosen},
        "memory": _memory(question),
        "pace": _pace(setting, question.tokens, question.hidden),
        "techniques": _techniques(question),
    }


def _chip(question: Question) -> dict:
    chip, mesh, sharding = question.chip, question.setting.mesh, question.setting.sharding
    about = {"name": chip.name, "source": chip.source, "given": question.given, "flops": question.setting.flops}
    if isinstance(mesh, Torus):
        axes = {kind: mesh.axes_of(kind, sharding) for kind in sharding.used}
        about |= {"mesh": "torus", "axes": axes, "axis_bytes_per_s": mesh.axis_bytes_per_s, "ways": mesh.ways}
    else:
        inside = {"node_size": mesh.size, "link_bytes_per_s": mesh.link_bytes_per_s, "sharp": mesh.sharp}
        about |= {"mesh": "nodes"} | inside
    return about | {
        "network_bytes_per_s": mesh.network_bytes_per_s,
        "collectives": "exact" if mesh.exact else "whole",
        "memory_bytes": question.device_bytes,
    }


def _memory(question: Question) -> dict:
    memory, setting, device_bytes = question.memory, question.setting, question.device_bytes
    of_tokens = ("saved", "tokens", "saved_bytes_per_token", "all_saved_bytes_per_token", "saved_bytes")
    gathered = techniques.gathered_bytes(setting)
    kept = gathered if techniques.keeps_stage(setting) else 0

    def read(reading: str) -> dict:
        whole = memory.whole_bytes(reading)
        on_device = techniques.held_bytes(setting, memory) + whole + kept
        return {
            "reading": reading,
            "sharded_bytes": memory.sharded_bytes,
            "whole_bytes": whole,
            "least_devices": {name: memory.least_degree(size, reading) for name, size in _sizes(device_bytes).items()},
            "device_bytes": on_device,
            "fits": on_device <= device_bytes if device_bytes else None,
        }

    return {
        "dtypes": asdict(memory.dtypes),
        "parameters": memory.parameters,
        **{f"{kind}_bytes": size for kind, size in memory.parts.items()},
        **{name: getattr(memory, name) for name in ("state_bytes", *of_tokens)},
        "readings": [read(reading) for reading in memory.readings],
        "gathered_bytes": gathered,
    }


def _sizes(device_bytes: int | None) -> dict[str, int]:
    """The device's memory, and the same figure in the other unit: {"80 GB": 80000000000, "80 GiB": 85899345920}."""
    if not device_bytes:
        return {}
    figure = min((device_bytes / unit for unit in (GB, GIB)), key=lambda figure: len(f"{figure:g}"))
    return {f"{figure:g} GB": round(figure * GB), f"{figure:g} GiB": round(figure * GIB)}


def _pace(setting: Setting, tokens: int, hidden: Hidden | None) -> dict:
    return {
        **{name: getattr(setting, name) for name in ("step", "wires", "gathers", "recompute")},
        "math": [
            {"step": step, "flop_per_token": setting.math_flop(step), "s_per_token": setting.math_s(step, 1)}
            for step in setting.steps
        ],
        "terms": [_term(term) for term in setting.terms],
        "bound": _bound(setting),
        "bounds": {wires: _bound(replace(setting, wires=wires)) for wires in WIRES},
        "least_d_ff": _least_d_ff(setting),
        "hidden": _hidden(setting, hidden) if hidden else None,
        "at_tokens": _at(setting, tokens, hidden) if tokens else None,
        "best_split": {
            "whole": _best_bound(splits.best_whole(setting)),
            "real": _best_bound(splits.best_real(setting)),
            "least_wire_whole": _least_wire(splits.best_whole(setting, tokens)) if tokens else None,
            "least_wire_real": _least_wire(splits.best_real(setting, tokens)) if tokens else None,
        },
    }


def _term(term: Term) -> dict:
    return {
        **{key: getattr(term, key) for key in ("step", "name", "op", "kind", "fixed_bytes")},
        "bytes_per_token": term.token_bytes,
        "crossings": [crossing._asdict() for crossing in term.crossings],
        "fabric": term.slowest.fabric,
        "fixed_s": term.fixed_bytes * term.slowest.seconds,
        "s_per_token": term.token_bytes * term.slowest.seconds,
    }


def _bound(setting: Setting) -> dict:
    bound = setting.bound()
    return bound._asdict() | _tokens(setting, bound.tokens)


def _tokens(setting: Setting, tokens: float) -> dict:
    """Of a bound, on all devices and on each: None where no number of them helps."""
    if tokens == math.inf:
        return {"tokens": None, "tokens_per_device": None}
    return {"tokens": tokens, "tokens_per_device": tokens / setting.sharding.devices}


def _least_d_ff(setting: Setting) -> float | None:
    """The F above which the activations of tensor parallelism take less time than the matmuls; None without it."""
    found = []
    for step in setting.steps:
        own = [term for term in setting.terms if (term.step, term.kind) == (step, "tp")]
        wire_s = sum(term.token_bytes * term.slowest.seconds for term in own)
        found += [setting.model.d_ff * wire_s / setting.math_s(step, 1)] * bool(own)
    return max(found, default=None)


def _hidden(setting: Setting, hidden: Hidden) -> dict:
    found = _tokens(setting, computing_tokens(setting, hidden.share))
    return hidden._asdict() | {"computes_at_bound": 1 / (2 - hidden.share), "computing": COMPUTING} | found


def _at(setting: Setting, tokens: int, hidden: Hidden | None) -> dict:
    def of_step(step: str) -> dict:
        math_s, wire_s = setting.math_s(step, tokens), setting.wire_s(step, tokens)
        return {
            "step": step,
            "math_s": math_s,
            "wire_s": wire_s,
            **{f"{arm}_s": step_s(setting, step, tokens, arm) for arm in ARMS},
            "hidden_s": hidden_s(setting, step, tokens, hidden.share) if hidden else None,
            # Rounding does not decide at the bound itself.
            "pace": "chips" if wire_s <= math_s * (1 + 1e-9) else "wire",
        }

    sharding = setting.sharding
    idle = sharding.devices * max(0.0, 1 - tokens / setting.gathers / sharding.batch_parts)
    return {
        "tokens": tokens,
        "tokens_per_device": tokens / sharding.devices,
        "devices_without_tokens": math.floor(idle),
        "steps": [of_step(step) for step in setting.steps],
    }


def _degrees(setting: Setting) -> dict:
    return asdict(setting.sharding) | {"devices": setting.sharding.devices}


def _best_bound(split: splits.Split | None) -> dict | None:
    return split and _degrees(split.setting) | _tokens(split.setting, split.least)


def _least_wire(split: splits.Split) -> dict:
    return _degrees(split.setting) | {"wire_s": split.least}


def _techniques(question: Question) -> list[dict]:
    now = question.setting
    before = _bound(now)["tokens"] or 0

    def row(technique: techniques.Technique) -> dict:
        after = technique.setting
        found = _tokens(after or now, after.bound().tokens if after else math.inf)
        return {
            "name": technique.name,
            "helps": technique.helps(now),
            "possible": after is not None,
            **found,
            "of_the_bound_now": found["tokens"] / before if before and found["tokens"] is not None else None,
            "memory_bytes": technique.memory_bytes,
            "flop": technique.flop,
            "wire_bytes": _wire_bytes(after, before) if after else None,
            "why": technique.why,
        }

    return [row(technique) for technique in techniques.ranked(now, question.memory, question.device_bytes)]


def _wire_bytes(setting: Setting, tokens: float) -> float:
    """What a device receives in a step of so many tokens, for all blocks of its stage."""
    return setting.stage_blocks * sum(
        (term.fixed_bytes + term.token_bytes * tokens) * crossing.amount
        for term in setting.terms
        for crossing in term.crossings
    )
