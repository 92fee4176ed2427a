"""What lowers the bound, how far and at what cost: the numbers, and whether each sentence is true where it is said."""

import math
from dataclasses import replace

import pytest
from account_settings import BLOCKS, EXERCISE, D, F, h100, made_up, tokens_each, v5p
from hypothesis import given, settings

from roofline.account import techniques
from roofline.account.memory import Memory
from roofline.theory.chips import GB
from roofline.theory.models import Model

TOKENS = 131_072
ALL_WEIGHTS = BLOCKS * 2 * D * F * 2
"""Bytes of all blocks in bf16."""

quick = settings(deadline=None, derandomize=True, max_examples=15)


def levers(setting, saved="all", device_bytes=None, tokens=TOKENS):
    memory = Memory(setting.model, tokens, saved)
    return {lever.name: lever for lever in techniques.levers(setting, memory, device_bytes)}


def each(lever, setting):
    return lever.tokens / setting.sharding.devices


def test_numbers_for_v5p():
    now = v5p()
    found = levers(now)
    assert {name: round(each(lever, now), 1) for name, lever in found.items()} == {
        "overlap gathers with matmuls": 319.4,
        "a better split of X and Y": 79.9,
        "4 pipeline stages": 159.7,  # 319.4 / 4 but for the axis that they take from FSDP
        "8-bit gathers of weights": 159.7,
        "activation checkpointing": 319.4,
        "gradient accumulation": 1277.8,
    }
    helping = ["a better split of X and Y", "4 pipeline stages", "8-bit gathers of weights"]
    assert [name for name, lever in found.items() if lever.helps] == list(found)[:3] == helping


@pytest.mark.parametrize(
    ("name", "setting", "text"),
    [
        ("overlap gathers with matmuls", EXERCISE, "used to 50 % by serial gathers, to 100 % by overlapped ones"),
        ("4 pipeline stages", replace(v5p(), model=Model("few", 4096, 16384, 3)), "the model has fewer blocks, 3"),
        ("4 pipeline stages", v5p(degrees={"fsdp": 6}), "fsdp=6 does not divide into 4"),
        ("4 pipeline stages", EXERCISE, "the torus has no axis left for stages"),
        ("4 pipeline stages", h100({"fsdp": 24}), "the groups of fsdp then do not pack into nodes"),
        ("4 pipeline stages", h100({"fsdp": 64}), "once for all microbatches, and keep them; the largest"),
        ("4 pipeline stages", v5p(degrees={"fsdp": 4, "tp": 4}), "gathers none"),
        ("8-bit gathers of weights", v5p(degrees={"tp": 4}), "no weights are gathered"),
        ("activation checkpointing", h100({"tp": 8}), "in training it adds FLOP to the backward pass"),
        ("activation checkpointing", h100({"fsdp": 8}), "adds FLOP to the backward pass, and no gather of weights"),
        ("gradient accumulation", h100({"tp": 8}), "no weights are gathered, for one microbatch or for many"),
    ],
)
def test_each_reason_stands_where_it_is_true(name, setting, text):
    assert text in levers(setting)[name].why


def test_stages_keep_their_weights_gathered():
    stages = levers(v5p())["4 pipeline stages"]
    # All 32 blocks of the largest stage in place of one, each over tp = 4; and what it holds for 31.5.
    held = (16 * ALL_WEIGHTS / 2 + TOKENS * BLOCKS * (D + F) * 2) / 64
    assert stages.memory_bytes == pytest.approx(31 * ALL_WEIGHTS / 4 / BLOCKS + held * 0.5 / 31.5)
    # A quarter of the blocks, 32 / 126, gathers and scatters; of four times the tokens on a device.
    weights, activations = ALL_WEIGHTS / BLOCKS / 4, 2 * 2 * D / 4 * v5p().bound().tokens
    assert stages.wire_bytes == pytest.approx(32 * (weights + activations))


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
    lever = levers(now, saved)["activation checkpointing"]
    assert lever.memory_bytes == pytest.approx(-TOKENS * less / 64)
    assert each(lever, now) == tokens_each(now)
    used = levers(now, "checkpointed")["activation checkpointing"]
    assert (used.memory_bytes, used.why) == (0, "it is used already")


def test_accumulation_gathers_again_and_saves_activations():
    lever = levers(EXERCISE)["gradient accumulation"]
    assert each(lever, EXERCISE) == pytest.approx(2750 * 4)
    assert lever.memory_bytes == pytest.approx(-TOKENS * BLOCKS * (D + F) * 2 / 8 * 3 / 4)
    assert lever.wire_bytes == pytest.approx(4 * ALL_WEIGHTS)


def test_what_does_not_fit_a_device_is_no_choice():
    now = h100({"fsdp": 1024})
    stages = levers(now, device_bytes=80 * GB, tokens=0)["4 pipeline stages"]
    # 32 blocks of weights beside the state: 3517.58 GB / 1024 * 128 / 126 and 32 * 3.49 GB.
    assert (stages.helps, stages.tokens) == (False, None)
    assert stages.why.startswith("115.16 GB do not fit a device of 80.00 GB; 4 times fewer devices gather")
    assert next(iter(levers(now, device_bytes=120 * GB, tokens=0))) == "4 pipeline stages"
    # A device that holds too much already may still hold less.
    full = levers(h100({"fsdp": 8}), device_bytes=80 * GB, tokens=1000)
    assert full["8-bit gathers of weights"].tokens
    assert full["4 pipeline stages"].tokens is None


def test_techniques_for_a_wire_that_is_too_slow_for_every_token():
    now = v5p(degrees={"fsdp": 2, "tp": 32})
    assert now.bound().tokens == math.inf
    found = levers(now)
    assert found["a better split of X and Y"].helps
    assert not found["8-bit gathers of weights"].helps


@quick
@given(made_up())
def test_those_that_help_come_first(now):
    found = [*levers(now, tokens=1000).values()]
    helps = [lever.helps for lever in found]
    assert helps == sorted(helps, reverse=True)
    bounds = [lever.tokens for lever in found if lever.helps]
    assert bounds == sorted(bounds)
    assert max(bounds, default=0) <= now.bound().tokens
