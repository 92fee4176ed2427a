"""What the compiler made of the kernels, without a GPU. All compiling happens in other processes: this one may be
interpreting, and Triton cannot do both in one."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import triton

from kernels import hopper, inspect
from kernels.inspect import Cubin, Finding, Job
from kernels.tiles import Config, table

ROOT = Path(__file__).parents[2]


def wrong_of(finding: Finding) -> list[str]:
    """Return what breaks a promise of the tables: called where Triton compiles."""
    if problems := finding.problems():
        return problems
    job, cubin, (registers_left, bytes_left) = finding.job, finding.cubin, hopper.room()
    registers = hopper.allotted(cubin.registers, job.config.num_warps)
    promises = {
        "no wgmma": job.target != 90 or job.dtype == "fp32" or finding.mma.startswith("wgmma.m64n"),
        "TMA loads": bool(cubin.tma_loads) == (job.kernel != "tiled"),
        "TMA stores": bool(cubin.tma_stores) == (job.kernel not in ("tiled", "decode")),
        "room for the copier": job.kernel != "persistent"
        or (registers <= registers_left and cubin.shared_bytes <= bytes_left),
    }
    return [promise for promise, is_kept in promises.items() if not is_kept]


def findings(seed: int | None = None) -> dict[str, list[str]]:
    """Return what is wrong by job: of the whole table, or of a configuration of each kernel for Hopper in bf16."""
    jobs = inspect.jobs()
    if seed is not None:
        by_kernel = {}
        for job in jobs:
            if job.target == 90 and job.dtype == "bf16":
                by_kernel.setdefault(job.kernel, []).append(job)
        jobs = [of_kernel[seed % len(of_kernel)] for of_kernel in by_kernel.values()]
    results = inspect.inspect_all(jobs) if seed is None else map(inspect.inspect, jobs)
    return {f"{f.job.kernel} {f.job.target} {f.job.config} {f.job.dtype}": wrong_of(f) for f in results}


def test_a_configuration_of_each_kernel_is_compiled_without_a_problem(commit_seed, printed_elsewhere):
    by_job = printed_elsewhere(f"import json, test_compiled as t; print(json.dumps(t.findings({commit_seed})))")
    assert {job.split()[0] for job in by_job} == {entry.kernel for entry in table("sm90").entries}
    assert not any(by_job.values()), by_job


@pytest.mark.slow
def test_the_whole_table_is_compiled_without_a_problem():
    """One test, since each process of pytest would compile it anew."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "kernels.inspect"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    assert last == f"triton {triton.__version__}: {len(inspect.jobs())} compiled, 0 bad"


def test_every_entry_is_compiled_in_each_of_its_dtypes_and_as_the_model_may_change_it():
    jobs = {(job.target, job.kernel, str(job.config), job.dtype) for job in inspect.jobs()}
    tables = [table(arch) for arch in ("generic", "sm90")]
    declared = {(t.target, e.kernel, str(e.config), dtype) for t in tables for e in t.entries for dtype in e.dtypes}
    assert jobs >= declared
    modelled = jobs - declared  # what the model of waves may make of an entry of one of its kernels
    assert {(kernel, "flatten" in config) for _, kernel, config, _ in modelled} == {("persistent", True)}
    assert {job.kernel for job in inspect.jobs(["decode"])} == {"decode"}


OF_CHIPS = """
import json, kernels
from kernels.tiles import fitted, table
from kernels.inspect import Job, inspect

tiles = [entry.config for entry in table("generic").entries if "bf16" in entry.dtypes]
largest = {}
for target, limit in {80: 166_912, 89: 101_376, 100: 232_448}.items():
    configs = dict.fromkeys(fitted(tile, 2, limit) for tile in tiles)
    findings = [inspect(Job("tiled", config, "bf16", target, limit, "")) for config in configs]
    assert all(f.cubin and not f.cubin.spills and f.cubin.shared_bytes <= limit for f in findings), findings
    largest[target] = max(f.cubin.shared_bytes for f in findings)
print(json.dumps(largest))
"""


@pytest.mark.slow
def test_tiles_for_every_gpu_fill_the_shared_memory_of_each(printed_elsewhere):
    """Per block: CUDA C++ programming guide, technical specifications."""
    largest = printed_elsewhere(OF_CHIPS)
    assert largest["89"] < largest["80"] < largest["100"]


ANY_K = """
import json, torch
from kernels import tiled
from kernels.inspect import compile_launch
from kernels.tiles import DTYPE_NAMES, table

spilling, dtypes = [], {name: dtype for dtype, name in DTYPE_NAMES.items()}
entries = [(t.target, e) for t in map(table, ("generic", "sm90")) for e in t.entries if e.kernel == "tiled"]
for target, entry in entries:
    for k in (4104, 4112):  # which is aligned, and read by cp.async
        padded = (torch.empty((4096, 4112), dtype=dtypes[entry.dtypes[0]])[:, :columns] for columns in (k, k, 4096))
        if compile_launch(tiled.prepare(*padded, entry.config), target).spills:
            spilling.append([target, str(entry.config), k])
print(json.dumps([len(entries), spilling]))
"""


@pytest.mark.slow
def test_masks_along_k_spill_nothing(printed_elsewhere):
    """The table is compiled for a K of whole steps, which needs none."""
    count, spilling = printed_elsewhere(ANY_K)
    assert count == 9
    assert spilling == []


ANY_ROWS = """
import json, torch
from kernels import decode, persistent, tiled, warpgroup
from kernels.tiles import Config
from kernels.inspect import offline

configs = {
    tiled: Config(64, 128, 64, 4, 4), persistent: Config(128, 128, 64, 8, 5),
    decode: Config(64, 128, 128, 4, 4, 1, split=3), warpgroup: Config(128, 128, 64, 8, 5),
}
by_kernel, w = {}, torch.empty((4096, 4096), dtype=torch.bfloat16)
for kernel, config in configs.items():
    by_kernel[kernel.matmul.name] = hashes = set()
    for rows in (1, 50, 64):
        x, out = (torch.empty((rows, 4096), dtype=torch.bfloat16) for _ in range(2))
        launch = kernel.prepare(x, w, out, config)
        with offline(90):
            hashes.add(launch.kernel.warmup(grid=launch.grid, **launch.args).hash)
print(json.dumps({name: len(hashes) for name, hashes in by_kernel.items()}))
"""


def test_one_kernel_is_for_any_number_of_rows(printed_elsewhere):
    """What is compiled here is what any number of rows is launched with: one that is specialised for a multiple of 16
    says nothing of 50 rows, for which `decode`'s masks of sums once spilled."""
    assert printed_elsewhere(ANY_ROWS) == dict.fromkeys(("tiled", "persistent", "decode", "warpgroup"), 1)


FEW_ROWS = """
import json, re, torch
from kernels import decode
from kernels.tiles import table
from kernels.inspect import compile_launch

rings = []
for entry in (entry for entry in table("sm90").entries if entry.kernel == "decode"):
    ttgir = compile_launch(decode.example(entry.config, torch.bfloat16), 90).ttgir
    allocated = re.findall(r"local_alloc : \\(\\) -> !ttg.memdesc<([0-9x]+)xbf16", ttgir)
    rings.append({
        "ring": [list(map(int, a.split("x"))) for a in allocated],
        "asked": re.findall(r"tt\\.store|\\w+\\.barrier|tt\\.atomic_rmw", ttgir),
        "pendings": re.findall(r"warp_group_dot_wait.*pendings = (\\d)", ttgir),
    })
print(json.dumps(rings))
"""


@pytest.mark.slow
def test_the_ring_for_few_rows_keeps_100_to_200_kilobytes_in_flight_and_counts_behind_a_barrier(printed_elsewhere):
    for ring in printed_elsewhere(FEW_ROWS):
        stages, in_flight = ring["ring"][0][0], sum(2 * math.prod(shape) for shape in ring["ring"])
        in_flight -= in_flight // stages  # one is being multiplied
        assert len(ring["ring"]) == 2, "w and x have a ring each"
        assert 100_000 <= in_flight <= 200_000, ring
        assert "1" in ring["pendings"], "a step waits for its own wgmma before it loads the next"
        barrier = ring["asked"][ring["asked"].index("tt.atomic_rmw") - 1]
        assert barrier.endswith(".barrier"), "what stands in the PTX, and the machine sees, may be there by chance"


# A tile too large for 4 warps, one stage too many for an SM, and a promise the compiler does not keep.
PLANTED = {
    "spills": ({"num_warps": 4, "num_stages": 3, "flatten": True}, "wgmma.m64n256k16"),
    "shared memory": ({"num_warps": 8, "num_stages": 4}, "wgmma.m64n256k16"),
    "declared": ({"num_warps": 8, "num_stages": 3, "subtile": 2}, "wgmma.m64n128k16"),
    "does not compile": ({"num_warps": 8, "num_stages": 3, "subtile": 3}, "wgmma.m64n256k16"),
}


def planted() -> list[list[str]]:
    """Return what is found of each of `PLANTED`: called where Triton compiles."""
    jobs = [Job("persistent", Config(128, 256, 64, **tile), "bf16", 90, 232_448, mma) for tile, mma in PLANTED.values()]
    return [inspect.inspect(job).problems() for job in jobs]


def test_planted_mistakes_are_caught(printed_elsewhere):
    outcomes = printed_elsewhere("import json, test_compiled; print(json.dumps(test_compiled.planted()))")
    for word, problems in zip(PLANTED, outcomes, strict=True):
        assert word in problems[0], problems
        assert len(problems) == 1 or word == "spills", problems  # what spills may be serialised too


def test_kernels_that_wait_leave_room_for_the_copier():
    config = replace(table("sm90").entries[-1].config, num_warps=8)
    cubin_at_limits = Cubin(224, 0, 0, 230_272, {"wgmma": 1}, 1, 1, (0, 1), ttgir="module {}")
    waits, other = (Job(name, config, "bf16", 90, 232_448, "wgmma") for name in ("flagged", "persistent"))
    assert Finding(waits, cubin_at_limits).problems() == []
    beyond = replace(cubin_at_limits, registers=225, shared_bytes=230_273)
    shared, registers = Finding(waits, beyond).problems()
    assert "230273 bytes of shared memory, limit 230272 beside the copier" in shared
    assert "59392 registers, 225 a thread, limit 58368 beside the copier" in registers
    assert Finding(other, beyond).problems() == []


def test_a_kernel_whose_warps_are_not_specialised_is_a_finding():
    def problems(kernel: str, binary: Cubin) -> list[str]:
        config = next(entry.config for entry in table("sm90").entries if entry.kernel == kernel)
        asked = (240, 24) if kernel == "warpgroup" else ()
        job = Job(kernel, config, "bf16", 90, 232_448, "wgmma")
        return Finding(job, binary, register_counts=asked).problems()

    plain = Cubin(160, 0, 0, 1024, {"wgmma": 1}, 1, 1, wgmma_waits=(0,), register_counts=(232, 40))
    message = "\n".join(problems("warpgroup", plain))
    for words in ("(0,) wgmma groups", "[24, 240] is missing", "64512 registers"):
        assert words in message
    assert len(problems("persistent", plain)) == 1, "its wgmma shall be pipelined too"
    assert not problems("persistent", replace(plain, wgmma_waits=(0, 1)))


def test_reading_a_cubin():
    usage = " Function k:\n  REG:168 STACK:16 SHARED:0 LOCAL:0 CONSTANT[0]:640"
    sass = """
        /*0000*/  LDL.64 R2, [R1+0x8] ;
        /*0010*/  @P0 STL [R1], R4 ;
        /*0020*/  HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
        /*0030*/  HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0040*/  UTMALDG.2D.MULTICAST [UR8], [UR4], UR12 ;
        /*0050*/  UTMASTG.2D [UR8], [UR4] ;
        /*0060*/  FFMA R1, R2, R3, R4 ;
    """
    assert inspect.read(usage, sass, 1024) == Cubin(
        registers=168,
        stack_bytes=16,
        local_accesses=2,
        shared_bytes=1024,
        mma={"wgmma.m64n128k16": 1, "mma.m16n8k16": 1},
        tma_loads=1,
        tma_stores=1,
    )
    for stack, line, spills in ((8, "", True), (0, "LDL R2, [R1] ;", True), (0, "LDG.E R2, [R1] ;", False)):
        assert inspect.read(f"REG:9 STACK:{stack}", line, 0).spills == spills
    assert inspect.read("REG:9 STACK:0", "FFMA R1, R2, R3, R4 ;", 0).mma == {"fma": 1}
    assert inspect.read("REG:9 STACK:0", "QMMA.16832.F32 R1, R2, R3, R4 ;", 0).mma == {"QMMA.16832.F32": 1}


def test_bad_input_is_one_line_and_exit_code_2(monkeypatch, capsys):
    for arguments, interpret, message in (
        (["tile"], False, "argument KERNEL: no kernel tile, there are decode, persistent,"),
        ([], True, "TRITON_INTERPRET is set, so nothing would be compiled; run it under `env -u TRITON_INTERPRET`"),
    ):
        monkeypatch.setattr(triton.knobs.runtime, "interpret", interpret)
        with pytest.raises(SystemExit) as stop:
            inspect.main(arguments)
        error = capsys.readouterr().err
        assert stop.value.code == 2
        assert message in error
        assert error.count("\n") == 1


def test_the_table_has_a_line_for_each_finding_and_its_problems_below():
    job = Job("tiled", Config(64, 64, 32, 4, 2), "fp32", 90, 232_448, "fma")
    cubin = Cubin(128, 0, 0, 1024, {"fma": 9}, 0, 0)
    head, fine, bad, problem, last = inspect.as_text([Finding(job, cubin), Finding(job, None, "no")]).splitlines()
    assert head.split()[4:8] == ["registers", "stack_B", "local_accesses", "shared_B"]
    assert fine.split()[-9:] == ["128", "0", "0", "1024", "fma", "fma", "0", "0", "ok"]
    assert bad.endswith("BAD")
    assert problem == f"tiled {job.config} fp32: does not compile: no"
    assert last.endswith("2 compiled, 1 bad")
