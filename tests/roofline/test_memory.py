"""Bytes of training against figures worked out by hand, in GB and in GiB."""

from dataclasses import replace

import pytest
from account_settings import ask
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.account import memory
from roofline.theory.chips import GB, GIB
from roofline.theory.models import parse

TOKENS = 131_072


def of_one(model="xxl", **more):
    return ask("exercise", {}, model=parse(model), **more)


def test_state_of_xxl_in_both_units():
    assert of_one().parameters == 219_848_638_464
    sizes = [part.size_bytes for part in memory.parts(of_one())][:4]
    assert [round(size / GB, 2) for size in sizes] == [879.39, 879.39, 1758.79, 3517.58]
    assert [size / GIB for size in sizes] == [819, 819, 1638, 3276]


def test_a_gate_is_a_third_matrix_and_its_output_is_saved_too():
    llama = of_one("llama-3-8b", tokens=1)
    assert llama.parameters == 32 * 3 * 4096 * 14336
    assert memory.saved_bytes(llama) == 32 * (4096 + 2 * 14336) * 2
    assert memory.saved_bytes(replace(llama, saved="checkpointed")) == (32 * 4096 + 2 * 14336) * 2


@pytest.mark.parametrize(
    ("saved", "elements"),
    [
        ("all", 126 * (16384 + 53248)),  # the inputs of both layers
        ("half", 63 * (16384 + 53248)),
        ("checkpointed", 126 * 16384 + 53248),  # those of blocks, and of one inner layer
    ],
)
def test_saved_of_xxl(saved, elements):
    question = of_one(tokens=TOKENS, saved=saved)
    saved_bytes = memory.saved_bytes(question)
    assert saved_bytes == memory.sharded_bytes(question) - memory.state_bytes(question) == TOKENS * 2 * elements
    whole_bytes = {reading.whole_bytes for reading in memory.readings(question)}
    assert whole_bytes == {0, saved_bytes if saved == "half" else 0}


@pytest.mark.parametrize(
    ("size", "tokens", "saved", "devices"),
    [
        (80 * GB, 0, "all", [44]),
        (80 * GIB, 0, "all", [41]),
        (80 * GIB, TOKENS, "all", [68]),
        (95 * GB, 0, "half", [38, 38]),
        # 1149.98 GB stay on every device, where the other half is kept.
        (95 * GB, TOKENS, "half", [50, None]),
        (95 * GIB, TOKENS, "half", [46, None]),
        # (3517.58 + 1149.98) / (1200 - 1149.98) = 93.3
        (1200 * GB, TOKENS, "half", [4, 94]),
    ],
)
def test_fewest_devices(size, tokens, saved, devices):
    question = of_one(tokens=tokens, saved=saved)
    question = replace(question, chip=replace(question.chip, memory_bytes=size))
    unit = f"{size / GIB:g} GiB" if size % GIB == 0 else f"{size / GB:g} GB"
    assert [reading.least_devices[unit] for reading in memory.readings(question)] == devices


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(1, 2**60), st.integers(0, 2**40), st.integers(1, 2**41))
def test_the_fewest_devices_fit_and_one_less_does_not(sharded, whole, size):
    least, room = memory.least_devices(sharded, whole, size), size - whole
    assert (least is None) == (room <= 0)
    assert least is None or least * room >= sharded > (least - 1) * room
