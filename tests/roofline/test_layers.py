"""The matmuls of a gated layer alone, beside the layer."""

import made_up_run
import pytest

from roofline.analysis.records import records_of
from roofline.operations.ffn_gated import FfnGated
from roofline.store import journal

CASE = FfnGated("1024x4096", 1, 64, "bf16")


@pytest.fixture
def records(tmp_path):
    """`records(times)`: of the layer, by contender, where `times` has its entrants' seconds."""

    def derived(times: dict[str, float]) -> dict[str, dict]:
        about = {}
        for name in times:
            if name != "compiled":
                about[name] = {"multiplied_by": "cublas" if "cublas" in name else "ours"}
            if name.startswith(("gate_up", "down")):
                about[name]["role"] = "part"
        lines = made_up_run.lines_of(CASE, times, baseline="cublas", about=about)
        run = made_up_run.save(tmp_path, [made_up_run.HEAD, *lines, made_up_run.END])
        return {record["contender"]: record for record in records_of(journal.load(run))}

    return derived


TIMES = {
    "cublas": 12e-3, "compiled": 11e-3, "unfused": 11e-3, "fused": 9e-3,
    "gate_up_cublas": 7e-3, "down_cublas": 4e-3, "gate_up_ours": 6e-3, "down_ours": 4e-3,
}  # fmt: skip


def test_the_win_of_a_layer_is_told_beside_that_of_its_matmuls(records):
    of = records(TIMES)
    alone = 11 / 10
    for name, in_layer in (("unfused", 12 / 11), ("fused", 12 / 9)):
        assert of[name]["ratio_to_baseline"] == pytest.approx(in_layer)
        assert of[name]["alone_ratio"] == pytest.approx(alone)


def test_who_has_no_matmuls_alone_has_no_such_ratio(records):
    of = records(TIMES)
    assert {of[name]["alone_ratio"] for name in ("cublas", "compiled")} == {None}
    for lost in ({"gate_up_ours", "down_ours"}, {"down_ours"}, {"gate_up_cublas"}):
        without = {name: time_s for name, time_s in TIMES.items() if name not in lost}
        assert records(without)["fused"]["alone_ratio"] is None


def test_work_counts_three_matmuls_and_what_lies_between():
    elements = 2 * 64 * 1024 + 3 * 4096 * 1024 + 2 * 64 * 4096
    assert (CASE.work.flop, CASE.work.device_bytes) == (6 * 64 * 1024 * 4096, 2 * elements)


@pytest.mark.parametrize(("tp", "m", "problem"), [(3, 64, "tp=3 does not divide"), (1, -1, "tokens m=-1")])
def test_sizes_that_no_layer_has_are_refused(tp, m, problem):
    with pytest.raises(ValueError, match=problem):
        FfnGated("1024x4096", tp, m, "bf16")
