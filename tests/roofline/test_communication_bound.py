"""Where chips and links meet, against figures worked out by hand. The documents show those of the sources, and
test_documents.py holds them to that."""

import math
from dataclasses import replace

import pytest
from account_settings import EXERCISE, H100, ask, h100, v5p

from roofline.account.communication_bound import bound, forward, least_d_ff


@pytest.mark.parametrize(
    ("question", "each"),
    [
        (replace(EXERCISE, gathered_weight_bytes=1), 2750 / 2),
        # Inside a node, and over 1024 GPUs.
        (h100({"fsdp": 8}), 7 / 8 * H100 / 450e9),
        # One collective over both fabrics takes what the slower one does, also where collectives wait for each other.
        (h100({"fsdp": 1024}, fabrics_overlap=False), H100 / 400e9 * 127 / 128),
    ],
)
def test_tokens_on_each_device_at_the_bound(question, each):
    assert bound(question).tokens_per_device == pytest.approx(each)


@pytest.mark.parametrize(
    ("question", "tokens", "fabric"),
    [
        # Y = 32: activations need F above 32 * 2555.6, so each token takes longer on the link than on the chip.
        (v5p(degrees={"fsdp": 2, "tp": 32}), math.inf, "tp axes"),
        # Tensor parallelism crosses 2750 between 19 and 20 chips.
        (ask("exercise", {"tp": 19}), 0, "tp axes"),
        (ask("exercise", {"tp": 20}), math.inf, "tp axes"),
        # Inside a node 2 * 7/8 of the activations take longer than the matmuls of a chip that is so fast.
        (h100({"tp": 8}, flops=1e16, fabrics_overlap=False), math.inf, "links"),
    ],
)
def test_without_a_bound_it_names_what_the_chips_wait_for(question, tokens, fabric):
    without = bound(question)
    assert (without.tokens, without.serial_use, without.fabric) == (tokens, None, fabric)


def test_the_use_at_the_bound_and_the_least_d_ff():
    assert round(bound(v5p()).serial_use, 2) == 0.46
    assert least_d_ff(v5p()) == pytest.approx(4 * 4.6e14 / 180e9)
    assert least_d_ff(v5p(degrees={"fsdp": 16})) is None


@pytest.mark.parametrize("tokens", [22000, 22000 * 5 / 37])
def test_rounding_does_not_decide_at_the_bound(tokens):
    times = forward(replace(EXERCISE, tokens=tokens, gathered_weight_bytes=2 * tokens / 22000))
    assert times.link_s == pytest.approx(times.math_s)
    assert not times.chips_wait


@pytest.mark.parametrize(
    "question",
    [
        replace(EXERCISE, exact=True),
        v5p(),
        h100({"fsdp": 1024}, fabrics_overlap=False),
        replace(h100({"fsdp": 64, "tp": 4}), exact=True),
    ],
)
def test_the_bound_is_where_the_times_cross(question):
    least = bound(question).tokens
    for factor, chips_wait in ((1.001, False), (0.999, True)):
        assert forward(replace(question, tokens=least * factor)).chips_wait == chips_wait
