"""Sizes, work, chips and bounds against figures worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.analysis.throughput import Roof
from roofline.operations.matmul import Matmul
from roofline.theory import chips
from roofline.theory.bounds import balance, bound
from roofline.theory.models import parse


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parse("xxl/8192"), "and d_ff=53248"),
        (lambda: parse("1024,"), "two whole numbers"),
        (lambda: Matmul("xxl", "up", 1, -1, "bf16"), "m=-1"),
    ],
)
def test_bad_sizes_and_rates_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("layer", "tp", "n", "k"),
    [("up", 8, 6656, 16384), ("down", 8, 16384, 6656)],
)
def test_layers_are_sharded_as_column_and_row_parallel(layer, tp, n, k):
    case = Matmul("xxl", layer, tp, 4096, "bf16")
    assert (case.n, case.k) == (n, k)
    assert case.work.flop == 2 * 4096 * n * k
    assert case.work.device_bytes == 2 * (4096 * k + n * k + 4096 * n)


@pytest.mark.parametrize(
    ("name", "wire", "memory"),
    # NVLink 4: 450e9 bytes/s one way; TPU v5p: six links of 90e9.
    [("H100 SXM", 2198.7, 295.3), ("H200", 2198.7, 206.1), ("A100 SXM", 1040, 153.0), ("TPU v5p", 850, 166.0)],
)
def test_balances_of_datasheets(name, wire, memory):
    chip = chips.find(name.lower().replace(" ", "-"))
    assert chip.name == name
    assert balance(chip.flops["bf16"], chip.received_bytes_per_s) == pytest.approx(wire, rel=1e-3)
    assert balance(chip.flops["bf16"], chip.memory_bandwidth_bytes_per_s) == pytest.approx(memory, rel=1e-3)


def test_device_names_are_compared_whole():
    assert chips.of_device("NVIDIA H200").name == "H200"
    assert chips.of_device("NVIDIA H200 NVL") is None


@given(st.floats(1e-3, 1e6), st.floats(1e9, 1e16), st.floats(1e6, 1e13))
def test_roof_is_the_lower_bound_and_bends_at_the_balance(intensity, flops, bandwidth):
    roof = Roof(flops, bandwidth).at(intensity)
    assert roof <= flops
    assert roof <= intensity * bandwidth
    assert (bound(intensity, flops, bandwidth) == "compute") == (roof == flops)
    assert Roof(flops, bandwidth).at(balance(flops, bandwidth) * 1.0001) == flops
