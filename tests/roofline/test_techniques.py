"""What lowers the bound, how far and at what cost: the numbers, and whether each sentence is true where it stands."""

import math
from dataclasses import replace

import pytest
from account_settings import BLOCKS, EXERCISE, D, F, h100, made_up, v5p
from hypothesis import given, settings

from roofline.account.communication_bound import bound
from roofline.account.techniques import effects
from roofline.theory.chips import GB
from roofline.theory.models import Model

TOKENS = 131_072
ALL_WEIGHTS = BLOCKS * 2 * D * F * 2
"""Bytes of all blocks in bf16."""


def by_name(question, saved="all", device_bytes=None, tokens=TOKENS):
    chip = replace(question.chip, memory_bytes=device_bytes)
    question = replace(question, tokens=tokens, saved=saved, chip=chip)
    return {effect.name: effect for effect in effects(question)}


def test_numbers_for_v5p():
    rows = by_name(v5p())
    assert {name: round(effect.tokens_per_device, 1) for name, effect in rows.items()} == {
        "overlap gathers with matmuls": 319.4,
        "a better split of X and Y": 79.9,
        "4 pipeline stages": 159.7,  # 319.4 / 4 but for the axis that they take from FSDP
        "8-bit gathers of weights": 159.7,
        "activation checkpointing": 319.4,
        "gradient accumulation": 1277.8,
    }
    helping = ["a better split of X and Y", "4 pipeline stages", "8-bit gathers of weights"]
    assert [name for name, effect in rows.items() if effect.helps] == list(rows)[:3] == helping
    assert [rows[name].tokens_of_now for name in helping] == pytest.approx([1 / 4, 1 / 2, 1 / 2])


@pytest.mark.parametrize(
    ("name", "setting", "text"),
    [
        ("overlap gathers with matmuls", EXERCISE, "it is used already; `used if serial`, above, is"),
        ("4 pipeline stages", replace(v5p(), model=Model("few", 4096, 16384, 3)), "the model has fewer blocks, 3"),
        ("4 pipeline stages", v5p(degrees={"fsdp": 6}), "fsdp=6 does not divide into 4"),
        ("4 pipeline stages", EXERCISE, "the torus has no axis left for stages"),
        ("4 pipeline stages", h100({"fsdp": 24}), "a stage does not fit: fsdp=6: groups of 6 devices do not pack into"),
        ("4 pipeline stages", h100({"fsdp": 64}), "keep what they gather for all microbatches; on a torus"),
        ("4 pipeline stages", v5p(), "the largest has 32 blocks; a bubble of 3/19 = 16 % of the time at 16 micro"),
        ("a better split of X and Y", EXERCISE, "X = 1, Y = 8 is the best of the whole ones"),
        ("8-bit gathers of weights", v5p(degrees={"tp": 4}), "no weights are gathered"),
    ],
)
def test_each_reason_stands_where_it_is_true(name, setting, text):
    assert text in by_name(setting)[name].reason


def test_stages_keep_their_weights_gathered():
    stages = by_name(v5p())["4 pipeline stages"]
    # All 32 blocks of the largest stage in place of one, each over tp = 4; and what it holds for 31.5.
    held = (16 * ALL_WEIGHTS / 2 + TOKENS * BLOCKS * (D + F) * 2) / 64
    assert stages.memory_bytes == pytest.approx(31 * ALL_WEIGHTS / 4 / BLOCKS + held * 0.5 / 31.5)
    # A quarter of the blocks, 32 / 126, gathers and scatters; of four times the tokens on a device.
    weights, activations = ALL_WEIGHTS / BLOCKS / 4, 2 * 2 * D / 4 * bound(v5p()).tokens
    assert stages.received_bytes == pytest.approx(32 * (weights + activations))


@pytest.mark.parametrize(
    ("saved", "matrices", "less"),
    [
        ("all", 2, 125 * F * 2),
        ("half", 2, 126 * (D + F) - 2 * (126 * D + F)),
        ("all", 3, 125 * 2 * F * 2),
    ],
)
def test_checkpointing_saves_all_but_the_inputs_of_blocks(saved, matrices, less):
    now = v5p()
    now = replace(now, model=replace(now.model, matrices=matrices))
    effect = by_name(now, saved)["activation checkpointing"]
    assert effect.memory_bytes == pytest.approx(-TOKENS * less / 64)
    assert effect.tokens == bound(now).tokens
    used = by_name(now, "checkpointed")["activation checkpointing"]
    assert (used.memory_bytes, used.reason[:20]) == (0, "it is used already; ")


def test_accumulation_gathers_again_and_saves_activations():
    effect = by_name(EXERCISE)["gradient accumulation"]
    assert effect.tokens_per_device == pytest.approx(2750 * 4)
    assert effect.memory_bytes == pytest.approx(-TOKENS * BLOCKS * (D + F) * 2 / 8 * 3 / 4)
    assert effect.received_bytes == pytest.approx(4 * ALL_WEIGHTS)


def test_what_does_not_fit_a_device_is_no_choice():
    now = h100({"fsdp": 1024})
    stages = by_name(now, device_bytes=80 * GB, tokens=0)["4 pipeline stages"]
    # 32 blocks of weights beside the state: 3517.58 GB / 1024 * 128 / 126 and 32 * 3.49 GB.
    assert (stages.helps, stages.tokens) == (False, None)
    assert stages.reason.startswith("115.16 GB do not fit a device of 80.00 GB; 4 times fewer devices hold")
    assert next(iter(by_name(now, device_bytes=120 * GB, tokens=0))) == "4 pipeline stages"
    # A device that holds too much already may still hold less.
    full = by_name(h100({"fsdp": 8}), device_bytes=80 * GB, tokens=1000)
    assert full["8-bit gathers of weights"].tokens
    assert full["4 pipeline stages"].tokens is None


def test_techniques_for_a_link_that_is_too_slow_for_every_token():
    now = v5p(degrees={"fsdp": 2, "tp": 32})
    assert bound(now).tokens == math.inf
    rows = by_name(now)
    assert rows["a better split of X and Y"].helps
    assert not rows["8-bit gathers of weights"].helps


@settings(deadline=None, derandomize=True, max_examples=15)
@given(made_up())
def test_those_that_help_come_first(now):
    rows = [*by_name(now, tokens=1000).values()]
    helps = [effect.helps for effect in rows]
    assert helps == sorted(helps, reverse=True)
    bounds = [effect.tokens for effect in rows if effect.helps]
    assert bounds == sorted(bounds)
    assert max(bounds, default=0) <= bound(now).tokens
