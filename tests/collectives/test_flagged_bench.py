"""The line-up of the arms that wait on the device, with their kernel in Triton's interpreter."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from test_gather_bench import options_of

from collectives import all_gather_matmul, flagged_arms
from collectives.bench import all_gather, gather
from collectives.bench import setting as overlap_setting
from kernels import persistent
from kernels.bench import matmul as matmul_lineup
from kernels.configs import choose
from kernels.contract import interpreted
from roofline.analysis.overlap.simulator import base_arm
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.operations.weight_prefetch import WeightPrefetch
from roofline.theory import wires

FLAGGED = list(flagged_arms.ARMS)


@pytest.fixture
def options(monkeypatch):
    """Of a run in which the interpreter stands in for a GPU."""
    if not interpreted(flagged_arms.flagged.flagged_kernel):
        pytest.skip("on a GPU the benchmarks themselves prepare these line-ups")
    monkeypatch.setattr(all_gather, "flagged_arms", lambda device: flagged_arms.ARMS)
    monkeypatch.setattr(overlap_setting, "seconds", lambda call, device: 1e-4)  # tables are made by it
    traces = []
    monkeypatch.setattr(flagged_arms, "trace", lambda operands, link, arm: traces.append(arm) or {"runs": len(traces)})
    return options_of()


def small(**more):
    return AllGatherMatmul(
        **dict(model="128x128", layer="up", tp=1, m=64, dtype="fp32", ranks=4, wire="0.002GBps") | more
    )


def test_arms_that_wait_on_the_device_are_those_of_a_gpu():
    assert gather.names_of(options_of(), "all_gather_matmul") == list(all_gather_matmul.ARMS)
    on_gpu = replace(options_of(), device="cuda")
    launches = [*all_gather_matmul.ARMS, *(f"{arm}_persistent" for arm in all_gather_matmul.ARMS)]
    assert gather.names_of(on_gpu, "all_gather_matmul") == [*launches, *FLAGGED]
    assert not set(FLAGGED) & set(gather.names_of(on_gpu, "weight_prefetch"))


def test_arms_are_ready_beside_the_preset_kernel(options):
    lineup = gather.prepare(options, small(), FLAGGED)
    assert list(lineup.ready) == ["serial", *FLAGGED]
    assert lineup.role["preset"] == "preset"
    assert lineup.role["preset beside link"] == lineup.role["gemm beside link"] == "contended"
    for call in (lineup.ready | lineup.beside).values():
        call()
    assert {run.func for run in lineup.beside["preset"]._runs} == {flagged_arms.preset}
    notes = lineup.beside["preset beside link"].notes()
    assert notes["first_wait_s"] < notes["last_arrival_s"]
    assert lineup.ready["row_block"].notes()["last_arrival_s"] > 0


def persistent_too(monkeypatch, fastest="torch"):
    """A device on which our persistent matmul runs beside the vendor's, and which of them is the faster."""
    known = matmul_lineup.known_contenders()
    both = {name: known[name] for name in (fastest, *({"torch", "persistent"} - {fastest}))}
    monkeypatch.setattr(overlap_setting, "unsplit", lambda *args: both)
    monkeypatch.setattr(overlap_setting.Setting, "_gemm_seconds", lambda self, c: 0.01 + 0.01 * (c.name != fastest))


PREFETCH = WeightPrefetch("128x128", "up", 1, 64, "fp32", 4, "0.002GBps")


@pytest.mark.parametrize("case", [small(), PREFETCH], ids=["all_gather_matmul", "weight_prefetch"])
def test_arms_of_launches_run_by_the_fastest_matmul_and_by_ours(options, case, monkeypatch):
    persistent_too(monkeypatch)
    ran, matmul, products = [], persistent.matmul, persistent.products
    monkeypatch.setattr(persistent, "matmul", lambda *args: ran.append("ours") or matmul(*args))
    monkeypatch.setattr(persistent, "products", lambda *args: ran.append("ours") or products(*args))
    by_ours = [arm for arm in gather.arms_of(case.op) if arm.endswith("_persistent")]
    assert len(by_ours) == {"all_gather_matmul": 3, "weight_prefetch": 2}[case.op]
    lineup = gather.prepare(options, case, [name for arm in by_ours for name in (base_arm(arm), arm)])
    assert not lineup.wrong | lineup.unable
    for name, call in lineup.ready.items():
        ran.clear()
        call()
        assert bool(ran) == (name in by_ours), name
    assert {name for name, role in lineup.role.items() if role == "contended"} >= {
        "gemm beside link",
        "gemm persistent beside link",
    }
    assert {"gemm torch", "gemm persistent"} <= {*lineup.beside}
    for call in lineup.beside.values():
        call()
    notes = lineup.beside["gemm persistent beside link"].notes()
    assert notes["first_wait_s"] < notes["last_arrival_s"]
    if case.op == "all_gather_matmul":
        assert lineup.details["row_block_launches_persistent"] == lineup.details["row_block_launches"]
        assert lineup.config["chunk_launches_persistent"].endswith("product and add, sums in fp32")


def test_arms_by_ours_are_not_run_twice_where_ours_is_the_fastest(options, monkeypatch):
    persistent_too(monkeypatch, fastest="persistent")
    names = [name for name in gather.arms_of("all_gather_matmul") if name not in FLAGGED]
    lineup = gather.prepare(options, small(), names)
    assert list(lineup.ready) == [*all_gather_matmul.ARMS, "chunk_launches_persistent"]  # that sums by torch's
    assert "so that row_block_launches has it already" in lineup.unable["row_block_launches_persistent"]
    assert "gemm persistent beside link" not in lineup.beside


def test_case_says_how_many_programs_the_copier_has(options):
    about = overlap_setting.Setting.about.fget
    wire, case = wires.parse("1GBps"), small()
    link = lambda: SimpleNamespace(programs=16)  # noqa: E731
    setting = SimpleNamespace(device="cuda", wire=wire, case=case, bytes_per_s=1e9, link=link, _grid_about=dict)
    assert about(setting)["copier_programs"] == 16
    assert "copier_programs" not in about(SimpleNamespace(**vars(setting) | {"device": "cpu"}))


def test_arms_say_what_they_spill_and_in_how_many_blocks_they_gather(options):
    lineup = gather.prepare(options, small(), FLAGGED)
    assert lineup.details["row_block"] == {"row_blocks": 2, "spilled_bytes": 0}
    assert lineup.details["chunk_outer"]["spilled_bytes"] > 0
    assert lineup.details["tile_outer"] == {"row_blocks": 1, "spilled_bytes": 0}
    assert lineup.config["row_block"].startswith("2 row blocks, flagged 32x32x32")


def test_each_is_traced_once_for_the_timeline(options):
    lineup = gather.prepare(options, small(), ["row_block"])
    assert lineup.traced == {"row_block": {"runs": all_gather.TRACES}}
    assert not gather.prepare(replace(options, timed=False), small(), ["row_block"]).traced


def test_trace_that_fails_is_told_and_the_arm_keeps_its_numbers(options, monkeypatch):
    monkeypatch.setattr(flagged_arms, "trace", lambda *arguments: 1 / 0)
    lineup = gather.prepare(options, small(), ["row_block"])
    assert list(lineup.ready) == ["serial", "row_block"]
    assert "ZeroDivisionError" in lineup.unable["row_block-timeline"]


def test_tables_are_made_for_what_matmul_and_gather_take(options, monkeypatch):
    asked, prepare = [], flagged_arms.prepare
    monkeypatch.setattr(flagged_arms, "prepare", lambda *arguments: asked.append(arguments) or prepare(*arguments))
    setting = all_gather.AllGather(options, small())
    assert setting.why_not("row_block") is None
    assert [times for _, _, *times in asked] == 2 * [[setting.t_gemm_s, setting.t_comm_s]]


def test_own_ideals_are_of_the_kernels_tile():
    tile = choose("flagged", "sm90", 8192, 3328, 16384, torch.bfloat16)
    assert (tile.block_m, tile.block_n) == all_gather.TILE


def test_sizes_that_the_kernel_cannot_take_leave_the_other_arms(options):
    lineup = gather.prepare(options, small(model="96x128", ranks=2), ["row_block", "row_block_launches"])
    assert "flagged needs chunks of a multiple of 32" in lineup.unable["row_block"]
    assert list(lineup.ready) == ["serial", "row_block_launches"]
    assert "preset" not in lineup.beside


def test_preset_link_leaves_nothing_to_trace(options):
    lineup = gather.prepare(options, small(wire="preset"), ["row_block"])
    assert list(lineup.ready) == ["serial", "row_block"]
    assert not lineup.traced
    assert list(lineup.beside) == ["gemm torch", "preset"]
