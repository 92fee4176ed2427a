"""The answer of `roofline account` for people: what was asked, then every term, to check each figure by hand."""

import math
import textwrap

from roofline.account.answer import Answer, Pass
from roofline.account.communication_bound import WIRES
from roofline.account.memory import READINGS, SAVED
from roofline.account.meshes import Sharding, Torus
from roofline.account.techniques import Lever
from roofline.report.tables import aligned
from roofline.theory.chips import GB, GIB

WIDTH = 120


def text(answer: Answer) -> list[str]:
    """Its lines: what was asked, and a table for each part."""
    return [*_asked(answer), "", *_head(answer), "", *_memory(answer), "", *_pace(answer), "", *_levers(answer)]


def _asked(answer: Answer) -> list[str]:
    """What is counted, whether it fits, from how many tokens on it is compute-bound, and what lowers that most."""
    setting = answer.question.setting
    matrices = {2: "two", 3: "three"}[setting.model.matrices]
    lines = [
        f"{setting.model.name}, FFN only: {matrices} matrices a block; attention and embeddings are not counted",
        f"{_many(answer.devices, 'device')}: {_degrees(setting.sharding)}",
    ]
    for reading in answer.readings:
        verdict = {True: "it fits", False: "it does not fit", None: "it takes"}[reading.fits]
        lines.append(f"  {verdict}, {READINGS[reading.name]}: {_both(reading.device_bytes)} on each device")
        if least := reading.least_devices:
            enough = (f"{size} " + (f"from N = {count:,} on" if count else "at no N") for size, count in least.items())
            lines.append(f"    enough: {', '.join(enough)}")
    lines.append(f"  {_bound(answer)}")
    if best := next((lever for lever in answer.levers if lever.helps), None):
        each = f"above {_plain(best.tokens / answer.devices, 1)} tokens on each device"
        above = each if best.tokens else "at any number of tokens"
        lines += _wrapped(f"best lever: {best.name}: compute-bound {above}; {best.why}", "  ")
    return lines


def _head(answer: Answer) -> list[str]:
    question, setting, chip = answer.question, answer.question.setting, answer.question.chip
    model, mesh, sharding = setting.model, setting.mesh, setting.sharding
    if isinstance(mesh, Torus):
        dealt = ", ".join(f"{mesh.axes_of(kind, sharding)} for {kind}" for kind in sharding.used)
        wires = f"torus axes of {mesh.axis_bytes_per_s / 1e9:g} GB/s" + (f" ({dealt})" if dealt else "")
    else:
        network = f"{mesh.network_bytes_per_s / 1e9:g} GB/s" if mesh.network_bytes_per_s else "unknown"
        wires = f"nodes of {mesh.size}, {mesh.link_bytes_per_s / 1e9:g} GB/s inside, network {network}"
    flops = f"{setting.flops:.4g} FLOP/s" + (" (given)" if setting.flops != chip.flops["bf16"] else "")
    memory = _both(question.device_bytes) if question.device_bytes else "memory unknown"
    memory += " (given)" if question.device_bytes != chip.memory_bytes else ""
    return [
        f"{model.name}: {_many(model.blocks, 'block')}, D = {model.d_model} -> F = {model.d_ff} -> D; "
        f"{answer.parameters:,} parameters",
        f"{chip.name}: {flops}, {wires}, {memory}",
        *_wrapped(chip.source, "  "),
    ]


def _degrees(sharding: Sharding) -> str:
    degrees = {"fsdp X": sharding.fsdp, "tp Y": sharding.tp}
    return ", ".join(f"{name} = {degree}" for name, degree in degrees.items() if degree > 1) or "not sharded"


def _short(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.2f}"


def _many(count: float, thing: str) -> str:
    return f"{_plain(count)} {thing}{'' if count == 1 else 's'}"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _plain(value: float, digits: int = 0) -> str:
    """With commas; of a small one the first three digits, so that none becomes 0, and of one too large for its column
    the first four."""
    if value and value * 10**digits < 10:
        return f"{value:.3g}"
    plain = f"{value:,.{digits}f}"
    return plain if len(plain) <= 15 - 2 * digits else f"{value:.4g}"


def _both(size: float) -> str:
    return f"{_plain(size / GB, 2)} GB = {_plain(size / GIB, 2)} GiB"


def _memory(answer: Answer) -> list[str]:
    memory, saved = answer.question.memory, SAVED[answer.question.memory.saved]
    if memory.model.matrices > 2:
        saved = saved.replace("inputs of both layers", "input and the gate's and up's outputs")
    rows = [(f"{part}, fp32", size, "") for part, size in answer.parts_bytes.items()]
    rows += [
        ("state", answer.state_bytes, "the three together"),
        (
            f"saved for {_many(memory.tokens, 'token')}, bf16",
            answer.saved_bytes,
            f"{memory.saved_bytes_per_token:,} bytes a token: {saved}",
        ),
    ]
    cells = [(f"  {what}", _plain(size / GB, 2), _plain(size / GIB, 2), note) for what, size, note in rows]
    lines = aligned([("MEMORY in training", "GB", "GiB", ""), *cells], "<>><")
    for reading in answer.readings:
        kept = f" + {_plain(reading.whole_bytes / GB, 2)} GB" if reading.whole_bytes else ""
        sharded = f"({_plain(answer.state_bytes / GB, 2)} + {_plain(answer.saved_bytes / GB, 2)}) GB / N"
        lines.append(f"  {READINGS[reading.name]}: {sharded}{kept}")
    if answer.gathered_bytes:
        lines.append(f"  not counted, alive for a moment: a block's gathered weights, {_both(answer.gathered_bytes)}")
    return lines


def _pace(answer: Answer) -> list[str]:
    setting, forward = answer.question.setting, answer.forward
    flop, rate = f"{_plain(forward.flop_per_token)} FLOP", f"{setting.flops / 1e12:.4g} TFLOP/s"
    rows = [
        ("  term", "over", "V, fixed", "V, a token", "received", "rate", "time", "a token"),
        ("  matmuls", "chips", "", flop, "", rate, "-", _time(forward.s_per_token)),
    ]
    for term in answer.terms:
        crossing = term.slowest
        sent = _plain(term.fixed_bytes), _plain(term.token_bytes)
        received = f"{crossing.amount:.4g} V", f"{crossing.bytes_per_s / 1e9:.4g} GB/s"
        times = _time(term.fixed_bytes * crossing.seconds), _time(term.token_bytes * crossing.seconds)
        rows.append((f"  {term.name}", crossing.fabric, *sent, *received, *times))
    lines = ["CHIPS OR WIRES, forward pass of one block", *aligned(rows, "<<>>>>>>"), "  compute-bound above"]
    bounds = [(f"    {WIRES[wires]}:", _tokens(b.tokens, answer.devices)) for wires, b in answer.bounds.items()]
    lines += aligned(bounds, "<<")
    if answer.least_d_ff:
        d_ff = setting.model.d_ff
        verdict = "so they keep up" if answer.least_d_ff <= d_ff else "so they do not keep up"
        lines.append(f"  activations need F above {answer.least_d_ff:,.0f}, and F = {d_ff:,}: {verdict}")
    for name, split in answer.best_splits.items():
        degrees = f"X = {_short(split.sharding.fsdp)}, Y = {_short(split.sharding.tp)}"
        lines.append(f"  {f'best {name} split':<17} {degrees}: {_tokens(split.tokens, answer.devices)}")
    return lines + _at(answer)


def _bound(answer: Answer) -> str:
    bound, tokens = answer.bound, answer.question.memory.tokens
    if bound.tokens == math.inf:
        return f"never compute-bound: over the {bound.fabric} each token takes longer than on the chips"
    if not bound.tokens:
        return "compute-bound at any number of tokens"
    enough = f" ({tokens:,} are {'too few' if _waits(answer.forward) else 'enough'})" if tokens else ""
    below = f"the forward pass waits for the {bound.fabric}"
    return f"compute-bound above {_tokens(bound.tokens, answer.devices)}{enough}; below, {below}"


def _waits(forward: Pass) -> bool:
    """Whether the chips wait for the wire. Rounding does not decide at the bound itself."""
    return forward.wire_s > forward.math_s * (1 + 1e-9)


def _tokens(tokens: float, devices: float) -> str:
    if tokens == math.inf:
        return "none, the wire takes longer for each token"
    if not tokens:
        return "any number of tokens"
    return f"{_plain(tokens)} tokens, {_plain(tokens / devices, 1)} on each device"


def _time(seconds: float) -> str:
    scales = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("ps", 1e-12), ("fs", 1e-15))
    unit, scale = next((pair for pair in scales if seconds >= pair[1]), scales[-1])
    return f"{seconds / scale:.4g} {unit}" if seconds else "-"


def _at(answer: Answer) -> list[str]:
    tokens, forward = answer.question.memory.tokens, answer.forward
    if not tokens:
        return []
    return [
        f"  at {_many(tokens, 'token')}, {_plain(tokens / answer.devices, 1)} on each device:",
        f"    matmuls {_time(forward.math_s)}, wires {_time(forward.wire_s)}: "
        f"the {'wire sets' if _waits(forward) else 'chips set'} the pace; "
        f"serial {_time(forward.serial_s)}, overlapped {_time(forward.overlapped_s)}",
    ]


def _levers(answer: Answer) -> list[str]:
    bound = answer.bound.tokens
    if not bound:
        return ["WHAT LOWERS THE BOUND: there is none, the chips set the pace at any number of tokens"]
    bytes_now = next(lever.wire_bytes for lever in answer.levers if lever.name == "overlap gathers with matmuls")
    rows = [("  technique", "a device", "of now", "memory", "bytes")]
    header, *lines = aligned(rows + [_cells(lever, answer, bytes_now) for lever in answer.levers], "<>>>>")
    sections = {True: [], False: ["  and what does not:"]}
    for lever, line in zip(answer.levers, lines, strict=True):
        sections[lever.helps] += [line, *_wrapped(lever.why, "      ")]
    return [f"WHAT LOWERS THE BOUND, now {_tokens(bound, answer.devices)}", header, *sections[True], *sections[False]]


def _cells(lever: Lever, answer: Answer, bytes_now: float) -> tuple[str, ...]:
    name, tokens, now = f"  {lever.name}", lever.tokens, answer.bound.tokens
    if tokens is None:
        return name, "-", "", "", ""
    bound = "none" if tokens == math.inf else _plain(tokens / answer.devices, 1) if tokens else "any"
    sign = "-" if lever.memory_bytes < 0 else "+"
    return (
        name,
        bound,
        f"{tokens / now:.2f}" if max(tokens, now) < math.inf else "",
        f"{sign}{_plain(abs(lever.memory_bytes) / GB, 2)} GB" if lever.memory_bytes else "",
        f"{lever.wire_bytes / bytes_now:.2f}" if bytes_now else "",
    )
