"""What a record says of an arm, by known answers, and what the tables make of it."""

import made_up_gathers as made_up
import pytest
from made_up_run import HEAD, lines_of, save

from roofline.analysis import overlap
from roofline.analysis.records import as_frame, records_of
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.report import overlap as overlap_report
from roofline.report import tables
from roofline.report.plots import style
from roofline.store.journal import load
from roofline.theory.work import Work

CASE = AllGatherMatmul("64x256", "up", 1, 512, "fp32", 4, "ridge")
FLOP, WIRE_BYTES = 2 * 512 * 256 * 64, 512 * 64 * 4 * 3 // 4
T_GEMM, T_COMM = 4e-3, 3e-3
TIMES = {"serial": 7e-3, "chunk_launches": 5e-3, "row_block_launches": 4.5e-3}
BESIDE = {"gemm slow": 5e-3, "gemm fast": T_GEMM, "link": T_COMM, "gemm beside link": 4.4e-3}
ROLES = {"link": "link", "preset": "preset"} | dict.fromkeys(("gemm slow", "gemm fast", "gemm persistent"), "gemm")
ROLES |= {f"{name} beside link": "contended" for name in ("gemm", "gemm persistent", "preset")}


def lines(
    times=TIMES, beside=BESIDE, requested=WIRE_BYTES / T_COMM, drift=0.02, about=None, clocks=None, waits=None, **fields
):
    """Return lines of a shape in whose rounds all drift by as much: what is compared within a round stays the same.

    `about` are further fields of contenders, `clocks` their SM clocks in Hz, `waits` when first waits began, `fields`
    those of the shape.
    """
    about = {name: {"role": role} for name, role in ROLES.items()} | (about or {})
    read = {name: {"last_arrival_s": 3.3e-3, "first_wait_s": 4.4e-3} for name in times | beside}
    read |= {"link": {"last_arrival_s": T_COMM}}
    read |= {name: read[name] | {"sm_clock_hz": clock} for name, clock in (clocks or {}).items()}
    read |= {name: read[name] | {"first_wait_s": wait_s} for name, wait_s in (waits or {}).items()}
    fields = {
        "work": Work(FLOP, 10**6, WIRE_BYTES), "baseline": "serial", "link": "paced",
        "link_bytes_per_s_requested": requested, "row_blocks": 4, "workers": 1, "row_tiles": 4, "column_tiles": 1,
    } | fields  # fmt: skip
    slower = lambda index: 1 + drift * index / 31  # noqa: E731
    return lines_of(CASE, times | beside, about=about, rounds=31, slower=slower, values=read, **fields)


@pytest.fixture
def records(tmp_path):
    """`records(...)` returns {arm: its record} of the shape that `lines(...)` makes."""

    def make(*args, **more):
        run = load(save(tmp_path / "run", [HEAD, *lines(*args, **more)]))
        return {record["contender"]: record for record in records_of(run)}

    return make


def test_times_and_shares_of_an_arm_by_the_fastest_matmul_of_the_same_rounds(records):
    arms = records()
    record = arms["row_block_launches"]
    assert [arms[arm]["hidden_fraction"] for arm in TIMES] == pytest.approx([0.0, 2 / 3, 2.5 / 3], abs=1e-9)
    assert record["hidden_low"] == pytest.approx(record["hidden_high"])  # the drift cancels
    # Blocks of 1 ms come every 0.75 ms: the first waits for its last piece.
    assert [record[name] for name in ("of_roof", "of_own_ideal")] == pytest.approx([4 / 4.5, 4.75 / 4.5])
    expected = {
        "wire_intensity": FLOP / WIRE_BYTES, "link_bytes_per_s": WIRE_BYTES / T_COMM, "ratio": 4 / 3,
        "balance": FLOP / WIRE_BYTES * 3 / 4, "gemm_slowdown": 1.1, "link_slowdown": 1.1,
    }  # fmt: skip
    assert {name: record[name] for name in expected} == pytest.approx(expected, rel=0.03)
    assert (record["bound"], record["above_roof"]) == ("compute", False)


@pytest.mark.parametrize(
    ("t_comm_s", "time_s", "hidden"),
    [
        (2 * T_GEMM, 2 * T_GEMM, 1.0),  # computes faster, and waits for the same wire
        (T_COMM, T_GEMM / 1.03, 1.0),  # the chip is never idle
        (2 * T_GEMM, T_GEMM / 1.03 + 2 * T_GEMM, 0.0),
        (2 * T_GEMM, 2.5 * T_GEMM / 1.03, 1 - 1.03 * (2.5 / 1.03 - 2)),
    ],
)
def test_clock_scales_what_an_arm_computes_and_not_what_it_waits_for(records, t_comm_s, time_s, hidden):
    clocks = {"gemm slow": 1.5e9, "gemm fast": 1.6e9, "chunk_launches": 1.03 * 1.6e9, "serial": 1.6e9}
    times = {"serial": T_GEMM + t_comm_s, "chunk_launches": time_s, "row_block_launches": time_s}
    arms = records(times, BESIDE | {"link": t_comm_s}, None, drift=0.1, clocks=clocks)
    for name in ("hidden_clock_normalised", "hidden_clock_normalised_low", "hidden_clock_normalised_high"):
        assert arms["chunk_launches"][name] == pytest.approx(hidden, abs=1e-9)
    assert arms["chunk_launches"]["sm_clock_hz"] / arms["chunk_launches"]["gemm_sm_clock_hz"] == pytest.approx(1.03)
    assert arms["serial"]["hidden_clock_normalised"] == pytest.approx(arms["serial"]["hidden_fraction"], abs=1e-9)
    assert arms["row_block_launches"]["hidden_clock_normalised"] is None  # whose clock was not read


def test_arms_may_differ_in_row_blocks_spill_and_copiers(records):
    times = {"serial": 7e-3, "row_block_launches": 5e-3, "row_block": 5e-3, "chunk_outer": 5e-3}
    about = {"row_block": {"row_blocks": 2, "copier_programs": 132}, "chunk_outer": {"spilled_bytes": 3 * 10**6}}
    arms = records(times, about=about, copier_programs=32)
    assert [record["copier_programs"] for record in arms.values()] == [32, 32, 132, 32]
    assert [record["row_blocks"] for record in arms.values()] == [None, 4, 2, None]
    own_tiles = {"row_block": {"row_blocks": 1, "row_tiles": 1, "column_tiles": 2}}
    own = records(times, about=own_tiles, workers=2)["row_block"]["t_own_ideal_s"]
    assert own == pytest.approx(4e-3, rel=0.02)  # one wave, where others have two of 4 x 1
    # A piece of two blocks comes every half millisecond and is multiplied in a quarter: three waits before the rest.
    assert arms["row_block"]["of_own_ideal"] == pytest.approx(4.75 / 5)
    assert arms["chunk_outer"]["device_intensity"] == pytest.approx(arms["serial"]["device_intensity"] / 4)


def test_arm_over_its_own_fabric_is_not_compared_with_the_link_of_the_others(records):
    peer = records(TIMES | {"symm_mem": 3e-3}, BESIDE | {"preset": 4.2e-3}, about={"symm_mem": {"link": "NVLink"}})[
        "symm_mem"
    ]
    assert peer["link"] == "NVLink"
    names = "hidden_fraction", "of_own_ideal", "of_roof", "bound", "link_bytes_per_s", "link_slowdown"
    assert [name for name in names if peer[name] is not None] == []
    assert not peer["above_roof"]
    assert peer["ratio_to_baseline"] == pytest.approx(7 / 3)


def test_an_arm_above_its_ideal_is_noted(records):
    fast = records({"serial": 7e-3, "chunk_launches": 3.9e-3})["chunk_launches"]
    assert (fast["above_roof"], fast["notes"]) == (True, "above its ideal")


def test_link_off_its_pace_voids_the_case(records):
    record = records(requested=1.07 * WIRE_BYTES / T_COMM)["chunk_launches"]
    assert record["hidden_fraction"] is record["of_own_ideal"] is record["of_roof"] is None
    assert (record["above_roof"], record["notes"]) == (False, "void: link off its pace by -7 %")
    assert records(requested=1.03 * WIRE_BYTES / T_COMM)["chunk_launches"]["hidden_fraction"] is not None


@pytest.mark.parametrize("lost", ["link", "gemm fast"])
def test_what_was_not_measured_is_none_and_not_zero(records, lost):
    beside = {name: time for name, time in BESIDE.items() if name != lost and name != "gemm slow"}
    record = records(TIMES, beside)["row_block_launches"]
    assert record["hidden_fraction"] is record["of_own_ideal"] is record["bound"] is None
    assert tables.texts(as_frame([record]), ["hidden_fraction"]).empty
    assert record["time_s"] == pytest.approx(4.5e-3, rel=0.02)


def test_what_splitting_costs_belongs_to_the_own_ideal_and_is_named(tmp_path):
    """Eight ranks. One at a time, the matmul takes 4.8 of 4 ms; two at a time, 4.4, and then sets the pace still."""
    times = {"serial": 7.5e-3, "block_launches": 5e-3, "gemm torch": 4e-3, "link": 3.5e-3}
    about = {"gemm torch": {"role": "gemm"}, "link": {"role": "link"}}
    splits = {"block_launches": {"ranks_per_launch": 2, "slowdowns": {"1": 1.2, "2": 1.1}}}
    shape_lines = lines_of(made_up.scatter(), times, about=about, baseline="serial", rounds=30, splits=splits)
    run = load(save(tmp_path / "run", [HEAD, *shape_lines]))
    record = {record["contender"]: record for record in records_of(run)}["block_launches"]
    assert (record["ranks_per_launch"], record["split_slowdown"]) == (2, 1.1)
    # Two parts of 0.5 ms go from 3.3 ms on, when 6 of 8 are computed, and then the last.
    assert record["t_own_ideal_s"] == pytest.approx(4.8e-3)
    assert record["of_own_ideal"] == pytest.approx(4.8 / 5)
    parts_ms = [1e3 * (record[name] or 0) for name in overlap.LOST]
    assert parts_ms == pytest.approx([0.5, 0.3, 0, 0, 0.2])
    table = overlap_report.splits(as_frame([record])).table
    assert (table["schedule"].item(), table["split"].item()) == ("+10.0 %", "+6.0 %")


def test_figures_place_an_arm_by_what_it_hid_in_each_round(records):
    record = records(drift=0.5, requested=None)["chunk_launches"] | {"hidden_low": 0.4, "hidden_high": 0.8}
    (placed,) = style.prepared(as_frame([record])).itertuples()
    assert (placed.over, placed.over_low, placed.over_high) == pytest.approx((5 / 4, 1.15, 1.45))
    void = records(requested=2 * WIRE_BYTES / T_COMM)["chunk_launches"]
    assert style.prepared(as_frame([void]))["over"].item() == pytest.approx(void["time_s"] / void["t_gemm_s"])
