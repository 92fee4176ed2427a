"""The matmuls of a gated layer alone, beside the layer."""

import pytest
from made_up_run import HEAD, lines_of

from roofline.analysis.records import records_of
from roofline.operations.ffn_gated import FfnGated

CASE = FfnGated("1024x4096", 1, 64, "bf16")


TIMES = {
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
def alone_ratios(loaded):
    """`alone_ratios(without)`: of the contenders of a layer, where those of `without` have no time."""

    def ratios(*without: str) -> dict[str, float | None]:
        records = records_of(loaded([HEAD, *lines_of(CASE, TIMES, baseline="cublas", about=ABOUT, without=without)]))
        return {record["contender"]: record["alone_ratio"] for record in records}

    return ratios


def test_the_win_of_a_layers_matmuls_alone(alone_ratios):
    gain = pytest.approx(11 / 10)
    assert alone_ratios() == {"cublas": None, "compiled": None, "unfused": gain, "fused": gain}


@pytest.mark.parametrize("lost", ["cublas", "down_ours", "gate_up_cublas"])
def test_what_lacks_a_matmul_alone_or_its_baseline_has_no_such_ratio(alone_ratios, lost):
    assert alone_ratios(lost)["fused"] is None


def test_work_counts_three_matmuls_and_what_lies_between():
    elements = 2 * 64 * 1024 + 3 * 4096 * 1024 + 2 * 64 * 4096
    assert (CASE.work.flop, CASE.work.device_bytes) == (6 * 64 * 1024 * 4096, 2 * elements)


@pytest.mark.parametrize(("tp", "m", "problem"), [(3, 64, "tp=3 does not divide"), (1, -1, "tokens m=-1")])
def test_sizes_that_no_layer_has_are_refused(tp, m, problem):
    with pytest.raises(ValueError, match=problem):
        FfnGated("1024x4096", tp, m, "bf16")
