"""Sizes, work, chips and bounds against figures worked out by hand."""

from dataclasses import asdict

import pytest

from roofline.operations.matmul import Matmul
from roofline.theory import chips, floor
from roofline.theory.models import parse


@pytest.mark.parametrize(("text", "message"), [("xxl/8192", "and d_ff=53248"), ("1024,", "two whole numbers")])
def test_bad_models_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_a_negative_number_of_tokens_is_named():
    with pytest.raises(ValueError, match="m=-1"):
        Matmul("xxl", "up", 1, -1, "bf16")


@pytest.mark.parametrize(("layer", "n", "k"), [("up", 6656, 16384), ("down", 16384, 6656)])
def test_layers_are_sharded_as_column_and_row_parallel(layer, n, k):
    case = Matmul("xxl", layer, 8, 4096, "bf16")
    assert (case.n, case.k) == (n, k)
    assert case.work.flop == 2 * 4096 * n * k
    assert case.work.device_bytes == 2 * (4096 * k + n * k + 4096 * n)


def test_device_names_are_compared_whole():
    assert chips.chip_of_device("NVIDIA H200").name == "H200"
    assert chips.chip_of_device("NVIDIA H200 NVL") is None


def machine_of(name, **more):
    chip = chips.find(name)
    of_gpu = {"source": "gpu", "sms": chip.sms, "cache_bytes": chip.cache_bytes, "max_sm_clock_mhz": 1980}
    return of_gpu | {"datasheet": asdict(chip)} | more


def cpu_of(*instruction_sets):
    return {"source": "cpu", "cache_bytes": 0, "affinity": 2, "instruction_sets": instruction_sets}


@pytest.mark.parametrize(
    ("machine", "dtype", "m", "least_s"),
    [
        # 2 * 8192 * 53248 * 16384 FLOP over 132 SMs * 4096 * 1.98 GHz = 1.0705e15 FLOP/s.
        (machine_of("H100 SXM"), "bf16", 8192, 13.352e-3),
        # All bytes but 50 MiB over 3.35 TB/s.
        (machine_of("H100 SXM"), "bf16", 1, 0.50526e-3),
        # Half of bf16: fp8, whatever its scales are by.
        (machine_of("H100 SXM"), "fp8_block", 8192, 6.6761e-3),
        # TF32's rate, half of bf16's: sums of its products may be exact.
        (machine_of("H100 SXM"), "fp32", 8192, 26.704e-3),
        # 2 * 8192 * 53248 * 16384 FLOP over 2 cores * 64 * 6 GHz, as by two units for 16 elements.
        (cpu_of("sse2", "avx", "avx512f", "avx512_bf16"), "fp32", 8192, 18.612),
        # Twice as many products in bf16.
        (cpu_of("sse2", "avx", "avx512f", "avx512_bf16"), "bf16", 8192, 9.3060),
        # A row is read at memory's pace, of which nothing is known.
        (cpu_of("avx512f"), "fp32", 1, 2.2720e-3),
    ],
)
def test_floor_of_a_time_by_hand(machine, dtype, m, least_s):
    least = floor.floor(Matmul("xxl", "up", 1, m, dtype).work, machine, dtype)
    assert least.seconds == pytest.approx(least_s, rel=1e-4)


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (machine_of("H200", datasheet=None), "the chip is in no datasheet"),
        (machine_of("H200", max_sm_clock_mhz=None), "does not tell the highest clock"),
        (cpu_of(), "names no instruction set"),
    ],
)
def test_a_floor_that_nobody_knows_says_why(machine, why):
    with pytest.raises(ValueError, match=why):
        floor.floor(Matmul("xxl", "up", 1, 1, "fp32").work, machine, "fp32")


def test_an_sm_does_in_a_cycle_what_the_datasheet_says_at_a_boost_clock():
    for chip in chips.CHIPS.values():
        for dtype, flop in chip.flop_per_cycle.items():
            assert 1.2e9 < chip.flops[dtype] / chip.sms / flop < 2.6e9, (chip.name, dtype)
