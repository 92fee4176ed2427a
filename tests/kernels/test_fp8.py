"""What is of fp8 alone: quantised rows, operands and checks of them, and the error that sums of Hopper may have."""

from dataclasses import replace

import pytest
import torch
from stand_in import scaled
from test_matmul_bench import OPTIONS

from kernels.bench import checks, matmul
from kernels.contract import validate
from kernels.fp8 import quantise
from kernels.tiles import choose
from kernels.waves import GpuSpec, cost
from roofline.operations.matmul import Matmul
from roofline.theory.chips import find
from roofline.worker.prepared import TOLERANCE


@pytest.mark.parametrize(("high", "wide"), [(1, 300), (1, 128), (128, 128)])
def test_rows_and_blocks_are_quantised_by_their_largest_at_the_edges_too(high, wide):
    matrix = torch.randn(130, 300).cumsum(0)
    matrix[3] *= 1e10
    values, scales = quantise(matrix, (high, wide) if wide < 300 else None)
    assert (values.shape, scales.shape) == (matrix.shape, (-(-130 // high), -(-300 // wide)))
    whole = scales.repeat_interleave(high, 0)[:130].repeat_interleave(wide, 1)[:, :300]
    assert (values.float() * whole - matrix).norm() / matrix.norm() < 0.04
    assert values[128:, 256:].float().abs().max() == 448 or wide == 300


@pytest.mark.parametrize(("wrong", "scale"), [(torch.nan, "nan"), (torch.inf, "inf"), (0.0, "0"), (1e-44, "0")])
def test_what_has_no_scale_is_refused(wrong, scale):
    matrix = torch.randn(130, 300)
    matrix[128:, 256:] = wrong
    with pytest.raises(ValueError, match=rf"block \(1, 2\) has the scale {scale}, a scale is finite and above 0: its"):
        quantise(matrix, (128, 128))


def right(x, w, out, scales):
    return scaled(x, w, scales, out)


def no_w_scales(x, w, out, scales):
    return right(x, w, out, (scales[0], torch.full_like(scales[1], scales[1].mean())))


def one_scale(x, w, out, scales):
    """Of the last row or block of w it takes the scale of another."""
    w_scales = scales[1].clone()
    w_scales[-1, -1] *= 2
    return right(x, w, out, (scales[0], w_scales))


def scales_written(x, w, out, scales):
    right(x, w, out, scales)
    scales[0].mul_(2)
    return out


@pytest.mark.parametrize(("m", "dtype"), [(16, "fp8"), (300, "fp8_block")])
def test_operands_are_checked_by_what_they_stand_for_and_looked_at_with_other_signs(m, dtype):
    options = replace(OPTIONS, tokens=(m,), dtypes=(dtype,), model="200x300")
    case = Matmul("200x300", "up", 1, m, dtype)
    sets = matmul.operands(case, options)
    x, w, out, scales = sets[0]
    validate(x, w, out, scales)
    assert case.work.device_bytes == sum(tensor.nbytes for tensor in (x, w, out, *scales))
    reference = checks.reference_sums(x, w, scales)
    outcomes = {}
    for run in (right, no_w_scales, one_scale, scales_written):
        error, refused = checks.check(run.__name__, run, sets[0], reference)
        outcomes[run.__name__] = error, refused
    assert outcomes["right"][0] < 3e-3
    assert outcomes["right"][1] is None
    assert "it wrote into its scales of x, which others read" in outcomes["scales_written"][1].reason
    for name in ("no_w_scales", "one_scale"):
        assert f"the limit for {dtype}" in outcomes[name][1].reason
    rotation, before = checks.Rotation(sets, seed=0), x.clone()
    rotation.change()
    assert 0.3 < float((x.float() != before.float()).float().mean()) < 0.7
    assert rotation.look(TOLERANCE[dtype], right(*sets[0]))() == ""
    assert rotation.look(TOLERANCE[dtype], no_w_scales(*sets[0]))().startswith("row ")
    rotation.restore()
    assert checks.are_same_bits(x, before)


def cut(values, exponent):
    unit = torch.exp2(exponent - 13)
    return (values / unit).trunc() * unit


def test_the_tolerance_allows_for_sums_of_hopper():
    """At the longest K of the default: 32 products and the sum so far keep 13 bits behind the first of the largest. By
    block sums begin anew each 128."""
    numbers = torch.Generator().manual_seed(0)
    x, w = (quantise(torch.randn(16, 53248, generator=numbers))[0].double() for _ in range(2))
    promoted, sums = torch.zeros(16, 16), torch.zeros(2, 16, 16, dtype=torch.float64)  # by row, by block
    for k in range(0, 53248, 32):
        if k % 128 == 0:
            promoted = promoted + sums[1]
            sums[1] = 0
        products = x[:, None, k : k + 32] * w[None, :, k : k + 32]
        exponent = torch.maximum(products.abs().amax(2), sums.abs()).log2().floor()
        sums = cut(sums, exponent) + cut(products, exponent[..., None]).sum(3)
    exact = x @ w.T
    for dtype, result in (("fp8", sums[0]), ("fp8_block", promoted + sums[1])):
        error = float((result.bfloat16() - exact).norm() / exact.norm())
        assert 0.4 * TOLERANCE[dtype] < error < 0.8 * TOLERANCE[dtype], dtype


def test_the_model_of_waves_has_the_rates_of_fp8():
    gpu = GpuSpec.of_chip(find("H200"))
    config = choose("persistent", "sm90", 8192, 6656, 16384, torch.float8_e4m3fn, gpu)
    assert (config.block_k, config.num_stages) == (128, 4)
    in_fp8, in_bf16 = (cost(8192, 6656, 16384, itemsize, config, gpu) for itemsize in (1, 2))
    assert in_bf16.mma_s == pytest.approx(2 * in_fp8.mma_s, rel=1e-3)
    assert in_bf16.l2_s == pytest.approx(2 * in_fp8.l2_s)
