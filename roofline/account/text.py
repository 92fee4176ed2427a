"""The answers of `roofline account`, in lines: sentences first, then a table of each module's rows."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from roofline.account import memory, techniques
from roofline.account.cases import Attention, TransformerStep
from roofline.account.communication_bound import Bound, best_split, bound, collectives, forward, least_d_ff
from roofline.account.memory import Part
from roofline.account.question import Question
from roofline.report.format import time_text
from roofline.report.tables import aligned
from roofline.theory.chips import GB, GIB, Chip
from roofline.theory.models import Model

WIDTH = 120


def text(question: Question) -> str:
    """The report: the answers in sentences, then every term, to check each figure by hand. Raises ValueError where the
    question's degrees do not fit."""
    if misfit := question.misfit():
        raise ValueError(misfit)
    model = question.model
    chip = question.chip
    blocks = f"{model.blocks} x " if model.blocks else ""
    weights = f", {question.parameters:,} weights" if model.blocks else ""
    lines = [
        f"{model.name}, {_counted(model)}",
        f"devices: N = {question.devices:,}, X = {question.fsdp} (fsdp), Y = {question.tp} (tp)",
        *_readings(question),
        f"  {_bound_text(bound(question), question)}",
        "",
        f"{model.name}: {blocks}(D = {model.d_model} -> F = {model.d_ff} -> D){weights}",
        f"{chip.name}: {question.flop_per_s:.4g} FLOP/s, {_links(chip)}, {_gb_and_gib(chip.memory_bytes)}",
        *_wrapped(chip.source, "  "),
        "",
    ]
    if parts := memory.parts(question):
        lines += [*_memory(parts), ""]
    return "\n".join([*lines, *_forward(question), "", *_techniques(question)])


def _readings(question: Question) -> list[str]:
    """The verdict on each device's memory, and the number of devices that would be enough."""
    if not question.model.blocks:
        lacking = "--blocks N, --gate where a block has a third matrix, and --vocabulary V"
        return [f"  memory: not known of D,F alone; add {lacking}"]
    lines = []
    memory_bytes = question.chip.memory_bytes
    sharded_bytes = memory.sharded_bytes(question)
    for reading, whole_bytes in memory.readings(question).items():
        device_bytes = sharded_bytes / question.devices + whole_bytes
        lines.append(f"  {_fits(device_bytes, memory_bytes)}, {reading}: {_gb_and_gib(device_bytes)} on each device")
        enough = []
        for size, room_bytes in memory.sizes(memory_bytes).items():
            devices = memory.least_devices(sharded_bytes, whole_bytes, room_bytes)
            enough.append(f"{size} from N = {devices:,} on" if devices else f"{size} at no N")
        if enough:
            lines.append(f"    enough: {', '.join(enough)}")
    return lines


def _fits(needed_bytes: float, room_bytes: int | None) -> str:
    """The verdict on the memory of a chip, as far as that is known."""
    if not room_bytes:
        return "it takes"
    return "it fits" if needed_bytes <= room_bytes else "it does not fit"


def _memory(parts: Sequence[Part]) -> list[str]:
    rows = [["MEMORY in training", "GB", "GiB", ""]]
    for name, size_bytes, note in parts:
        sizes = _number(size_bytes / GB, 2), _number(size_bytes / GIB, 2)
        rows.append([f"  {name}", *sizes, note])
    return aligned(rows, "<>><")


def _forward(question: Question) -> list[str]:
    """The matmuls and links of a block, the bounds, and the pace at the question's tokens."""
    matmuls = f"{_number(question.flop_per_token)} FLOP at {question.flop_per_s / 1e12:.4g} TFLOP/s"
    lines = [
        "CHIPS OR LINKS, forward pass of one block",
        f"  matmuls: a token is {matmuls}, {_time(question.s_per_token)}",
        *_terms(question),
        *_bounds(question),
    ]
    if least := least_d_ff(question):
        d_ff = question.model.d_ff
        verdict = "keep up" if least <= d_ff else "do not keep up"
        lines.append(f"  activations need F above {least:,.0f}, and F = {d_ff:,}: so they {verdict}")
    if question.tokens:
        times = forward(question)
        pace = "links" if times.chips_wait else "chips"
        lines += [
            f"  at B = {question.tokens:,}, {_number(question.tokens / question.devices, 1)} on each device:",
            f"    matmuls {_time(times.math_s)}, links {_time(times.link_s)}: the {pace} set the pace; "
            f"serial {_time(times.serial_s)}, overlapped {_time(max(times.math_s, times.link_s))}",
        ]
    return lines


def _terms(question: Question) -> list[str]:
    """The time of each collective on the fabric that it waits for."""
    rows = [["  term", "over", "V, fixed", "V, a token", "received", "rate", "time", "a token"]]
    for collective in collectives(question):
        slowest = collective.slowest
        rows.append(
            [
                f"  {collective.name}",
                slowest.fabric,
                _number(collective.fixed_bytes),
                _number(collective.bytes_per_token),
                f"{slowest.received_fraction:.4g} V",
                f"{slowest.bytes_per_s / 1e9:.4g} GB/s",
                _time(collective.fixed_bytes * slowest.s_per_byte),
                _time(collective.bytes_per_token * slowest.s_per_byte),
            ]
        )
    return aligned(rows, "<<>>>>>>") if rows[1:] else []


def _bounds(question: Question) -> list[str]:
    ways = {
        "fabrics beside each other (max), as taken here": question,
        "one after the other (sum)": replace(question, fabrics_overlap=False),
        "best whole split": best_split(question),
    }
    rows = [["  compute-bound above", "X", "Y", "tokens", "a device", "used if serial"]]
    for name, way in ways.items():
        above = bound(way)
        use = "" if above.serial_use is None else f"{100 * above.serial_use:.0f} %"
        tokens = _tokens(above.tokens), _tokens(above.tokens / way.devices, 1)
        rows.append([f"    {name}", f"{way.fsdp:g}", f"{way.tp:g}", *tokens, use])
    return aligned(rows, "<>>>>>")


def _techniques(question: Question) -> list[str]:
    """The rows of all techniques, each with its reason below it. A pipeline's stages work side by side on all devices,
    so that tokens are told over these."""
    effects = techniques.effects(question)
    now = bound(question).tokens
    at_bound = now if now < math.inf else 0
    received_now = techniques.received_bytes(question, at_bound)
    rows = [["WHAT LOWERS THE BOUND, best first", "a device", "of now", "memory", "received"]]
    for effect in effects:
        tokens, of_now, more, received = "-", "", "", ""
        if effect.more_bytes:
            more = f"{'+' if effect.more_bytes > 0 else '-'}{_gb(abs(effect.more_bytes))}"
        if effect.after:
            tokens = _tokens(effect.tokens / question.devices, 1)
            if at_bound and effect.tokens < math.inf:
                of_now = f"{effect.tokens / now:.2f}"
            if received_now:
                received = f"{techniques.received_bytes(effect.after, at_bound) / received_now:.2f}"
        rows.append([f"  {effect.name}", tokens, of_now, more, received])
    header, *lines = aligned(rows, "<>>>>")
    table = [header]
    for effect, line in zip(effects, lines, strict=True):
        table += [line, *_wrapped(effect.reason, "      ")]
    return table


def case_text(case: Attention | TransformerStep, chip: Chip) -> str:
    """The memory of one training step where each operator is a kernel of its own, or of one attention with and without
    its scores in memory, by formula."""
    if isinstance(case, Attention):
        whole = case.saved_bytes(scores=True)
        rows = [
            ("scores in memory", whole, "q, k, v, probabilities"),
            ("flash", case.saved_bytes(scores=False), "q, k, v, out, a float a row"),
        ]
    else:
        whole = sum(case.memory.values())
        rows = []
        for name, size in case.memory.items():
            note = f"of {case.facts['m']:,} tokens" if name == "activations" else f"{case.parameters:,} weights"
            if size:
                rows.append((name, size, note))
        rows.append(("in all", whole, "and what lives for a moment only"))
    fits = f"{_fits(whole, chip.memory_bytes)}, " if chip.memory_bytes else ""
    needs = f"by formula it needs {_gb(whole)}, and {chip.name} has {_gb_and_gib(chip.memory_bytes)}"
    return "\n".join([f"{case.id}: {fits}{needs}", *_memory(rows)])


def _counted(model: Model) -> str:
    """Which weights are counted."""
    matrices = f"{model.matrices} matrices a block"
    if model.vocabulary:
        return f"FFN and vocabulary: {matrices}, 2 of {model.vocabulary:,} x D; attention is not counted"
    return f"FFN only: {matrices}; attention and embeddings are not counted"


def _bound_text(bound: Bound, question: Question) -> str:
    if bound.tokens == math.inf:
        return f"never compute-bound: over the {bound.fabric} each token takes longer than on the chips"
    if not bound.tokens:
        return "compute-bound at any number of tokens"
    each = _number(bound.tokens / question.devices, 1)
    above = f"compute-bound above {_number(bound.tokens)} tokens, {each} on each device"
    enough = ""
    if question.tokens:
        enough = f" ({question.tokens:,} are {'too few' if forward(question).chips_wait else 'enough'})"
    return f"{above}{enough}; below, the forward pass waits for the {bound.fabric}"


def _links(chip: Any) -> str:
    received = chip.received_bytes_per_s / 1e9
    if chip.torus_axes:
        return f"torus axes {chip.torus_axes} x {received / chip.torus_axes:g} GB/s"
    network = f"{chip.port_bytes_per_s / 1e9:g} GB/s" if chip.port_bytes_per_s else "unknown"
    return f"nodes of {chip.node_size}, {received:g} GB/s inside, network {network}"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _number(value: float, digits: int = 0) -> str:
    """Format with commas; a small number with its first three digits, so that none becomes 0, and a number too large
    for its column with its first four."""
    if value and value * 10**digits < 10:
        return f"{value:.3g}"
    plain = f"{value:,.{digits}f}"
    return plain if len(plain) <= 15 - 2 * digits else f"{value:.4g}"


def _tokens(tokens: float, digits: int = 0) -> str:
    return "none" if tokens == math.inf else _number(tokens, digits) if tokens else "any"


def _gb(size_bytes: float) -> str:
    return f"{_number(size_bytes / GB, 2)} GB"


def _gb_and_gib(size_bytes: float | None) -> str:
    return "memory unknown" if size_bytes is None else f"{_gb(size_bytes)} = {_number(size_bytes / GIB, 2)} GiB"


def _time(seconds: float) -> str:
    if not seconds:
        return "-"
    return time_text(seconds, digits=4) if seconds >= 1e-6 else f"{seconds / 1e-9:.4g} ns"
