"""Questions that several tests of the accounting ask, and a strategy that makes them up."""

from dataclasses import replace

from hypothesis import strategies as st

from roofline.account.question import Question
from roofline.theory.chips import Chip, find
from roofline.theory.models import Model, parse

XXL = parse("xxl")
D, F, BLOCKS = 16384, 53248, 126

H100 = find("H100 SXM").flops["bf16"]


def ask(chip, degrees, flops=None, model=XXL, **more) -> Question:
    """Return a question about `chip`, with `flops` FLOP/s in place of its own."""
    chip = find(chip) if isinstance(chip, str) else chip
    chip = replace(chip, flops={"bf16": flops or chip.flops["bf16"]})
    return Question(model, chip, **{"exact": not chip.torus_axes} | degrees | more)


def v5p(flops=4.6e14, degrees=None, **more) -> Question:
    """Return TPU v5p as the sources round it: 16 x 4 chips, two axes to FSDP and one to tensor parallelism."""
    return ask("TPU v5p", {"fsdp": 16, "tp": 4} if degrees is None else degrees, flops, **more)


def h100(degrees, flops=None, **more) -> Question:
    return ask("H100 SXM", degrees, flops, **more)


EXERCISE = ask("exercise", {"fsdp": 8})

powers = st.integers(0, 5).map(lambda power: 2**power)


@st.composite
def made_up(draw):
    """Draw any question whose degrees are powers of two."""
    sizes = st.integers(64, 2**15), st.integers(1, 2**12).map(lambda n: 32 * n), st.integers(1, 200), st.integers(2, 3)
    model, sharding = Model("any", *map(draw, sizes)), {"tp": draw(powers), "fsdp": draw(powers)}
    torus_axes, rate = draw(st.integers(0, 3)), st.floats(1e9, 1e12)
    torus_axes = torus_axes and max(torus_axes, sum(degree > 1 for degree in sharding.values()))
    chip = Chip(
        "any", {"bf16": draw(st.floats(1e12, 1e16))}, "made up", links=torus_axes or 1, torus_axes=torus_axes,
        link_bandwidth_bytes_per_s=draw(rate), port_bytes_per_s=draw(rate), node_size=2 ** draw(st.integers(0, 6)),
    )  # fmt: skip
    return ask(chip, sharding, model=model, exact=draw(st.booleans()))
