"""The matmul for few rows: right for every number of rows, however K is split, to the same bits each time; and dealt to
the SMs as figured by hand."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import CONTENDERS, configs, decode
from kernels import workspace as workspaces
from kernels.configs import Config, table
from kernels.workspace import Workspace, workspace
from roofline.options import DEFAULTS
from roofline.theory.decode_split import Deal, choose, rows_efficiency
from roofline.theory.work import LAYERS, Matmul

ROOT = Path(__file__).parents[2]
ROWS = [1, 2, 3, 8, 15, 16, 17, 33, 64]
# 3 tiles of 64 rows and 7 steps of 32, both ragged: whole tiles, splits of 2 and 5 that do not divide 7, single steps.
RAGGED = {"n": 150, "k": 200}
SPLITS = [1, 2, 5, 7]


@pytest.fixture(autouse=True)
def runnable(device):
    probe = torch.zeros((16, 16), dtype=torch.float16, device=device)
    if reason := CONTENDERS["decode"].why_not(probe, probe):
        pytest.skip(reason)  # on a GPU that is no Hopper; never in the interpreter


@pytest.fixture
def programs(monkeypatch):
    """`programs(count)`: as if there were so many SMs."""
    return lambda count: monkeypatch.setattr(decode, "programs", lambda device: count)


def small(m: int, split: int = 0) -> Config:
    block_m = next(block for block in (16, 32, 64) if m <= block)
    return Config(block_m, 64, 32, num_warps=4, num_stages=3, split=split)


def poisoned(x, w, config: Config) -> Workspace:
    """A workspace of exactly what the launch may use, NaN but for its counters."""
    deal = decode.deal_for(x, w, config)
    slots = (deal.tiles + deal.programs - 1) * config.block_n * config.block_m
    counters = torch.zeros(deal.tiles, dtype=torch.int32, device=x.device)
    return Workspace(torch.full((slots,), math.nan, device=x.device), counters)


@pytest.mark.parametrize("m", ROWS)
def test_right_for_every_number_of_rows_by_the_table(m, dtypes, operands):
    for dtype in dtypes.values():
        case = operands(m, **RAGGED, dtype=dtype)
        case.verify(decode.matmul(case.x, case.w, case.out))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("m", [1, 2, 16, 33])
def test_right_however_k_is_split(m, split, operands, programs):
    for count in (1, 2, 4, 5, 40):  # one run over all tiles; runs across tiles; a tile over many; more SMs than parts
        programs(count)
        case = operands(m, **RAGGED, dtype=torch.float16)
        config = small(m, split)
        own = poisoned(case.x, case.w, config)
        for _ in range(2):  # the first launch leaves the workspace as it found it
            decode.prepare(case.x, case.w, case.out, config, own).run(case.x.device)
            assert not own.counters.any()
        case.verify(case.out)


@pytest.mark.parametrize(("n", "k"), [(1, 8), (1, 1), (5, 3), (64, 32), (65, 31), (129, 33), (200, 520), (7, 1000)])
def test_right_for_odd_sizes(n, k, operands, programs):
    programs(5)
    for m in (1, 9):
        case = operands(m, n, k, torch.float16)
        case.verify(decode.matmul(case.x, case.w, case.out))


def test_rows_are_dealt_to_more_programs_than_there_are_rows_in_a_group(operands, programs):
    for count in (1, 7, 50, 90):
        programs(count)
        case = operands(1, 50, 136, torch.float16)
        case.verify(decode.matmul(case.x, case.w, case.out))


@pytest.fixture
def backwards(device, monkeypatch):
    """`backwards()`: from now on the interpreter runs the last program first."""
    if device != "cpu":
        pytest.skip("a GPU chooses the order of programs by itself")
    from triton.runtime.interpreter import interpreter_builder as builder

    forwards = builder.set_grid_idx
    return lambda: monkeypatch.setattr(
        builder, "set_grid_idx", lambda x, y, z: forwards(builder.grid_dim[0] - 1 - x, y, z)
    )


@pytest.mark.parametrize("m", [1, 16])
def test_the_same_bits_each_time_and_whoever_comes_last(m, operands, programs, backwards):
    programs(5)
    case = operands(m, **RAGGED, dtype=torch.float16)
    config = small(m, 5)
    own = poisoned(case.x, case.w, config)
    results = []
    for launch in range(3):
        if launch == 2:
            backwards()
        case.out.fill_(math.nan)
        decode.prepare(case.x, case.w, case.out, config, own).run(case.x.device)
        results.append(case.out.clone())
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("m", [1, 3, 64])
def test_whole_numbers_are_summed_exactly(m, split, device, programs):
    programs(4)
    generator = torch.Generator().manual_seed(m)
    x, w = (torch.randint(-3, 4, (rows, 200), generator=generator).half().to(device) for rows in (m, 150))
    expected = x.double() @ w.double().T
    assert expected.abs().max() < 2048  # exact in fp16
    config = Config(1, 8, 128, 4, 3) if m == 1 else small(m, split)
    assert torch.equal(decode.matmul(x, w, config=config).double(), expected)


def test_sums_are_rounded_once(device, programs):
    programs(2)
    # Two halves of K on two programs: 2048 and 1 are exact in fp16, 2049 is not, and 2049 + 1 is 2050.
    x = torch.ones((2, 64), dtype=torch.float16, device=device)
    w = torch.zeros((1, 64), dtype=torch.float16, device=device)
    w[0, 0], w[0, 1], w[0, 32] = 2048, 1, 1
    assert decode.matmul(x, w, config=small(2, 2)).tolist() == [[2050.0], [2050.0]]


@pytest.mark.parametrize("m", [1, 17])
def test_the_kernel_for_one_row_and_that_for_several_agree(m, operands, assert_close):
    case = operands(m, 70, 136, torch.float16)
    for row in range(0, m, 8):
        x = case.x[row : row + 1]
        one = decode.matmul(x, case.w)
        several = decode.matmul(x, case.w, config=small(1))
        assert_close(one, x, case.w)
        assert_close(several, x, case.w)


def test_rows_of_w_any_multiple_of_16_bytes_apart(device, assert_close):
    buffer = torch.randn(20_000, device=device).half()
    for m in (1, 5):
        x = torch.randn((m, 32), device=device).half()[:, :30]
        for stride in (32, 40, 104):
            w = buffer.as_strided((66, 30), (stride, 1), 8)
            out = torch.full((m, 99), math.nan, dtype=torch.float16, device=device)[:, 3:69]  # no alignment at all
            assert_close(decode.matmul(x, w, out), x, w)


@pytest.mark.parametrize("which", ["w", "out"])
@pytest.mark.parametrize("m", [1, 5])
def test_offsets_beyond_2_to_31(which, m, device, assert_close):
    far_rows = 2**29 + 8
    tensors = {"x": torch.randn((m, 72), device=device).half(), "w": torch.randn((5, 72), device=device).half()}
    tensors["out"] = torch.empty((m, 5), dtype=torch.float16, device=device)
    storage = torch.empty(2**31 + 4 * far_rows + 1024, dtype=torch.float16, device=device)  # address space, not memory
    far = storage.as_strided(tensors[which].shape, (far_rows, 1), 2**31)
    tensors[which] = far.copy_(tensors[which])
    assert_close(decode.matmul(**tensors), tensors["x"], tensors["w"])


@pytest.mark.parametrize("shape", ["0x8x8", "8x0x8", "1x0x8", "0x0x0", "0x8x0"])
def test_empty_out_returns_before_any_launch(shape, device, monkeypatch):
    monkeypatch.setattr(decode, "prepare", None)
    m, n, k = map(int, shape.split("x"))
    x, w = (torch.ones((rows, k), dtype=torch.float16, device=device) for rows in (m, n))
    assert decode.matmul(x, w).shape == (m, n)
    assert CONTENDERS["decode"].config(x, w)


@pytest.mark.parametrize("m", [1, 9])
def test_an_empty_sum_is_zero(m, operands):
    case = operands(m, 8, 0, torch.float16)
    assert (decode.matmul(case.x, case.w, case.out) == 0).all()
    case.verify(case.out)


def test_what_does_not_fit_is_refused_with_the_way_out(device):
    x, w = (torch.zeros((rows, 64), dtype=torch.float16, device=device) for rows in (17, 8))
    with pytest.raises(ValueError, match=r"M=17 rows, the tile has room for 16; change the configuration"):
        decode.matmul(x, w, config=small(16))
    with pytest.raises(ValueError, match=r"split=3: a tile has 2 steps along k, choose 1 to 2"):
        decode.matmul(x, w, config=small(17, split=3))
    many = torch.zeros((65, 64), dtype=torch.float16, device=device)
    assert "M=65 rows, decode takes up to 64; use kernels.persistent" in CONTENDERS["decode"].why_not(many, w)


def test_every_checked_in_configuration(device, operands):
    arch = configs.arch_of(torch.device(device))
    entries = [entry for name in {"sm90", arch} for entry in table(name).entries if entry.kernel.startswith("decode")]
    assert len(entries) == (4 if arch == "sm90" else 8)
    for entry in entries:
        m, config = entry.config.block_m, dataclasses.replace(entry.config, split=2 if entry.config.block_m > 1 else 0)
        case = operands(m, config.block_n + 5, 2 * config.block_k + 1, torch.float16)
        case.verify(decode.matmul(case.x, case.w, case.out, config=config))


def test_the_configuration_tells_the_split(device, programs):
    programs(132)
    x, w = (torch.empty((rows, 16384), dtype=torch.float16, device=device) for rows in (2, 6656))
    assert str(decode.deal_for(x, w, Config(16, 128, 128, 4, 6)).split) == "5"
    assert CONTENDERS["decode"].config(x, w).endswith(f"split{decode.config_for(x, w).split}")
    assert "split" not in CONTENDERS["decode"].config(x[:1], w)


# The workspace


@pytest.fixture
def no_workspace(monkeypatch):
    monkeypatch.setattr(workspaces, "_kept", {})


def test_a_workspace_is_kept_and_grows(no_workspace):
    cpu = torch.device("cpu")
    first = workspace(cpu, 100, 4)
    assert workspace(cpu, 50, 4) is first
    wider = workspace(cpu, 50, 9)
    assert (wider.partials.numel(), wider.counters.numel()) == (100, 9)
    assert not wider.counters.any()
    assert workspace(cpu, 100, 9) is wider


class FakeStream:
    cuda_stream = 7


def test_each_stream_has_its_own_workspace_and_a_graph_keeps_none(no_workspace, monkeypatch):
    made, capturing = [], [False]
    monkeypatch.setattr(workspaces, "_new", lambda device, *sizes: made.append(sizes) or _cpu_workspace(*sizes))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: FakeStream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    device = torch.device("cuda", 0)
    first = workspace(device, 10, 2)
    assert workspace(device, 10, 2) is first
    monkeypatch.setattr(FakeStream, "cuda_stream", 8)
    second = workspace(device, 10, 2)
    assert second is not first
    capturing[0] = True
    captured = workspace(device, 10, 2)
    assert captured is not second
    capturing[0] = False
    assert workspace(device, 10, 2) is second
    assert len(made) == 3


def _cpu_workspace(partials: int, counters: int) -> Workspace:
    return Workspace(torch.empty(partials), torch.zeros(counters, dtype=torch.int32))


# The deal

# By hand, for tiles of 128 rows, steps of 128 and 132 SMs: tiles, steps, split, longest run in steps.
# up, tp 1: 53248 / 128 = 416 tiles, 128 steps. 3.15 waves; in 4 parts of 32 steps 1664 = 12.6 waves: 13 x 32 of 403.4.
# up, tp 8: 52 tiles. In 5 parts of 25 or 26 steps 260 = 1.97 waves: 26 + 26 of 50.4.
# down: 16384 / 128 = 128 tiles, one wave of whole ones: 128 of 132; 53248 / 128 = 416 and 6656 / 128 = 52 steps.
BY_HAND = {
    ("up", 1): (416, 128, 4, 416),
    ("up", 8): (52, 128, 5, 52),
    ("down", 1): (128, 416, 1, 416),
    ("down", 8): (128, 52, 1, 52),
}


def few_rows() -> list[Matmul]:
    model, tokens, degrees, dtypes = DEFAULTS["cuda"]
    rows = [m for m in tokens if m <= decode.MOST_TOKENS]
    assert rows == [1, 16, 64]
    return [Matmul(model, layer, tp, m, dtype) for dtype in dtypes for layer in LAYERS for tp in degrees for m in rows]


@pytest.mark.parametrize("case", few_rows(), ids=lambda case: case.id)
def test_every_default_shape_is_dealt_as_figured_by_hand(case):
    if case.m == 1:
        longest = {("up", 1): 404, ("up", 8): 51}.get((case.layer, case.tp), 125)  # rows
        assert rows_efficiency(case.n, 132) == case.n / (132 * longest) > 0.98
        return
    config = configs.choose("decode", "sm90", case.m, case.n, case.k, torch.bfloat16)
    tiles, steps, split, longest = BY_HAND[case.layer, case.tp]
    deal = choose(case.n, case.k, config.block_n, config.block_k, 132)
    assert (deal.tiles, deal.steps, deal.split, max(deal.runs)) == (tiles, steps, split, longest)
    assert deal.efficiency == tiles * steps / (132 * longest) == pytest.approx(0.9697, abs=1e-4)  # 32 / 33, all of them
    assert deal.programs == (128 if split == 1 and tiles == 128 else 132)


def test_without_a_split_tp8_would_leave_most_sms_idle():
    assert Deal(52, 128, 1, 132).efficiency == pytest.approx(0.394, abs=1e-3)
    assert Deal(52, 128, 2, 132).efficiency == pytest.approx(0.788, abs=1e-3)
    assert Deal(52, 128, 4, 132).efficiency == pytest.approx(0.788, abs=1e-3)


@pytest.mark.parametrize("sms", [1, 78, 114, 132])
@pytest.mark.parametrize(
    ("n", "k"), [(53248, 16384), (6656, 16384), (16384, 6656), (300, 1000), (1, 1), (128, 100_000)]
)
def test_a_deal_reads_everything_once_and_runs_are_even(sms, n, k):
    deal = choose(n, k, 128, 128, sms)
    assert sum(deal.runs) == deal.tiles * deal.steps
    assert len(deal.runs) == deal.programs <= sms
    part = -(-deal.steps // deal.split)
    assert max(deal.runs) - min(deal.runs) <= part + deal.parts // deal.programs
    assert deal.split == 1 or deal.steps // deal.split >= 4


def test_bad_deals_are_refused():
    for sizes in ((0, 8, 1, 4), (2, 0, 1, 4), (2, 8, 1, 0), (2, 8, 9, 4), (2, 8, 0, 4)):
        with pytest.raises(ValueError, match=r"it must be 1 or more|choose 1 to 8|choose 1 to 0"):
            Deal(*sizes)


# Compiled

COMPILED = """
import json, re, torch
from kernels import decode
from kernels.compiled import SIZE, Finding, Job, decode_example
from kernels.configs import table
from kernels.cubin import compile_launch, offline

found = []
for entry in (entry for entry in table("sm90").entries if entry.kernel.startswith("decode")):
    for split in (1, 3):
        launch = decode_example(entry.config, torch.bfloat16, split)
        cubin = compile_launch(launch, 90)
        with offline(90):
            ptx = launch.kernel.warmup(grid=launch.grid, **launch.args).asm["ptx"]
        job = Job(entry.kernel, "sm90", entry.config, "bf16", 90, 232448, entry.mma)
        allocated = re.findall(r"local_alloc : \\(\\) -> !ttg.memdesc<([0-9x]+)xbf16", cubin.ttgir)
        found.append({
            "kernel": entry.kernel, "block_m": entry.config.block_m, "split": split, "cubin": cubin.mma,
            "problems": Finding(job, cubin).problems(), "ring": [list(map(int, a.split("x"))) for a in allocated],
            "copies_16B": len(re.findall(r"cp\\.async\\.cg\\.shared\\.global .*0x10,", ptx)),
            "order": re.findall(r"st\\.global\\.v4|bar\\.sync|atom\\.\\S+|ld\\.global\\.cg", ptx),
            "pendings": re.findall(r"warp_group_dot_wait.*pendings = (\\d)", cubin.ttgir),
        })
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def compiled() -> list[dict]:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": os.pathsep.join([*filter(None, [env.get("PYTHONPATH")]), str(ROOT)])}
    command = [sys.executable, "-c", COMPILED]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_compiled_as_declared_split_or_not(compiled):
    """No spills, wgmma with the declared n, TMA loads, at most 232,448 bytes of shared memory."""
    assert [(found["block_m"], found["split"]) for found in compiled] == [
        (m, s) for m in (1, 16, 32, 64) for s in (1, 3)
    ]
    assert [found["problems"] for found in compiled] == [[]] * 8


def test_the_ring_keeps_100_to_200_kilobytes_in_flight(compiled):
    for found in compiled:
        stages, in_flight = found["ring"][0][0], sum(2 * math.prod(shape) for shape in found["ring"])
        in_flight -= in_flight // stages  # one is being multiplied
        assert len(found["ring"]) == 2, "w and x have a ring each"
        assert 100_000 <= in_flight <= 200_000, found
        if found["kernel"] == "decode":
            assert "1" in found["pendings"], "a step waits for its own wgmma before it loads the next"
        else:
            assert found["copies_16B"] >= 8 + 1, "w and x are copied 16 bytes at a time"


def test_sums_are_stored_before_they_are_counted_and_read_behind_the_count(compiled):
    for found in compiled:
        order, counted = found["order"], "atom.global.gpu.acq_rel.add.u32"
        assert (counted in order) == (found["kernel"] == "decode" and found["split"] > 1)
        if counted in order:
            count = order.index(counted)
            stored = max(i for i, what in enumerate(order[:count]) if what == "st.global.v4")
            assert "bar.sync" in order[count - 1 : count]
            assert "ld.global.cg" not in order[:count]
            assert order.index("ld.global.cg", count) > order.index("bar.sync", count), order[stored:]
