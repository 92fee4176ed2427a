"""The command `roofline account`: its options, and the question that they make. Bad input is a ValueError."""

import argparse
import math
import re
from dataclasses import replace

from roofline.account.cases import ATTENTION, STEP, Attention, TransformerStep
from roofline.account.memory import SAVED
from roofline.account.question import Question
from roofline.account.text import case_text, text
from roofline.host.arguments import count, flops
from roofline.operations.base import read
from roofline.theory import chips
from roofline.theory.models import parse as parse_model
from roofline.theory.words import number

UNITS = {"GB": chips.GB, "GiB": chips.GIB}


def add_command(commands) -> None:
    """Add `account` to the subparsers of the `roofline` command."""
    command = commands.add_parser("account", help="memory, devices, and from how many tokens on the links keep up")
    command.add_argument("--model", default="xxl", help="name, NAME/S or D,F (default: xxl)")
    command.add_argument("--chip", default="H100 SXM", help="whose datasheet (default: H100 SXM)")
    group = command.add_argument_group("model", "of your own, as --model 5120,13824 --blocks 40 --gate")
    group.add_argument("--blocks", type=count, metavar="N", help="transformer blocks")
    group.add_argument("--gate", action="store_true", help="a third matrix in each block, as Llama models have it")
    group.add_argument("--vocabulary", type=count, metavar="V", help="counts an embedding and an output matrix, V x D")
    group = command.add_argument_group("sharding", "the product of the degrees is the number of devices")
    degree = {"type": count, "default": 1, "metavar": "N"}
    group.add_argument("--tp", **degree, help="tensor parallel: F is cut, activations are gathered and scattered")
    group.add_argument("--fsdp", **degree, help="fully sharded data parallel: weights are gathered")
    group = command.add_argument_group("work")
    group.add_argument("--tokens", type=_tokens, default=0, metavar="B", help="of a step, on all devices (as 4e6)")
    group.add_argument(
        "--saved", choices=tuple(SAVED), default="all", help="activations for the backward pass (default: all)"
    )
    steps = "memory of a measured training step or attention alone, on one chip"
    group.add_argument("--case", metavar="CASE", help=f"{steps}, as {STEP}")
    group = command.add_argument_group("chip", "in place of the datasheet's")
    group.add_argument("--flops", type=flops, metavar="FLOP/s", help="of one chip")
    group.add_argument("--memory", type=size, metavar="SIZE", help="of a device, as 80GB or 80GiB")
    counted = "V or V (P-1)/P (default: whole on a torus, as the sources; exact on GPUs)"
    group.add_argument("--collectives", choices=("whole", "exact"), help=counted)
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.case:
        print(case_text(_case(options.case), _chip(options)))
    else:
        print(text(question(options)))
    return 0


def _case(text: str) -> Attention | TransformerStep:
    kind, example = (Attention, ATTENTION) if text.startswith("attention-") else (TransformerStep, STEP)
    case, _ = read(kind, text, example)
    return case


def _chip(options: argparse.Namespace) -> chips.Chip:
    """The chip of the datasheet, with what `options` have in place of it."""
    chip = chips.find(options.chip)
    if options.flops:
        chip = replace(chip, flops=chip.flops | {"bf16": options.flops}, source=f"{chip.source}; FLOP/s: given")
    if options.memory:
        chip = replace(chip, memory_bytes=options.memory, source=f"{chip.source}; memory: given")
    return chip


def question(options: argparse.Namespace) -> Question:
    """The question of `options`. Raises ValueError for an unknown model or chip."""
    chip = _chip(options)
    exact = options.collectives == "exact" if options.collectives else not chip.torus_axes
    model = parse_model(options.model)
    if model.experts > 1:
        problem = f"its blocks have {model.experts} experts each, and the account knows one FFN a block"
        raise ValueError(f"--model {options.model}: {problem}; take a dense model, or D,F")
    model = replace(
        model,
        blocks=options.blocks or model.blocks,
        matrices=3 if options.gate else model.matrices,
        vocabulary=options.vocabulary or 0,
    )
    return Question(model, chip, options.tp, options.fsdp, exact, options.tokens, options.saved)


def size(text: str) -> int:
    """The bytes of `text`, as 80GB (1e9 bytes each) or 80GiB (2**30). Raises argparse's error without a unit."""
    sized = re.fullmatch("(.*?) ?(GB|GiB)", text)
    if not (sized and number(sized[1]) > 0):
        problem = "no size above 0 in GB or GiB, as 80GB or 80GiB (a GiB is 2**30 bytes)"
        raise argparse.ArgumentTypeError(f"{text!r} is {problem}")
    return math.ceil(number(sized[1]) * UNITS[sized[2]])


def _tokens(text: str) -> int:
    value = number(text)
    if not (0 <= value <= 1e15 and value.is_integer()):  # no corpus has more
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of tokens, 0 to 1e15, as 131072 or 4e6")
    return int(value)
