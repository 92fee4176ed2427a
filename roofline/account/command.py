"""The command `roofline account`: its options, and the question that they make. Bad input is a ValueError."""

import argparse
import bisect
import json
import math
import string
from dataclasses import asdict

from roofline.account import splits
from roofline.account.answer import Answer, Question, answer
from roofline.account.communication_bound import Setting
from roofline.account.memory import SAVED, Memory
from roofline.account.meshes import Mesh, Nodes, Sharding, Torus
from roofline.account.text import text
from roofline.arguments import flops, number
from roofline.theory import chips
from roofline.theory.chips import Chip
from roofline.theory.models import parse as parse_model

UNITS = {f"{prefix}B": 1000**power for power, prefix in enumerate(("", *"KMGT"))}
UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)}


def add_command(commands) -> None:
    """Add `account` to the subparsers of the `roofline` command."""
    command = commands.add_parser("account", help="memory, devices, and from how many tokens on the wire keeps up")
    command.add_argument("--model", default="xxl", help="name, NAME/S or D,F (default: xxl)")
    command.add_argument("--chip", default="H100 SXM", help="whose datasheet (default: H100 SXM)")
    group = command.add_argument_group("sharding", "the product of the degrees is the number of devices")
    degree = {"type": _count, "default": 1, "metavar": "N"}
    group.add_argument("--tp", **degree, help="tensor parallel: F is cut, activations are gathered and scattered")
    group.add_argument("--fsdp", **degree, help="fully sharded data parallel: weights are gathered")
    group = command.add_argument_group("work")
    group.add_argument("--tokens", type=_tokens, default=0, metavar="B", help="of a step, on all devices (as 4e6)")
    group.add_argument(
        "--saved", choices=tuple(SAVED), default="all", help="activations for the backward pass (default: all)"
    )
    group = command.add_argument_group("chip", "in place of the datasheet's")
    group.add_argument("--flops", type=flops, metavar="FLOP/s", help="of one chip")
    group.add_argument("--memory", type=size, metavar="SIZE", help="of a device, as 80GB or 80GiB")
    group.add_argument("--collectives", choices=("whole", "exact"),
                       help="V or V (P-1)/P (default: whole on a torus, as the sources; exact on GPUs)")  # fmt: skip
    group = command.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="every term, as roofline/account/answer.py documents it")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    account = answer(question(options))
    print(as_json(account) if options.json else "\n".join(text(account)))
    return 0


def as_json(account: Answer) -> str:
    """All fields; null for infinity, which JSON has not."""
    fields = asdict(account, dict_factory=lambda pairs: {key: None if v == math.inf else v for key, v in pairs})
    return json.dumps(fields, indent=2)


def question(options: argparse.Namespace) -> Question:
    """What `options` ask. Raises ValueError for what does not fit together."""
    chip, model = chips.find(options.chip), parse_model(options.model)
    mesh, sharding = _mesh(chip, options.collectives), Sharding(options.tp, options.fsdp)
    setting = Setting(model, options.flops or chip.flops["bf16"], mesh, sharding)
    _check(setting, chip)
    memory = Memory(model, options.tokens, options.saved)
    return Question(chip, memory, setting, options.memory or chip.memory_bytes)


def _mesh(chip: Chip, collectives: str | None) -> Mesh:
    if not chip.torus_axes:
        return Nodes(chip.node_size, chip.received_bytes_per_s, chip.port_bytes_per_s, exact=collectives != "whole")
    axis = chip.links // chip.torus_axes * chip.link_bandwidth_bytes_per_s
    return Torus(axis, collectives == "exact", chip.torus_axes)


def _check(setting: Setting, chip: Chip) -> None:
    """Raise ValueError where the degrees do not divide what they cut, or do not fit the chip's mesh."""
    sharding, model, mesh = setting.sharding, setting.model, setting.mesh
    if model.d_ff % sharding.tp:
        divisors = splits.divisors(model.d_ff)
        below = bisect.bisect(divisors, sharding.tp)
        near = " or ".join(map(str, divisors[below - 1 : below + 1]))
        raise ValueError(f"--tp {sharding.tp} does not divide F = {model.d_ff}: take {near}")
    if not (kind := mesh.misfit(sharding)):
        _ = setting.terms  # raises where the devices need a network that is not known
        return
    if isinstance(mesh, Torus):
        raise ValueError(
            f"--tp {sharding.tp}, --fsdp {sharding.fsdp} need 2 axes of a torus, and {chip.name} has {mesh.all_axes}: "
            "leave one out"
        )
    group = sharding.tp if kind == "tp" else sharding.devices
    raise ValueError(
        f"--{kind} {getattr(sharding, kind)}: groups of {group} devices do not pack into nodes of {mesh.size}: let "
        "them divide it, or be a multiple of it"
    )


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
    if not (0 <= value <= 1e15 and value.is_integer()):  # any text there is has fewer
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of tokens, 0 to 1e15, as 131072 or 4e6")
    return int(value)
