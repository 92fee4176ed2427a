"""What the compiler made of the kernels, without a GPU. All compiling happens in other processes: this one may be
interpreting, and Triton cannot do both in one."""

import re
from dataclasses import replace
from itertools import product

import pytest
import torch

from kernels import hopper, inspect, persistent, tiled, warpgroup
from kernels.inspect import Cubin, Job
from kernels.machine.compile import compile_for
from kernels.tiles import DTYPES, table, triton_release

FEW_ROWS = "decode", "decode_ring"
PARTS_BYTES = 2 * 2 * 64 * 64 * 2 + 1024
"""Of both consumers, two parts of 64 x 64 sums in 16 bits each; and barriers."""


def broken_promises(jobs: list[Job]) -> dict[str, list[str]]:
    """Return what breaks a promise of the tables, by job that has such. test_shipped.py calls it for what it runs."""
    by_job, (registers_left, bytes_left) = {}, hopper.ROOM
    for finding in inspect.inspect_all(jobs) if len(jobs) > 9 else map(inspect.inspect, jobs):
        job, cubin, stages = finding.job, finding.cubin, finding.job.config.num_stages
        registers, in_flight = hopper.allotted(cubin.registers, job.config.num_warps), cubin.shared_bytes / stages
        ring_bytes = job.config.ring_bytes(DTYPES[job.dtype].itemsize)
        promises = {
            "TMA loads": bool(cubin.tma_loads) == (job.kernel != "tiled"),
            "TMA stores": bool(cubin.tma_stores) == (job.kernel not in ("tiled", *FEW_ROWS)),
            "room for the copier": job.kernel != "persistent"
            or job.dtype == "fp8"  # which no arm multiplies
            or (registers <= registers_left and cubin.shared_bytes <= bytes_left),
            "a ring for w and one for x, with 100 to 200 KB in flight while a stage is multiplied": job.kernel
            != "decode"
            or (cubin.tma_loads == 2 * stages and 100_000 <= in_flight * (stages - 1) <= 200_000),
            "a ring of all its stages, with two parts of a consumer's store": job.kernel != "warpgroup"
            or ring_bytes < cubin.shared_bytes < ring_bytes + PARTS_BYTES,
            "a ring of 190 KB or more": job.kernel != "decode_ring" or cubin.shared_bytes > 190_000,
            "counts behind a barrier of its own": job.kernel not in FEW_ROWS or counts_behind_a_barrier(job),
            "L2 gives up w first, and keeps x": job.kernel != "decode_ring" or gives_up_one_operand_first(job),
        }
        if broken := finding.problems + [promise for promise, is_kept in promises.items() if not is_kept]:
            by_job[f"{job.kernel} {job.target} {job.config} {job.dtype}"] = broken
    return by_job


def counts_behind_a_barrier(job: Job) -> bool:
    """Look in Triton's IR: one that stands in the PTX alone, where the machine sees it, may be there by chance."""
    ttgir = compile_for(job.target, inspect.example(job)).asm["ttgir"]
    steps = re.findall(r"tt\.store|\w+\.barrier|tt\.atomic_rmw", ttgir)
    return steps[steps.index("tt.atomic_rmw") - 1].endswith(".barrier")


def gives_up_one_operand_first(job: Job) -> bool:
    """Look in the PTX, where Triton has cache policies."""
    ptx = compile_for(job.target, inspect.example(job)).asm["ptx"]
    loads = [line for line in ptx.splitlines() if "cp.async.bulk.tensor" in line]
    hinted = ["L2::cache_hint" in line for line in loads]
    return triton_release() < (3, 9) or ("L2::evict_first" in ptx and any(hinted) and not all(hinted))


def whole_table() -> dict[str, list[str]]:
    return broken_promises(inspect.jobs())


@pytest.mark.slow
def test_the_table_is_compiled_without_a_problem(elsewhere):
    assert elsewhere(whole_table) == {}


def variants_of_the_largest_tile() -> dict[str, list[str]]:
    _, _, *others = warpgroup.variants(warpgroup.Config(128, 256, 64, 8, 4, subtile=4))
    return broken_promises([Job("warpgroup", other, "bf16", 90, 232_448, "wgmma.m64n256k16") for other in others])


@pytest.mark.slow
def test_what_a_trial_makes_of_the_largest_tile_is_compiled_without_a_problem(elsewhere):
    """Backwards with descriptors that are fetched ahead, and in clusters where Triton has them."""
    assert elsewhere(variants_of_the_largest_tile) == {}


def test_every_entry_is_compiled_in_each_of_its_dtypes_and_as_the_model_may_change_it():
    jobs = {(job.target, job.kernel, str(job.config), job.dtype) for job in inspect.jobs()}
    tables = [table(arch) for arch in ("generic", "sm90")]
    declared = {(t.target, e.kernel, str(e.config), dtype) for t in tables for e in t.entries for dtype in e.dtypes}
    assert jobs >= declared
    modelled = jobs - declared  # what the model of waves may make of an entry of one of its kernels
    changes = {(kernel, config.split()[-1]) for _, kernel, config, _ in modelled}
    ways = {"flatten": ("persistent", "gated", "blockwise"), "shared1": ("warpgroup", "warpgroup_blockwise")}
    there = {kernel for _, kernel, _, _ in jobs}  # a folder of a kernel may have been taken out
    assert changes == {(kernel, way) for way, kernels in ways.items() for kernel in kernels if kernel in there}
    assert {job.kernel for job in inspect.jobs(["decode"])} == {"decode"}


def spilled_by_masks() -> list[str]:
    """Return the tiles of `tiled` that spill by the masks of a K that is not of whole steps, whether aligned or not."""
    entries = [(of.target, e) for of in map(table, ("generic", "sm90")) for e in of.entries if e.kernel == "tiled"]
    spilled = []
    for (target, entry), k in product(entries, (4104, 4112)):
        buffer = torch.empty((4096, 4112), dtype=DTYPES[entry.dtypes[0]])
        launch = tiled.prepare(buffer[:, :k], buffer[:, :k], buffer[:, :4096], entry.config)
        spilled += [f"{target} {entry.config} K={k}"] * inspect.cubin_of(compile_for(target, launch)).spills
    return spilled


@pytest.mark.slow
def test_masks_along_k_spill_nothing(elsewhere):
    assert elsewhere(spilled_by_masks) == []


# A tile too large for 4 warps, one stage too many for an SM, and a promise the compiler does not keep.
PLANTED = {
    "spills": ({"num_warps": 4, "num_stages": 3, "flatten": True}, "wgmma.m64n256k16"),
    "shared memory": ({"num_warps": 8, "num_stages": 4}, "wgmma.m64n256k16"),
    "declared": ({"num_warps": 8, "num_stages": 3, "subtile": 2}, "wgmma.m64n128k16"),
    "does not compile": ({"num_warps": 8, "num_stages": 3, "subtile": 3}, "wgmma.m64n256k16"),
}


def planted() -> list[list[str]]:
    """Return the problems of each of `PLANTED`."""
    tiles = [(persistent.Config(128, 256, 64, **tile), mma) for tile, mma in PLANTED.values()]
    jobs = [Job("persistent", config, "bf16", 90, 232_448, mma) for config, mma in tiles]
    return [inspect.inspect(job).problems for job in jobs]


def looks_of_a_poll() -> int:
    """Of one thread, without a barrier of all, in the kernel whose warps all wait for flags."""
    job = next(job for job in inspect.jobs(["flagged_spills"]) if job.dtype == "bf16")
    return compile_for(job.target, inspect.example(job)).asm["ptx"].count("ld.relaxed.sys.global")


def test_a_flag_is_polled_where_triton_can(elsewhere):
    assert (elsewhere(looks_of_a_poll) > 0) == (triton_release() >= (3, 9))


def test_planted_mistakes_are_caught(elsewhere):
    for word, problems in zip(PLANTED, elsewhere(planted), strict=True):
        assert word in problems[0], problems
        assert len(problems) == 1 or word == "spills", problems
        serialised = [problem for problem in problems if problem.startswith("ptxas serialises wgmma: (C7511) ")]
        assert len(serialised) == (word == "spills"), problems  # for what it lacks registers for


FITS = Cubin(224, 0, 0, 230_272, {"wgmma": 1}, 1, 1, (0, 1), warps=8)
CONFIG = table("sm90").entries[-1].config


@pytest.mark.parametrize(
    ("kernel", "cubin", "asked", "problems"),
    [
        ("flagged", FITS, (), []),
        ("flagged", replace(FITS, registers=225, shared_bytes=230_273), (),
         ["needs 230273 bytes of shared memory, limit 230272 beside the copier",
          "holds 59392 registers, 225 a thread, limit 58368 beside the copier"]),
        ("persistent", replace(FITS, registers=225, shared_bytes=230_273), (), []),
        ("persistent", replace(FITS, wgmma_waits=(0,)), (), ["(0,) wgmma groups are in flight, 1 is needed"]),
        ("warpgroup", replace(FITS, register_counts=(232, 40)), (240, 24), ["counts (232, 40), [24, 240] is missing"]),
    ],
)  # fmt: skip
def test_problems_of_what_compiles(kernel, cubin, asked, problems):
    args = dict(zip(inspect.REGISTER_COUNTS, asked, strict=False))
    sentences = inspect.problems_of(Job(kernel, CONFIG, "bf16", 90, 232_448, "wgmma"), cubin, args, ())
    assert len(sentences) == len(problems)
    assert all(problem in sentence for problem, sentence in zip(problems, sentences, strict=True)), sentences
