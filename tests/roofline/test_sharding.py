"""How a model is sharded: what collectives cross, the best X and Y, where chips and links meet, and what lowers that
bound, by figures worked out by hand. The documents print more, by the figures of their sources: test_documents.py."""

import math
from dataclasses import replace

import pytest
from account_settings import BLOCKS, EXERCISE, H100, D, F, ask, h100, v5p

from roofline.account.communication_bound import best_split, bound, crossings, forward, least_d_ff
from roofline.account.techniques import effects, received_bytes
from roofline.theory.chips import GB, find
from roofline.theory.models import Model

AXIS = 180e9  # TPU v5p, both ways
PORT, LINK = 50e9, 450e9  # H100 SXM
SXM, V5P, RING = find("H100 SXM"), find("TPU v5p"), replace(find("TPU v5p"), links=2, torus_axes=1)
TOKENS = 131_072
ALL_WEIGHTS = BLOCKS * 2 * D * F * 2
"""Bytes of all blocks in bf16."""


@pytest.mark.parametrize(
    ("chip", "kind", "degrees", "exact", "expected"),
    [
        (V5P, "fsdp", {"fsdp": 16, "tp": 4}, False, [("fsdp axes", 1, 2 * AXIS)]),
        # With tp = 8 the devices of an FSDP group are each in a node of its own. Two of them share a node when tp = 4:
        # half is gathered by each, over its own port.
        (SXM, "fsdp", {"tp": 8, "fsdp": 128}, True, [("network", 127 / 128, PORT)]),
        (SXM, "fsdp", {"tp": 4, "fsdp": 128}, True, [("node", 1 / 2, LINK), ("network", 63 / 64 / 2, PORT)]),
    ],
)
def test_what_a_device_receives(chip, kind, degrees, exact, expected):
    assert crossings(ask(chip, degrees, exact=exact), kind) == expected


@pytest.mark.parametrize(
    ("chip", "degrees", "problem"),
    [
        (SXM, {"tp": 13}, "tp=13: groups of 13 devices do not pack into nodes of 8: let them divide it"),
        (find("H100 PCIe"), {"fsdp": 4}, "4 devices span nodes of 2, and the chip's network is not known"),
        (RING, {"tp": 4, "fsdp": 3}, "tp=4, fsdp=3: each needs an axis of its own, and the torus has 1: leave one out"),
    ],
)
def test_what_does_not_fit(chip, degrees, problem):
    assert problem in ask(chip, degrees).misfit()


def tokens(split):
    return bound(split).tokens


def test_splits_at_the_edges():
    alone = v5p(degrees={})
    assert best_split(alone) == alone
    # 8 chips can all go to tensor parallelism, and then nothing is gathered.
    best = best_split(v5p(degrees={"fsdp": 8}))
    assert (best.fsdp, best.tp, tokens(best)) == (1, 8, 0)
    # On a ring FSDP and tensor parallelism cannot be used together.
    assert best_split(EXERCISE).tp == 8


def by_name(question, device_bytes=None, tokens=TOKENS):
    question = replace(question, tokens=tokens, chip=replace(question.chip, memory_bytes=device_bytes))
    return {effect.name: effect for effect in effects(question)}


@pytest.mark.parametrize(
    ("name", "setting", "text"),
    [
        ("4 pipeline stages", replace(v5p(), model=Model("few", 4096, 16384, 3)), "the model has fewer blocks, 3"),
        ("4 pipeline stages", v5p(degrees={"fsdp": 6}), "fsdp=6 does not divide into 4"),
        ("4 pipeline stages", EXERCISE, "the torus has no axis left for stages"),
        ("4 pipeline stages", h100({"fsdp": 24}), "a stage does not fit: fsdp=6: groups of 6 devices do not pack into"),
        ("8-bit gathers of weights", v5p(degrees={"tp": 4}), "no weights are gathered"),
        ("activation checkpointing", v5p(saved="checkpointed"), "it is used already; the forward pass stays"),
    ],
)
def test_each_reason_stands_where_it_is_true(name, setting, text):
    assert text in by_name(setting)[name].reason


def test_stages_keep_their_weights_gathered():
    now = v5p()
    stages = by_name(now)["4 pipeline stages"]
    # All 32 blocks of the largest stage in place of one, each over tp = 4; and what it holds for 31.5.
    held = (16 * ALL_WEIGHTS / 2 + TOKENS * BLOCKS * (D + F) * 2) / 64
    assert stages.more_bytes == pytest.approx(31 * ALL_WEIGHTS / 4 / BLOCKS + held * 0.5 / 31.5)
    # A quarter of the blocks, 32 / 126, gathers and scatters; of four times the tokens on a device.
    weights, activations = ALL_WEIGHTS / BLOCKS / 4, 2 * 2 * D / 16 * tokens(now)
    of_now = received_bytes(stages.after, tokens(now)) / received_bytes(now, tokens(now))
    assert of_now == pytest.approx(32 * (weights + 4 * activations) / (126 * (weights + activations)))


def test_what_does_not_fit_a_device_is_no_choice():
    now = h100({"fsdp": 1024})
    stages = by_name(now, device_bytes=80 * GB, tokens=0)["4 pipeline stages"]
    # 32 blocks of weights beside the state: 3517.58 GB / 1024 * 128 / 126 and 32 * 3.49 GB.
    assert stages.after is None
    assert stages.reason.startswith("115.16 GB do not fit a device of 80.00 GB; 4 times fewer devices hold")
    rows = [*by_name(now, device_bytes=120 * GB, tokens=0).values()]
    assert rows[0].name == "4 pipeline stages"
    bounds = [effect.tokens for effect in rows if effect.tokens < tokens(now)]
    assert bounds == sorted(bounds)
    assert rows[-1].tokens > tokens(now)
    # A device that holds too much already may still hold less.
    full = by_name(h100({"fsdp": 8}), device_bytes=80 * GB, tokens=1000)
    assert full["8-bit gathers of weights"].after
    assert full["4 pipeline stages"].after is None


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
    assert tokens(question) / question.devices == pytest.approx(each)


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
