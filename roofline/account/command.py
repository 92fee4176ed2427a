"""The command `roofline account`: its options, and the question that they make. Bad input is a ValueError."""

import argparse
import bisect
import json
import math
import string
from dataclasses import replace

from roofline.account import splits
from roofline.account.answer import GIVEN, Question, answer
from roofline.account.communication_bound import STEPS, WIRES, Setting
from roofline.account.memory import SAVED, Memory, parse_dtypes
from roofline.account.meshes import KINDS, Mesh, Nodes, Sharding, Torus
from roofline.account.text import text
from roofline.arguments import bandwidth, flops, number
from roofline.theory import chips
from roofline.theory.chips import Chip
from roofline.theory.models import parse as parse_model

UNITS = {f"{prefix}B": 1000**power for power, prefix in enumerate(("", *"KMGT"))}
UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)}

MOST_TOKENS = 1e15
"""Of a step: any text there is has fewer, and a float still counts them one by one."""

FULL_NAMES = {
    "tp": "tensor parallel: F is cut, activations are gathered and scattered",
    "fsdp": "fully sharded data parallel: weights are gathered",
    "dp": "data parallel: gradients are reduced",
    "pp": "pipeline stages",
}


def add_command(commands) -> None:
    """Add `account` to the subparsers of the `roofline` command."""
    command = commands.add_parser("account", help="memory, devices, and from how many tokens on the wire keeps up")
    command.add_argument("--model", default="xxl", help="name, NAME/S or D,F (default: xxl)")
    command.add_argument("--chip", default="H100 SXM", help="whose datasheet (default: H100 SXM)")
    group = command.add_argument_group("sharding", "the product of the degrees is the number of devices")
    for kind in KINDS:
        group.add_argument(f"--{kind}", type=_count, metavar="N", help=FULL_NAMES[kind])
    group.add_argument("--devices", type=_count, metavar="N", help="divide so many by FSDP and TP at the least bound")
    group = command.add_argument_group("work")
    group.add_argument("--tokens", type=_tokens, default=0, metavar="B", help="of a step, on all devices (as 4e6)")
    group.add_argument("--step", choices=tuple(STEPS), default="forward", help="default: forward")
    group = command.add_argument_group("memory")
    group.add_argument("--memory", type=size, metavar="SIZE", help="of a device, as 80GB or 80GiB")
    group.add_argument("--dtypes", default="", metavar="KIND=DTYPE,...",
                       help="of weights, copy, gradients, optimizer, activations, gathers, wire")  # fmt: skip
    group.add_argument(
        "--saved", choices=tuple(SAVED), default="all", help="activations for the backward pass (default: all)"
    )
    group = command.add_argument_group("mesh", "in place of the datasheet's")
    group.add_argument("--flops", type=flops, metavar="FLOP/s", help="of one chip")
    group.add_argument("--bandwidth", type=bandwidth, metavar="BYTES/s",
                       help="torus: one link, one way; GPUs: what one receives inside the node")  # fmt: skip
    group.add_argument("--network", type=bandwidth, metavar="BYTES/s", help="what one chip receives from other nodes")
    group.add_argument("--node", type=_count, metavar="N", help="GPUs in a node")
    group.add_argument("--wires", choices=tuple(WIRES), default="fabric",
                       help="what adds up: all on one fabric (default), all (shared), or only the terms of one kind "
                            "of parallelism (separate)")  # fmt: skip
    group.add_argument("--collectives", choices=("whole", "exact"),
                       help="V or V (P-1)/P (default: whole on a torus, as the sources; exact on GPUs)")  # fmt: skip
    group = command.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="every term, as roofline/account/answer.py documents it")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    account = answer(question(options))
    print(json.dumps(account.as_json(), indent=2) if options.json else "\n".join(text(account)))
    return 0


def question(options: argparse.Namespace) -> Question:
    """What `options` ask. Raises ValueError for what does not fit together."""
    chip, model = chips.find(options.chip), parse_model(options.model)
    dtypes = parse_dtypes(options.dtypes)
    memory = Memory(model, dtypes, options.tokens, options.saved)
    device_bytes = options.memory or chip.memory_bytes
    degrees = {kind: getattr(options, kind) or 1 for kind in KINDS}
    sharding, chosen = Sharding(**degrees), ""
    is_open = options.devices or not any(getattr(options, kind) for kind in KINDS)
    if is_open:
        sharding, chosen = _divide(options, sharding, memory, device_bytes)
    count = f"--devices {options.devices}" if options.devices else f"{sharding.devices:,.0f} devices, {chosen}"
    given = {name: value for name in GIVEN if (value := getattr(options, name))}
    setting = Setting(
        model, options.flops or chip.flops["bf16"], _mesh(options, chip), sharding, dtypes, options.step,
        options.wires, recompute=options.saved == "checkpointed",
    )  # fmt: skip
    if is_open:
        _check_network(setting, f"{count}:")
        if not options.tp and not options.fsdp:
            best = splits.best_whole(setting)
            setting = best.setting if best else setting
            chosen = ", ".join(filter(None, (chosen, "divided at the least bound")))
    degrees = {kind: f"--{kind} {degree}" for kind in KINDS if (degree := getattr(options, kind))}
    _check(setting, chip, degrees, count)
    return Question(chip, memory, setting, options.tokens, device_bytes, given, chosen)


def _divide(options, sharding: Sharding, memory: Memory, device_bytes: int | None) -> tuple[Sharding, str]:
    """All devices to FSDP that no other kind has; how many they are, and why."""
    others = sharding.devices / sharding.fsdp
    if options.devices:
        if options.fsdp and sharding.devices != options.devices:
            raise ValueError(f"--devices {options.devices}: the degrees given make {sharding.devices:g}; leave one out")
        if options.devices % others:
            raise ValueError(
                f"--devices {options.devices} is no multiple of the degrees given, {others:g} together: change one"
            )
        return replace(sharding, fsdp=options.devices // others), ""
    if not device_bytes:
        raise ValueError("how many devices? Give --devices N, or degrees as --fsdp 16 --tp 4")
    least = memory.least_degree(device_bytes, memory.readings[0])
    count = 2 ** math.ceil(math.log2(least))
    return replace(sharding, fsdp=count), "the least power of two whose memory holds it all"


def _mesh(options, chip: Chip) -> Mesh:
    if not chip.torus_axes:
        link, network = options.bandwidth or chip.received_bytes_per_s, options.network or chip.port_bytes_per_s
        return Nodes(options.node or chip.node_size, link, network, exact=options.collectives != "whole")
    for name, value in (("--node", options.node), ("--network", options.network)):
        if value:
            raise ValueError(f"{name}: {chip.name} is in a torus, it has no nodes; leave it out")
    ways = chip.links // chip.torus_axes
    axis = ways * (options.bandwidth or chip.link_bandwidth_bytes_per_s)
    return Torus(axis, ways, options.collectives == "exact", chip.torus_axes)


def _check(setting: Setting, chip: Chip, given: dict[str, str], count: str) -> None:
    """Raise ValueError where the degrees do not divide what they cut, or do not fit the chip's mesh. The `given` are
    blamed by their options, those that were chosen here by the `count` of devices."""
    sharding, model = setting.sharding, setting.model
    if model.d_ff % sharding.tp:
        divisors = splits.divisors(model.d_ff)
        below = bisect.bisect(divisors, sharding.tp)
        near = " or ".join(map(str, divisors[below - 1 : below + 1]))
        raise ValueError(f"--tp {sharding.tp:g} does not divide F = {model.d_ff}: take {near}")
    if sharding.pp > model.blocks:
        raise ValueError(f"--pp {sharding.pp:g}: {model.name} has {model.blocks} blocks, and a stage needs one")
    mesh = setting.mesh
    if not (kind := mesh.misfit(sharding)):
        _ = setting.terms  # raises where the devices need a network that is not known
        return
    if isinstance(mesh, Torus):
        used = [given.get(used, f"{used} of {count}") for used in sharding.used]
        raise ValueError(
            f"{', '.join(used)} need {len(used)} axes of a torus, and {chip.name} has {mesh.all_axes}: leave one out"
        )
    raise ValueError(
        f"{given.get(kind, count)}: groups of {sharding.inside(kind) * getattr(sharding, kind):.0f} devices do not "
        f"pack into nodes of {mesh.size}: let them divide it, or be a multiple of it, or give --node N"
    )


def _check_network(setting: Setting, blamed: str) -> None:
    """Raise ValueError where the devices need a network that is not known."""
    try:
        _ = setting.terms
    except ValueError as error:
        raise ValueError(f"{blamed} {error}") from error


def size(text: str) -> int:
    """Bytes of `text`, as 80GB (1e9 bytes each) or 80GiB (2**30). Raises argparse's error without a unit."""
    digits = text.strip().rstrip(string.ascii_letters)
    unit = text.strip().removeprefix(digits)
    if not number(digits) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size above 0, as 80GB or 80GiB")
    if unit not in UNITS:
        what = f"the unknown unit {unit}" if unit else "no unit"
        raise argparse.ArgumentTypeError(f"{text!r} has {what}: say it in {', '.join(UNITS)} (a GiB is 2**30 bytes)")
    return math.ceil(number(digits) * UNITS[unit])


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _tokens(text: str) -> int:
    value = number(text)
    if not (value >= 0 and value.is_integer()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of tokens, 0 or more, as 131072 or 4e6")
    if value > MOST_TOKENS:
        raise argparse.ArgumentTypeError(f"{text!r} is above {MOST_TOKENS:g} tokens: give those of one step, as 4e6")
    return int(value)
