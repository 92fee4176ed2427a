"""Model FLOP utilisation of serial and of overlapped gathers, against figures worked out by hand."""

from dataclasses import replace

import pytest
from account_settings import EXERCISE, H100, D, F, h100, made_up, v5p
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.account import splits
from roofline.account.meshes import Sharding
from roofline.account.utilisation import ARMS, CHIPS, over_chips, step_s, utilisation

quick = settings(deadline=None, derandomize=True, max_examples=60)


@pytest.mark.parametrize(
    ("tokens", "serial", "overlapped"),
    [(22_000, 1 / 2, 1), (44_000, 2 / 3, 1), (11_000, 1 / 3, 1 / 2), (220, 1 / 101, 1 / 100)],
)
def test_fsdp_of_the_exercise(tokens, serial, overlapped):
    """At 2750 tokens on each of 8 chips, gather and matmuls take equally long."""
    assert utilisation(EXERCISE, tokens, "serial") == pytest.approx(serial)
    assert utilisation(EXERCISE, tokens, "overlapped") == pytest.approx(overlapped)


def test_activations_overlap_with_their_own_matmul_but_for_a_chunk():
    """tp alone: each of two collectives runs beside half of the matmuls, all but the last of P chunks of those."""
    setting = v5p(degrees={"tp": 16})
    math_s, wire_s = setting.math_s("forward", 1000), setting.wire_s("forward", 1000)
    assert wire_s / math_s == pytest.approx(16 * 4.6e14 / 5.4e11 / F)  # all three axes
    assert step_s(setting, "forward", 1000, "serial") == pytest.approx(math_s + wire_s)
    assert step_s(setting, "forward", 1000, "overlapped") == pytest.approx(math_s)
    slow = v5p({"tp": 1}, degrees={"tp": 16})
    math_s, wire_s = slow.math_s("forward", 1000), slow.wire_s("forward", 1000)
    assert wire_s / math_s == pytest.approx(16 * 4.6e14 / 1.8e11 / F)  # 0.77
    assert step_s(slow, "forward", 1000, "overlapped") == pytest.approx(math_s)
    slower = v5p({"tp": 1}, degrees={"tp": 32})
    math_s, wire_s = slower.math_s("forward", 1000), slower.wire_s("forward", 1000)
    # 1.54 of the matmuls: the wires, and the last chunk of each of two matmuls.
    assert step_s(slower, "forward", 1000, "overlapped") == pytest.approx(wire_s + math_s / 32)


def test_a_training_step_is_both_passes_and_computing_again_is_no_use():
    setting = h100({"fsdp": 1024}, step="training")
    tokens = 1024 * H100 / 400e9 * 127 / 128  # its bound
    assert utilisation(setting, tokens, "overlapped") == pytest.approx(1)
    assert utilisation(setting, tokens, "serial") == pytest.approx(1 / 2)
    again = replace(setting, recompute=True)
    assert utilisation(again, tokens, "overlapped") == pytest.approx(6 / 7)
    # 3.5 units of matmuls; gathers of 1 in the forward pass, of 2 in the backward one.
    assert utilisation(again, tokens, "serial") == pytest.approx(3 / 6.5)


def test_forward_of_a_tp_group_over_both_fabrics():
    setting = h100({"fsdp": 128, "tp": 8})
    gather = 127 / 128 * 4 * D * F / 8 / 50e9
    activations = 2 * 7 / 8 * 2 * D * 4e6 / 128 / 450e9
    math_s = 4 * D * F * 4e6 / 1024 / H100
    assert step_s(setting, "forward", 4e6, "serial") == pytest.approx(math_s + gather + activations)
    assert step_s(setting, "forward", 4e6, "overlapped") == pytest.approx(max(math_s, gather))


def test_over_chips_takes_the_fastest_split_of_each_number():
    setting = h100({"fsdp": 128, "tp": 8, "dp": 2, "pp": 2}, step="training")
    chips = (64, 4096, 65_536)
    fastest = over_chips(setting, 4e6, chips)
    for arm in ARMS:
        for count, split in zip(chips, fastest[arm], strict=True):
            assert split.sharding == Sharding(fsdp=count / split.sharding.tp, tp=split.sharding.tp)
            every = splits.whole(replace(setting, sharding=Sharding(fsdp=count)))
            assert utilisation(split, 4e6, arm) == max(utilisation(other, 4e6, arm) for other in every)
    assert fastest["serial"][0].sharding.tp == 1
    assert fastest["overlapped"][-1].sharding.tp > 8


def test_one_batch_keeps_fewer_chips_busy():
    for arm, fastest in over_chips(v5p(step="training"), 2**22).items():
        assert [split.sharding.devices for split in fastest] == list(CHIPS) == [2**i for i in range(3, 18)]
        own = [utilisation(split, 2**22, arm) for split in fastest]
        assert own == sorted(own, reverse=True)
        assert own[0] > 0.99
        assert own[-1] < 0.9


@quick
@given(made_up(), st.floats(1, 1e9))
def test_overlapped_is_no_slower_than_serial_and_both_are_shares(setting, tokens):
    serial, overlapped = (utilisation(setting, tokens, arm) for arm in ARMS)
    assert 0 < serial <= overlapped * (1 + 1e-9)
    assert overlapped <= 1 + 1e-9
    for step in setting.steps:
        ideal = max(setting.math_s(step, tokens), setting.wire_s(step, tokens))
        assert step_s(setting, step, tokens, "overlapped") >= ideal * (1 - 1e-9)
