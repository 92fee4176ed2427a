"""The line-up of the arms that wait on the device, with their kernel in Triton's interpreter."""

from dataclasses import replace

import all_gather_setting
import overlap_lineup
import overlap_setting
import pytest
import torch
from test_overlap_lineup import options_of

from collectives import all_gather_matmul, flagged_arms
from kernels.configs import choose
from kernels.contract import interpreted
from roofline.theory.work import AllGatherMatmul

FLAGGED = list(flagged_arms.ARMS)


@pytest.fixture
def options(monkeypatch):
    """Of a run in which the interpreter stands in for a GPU."""
    if not interpreted(flagged_arms.flagged.flagged_kernel):
        pytest.skip("on a GPU the benchmarks themselves prepare these line-ups")
    monkeypatch.setattr(all_gather_setting, "flagged_arms", lambda device: flagged_arms.ARMS)
    monkeypatch.setattr(overlap_setting, "seconds", lambda call, device: 1e-4)  # tables are made by it
    traces = []
    monkeypatch.setattr(flagged_arms, "trace", lambda operands, link, arm: traces.append(arm) or {"runs": len(traces)})
    return options_of()


def small(**more):
    return AllGatherMatmul(
        **dict(model="128x128", layer="up", tp=1, m=64, dtype="fp32", ranks=4, wire="0.002GBps") | more
    )


def test_arms_that_wait_on_the_device_are_those_of_a_gpu():
    assert overlap_lineup.names_of(options_of(), "all_gather_matmul") == list(all_gather_matmul.ARMS)
    on_gpu = replace(options_of(), device="cuda")
    assert overlap_lineup.names_of(on_gpu, "all_gather_matmul") == [*all_gather_matmul.ARMS, *FLAGGED]
    assert not set(FLAGGED) & set(overlap_lineup.names_of(on_gpu, "weight_prefetch"))


def test_arms_are_ready_beside_the_preset_kernel(options):
    lineup = overlap_lineup.prepare(options, small(), FLAGGED)
    assert list(lineup.ready) == ["serial", *FLAGGED]
    assert lineup.role["preset"] == "preset"
    assert lineup.role["preset beside link"] == "contended"
    assert "gemm beside link" not in lineup.role
    for call in (lineup.ready | lineup.beside).values():
        call()
    assert {run.func for run in lineup.beside["preset"]._runs} == {flagged_arms.preset}
    notes = lineup.beside["preset beside link"].notes()
    assert notes["first_wait_s"] < notes["last_arrival_s"]
    assert lineup.ready["row_block"].notes()["last_arrival_s"] > 0


def test_arms_say_what_they_spill_and_in_how_many_blocks_they_gather(options):
    lineup = overlap_lineup.prepare(options, small(), FLAGGED)
    assert lineup.details["row_block"] == {"row_blocks": 2, "spilled_bytes": 0}
    assert lineup.details["chunk_outer"]["spilled_bytes"] > 0
    assert lineup.details["tile_outer"] == {"row_blocks": 1, "spilled_bytes": 0}
    assert lineup.config["row_block"].startswith("2 row blocks, flagged 32x32x32")


def test_each_is_traced_once_for_the_timeline(options):
    lineup = overlap_lineup.prepare(options, small(), ["row_block"])
    assert lineup.traced == {"row_block": {"runs": all_gather_setting.TRACES}}
    assert not overlap_lineup.prepare(replace(options, timed=False), small(), ["row_block"]).traced


def test_trace_that_fails_is_told_and_the_arm_keeps_its_numbers(options, monkeypatch):
    monkeypatch.setattr(flagged_arms, "trace", lambda *arguments: 1 / 0)
    lineup = overlap_lineup.prepare(options, small(), ["row_block"])
    assert list(lineup.ready) == ["serial", "row_block"]
    assert "ZeroDivisionError" in lineup.unable["row_block-timeline"]


def test_tables_are_made_for_what_matmul_and_gather_take(options, monkeypatch):
    asked, prepare = [], flagged_arms.prepare
    monkeypatch.setattr(flagged_arms, "prepare", lambda *arguments: asked.append(arguments) or prepare(*arguments))
    setting = all_gather_setting.AllGather(options, small())
    assert setting.why_not("row_block") is None
    assert [times for _, _, *times in asked] == 2 * [[setting.t_gemm_s, setting.t_comm_s]]


def test_own_ideals_are_of_the_kernels_tile():
    tile = choose("flagged", "sm90", 8192, 3328, 16384, torch.bfloat16)
    assert (tile.block_m, tile.block_n) == all_gather_setting.TILE


def test_sizes_that_the_kernel_cannot_take_leave_the_other_arms(options):
    lineup = overlap_lineup.prepare(options, small(model="96x128", ranks=2), ["row_block", "row_block_launches"])
    assert "flagged needs chunks of a multiple of 32" in lineup.unable["row_block"]
    assert list(lineup.ready) == ["serial", "row_block_launches"]
    assert "preset" not in lineup.beside


def test_preset_link_leaves_nothing_to_trace(options):
    lineup = overlap_lineup.prepare(options, small(wire="preset"), ["row_block"])
    assert list(lineup.ready) == ["serial", "row_block"]
    assert not lineup.traced
    assert list(lineup.beside) == ["gemm torch", "preset"]
