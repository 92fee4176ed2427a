"""The command `roofline account`: its options, and the question that they make. Bad input is a ValueError."""

import argparse
import bisect
import json
import math
import string
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from roofline.account import splits
from roofline.account.communication_bound import STEPS, WIRES, Setting
from roofline.account.memory import SAVED, Memory, parse_dtypes
from roofline.account.meshes import KINDS, Mesh, Nodes, Sharding, Torus
from roofline.arguments import number, positive
from roofline.theory import chips
from roofline.theory.chips import Chip
from roofline.theory.models import parse as parse_model

UNITS = {f"{prefix}B": 1000**power for power, prefix in enumerate(("", *"KMGT"))}
UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)}

GIVEN = ("flops", "bandwidth", "network", "node", "memory")
"""Constants of the chip that an option overrides."""

MOST_TOKENS = 1e15
"""Of a step: any text there is has fewer, and a float still counts them one by one."""

FULL_NAMES = {
    "tp": "tensor parallel: F is cut, activations are gathered and scattered",
    "ep": "expert parallel: experts are dealt out, tokens are sent to them",
    "fsdp": "fully sharded data parallel: weights are gathered",
    "dp": "data parallel: gradients are reduced",
    "pp": "pipeline stages",
}


class Hidden(NamedTuple):
    """The share of the shorter of matmuls and wires that overlapping hides, and how it is known."""

    share: float
    source: str


@dataclass(frozen=True)
class Question:
    """What is asked: the memory, the setting, and how large a device is. `given`: constants of the chip overridden."""

    chip: Chip
    memory: Memory
    setting: Setting
    tokens: int
    device_bytes: int | None
    given: dict[str, float]
    hidden: Hidden | None = None
    chosen: str = ""
    """How the devices were divided, where the question left it open."""


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
    group.add_argument("--experts", type=_count, default=1, metavar="E", help="of a mixture (default: 1)")
    group.add_argument("--top-k", type=_count, default=1, metavar="K", help="experts of a token (default: 1)")
    group.add_argument("--gathers", type=_count, default=1, metavar="N",
                       help="of the weights in a step: its microbatches, which save activations in turn")  # fmt: skip
    group = command.add_argument_group("memory")
    group.add_argument("--memory", type=size, metavar="SIZE", help="of a device, as 80GB or 80GiB")
    group.add_argument("--dtypes", default="", metavar="KIND=DTYPE,...",
                       help="of weights, copy, gradients, optimizer, activations, gathers, wire")  # fmt: skip
    group.add_argument("--moments", type=int, default=2, metavar="N", help="of the optimizer (default: 2, AdamW)")
    group.add_argument(
        "--saved", choices=tuple(SAVED), default="all", help="activations for the backward pass (default: all)"
    )
    group = command.add_argument_group("mesh", "in place of the datasheet's")
    group.add_argument("--flops", type=positive, metavar="FLOP/s", help="of one chip")
    group.add_argument("--bandwidth", type=positive, metavar="BYTES/s",
                       help="torus: one link, one way; GPUs: what one receives inside the node")  # fmt: skip
    group.add_argument("--network", type=positive, metavar="BYTES/s", help="what one chip receives from other nodes")
    group.add_argument("--node", type=_count, metavar="N", help="GPUs in a node")
    group.add_argument("--axes", default="", metavar="KIND=N,...", help="torus axes of each kind (0: the network)")
    group.add_argument("--ways", choices=("one", "both"), help="of each torus axis (default: both)")
    group.add_argument("--wires", choices=tuple(WIRES), default="fabric",
                       help="what adds up: all on one fabric (default), all (shared), or only the terms of one kind "
                            "of parallelism (separate)")  # fmt: skip
    group.add_argument("--collectives", choices=("whole", "exact"),
                       help="V or V (P-1)/P (default: whole on a torus, as the sources; exact on GPUs)")  # fmt: skip
    group.add_argument("--sharp", action="store_true", help="the switches reduce")
    group.add_argument("--hidden", metavar="SHARE|RUN",
                       help="what hides of the shorter of matmuls and wires, 0 to 1, or as RUN measured")  # fmt: skip
    group = command.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="every term, as docs/accounting.md documents it")
    group.add_argument("--plot", type=Path, metavar="DIR", help="draw three figures into DIR")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from roofline.account.answer import answer
    from roofline.account.text import text

    asked = question(options)
    found = answer(asked)
    print(json.dumps(found, indent=2) if options.json else "\n".join(text(found)))
    if options.plot:
        from roofline.account.plots import draw

        for path in draw(asked, options.plot):
            print(path, file=sys.stderr)
    return 0


def question(options: argparse.Namespace) -> Question:
    """What `options` ask. Raises ValueError for what does not fit together."""
    chip, model = chips.find(options.chip), parse_model(options.model)
    dtypes = parse_dtypes(options.dtypes)
    alive = math.ceil(options.tokens / options.gathers)
    memory = Memory(model, dtypes, alive, options.saved, options.moments, options.experts, options.top_k)
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
        options.wires, options.experts, options.top_k, options.gathers, recompute=options.saved == "checkpointed",
    )  # fmt: skip
    if is_open:
        _check_network(setting, f"{count}:")
        if not options.tp and not options.fsdp:
            best = splits.best_whole(setting)
            setting = best.setting if best else setting
            chosen = ", ".join(filter(None, (chosen, "divided at the least bound")))
    _check(setting, {kind: f"--{kind} {degree}" for kind in KINDS if (degree := getattr(options, kind))}, count)
    if options.plot:
        _check_network(replace(setting, sharding=Sharding(tp=2, fsdp=2**16)), "--plot looks at more chips, and")
    hidden = _hidden(options.hidden) if options.hidden else None
    return Question(chip, memory, setting, options.tokens, device_bytes, given, hidden, chosen)


def _hidden(text: str) -> Hidden:
    """Of a run, the median over its layers, or where it has none over its gathers and scatters, of the best arm's."""
    if 0 <= (share := number(text)) <= 1:
        return Hidden(share, "as given")
    if share == share:
        raise ValueError(f"--hidden {text}: it is a share from 0 to 1, or the folder of a run")
    from roofline.analysis.overlap.analysis import by_gather
    from roofline.store import journal

    run = journal.load(Path(text))
    rows = by_gather(run, [record for record in run.records() if "arm" in record])
    own = [row for row in rows if row["op"] == "ffn"] or [row for row in rows if row["op"] != "weight_prefetch"]
    if not own:
        raise ValueError(f"--hidden {text}: that run measured no gather or scatter beside its matmul; choose another")
    share = min(1.0, max(0.0, median(row["hidden_fraction"] for row in own)))
    ops = ", ".join(sorted({row["op"] for row in own}))
    return Hidden(share, f"the median over {len(own)} cases of {ops}, measured on {run.metadata['title']}")


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
    exact, network = options.collectives == "exact", options.network or chip.port_bytes_per_s
    if not chip.torus_axes:
        for name, value in (("--axes", options.axes), ("--ways", options.ways)):
            if value:
                raise ValueError(f"{name} {value}: {chip.name} is on a switch, it has no torus axes; leave it out")
        link = options.bandwidth or chip.received_bytes_per_s
        return Nodes(options.node or chip.node_size, link, network, options.sharp, options.collectives != "whole")
    for name, value in (("--node", options.node), ("--sharp", options.sharp)):
        if value:
            raise ValueError(f"{name}: {chip.name} is in a torus, it has no nodes and no switch; leave it out")
    ways = chip.links // chip.torus_axes
    if options.ways == "both" and ways < 2:
        raise ValueError(f"--ways both: {chip.name} has links one way only; leave it out")
    ways = 1 if options.ways == "one" else ways
    axis = ways * (options.bandwidth or chip.link_bandwidth_bytes_per_s)
    return Torus(axis, _axes(options.axes), ways, network, exact, chip.torus_axes)


def _axes(text: str) -> dict[str, int] | None:
    axes = {}
    for part in filter(None, text.split(",")):
        kind, _, count = part.strip().partition("=")
        if kind not in KINDS or not count.isdecimal():
            raise ValueError(f"--axes {part.strip()!r}: it is KIND=N, of {', '.join(KINDS)}, as fsdp=2,tp=1")
        axes[kind] = int(count)
    return axes or None


def _check(setting: Setting, given: dict[str, str], count: str) -> None:
    """Raise ValueError where the degrees do not divide what they cut. The `given` are blamed by their options, those
    that were chosen here by the `count` of devices."""
    sharding, model = setting.sharding, setting.model
    if model.d_ff % sharding.tp:
        divisors = splits.divisors(model.d_ff)
        below = bisect.bisect(divisors, sharding.tp)
        near = " or ".join(map(str, divisors[below - 1 : below + 1]))
        raise ValueError(f"--tp {sharding.tp:g} does not divide F = {model.d_ff}: take {near}")
    if setting.experts % sharding.ep:
        raise ValueError(
            f"--ep {sharding.ep:g} does not divide the {setting.experts} experts: choose a divisor of them"
        )
    if sharding.pp > model.blocks:
        raise ValueError(f"--pp {sharding.pp:g}: {model.name} has {model.blocks} blocks, and a stage needs one")
    mesh = setting.mesh
    if isinstance(mesh, Torus) and mesh.axes and (taken := mesh.taken(sharding)) > mesh.all_axes:
        each = ", ".join(f"{kind}={mesh.axes_of(kind, sharding)}" for kind in sharding.used)
        raise ValueError(f"--axes: {each} are {taken} axes, and the torus has {mesh.all_axes}; name fewer")
    if isinstance(mesh, Nodes) and (kind := mesh.misfit(sharding)):
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
