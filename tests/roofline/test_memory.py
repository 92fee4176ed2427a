"""Bytes of training against figures worked out by hand, in GB and in GiB."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.account.memory import SAVED, Memory
from roofline.theory.chips import GB, GIB
from roofline.theory.models import Model, parse

XXL = parse("xxl")
TOKENS = 131_072

quick = settings(deadline=None, derandomize=True, max_examples=60)

memories = st.builds(
    Memory,
    st.builds(Model, st.just("any"), st.integers(1, 2**15), st.integers(1, 2**17), st.integers(1, 200)),
    st.integers(0, 2**22),
    st.sampled_from([*SAVED]),
)


def test_state_of_xxl_in_both_units():
    memory = Memory(XXL)
    assert memory.parameters == 219_848_638_464
    parts = [*memory.parts.values(), memory.state_bytes]
    assert [round(part / GB, 2) for part in parts] == [879.39, 879.39, 1758.79, 3517.58]
    assert [part / GIB for part in parts] == [819, 819, 1638, 3276]


def test_a_gate_is_a_third_matrix_and_its_output_is_saved_too():
    llama = Memory(parse("llama-3-8b"), tokens=1)
    assert llama.parameters == 32 * 3 * 4096 * 14336
    assert llama.saved_bytes == 32 * (4096 + 2 * 14336) * 2
    assert replace(llama, saved="checkpointed").saved_bytes == (32 * 4096 + 2 * 14336) * 2


@pytest.mark.parametrize(
    ("saved", "elements"),
    [
        ("all", 126 * (16384 + 53248)),  # the inputs of both layers
        ("half", 63 * (16384 + 53248)),
        ("checkpointed", 126 * 16384 + 53248),  # those of blocks, and of one inner layer
    ],
)
def test_saved_of_xxl(saved, elements):
    memory = Memory(XXL, tokens=TOKENS, saved=saved)
    assert memory.saved_bytes == memory.sharded_bytes - memory.state_bytes == TOKENS * 2 * elements
    half = memory.saved_bytes if saved == "half" else 0
    assert {memory.whole_bytes(reading) for reading in memory.readings} == {0, half}


@pytest.mark.parametrize(
    ("size", "tokens", "saved", "reading", "devices"),
    [
        (80 * GB, 0, "all", "sharded", 44),
        (80 * GIB, 0, "all", "sharded", 41),
        (80 * GIB, TOKENS, "all", "sharded", 68),
        (95 * GB, 0, "half", "dropped", 38),
        (95 * GB, 0, "half", "whole", 38),
        (95 * GB, TOKENS, "half", "dropped", 50),
        (95 * GIB, TOKENS, "half", "dropped", 46),
        # 1149.98 GB stay on every device.
        (95 * GB, TOKENS, "half", "whole", None),
        (95 * GIB, TOKENS, "half", "whole", None),
        # (3517.58 + 1149.98) / (1200 - 1149.98) = 93.3
        (1200 * GB, TOKENS, "half", "whole", 94),
    ],
)
def test_fewest_devices(size, tokens, saved, reading, devices):
    assert Memory(XXL, tokens=tokens, saved=saved).least_degree(size, reading) == devices


@quick
@given(memories, st.integers(1, 2**40), st.integers(0, 1))
def test_the_fewest_devices_fit_and_one_less_does_not(memory, size, which):
    reading = memory.readings[-which]
    least, room = memory.least_degree(size, reading), size - memory.whole_bytes(reading)
    assert (least is None) == (room <= 0)
    assert least is None or least * room >= memory.sharded_bytes > (least - 1) * room
