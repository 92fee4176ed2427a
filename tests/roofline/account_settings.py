"""Questions that several tests of the accounting ask."""

from dataclasses import replace

from roofline.account.question import Question
from roofline.theory.chips import find
from roofline.theory.models import parse

XXL = parse("xxl")
D, F, BLOCKS = 16384, 53248, 126

H100 = find("H100 SXM").flops["bf16"]


def ask(chip, degrees, flops=None, model=XXL, **more) -> Question:
    """Return a question about `chip`, with `flops` FLOP/s in place of its own."""
    chip = find(chip) if isinstance(chip, str) else chip
    chip = replace(chip, flops={"bf16": flops or chip.flops["bf16"]})
    return Question(model, chip, **{"exact": not chip.torus_axes} | degrees | more)


SPLIT = {"fsdp": 16, "tp": 4}


def v5p(degrees=SPLIT, **more) -> Question:
    """Return TPU v5p as the sources round it: 16 x 4 chips, two axes to FSDP and one to tensor parallelism."""
    return ask("TPU v5p", degrees, 4.6e14, **more)


def h100(degrees, flops=None, **more) -> Question:
    return ask("H100 SXM", degrees, flops, **more)


EXERCISE = ask("exercise", {"fsdp": 8})
