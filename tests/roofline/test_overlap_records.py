"""What a record says of an arm, by known answers, and what the tables make of it."""

import made_up_gathers as made_up
import pytest
from made_up_run import HEAD, lines_of

from roofline.analysis import overlap
from roofline.analysis.records import as_frame, records_of
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.report import overlap as overlap_report
from roofline.report import tables

CASE = AllGatherMatmul("64x256", "up", 1, 512, "fp32", 4, "ridge")
T_GEMM, T_COMM = 4e-3, 3e-3
TIMES = {"serial": 7e-3, "chunk_launches": 5e-3, "row_block_launches": 4.5e-3}
BESIDE = {"gemm slow": 5e-3, "gemm fast": T_GEMM, "link": T_COMM, "gemm beside link": 4.4e-3}
ROLES = {"gemm slow": "gemm", "gemm fast": "gemm", "link": "link", "preset": "preset", "gemm beside link": "contended"}


def lines(times=TIMES, beside=BESIDE, pace=None):
    """The lines of a shape in whose rounds all drift by as much: what is compared within a round stays the same.

    `pace` is the link's, over what was asked for.
    """
    about = {name: {"role": role} for name, role in ROLES.items()} | {"symm_mem": {"link": "NVLink"}}
    return lines_of(
        CASE, times | beside, about=about, rounds=31, slower=lambda index: 1 + 0.02 * index / 31,
        values={"link": {"last_arrival_s": T_COMM}},
        baseline="serial", link="paced", link_bytes_per_s_requested=pace and CASE.work.wire_bytes / T_COMM / pace,
        row_blocks=4, workers=1, row_tiles=4, column_tiles=1,
    )  # fmt: skip


@pytest.fixture
def records(loaded):
    """`records(...)` returns {arm: its record} of the shape that `lines(...)` makes."""

    def make(*args, **more):
        run = loaded([HEAD, *lines(*args, **more)])
        return {record["contender"]: record for record in records_of(run)}

    return make


def test_arm_over_its_own_fabric_is_not_compared_with_the_link_of_the_others(records):
    peer = records(TIMES | {"symm_mem": 3e-3}, BESIDE | {"preset": 4.2e-3})["symm_mem"]
    assert peer["link"] == "NVLink"
    names = "hidden_fraction", "of_own_ideal", "of_roof", "bound", "link_bytes_per_s", "link_slowdown"
    assert [name for name in names if peer[name] is not None] == []
    assert not peer["above_roof"]
    assert peer["ratio_to_baseline"] == pytest.approx(7 / 3)


def test_an_arm_above_its_ideal_is_noted(records):
    fast = records({"serial": 7e-3, "chunk_launches": 3.9e-3})["chunk_launches"]
    assert (fast["above_roof"], fast["notes"]) == (True, "above its ideal")


def test_link_off_its_pace_voids_the_case(records):
    record = records(pace=1 / 1.07)["chunk_launches"]
    assert record["hidden_fraction"] is record["of_own_ideal"] is record["of_roof"] is None
    assert (record["above_roof"], record["notes"]) == (False, "void: link off its pace by -7 %")
    assert records(pace=1 / 1.03)["chunk_launches"]["hidden_fraction"] is not None


@pytest.mark.parametrize("lost", ["link", "gemm fast"])
def test_what_was_not_measured_is_none_and_not_zero(records, lost):
    beside = {name: time_s for name, time_s in BESIDE.items() if name not in (lost, "gemm slow")}
    record = records(TIMES, beside)["row_block_launches"]
    assert record["hidden_fraction"] is record["of_own_ideal"] is record["bound"] is None
    assert tables.texts(as_frame([record]), ["hidden_fraction"]).empty
    assert record["time_s"] == pytest.approx(4.5e-3, rel=0.02)


def test_what_splitting_costs_belongs_to_the_own_ideal_and_is_named(loaded):
    """Eight ranks. One at a time, the matmul takes 4.8 of 4 ms; two at a time, 4.4, and then sets the pace still."""
    times = {"serial": 7.5e-3, "block_launches": 5e-3, "gemm torch": 4e-3, "link": 3.5e-3}
    about = {"gemm torch": {"role": "gemm"}, "link": {"role": "link"}}
    splits = {"block_launches": {"ranks_per_launch": 2, "slowdowns": {"1": 1.2, "2": 1.1}}}
    shape_lines = lines_of(made_up.scatter(), times, about=about, baseline="serial", rounds=30, splits=splits)
    run = loaded([HEAD, *shape_lines])
    record = {record["contender"]: record for record in records_of(run)}["block_launches"]
    assert (record["ranks_per_launch"], record["split_slowdown"]) == (2, 1.1)
    # Two parts of 0.5 ms go from 3.3 ms on, when 6 of 8 are computed, and then the last.
    assert record["t_own_ideal_s"] == pytest.approx(4.8e-3)
    assert record["of_own_ideal"] == pytest.approx(4.8 / 5)
    parts_ms = [1e3 * (record[name] or 0) for name in overlap.LOST]
    assert parts_ms == pytest.approx([0.5, 0.3, 0, 0, 0.2])
    table = overlap_report.splits(as_frame([record])).table
    assert (table["schedule"].item(), table["split"].item()) == ("+10.0 %", "+6.0 %")
