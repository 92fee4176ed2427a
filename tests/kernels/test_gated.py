"""The gated layer: its fused first half in Triton's interpreter, what that refuses, and what is seen of timed calls."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from kernels.bench import ffn_gated
from kernels.gated import gated, interleaved
from roofline.operations.ffn_gated import FfnGated


@pytest.mark.parametrize(("m", "f", "k"), [(70, 40, 72), (1, 8, 8), (64, 32, 64)])
def test_the_fused_half_is_silu_of_gate_times_up(m, f, k):
    x, gate, up = torch.randn(m, k), torch.randn(f, k), torch.randn(f, k)
    torch.testing.assert_close(gated(x, interleaved(gate, up)), F.silu(x @ gate.T) * (x @ up.T), rtol=1e-4, atol=1e-4)


def test_nothing_is_summed_where_k_is_0():
    out = torch.full((4, 8), torch.nan)
    assert not gated(torch.zeros(4, 0), torch.zeros(16, 0), out).any()


def test_an_odd_number_of_rows_and_an_out_of_another_width_are_refused():
    x = torch.zeros(4, 8)
    with pytest.raises(ValueError, match=r"w has 15 rows.*interleaved\(\)"):
        gated(x, torch.zeros(15, 8))
    with pytest.raises(ValueError, match=r"out has shape \[4, 16\], x and w need \[4, 8\]"):
        gated(x, torch.zeros(16, 8), torch.zeros(4, 16))


@pytest.fixture
def rotation():
    case = FfnGated("64x96", 1, 20, "fp32")
    return ffn_gated.Rotation(ffn_gated.operands(case, SimpleNamespace(device="cpu", seed=0, timed=False)), 0)


@pytest.mark.parametrize("by_turns", [False, True])
def test_a_timed_result_is_looked_at_and_an_earlier_one_is_none_of_other_inputs(rotation, by_turns):
    run = ffn_gated.run_fused if by_turns else ffn_gated.run_vendor
    result = rotation.rotated(run)()
    assert rotation.look_by(1e-4, by_turns, result)() == ""
    assert "is off by" in rotation.look_by(1e-4, not by_turns, result)()
    rotation.change()
    assert "is off by" in rotation.look_by(1e-4, by_turns, result)()
    assert "not the `out`" in rotation.look_by(1e-4, by_turns, result.clone())()


def test_the_layer_is_cut_into_slices_as_one():
    x, gate_up = torch.randn(3, 16), torch.randn(2 * 1100, 16)
    gate, up = gate_up.chunk(2)
    whole = F.silu(x @ gate.T) * (x @ up.T)
    torch.testing.assert_close(ffn_gated.hidden_rows(x, gate_up, False, torch.float32), whole)
    by_turns = ffn_gated.hidden_rows(x, interleaved(gate, up), True, torch.float32)
    torch.testing.assert_close(by_turns, whole)
