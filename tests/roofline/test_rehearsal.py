"""The GPU run, from the first shape to the report, without a GPU: on a stand-in for an H100 and an A100.

The runners, kernels and links are the project's own, and so is all that times, tries, counts and goes on; what
is stood in for, and why, `stand_in` says.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
import stand_in
from features import unfilled

from roofline.analysis.records import records_of
from roofline.commands.cli import main
from roofline.operations import OPERATIONS
from roofline.store import journal
from roofline.theory.arms import ARMS, BY_PERSISTENT, PERSISTENT, arms_of

HOW = (
    *("--ffn-device=cuda", "--ffn-dtype=fp16", "--ffn-model=128x256"),
    *("--ffn-layers=up", "--ffn-tp=1", "--ffn-ranks=2", "--ffn-processes=1", "--ffn-max-seconds=0.02"),
)
"""The dtype that the interpreter has, and two chunks of a step each, for the time it takes."""

PLUGIN = """
import stand_in

stand_in.install()

from roofline.worker import call_costs, rounds

call_costs.CALLS = call_costs.GRAPH_CALLS = 6
rounds.LOOKED_AT = 0.0
"""
"""Of pytest, and so of the shares, which are forks of it. Beside guests looks come at the end alone: where one is drawn
is chance, and of the two rounds at most here a turn may begin behind it."""

GATHERS = [name for name, operation in OPERATIONS.items() if operation.analysis == "overlap"]


def arms(*, hopper: bool) -> dict[str, set[str]]:
    """The arms of each operation that gathers. By our persistent matmul, and on the device, a Hopper alone has them."""
    by_op = {op: {*arms_of(op, gpu=hopper)} for op in GATHERS}
    if hopper:
        for names in by_op.values():
            names |= {name + PERSISTENT for name in names & {*BY_PERSISTENT}}
    return by_op


@dataclass
class Rehearsed:
    code: int
    text: str
    folder: Path

    def __post_init__(self):
        self.run = journal.load(self.folder)

    @property
    def measured(self) -> dict[str, set[str]]:
        """Return the contenders and arms that have numbers, by operation."""
        names_by_op = {}
        for shape in self.run.shapes.values():
            names_by_op.setdefault(shape.op, set()).update(shape.measured)
        return names_by_op

    def reasons(self, outcome: str) -> list[str]:
        return [missing.reason for missing in self.run.missing if missing.outcome == outcome]


@pytest.fixture(scope="module")
def rehearse(tmp_path_factory, zygote):
    """`rehearse(card, *arguments)`: a run of the checkout's benchmarks on a stand-in for `card`; see `stand_in.FAULT`
    for `fault`."""

    def run(card, *arguments, fault="", **more) -> Rehearsed:
        folder = tmp_path_factory.mktemp("rehearsed")
        (folder / "rehearsed.py").write_text(PLUGIN)
        more |= {stand_in.NAMED: card, stand_in.FAULT: fault and f"{fault} {folder / 'struck'}"}
        how = ["-p", "rehearsed", "--benchmark-only", "tests/benchmarks", f"--ffn-results={folder / 'results'}"]
        code, text = zygote.run(*how, *HOW, *arguments, shares="forks", pythonpath=folder, **more)
        print(text)
        return Rehearsed(code, text, max((folder / "results").iterdir()))

    return run


def test_hopper_gets_the_whole_line_up_though_the_device_is_lost_meanwhile(rehearse, ncu):
    outcome = rehearse("H100", "--ffn-tokens=16,1024", "--ffn-steady=0", fault="tiled_kernel")
    assert outcome.code == 0
    assert outcome.measured == {
        "matmul": {"cublas", "cublas_again", "tiled", "persistent", "decode", "warpgroup"},
        **arms(hopper=True),
    }
    lost_once = (
        "tiled was tried alone, and does well. Beside others: RuntimeError: CUDA error: an illegal memory access"
    )
    assert any(lost_once in note for note in outcome.run.notes)
    *of_lt, of_decode = outcome.reasons("skipped")
    assert of_decode == "x has M=1024 rows, decode takes up to 64; use kernels.persistent or kernels.tiled"
    assert all("needs the cuBLASLt of torch's CUDA" in reason for reason in of_lt)
    assert not outcome.reasons("not_run")
    shapes = outcome.run.shapes
    shape = shapes["matmul-128x256-up-tp1-m16-fp16"]
    assert not {"tiled", "warpgroup"} & shape.entrants.keys()  # which cannot win there
    assert shape.entrants["decode"]["kernel_name"] == "decode_kernel"
    assert all(min(shape.entrants[name]["costs"].values()) > 0 for name in shape.measured)
    links = {row["link"]: row for row in outcome.run.metadata["links"]["links"]}
    assert links.keys() == {"paced", "paced_engine", "pcie"}
    assert any("disturbs least: --ffn-link-bandwidth balance2750" in note for note in outcome.run.notes)
    assert {name for shape in shapes.values() for name in shape.timelines} >= {
        name for name, arm in ARMS.items() if arm.table
    }
    assert outcome.folder.name.endswith("rehearsal-of-h100")
    of_matmul = "matmul's choice", "matmul's choice by tokens"
    assert unfilled(outcome.run, "split launches", "call costs", *of_matmul) == [
        "dispatched_low",
        "dispatched_high",
    ]  # of one process
    assert main(["counters", str(outcome.folder), f"{shape.id}-cublas"]) == 0
    assert unfilled(journal.load(outcome.folder), "counters") == []


USERS = """
import torch


def on_another(x, w, out, waits, is_joined):
    here, other = torch.cuda.current_stream(), torch.cuda.Stream()
    if waits:
        other.wait_stream(here)
    with torch.cuda.stream(other):
        torch.mm(x, w.T, out=out)
    if is_joined:
        here.wait_stream(other)
    return out


def joined(x, w, out=None):
    return on_another(x, w, out, True, True)


def left_behind(x, w, out=None):
    return on_another(x, w, out, True, False)


def ahead(x, w, out=None):
    return on_another(x, w, out, False, True)


def by_row(x, w, out=None, scales=None):
    return torch._scaled_mm(x, w.T, *scales, out_dtype=out.dtype, out=out)


def scales_forgotten(x, w, out=None, scales=None):
    x_scales, w_scales = scales
    return torch._scaled_mm(x, w.T, x_scales, torch.ones_like(w_scales), out_dtype=out.dtype, out=out)
"""
OURS = "tiled", "persistent", "decode", "warpgroup", "blockwise", "warpgroup_blockwise", "cublaslt_best"


@pytest.fixture(scope="module")
def in_each_dtype(rehearse, once, tmp_path_factory) -> Rehearsed:
    """One run of matmuls and gated layers, and of a user's matmuls."""

    def run() -> list:
        file = tmp_path_factory.mktemp("users") / "mine.py"
        file.write_text(USERS)
        names = [line[4:].partition("(")[0] for line in USERS.splitlines() if line.startswith("def ")]
        users = [f"--ffn-contender={file}::{name}" for name in names[1:]]
        of_layer = ("unfused", "fused") if "ffn_gated" in OPERATIONS else ()
        ours = f"--ffn-contenders={','.join(('cublas', *OURS, *of_layer))}"
        cases = (
            "-k",
            "test_ffn_gated or (test_matmul and not scatter)",
            "--ffn-dtype=fp16,fp8,fp8_block",
            "--ffn-model=512,256",
        )
        outcome = rehearse("H100", *cases, ours, *users, "--ffn-tokens=64")
        return [outcome.code, outcome.text, str(outcome.folder)]

    code, text, folder = once("in each dtype", run)
    return Rehearsed(code, text, Path(folder))


def refusals(rehearsed: Rehearsed, dtype: str, outcome: str) -> dict[str, str]:
    """{contender: why it has no number} of the matmul in a dtype."""
    of_dtype = [missing for missing in rehearsed.run.missing if f"-{dtype}-" in missing.case]
    return {missing.case.rpartition("-")[2]: missing.reason for missing in of_dtype if missing.outcome == outcome}


@pytest.mark.parametrize("dtype", ["fp16", "fp8"])
def test_gated_layers_take_turns_with_their_matmuls_alone(in_each_dtype, dtype):
    pytest.importorskip("kernels.gated.operation")
    run = in_each_dtype.run
    (shape,) = [shape for shape in run.shapes.values() if (shape.op, shape.dtype) == ("ffn_gated", dtype)]
    contenders = "cublas", "unfused", "fused"
    assert {*shape.measured} == {*contenders}
    errors = [shape.entrants[name]["relative_error"] for name in contenders]
    assert all(0.02 < error < 0.03 for error in errors) == (dtype == "fp8")
    assert {*shape.of_role("part")} == {"gate_up_cublas", "down_cublas", "gate_up_ours", "down_ours"}
    records = [record for record in records_of(run) if record["shape"] == shape.id]
    alone = {record["contender"]: record.get("alone_ratio") for record in records}
    assert alone == {"cublas": None, "unfused": pytest.approx(1), "fused": pytest.approx(1)}


def test_work_on_another_stream_is_waited_for_or_refused_by_name(in_each_dtype):
    run = in_each_dtype.run
    assert in_each_dtype.code == 1
    shape = run.shapes["matmul-512x256-up-tp1-m64-fp16"]
    assert {*shape.measured} == {"cublas", "tiled", "persistent", "decode", "warpgroup", "joined"}
    assert any("No graph_s of matmul-512x256-up-tp1-m64-fp16-joined: " in note for note in run.notes)
    failures = refusals(in_each_dtype, "fp16", "failed")
    assert failures.keys() >= {"left_behind", "ahead"}
    for name in ("left_behind", "ahead"):
        assert "a timed call took no time" in failures[name]
        assert "have that wait for what it hands to another" in failures[name]


def test_fp8_is_of_those_that_can_say_so(in_each_dtype):
    shape = in_each_dtype.run.shapes["matmul-512x256-up-tp1-m64-fp8"]
    assert {*shape.measured} == {"cublas", "persistent", "decode", "warpgroup", "by_row"}
    failures = refusals(in_each_dtype, "fp8", "failed")
    assert failures.keys() == {"scales_forgotten"}
    assert "is above 1e-02, the limit for fp8" in failures["scales_forgotten"]
    skipped = refusals(in_each_dtype, "fp8", "skipped")
    assert "which tiled does not multiply; take cublas, persistent" in skipped["tiled"]
    assert "needs the cuBLASLt of torch's CUDA" in skipped["cublaslt_best"]
    assert (
        "joined has no scales, and x is torch.float8_e4m3fn; write joined(x, w, out=None, scales" in skipped["joined"]
    )
    assert "_scaled_mm by row, use_fast_accum" in shape.entrants["cublas"]["config"]
    assert shape.work.device_bytes == 64 * 512 + 512 * 256 + 2 * 64 * 256 + 4 * (64 + 256)


def test_scales_by_block_are_of_those_that_take_them(in_each_dtype):
    shape = in_each_dtype.run.shapes["matmul-512x256-up-tp1-m64-fp8_block"]
    assert {*shape.measured} == {"cublas", "blockwise", "warpgroup_blockwise", "by_row"}
    skipped = refusals(in_each_dtype, "fp8_block", "skipped")
    assert "decode takes no scales by block; take blockwise or warpgroup_blockwise" in skipped["decode"]
    assert "scaled_mm by block" in shape.entrants["cublas"]["config"]


@pytest.mark.slow
def test_another_card_gets_a_whole_run_and_what_needs_hopper_says_so(rehearse):
    asked = "--ffn-processes=2", "--ffn-tokens=1024", "--ffn-link-bandwidth=ridge"
    outcome = rehearse("A100", *asked, DRAW="1")
    assert outcome.code == 0
    assert {"memory_roofline.svg", "overlap.svg", "timeline.svg"} <= {path.name for path in outcome.folder.iterdir()}
    assert {shape.processes for shape in outcome.run.shapes.values()} == {2}
    assert outcome.measured == {
        "matmul": {"cublas", "cublas_again", "tiled"},
        **arms(hopper=False),
    }
    over_wires = [shape for shape in outcome.run.shapes.values() if shape.analysis == "overlap"]
    for shape in over_wires:  # a link keeps step in each process
        t_gemm_s, asked = shape.times_s(f"gemm {shape.get('unsplit')}"), shape.requested_by_round
        assert len(asked) == len(t_gemm_s) == shape.round_count
        paces = [shape.work.wire_bytes / asked[index] / t_gemm_s[index] for index in asked]
        assert paces == pytest.approx([1] * len(paces), rel=0.2)
    steady = [shape.steady for shape in outcome.run.shapes.values() if shape.steady]
    assert set().union(*steady) == {"cublas", "tiled"}
    for of_shape in steady:
        for block in [*of_shape["cublas"].values(), *of_shape["tiled"].values()]:
            assert block["energy_j"] == pytest.approx(650 * block["calls"] * block["time_s"])
    for reason in outcome.reasons("skipped")[1:]:
        assert "has compute capability 8.0, " in reason
        assert "needs 9.x (Hopper)" in reason
