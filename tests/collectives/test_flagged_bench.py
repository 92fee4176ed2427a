"""Cases with arms that wait on the device, prepared with arms of launches in their place: no kernel runs here."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from gather_cases import options_of

from collectives import flagged_arms
from collectives.all_gather_matmul import ARMS, row_block_launches
from collectives.bench import all_gather_matmul
from collectives.bench import setting as settings
from kernels import persistent
from kernels.registry import CONTENDERS
from kernels.tiles import choose
from roofline.operations import find
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.theory.arms import TILE

FLAGGED = list(flagged_arms.ARMS)


@pytest.fixture
def prepared_for(monkeypatch):
    """What arms that wait were prepared for: matmul and gather of so many seconds."""
    times = []

    def prepare(operands, arm, *about):
        if operands.gathered.shape[1] % 128:
            raise ValueError("flagged needs chunks of a multiple of 32")
        times.append(about)
        plan = SimpleNamespace(config="128x256x64", spilled_bytes=8 * (arm == "chunk_outer"))
        operands.prepared[arm] = SimpleNamespace(row_blocks=2, plan=plan)
        return operands.prepared[arm]

    monkeypatch.setattr(flagged_arms, "prepare", prepare)
    monkeypatch.setattr(flagged_arms, "preset", lambda mine, arm: mine.matmul(mine.gathered, mine.w, mine.out))
    waiting = classmethod(lambda kind, device: dict.fromkeys(FLAGGED, row_block_launches))
    monkeypatch.setattr(all_gather_matmul.AllGather, "waiting", waiting)
    monkeypatch.setattr(settings, "seconds_by_turns", lambda calls, device: [1e-4] * len(calls))
    return times


@pytest.fixture
def options(prepared_for):
    return options_of()


def small(**more):
    return AllGatherMatmul(
        **dict(model="128x128", layer="up", tp=1, m=64, dtype="fp32", ranks=4, wire="0.002GBps") | more
    )


def test_arms_that_wait_on_the_device_are_those_of_a_gpu():
    on_cpu = [*ARMS, *["serial_all_cores"] * (len(os.sched_getaffinity(0)) > 1)]
    gather, prefetch = (find(op).planner for op in ("all_gather_matmul", "weight_prefetch"))
    assert gather(options_of()).names(small()) == on_cpu
    on_gpu = replace(options_of(), device="cuda")
    assert gather(on_gpu).names(small()) == [*ARMS, "row_block_launches_persistent", *FLAGGED]
    assert {*FLAGGED, *ARMS} <= set(gather(options_of()).choices())
    assert not set(FLAGGED) & set(prefetch(on_gpu).names(small()))


def test_arms_are_ready_beside_the_preset_kernel(options):
    prepared = all_gather_matmul.Runner(options).prepare(small(), FLAGGED)
    assert prepared.contenders == ["serial", *FLAGGED]
    assert prepared.entrants["row_block"].facts == {"row_blocks": 2, "spilled_bytes": 0}
    assert prepared.entrants["chunk_outer"].facts["spilled_bytes"] == 8
    assert prepared.entrants["row_block"].config == "2 row blocks, flagged 128x256x64"
    assert prepared.entrants["preset"].role == "preset"
    assert prepared.entrants["preset beside link"].role == prepared.entrants["gemm beside link"].role == "contended"
    for entrant in prepared.entrants.values():
        entrant.call()
    assert {run.func for run in prepared.entrants["preset"].call.runs} == {flagged_arms.preset}
    notes = prepared.entrants["preset beside link"].call.notes()
    assert notes["first_wait_s"] < notes["last_arrival_s"]
    assert prepared.entrants["row_block"].call.notes()["last_arrival_s"] > 0


def persistent_too(monkeypatch, fastest="torch"):
    """A device on which our persistent matmul runs beside the vendor's, and which of them is the faster."""
    contenders = CONTENDERS
    both = {name: contenders[name] for name in (fastest, *({"torch", "persistent"} - {fastest}))}
    monkeypatch.setattr(settings, "unsplit", lambda *args: both)
    times = {name: 0.01 + 0.01 * (name != fastest) for name in both}
    monkeypatch.setattr(settings.Setting, "_unsplit_s", lambda self: times)


def test_arms_of_launches_run_by_the_fastest_matmul_and_by_ours(options, monkeypatch):
    persistent_too(monkeypatch)
    ran, ours = [], persistent.matmul

    class Counted(type(ours)):
        def __call__(self, *args):
            ran.append("ours")
            return super().__call__(*args)

    monkeypatch.setattr(persistent, "matmul", Counted(**vars(ours)))
    base, by_ours = "row_block_launches", "row_block_launches_persistent"
    prepared = all_gather_matmul.Runner(options).prepare(small(), [base, by_ours])
    assert prepared.contenders == ["serial", base, by_ours]
    for name in prepared.contenders:
        ran.clear()
        prepared.entrants[name].call()
        assert bool(ran) == (name == by_ours), name
    assert {"gemm torch", "gemm persistent", "gemm beside link"} <= {*prepared.references}
    for name in prepared.references:
        prepared.entrants[name].call()
    beside = prepared.entrants["gemm persistent beside link"]
    assert beside.role == "contended"
    notes = beside.call.notes()
    assert notes["first_wait_s"] < notes["last_arrival_s"]
    assert prepared.entrants[by_ours].facts == prepared.entrants[base].facts


def test_arms_by_ours_are_not_run_twice_where_ours_is_the_fastest(options, monkeypatch):
    persistent_too(monkeypatch, fastest="persistent")
    runner = all_gather_matmul.Runner(options)
    prepared = runner.prepare(small(), [name for name in runner.arms("cuda") if name not in FLAGGED])
    assert prepared.contenders == [*ARMS]
    assert "so that row_block_launches has it already" in prepared.rejected["row_block_launches_persistent"].reason
    assert "gemm persistent beside link" not in prepared.entrants


def test_own_ideals_are_of_the_kernels_tile():
    tile = choose("flagged", "sm90", 8192, 3328, 16384, torch.bfloat16)
    assert (tile.block_m, tile.block_n) == TILE


def test_sizes_that_the_kernel_cannot_take_leave_the_other_arms(options):
    prepared = all_gather_matmul.Runner(options).prepare(
        small(model="96x128", ranks=2), ["row_block", "row_block_launches"]
    )
    assert "flagged needs chunks of a multiple of 32" in prepared.rejected["row_block"].reason
    assert prepared.contenders == ["serial", "row_block_launches"]
    assert "preset" not in prepared.entrants


def test_over_a_preset_link_the_kernel_has_no_timeline(options):
    prepared = all_gather_matmul.Runner(options).prepare(small(wire="preset"), ["row_block"])
    assert prepared.contenders == ["serial", "row_block"]
    assert not hasattr(prepared.entrants["row_block"].call, "notes")
    assert prepared.references == ["gemm torch", "preset"]


def test_tables_are_made_for_what_matmul_and_gather_take(options, prepared_for):
    setting = all_gather_matmul.AllGather(options, small())
    assert setting.why_not("row_block") is None
    assert setting.t_comm_s == pytest.approx(0.012288)
    assert prepared_for == 2 * [(setting.t_gemm_s, setting.t_comm_s)]
    assert setting.why_not("row_block") is None  # once for all
    assert len(prepared_for) == 2
