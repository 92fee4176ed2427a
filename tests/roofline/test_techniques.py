"""What lowers the bound, how far and at what cost: the numbers, and whether each sentence is true where it is said."""

import math
from dataclasses import replace

import pytest
from account_settings import BLOCKS, EXERCISE, D, F, h100, made_up, tokens_each, v5p
from hypothesis import given, settings

from roofline.account import techniques
from roofline.account.memory import Dtypes, Memory
from roofline.account.meshes import Sharding
from roofline.theory.models import Model

TOKENS = 131_072
ALL_WEIGHTS = BLOCKS * 2 * D * F * 2
"""Bytes of all blocks in bf16."""

quick = settings(deadline=None, derandomize=True, max_examples=15)


def ranked(setting, tokens=TOKENS, saved="all"):
    memory = Memory(setting.model, setting.dtypes, tokens, saved)
    return {technique.name: technique for technique in techniques.ranked(setting, memory)}


def each(technique):
    return tokens_each(technique.setting)


def test_numbers_for_v5p():
    now = v5p()
    found = ranked(now)
    bounds = {name: round(each(technique), 1) for name, technique in found.items() if technique.setting}
    assert bounds == {
        "overlap gathers with matmuls": 319.4,
        "overlap the wires with each other": 319.4,
        "more mesh axes for FSDP": 851.9,  # all three for FSDP, none for tensor parallelism: alpha / 3
        "a better split of X and Y": 79.9,
        "tensor parallelism, as far as it goes": 79.9,
        "4 pipeline stages": 159.7,  # 319.4 / 4 but for the axis that they take from FSDP
        "8-bit gathers of weights": 159.7,
        "activation checkpointing": 319.4,
        "gradient accumulation": 1277.8,
        "gradient accumulation, weights kept gathered": 319.4,
        "sequence parallelism": 319.4,
    }
    helping = [technique.name for technique in found.values() if technique.helps(now)]
    assert helping == list(found)[:4] == [
        "a better split of X and Y", "tensor parallelism, as far as it goes", "4 pipeline stages",
        "8-bit gathers of weights",
    ]  # fmt: skip


CHECKPOINTED = {"step": "training", "recompute": True}


@pytest.mark.parametrize(
    ("name", "setting", "said"),
    [
        ("overlap gathers with matmuls", EXERCISE, "used to 50 % by serial gathers, to 100 % by overlapped ones"),
        ("overlap gathers with matmuls", v5p(degrees={"tp": 4}), "the bound takes it for granted"),
        ("overlap gathers with matmuls", v5p(degrees={"fsdp": 2, "tp": 32}), "the bound takes it for granted"),
        (
            "overlap the wires with each other",
            v5p(wires="shared"),
            "crosses different fabrics does so at the same time",
        ),
        ("overlap the wires with each other", v5p(wires="separate"), "taken for granted, even of what shares a fabric"),
        ("overlap the wires with each other", v5p(), "they already run beside each other"),
        ("overlap the wires with each other", h100({"fsdp": 128, "tp": 8}), "they already run beside each other"),
        ("overlap the wires with each other", h100({"fsdp": 4, "tp": 2}), "what shares one has to take turns"),
        ("overlap the wires with each other", h100({"fsdp": 64, "tp": 16}), "what shares one has to take turns"),
        ("more mesh axes for FSDP", v5p(), "axes are taken: it costs tensor parallelism its own"),
        ("more mesh axes for FSDP", v5p(degrees={"fsdp": 64}), "the torus has no more than 3"),
        ("more mesh axes for FSDP", v5p(degrees={"fsdp": 8, "dp": 4, "pp": 2}), "all 3 axes are taken"),
        ("more mesh axes for FSDP", v5p(degrees={"tp": 4}), "no weights are gathered"),
        ("more mesh axes for FSDP", h100({"fsdp": 8}), "a GPU's links are all used by every collective already"),
        # F / alpha = 20.8
        ("tensor parallelism, as far as it goes", v5p(), "Y = 16 is the most at which the activations keep up (now 4)"),
        ("4 pipeline stages", replace(v5p(), model=Model("few", 4096, 16384, 3)), "the model has fewer blocks, 3"),
        ("4 pipeline stages", v5p(degrees={"fsdp": 6}), "fsdp=6 does not divide into 4"),
        ("4 pipeline stages", v5p(), "a bubble of 3/19 = 16 % of the time at 16 microbatches"),
        ("4 pipeline stages", EXERCISE, "the torus has no axis left for stages"),
        ("4 pipeline stages", h100({"fsdp": 24}), "the groups of fsdp then do not pack into nodes"),
        ("4 pipeline stages", v5p(), "; they take an axis from FSDP; the largest stage has 32 blocks; a bubble"),
        ("4 pipeline stages", h100({"fsdp": 64}), "once for all microbatches, and keep them; the largest"),
        ("16 pipeline stages", v5p(degrees={"fsdp": 4, "tp": 4, "pp": 4}), "gathers none"),
        ("8-bit gathers of weights", v5p(degrees={"tp": 4}), "no weights are gathered"),
        ("activation checkpointing", h100({"dp": 8}, step="training"), "computes more; the forward pass does not"),
        (
            "activation checkpointing",
            h100({"fsdp": 8}, step="training"),
            "computes more for the weights that it gathers;",
        ),
        ("activation checkpointing", h100({"tp": 8}), "in training it adds FLOP to the backward pass"),
        ("activation checkpointing", h100({"fsdp": 8}), "and no gather of weights"),
        ("activation checkpointing", h100({"fsdp": 8}, **CHECKPOINTED), "it is used already"),
        ("reductions in the switch (SHARP)", v5p(), "a torus has no switch"),
        ("gradient accumulation", h100({"tp": 8}), "no weights are gathered, for one microbatch or for many"),
        ("sequence parallelism", v5p(), "in place of an all-reduce are the same bytes"),
        ("sequence parallelism", v5p(degrees={"fsdp": 8}), "there is no tensor parallelism that it could go with"),
    ],
)
def test_what_is_said_is_said_where_it_is_true(name, setting, said):
    assert said in ranked(setting)[name].why


@pytest.mark.parametrize("wires", ["shared", "fabric", "separate"])
def test_overlap_of_wires_helps_where_they_are_added(wires):
    setting = v5p(wires=wires)
    technique = ranked(setting)["overlap the wires with each other"]
    assert technique.helps(setting) == (wires == "shared")
    assert technique.setting.wires == ("fabric" if wires == "shared" else wires)


def test_memory_of_stages_is_that_of_the_weights_they_keep():
    now = v5p()
    stages = ranked(now)["4 pipeline stages"]
    # All 32 blocks of the largest stage in place of one, each over tp = 4; and what it holds for 31.5.
    held = (16 * ALL_WEIGHTS / 2 + TOKENS * BLOCKS * (D + F) * 2) / 64
    assert stages.memory_bytes == pytest.approx(31 * ALL_WEIGHTS / 4 / BLOCKS + held * 0.5 / 31.5)
    assert stages.setting.sharding == Sharding(fsdp=4, tp=4, pp=4)
    more = ranked(stages.setting)["16 pipeline stages"]
    assert more.setting.sharding == Sharding(fsdp=1, tp=4, pp=16)
    assert more.memory_bytes == pytest.approx(-32 * ALL_WEIGHTS / 4 / BLOCKS)


@pytest.mark.parametrize(
    ("gathers", "said", "share"),
    [
        ("bf16", "half the bytes", 0.5),
        ("fp32", "a quarter of the bytes", 0.25),
        ("fp8", "they are gathered in 8 bits already", 1),
    ],
)
def test_eight_bit_gathers(gathers, said, share):
    now = replace(EXERCISE, dtypes=Dtypes(gathers=gathers))
    technique = ranked(now)["8-bit gathers of weights"]
    assert said in technique.why
    assert each(technique) == pytest.approx(share * tokens_each(now))


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
    technique = ranked(now, saved=saved)["activation checkpointing"]
    assert technique.memory_bytes == pytest.approx(-TOKENS * less / 64)
    assert (technique.flop, each(technique)) == (1, tokens_each(now))


@pytest.mark.parametrize("matrices", [2, 3])
def test_checkpointing_multiplies_once_more_with_all_but_down(matrices):
    now = h100({"fsdp": 8}, step="training")
    now = replace(now, model=replace(now.model, matrices=matrices))
    technique = ranked(now)["activation checkpointing"]
    flop = [sum(setting.math_flop(step) for step in now.steps) for setting in (now, technique.setting)]
    assert technique.flop == pytest.approx(flop[1] / flop[0]) == pytest.approx(1 + (matrices - 1) / matrices / 3)


def test_checkpointing_in_training():
    now = h100({"dp": 8}, step="training")
    technique = ranked(now)["activation checkpointing"]
    assert (technique.flop, each(technique)) == (7 / 6, pytest.approx(tokens_each(now) * 2 / 2.5))
    for step in ("forward", "training"):
        used = ranked(replace(now, step=step, recompute=True), saved="checkpointed")["activation checkpointing"]
        assert (used.memory_bytes, used.flop) == (0, 1)


def test_reductions_in_the_switch():
    now = h100({"fsdp": 16, "tp": 8}, step="training")
    technique = ranked(now)["reductions in the switch (SHARP)"]
    # The inputs of blocks stay whole: D a token, of the tokens on a device.
    assert technique.memory_bytes == pytest.approx(TOKENS / 16 * D * 2 * BLOCKS * 7 / 8)
    assert technique.setting.mesh.sharp
    staged = replace(now, sharding=Sharding(fsdp=8, tp=8, pp=2))
    fewer = ranked(staged)["reductions in the switch (SHARP)"]
    assert fewer.memory_bytes == pytest.approx(technique.memory_bytes)  # twice the tokens, half of the blocks
    replicas = h100({"dp": 64}, step="training")
    halved = ranked(replicas)["reductions in the switch (SHARP)"]
    assert (each(halved), halved.memory_bytes) == (pytest.approx(tokens_each(replicas) * 4 / 7), 0)


def test_accumulation_gathers_again_unless_weights_are_kept():
    saved = TOKENS * BLOCKS * (D + F) * 2 / 8
    for name, of_now, kept in (
        ("gradient accumulation", 4, 0),
        ("gradient accumulation, weights kept gathered", 1, ALL_WEIGHTS * 125 / 126),
    ):
        technique = ranked(EXERCISE)[name]
        assert each(technique) == pytest.approx(2750 * of_now)
        assert technique.memory_bytes == pytest.approx(kept - saved * 3 / 4)
    staged = h100({"fsdp": 4, "pp": 2})
    name = "gradient accumulation, weights kept gathered"
    assert ranked(staged)[name].memory_bytes == 0


def test_without_fsdp_nothing_is_gathered_or_kept():
    found = ranked(h100({"tp": 8, "dp": 4}, step="training"))
    for name in ("gradient accumulation", "gradient accumulation, weights kept gathered"):
        assert found[name].memory_bytes == pytest.approx(-TOKENS * BLOCKS * (D + F) * 2 / 32 * 3 / 4)
    assert techniques.gathered_bytes(h100({"tp": 8})) == 0


def test_techniques_for_a_wire_that_is_too_slow_for_every_token():
    now = v5p(degrees={"fsdp": 2, "tp": 32})
    assert now.bound().tokens == math.inf
    found = ranked(now)
    assert found["a better split of X and Y"].helps(now)
    assert not found["8-bit gathers of weights"].helps(now)


@quick
@given(made_up())
def test_those_that_help_come_first_and_keep_the_devices(now):
    memory = Memory(now.model, now.dtypes, 1000)
    found = techniques.ranked(now, memory)
    helps = [technique.helps(now) for technique in found]
    assert helps == sorted(helps, reverse=True)
    bounds = [technique.setting.bound().tokens for technique in found if technique.helps(now)]
    assert bounds == sorted(bounds)
    for technique in found:
        assert technique.why
        if technique.setting:
            assert technique.setting.sharding.devices == now.sharding.devices
            assert technique.setting.model is now.model
