"""What a record says of an arm, by known answers, and what the tables make of it."""

import pytest
from made_up_gathers import gather_matmul, gathering, scatter
from made_up_run import HEAD, lines_of
from pandas import DataFrame

from roofline.analysis import overlap
from roofline.analysis.records import records_of
from roofline.report import overlap as overlap_report
from roofline.report import tables


@pytest.fixture
def records(loaded):
    """`records(...)` returns {arm: its record} of a gather, by what `gathering` takes."""

    def make(**about):
        run = loaded([HEAD, *gathering(gather_matmul(), **about)])
        return {record["contender"]: record for record in records_of(run)}

    return make


def test_arm_over_its_own_fabric_is_not_compared_with_the_link_of_the_others(records):
    peer = records(lost={"serial": 1.0, "symm_mem": 0.1})["symm_mem"]
    assert peer["link"] == "NVLink"
    names = "hidden_fraction", "of_own_ideal", "of_roof", "bound", "link_bytes_per_s", "link_slowdown"
    assert [name for name in names if peer[name] is not None] == []
    assert not peer["above_roof"]
    assert peer["ratio_to_baseline"] == pytest.approx((20 + 16) / (20 + 1.6))


def test_an_arm_above_its_ideal_is_noted(records):
    fast = records(lost={"serial": 1.0, "chunk_launches": -0.01})["chunk_launches"]
    assert (fast["above_roof"], fast["notes"]) == (True, "above its ideal")


def test_link_off_its_pace_voids_the_case(records):
    record = records(pace=1 / 1.07)["chunk_launches"]
    assert record["hidden_fraction"] is record["of_own_ideal"] is record["of_roof"] is None
    assert (record["above_roof"], record["notes"]) == (False, "void: link off its pace by -7 %")
    assert records(pace=1 / 1.03)["chunk_launches"]["hidden_fraction"] is not None


@pytest.mark.parametrize("lost", ["link", "gemm torch"])
def test_what_was_not_measured_is_none_and_not_zero(records, lost):
    record = records(without=[lost])["row_block_launches"]
    assert record["hidden_fraction"] is record["of_own_ideal"] is record["bound"] is None
    assert tables.texts(DataFrame([record]), ["hidden_fraction"]).empty
    assert record["time_s"] == pytest.approx(23.2e-3, rel=0.02)


def test_t_gemm_is_the_fastest_unsplit_matmul(loaded):
    times = {"serial": 7e-3, "gemm slow": 5e-3, "gemm fast": 4e-3, "gemm beside link": 3e-3, "link": 3e-3}
    roles = {"gemm slow": "gemm", "gemm fast": "gemm", "gemm beside link": "contended", "link": "link"}
    about = {name: {"role": role} for name, role in roles.items()}
    (record,) = records_of(loaded([HEAD, *lines_of(gather_matmul(), times, about=about, baseline="serial")]))
    assert record["t_gemm_s"] == pytest.approx(4e-3)


def test_what_splitting_costs_belongs_to_the_own_ideal_and_is_named(loaded):
    """Eight ranks. One at a time, the matmul takes 4.8 of 4 ms; two at a time, 4.4, and then sets the pace still."""
    times = {"serial": 7.5e-3, "block_launches": 5e-3, "gemm torch": 4e-3, "link": 3.5e-3}
    about = {"gemm torch": {"role": "gemm"}, "link": {"role": "link"}}
    splits = {"block_launches": {"ranks_per_launch": 2, "slowdowns": {"1": 1.2, "2": 1.1}}}
    shape_lines = lines_of(scatter(), times, about=about, baseline="serial", rounds=30, splits=splits)
    run = loaded([HEAD, *shape_lines])
    record = {record["contender"]: record for record in records_of(run)}["block_launches"]
    assert (record["ranks_per_launch"], record["split_slowdown"]) == (2, 1.1)
    # Two parts of 0.5 ms go from 3.3 ms on, when 6 of 8 are computed, and then the last.
    assert record["t_own_ideal_s"] == pytest.approx(4.8e-3)
    assert record["of_own_ideal"] == pytest.approx(4.8 / 5)
    parts_ms = [1e3 * (record[name] or 0) for name in overlap.LOST]
    assert parts_ms == pytest.approx([0.5, 0.3, 0, 0, 0.2])
    table = overlap_report.splits(DataFrame([record])).table
    assert (table["schedule"].item(), table["split"].item()) == ("+10.0 %", "+6.0 %")
