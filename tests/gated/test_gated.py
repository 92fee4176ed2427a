"""The gated layer: its fused first half in Triton's interpreter, what that refuses, what is seen of timed calls, and
what a report says of its matmuls alone."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from made_up_run import END, HEAD, lines_of, save

from kernels.gated import bench
from kernels.gated.kernel import gated, interleaved
from kernels.gated.operation import FfnGated
from roofline.analysis.records import records_of
from roofline.report.write import frame, markdown
from roofline.store import journal


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
    return bench.Rotation(bench.operands(case, SimpleNamespace(device="cpu", seed=0, timed=False)), 0)


@pytest.mark.parametrize("by_turns", [False, True])
def test_a_timed_result_is_looked_at_and_an_earlier_one_is_none_of_other_inputs(rotation, by_turns):
    run = bench.run_fused if by_turns else bench.run_vendor
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
    torch.testing.assert_close(bench.hidden_rows(x, gate_up, False, torch.float32), whole)
    by_turns = bench.hidden_rows(x, interleaved(gate, up), True, torch.float32)
    torch.testing.assert_close(by_turns, whole)


CASE = FfnGated("1024x4096", 1, 64, "bf16")


LAYER_S = {
    "cublas": 12e-3, "compiled": 11e-3, "unfused": 11e-3, "fused": 9e-3,
    "gate_up_cublas": 7e-3, "down_cublas": 4e-3, "gate_up_ours": 6e-3, "down_ours": 4e-3,
}  # fmt: skip
ABOUT = {
    "cublas": {"multiplied_by": "cublas"},
    "unfused": {"multiplied_by": "ours"},
    "fused": {"multiplied_by": "ours"},
    "gate_up_cublas": {"multiplied_by": "cublas", "role": "part"},
    "down_cublas": {"multiplied_by": "cublas", "role": "part"},
    "gate_up_ours": {"multiplied_by": "ours", "role": "part"},
    "down_ours": {"multiplied_by": "ours", "role": "part"},
}


@pytest.fixture
def layer_run(tmp_path):
    """`layer_run(*without)`: the run of a layer, where those of `without` have no time."""

    def load(*without: str):
        lines = lines_of(CASE, LAYER_S, baseline="cublas", about=ABOUT, without=without)
        return journal.load(save(tmp_path / "run", [HEAD, *lines, END]))

    return load


def alone_ratios(run) -> dict[str, float | None]:
    return {record["contender"]: record["alone_ratio"] for record in records_of(run)}


def test_the_win_of_a_layers_matmuls_alone(layer_run):
    gain = pytest.approx(11 / 10)
    assert alone_ratios(layer_run()) == {"cublas": None, "compiled": None, "unfused": gain, "fused": gain}


@pytest.mark.parametrize("lost", ["cublas", "down_ours", "gate_up_cublas"])
def test_what_lacks_a_matmul_alone_or_its_baseline_has_no_such_ratio(layer_run, lost):
    assert alone_ratios(layer_run(lost))["fused"] is None


def test_work_counts_three_matmuls_and_what_lies_between():
    elements = 2 * 64 * 1024 + 3 * 4096 * 1024 + 2 * 64 * 4096
    assert (CASE.work.flop, CASE.work.device_bytes) == (6 * 64 * 1024 * 4096, 2 * elements)


@pytest.mark.parametrize(("tp", "m", "problem"), [(3, 64, "tp=3 does not divide"), (1, -1, "tokens m=-1")])
def test_sizes_that_no_layer_has_are_refused(tp, m, problem):
    with pytest.raises(ValueError, match=problem):
        FfnGated("1024x4096", tp, m, "bf16")


def test_a_report_has_them_beside_the_layer(layer_run):
    run = layer_run()
    text = markdown(run, frame(run), [])
    assert "## Gated layers\n\nOf each layer the ratio" in text
    assert "| ffn_gated-1024x4096-tp1-m64-bf16 | fused | 1.333 [1.333, 1.333] | 1.100 [1.100, 1.100] |" in text
