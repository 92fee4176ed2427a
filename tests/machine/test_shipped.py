"""Shipped kernels on the machine, exact: by default one configuration of each in bf16 or fp8, under one order of
events, both picked by the hash of the commit; with `-m slow` the whole table, by the command that users have."""

import math
import os
import re
import subprocess
import sys
from unittest.mock import patch

import cases
import pytest
import torch
from source_lines import Lines
from test_compiled import broken_promises
from triton.compiler import CompiledKernel

from conftest import ROOT
from kernels.contract import KernelLaunch
from kernels.hopper import COPIER, CTA_BYTES, SMALL, allotted
from kernels.inspect import Job, cubin_of, jobs
from kernels.machine.core.machine import Machine
from kernels.machine.launcher import PROGRAMS, TARGET
from kernels.registry import CONTENDERS, examples
from kernels.tiles import table, triton_release
from tests import hopper

MATMULS = [name for name, contender in CONTENDERS.items() if contender.kind == "triton"]
WAITING = [name for name in examples() if name.startswith(("flagged", "pieces"))]
OTHERS = hopper.OF_OPERATIONS
ARMS = "arms", "layers", "copier", "gate", "wait", "clock", "stamp"
PINNED = 3, 7
"""The release of Triton in constraints.txt."""
BESIDE = {"copy_kernel", "wait_kernel", "raise_kernel", "stamp_kernel", "gate_kernel", "clock_kernel"}
"""What runs beside a matmul, of a link and of the clock."""


def is_short(case: cases.Case) -> bool:
    """Whether a case is of a short run, in bf16 or fp8 where it has a dtype."""
    long = "8 x 8 steps" in case.title  # the binary as inspected takes ten seconds, and others have its code
    return not (case.thorough or long or re.search("fp(16|32)", case.title))


def picked(names: tuple[str, ...], seed: int) -> list[cases.Case]:
    """A short run: of each kernel all cases of one configuration in one dtype, or one case of what waits."""
    configurations: dict[str, dict[str, list[cases.Case]]] = {}
    for case in filter(is_short, hopper.every()):
        if case.kernel in names:
            dtype = re.search("bf16|fp8", case.title)
            configuration = case.title[: dtype.end() if dtype else 0]
            title = case.title if case.kernel in (*WAITING, *ARMS) else configuration
            configurations.setdefault(case.kernel, {}).setdefault(title, []).append(case)
    return [case for by_title in configurations.values() for case in list(by_title.values())[seed % len(by_title)]]


def failures(names: tuple[str, ...], seed: int) -> dict[str, str | list[str]]:
    """Return what is wrong by case that is run, and by kernel beside a matmul: called where Triton compiles. With a
    newer Triton than the pinned one also by configuration of the tables, whose promises have no other test there."""
    torch.set_num_threads(1)
    outcomes = {case: cases.run(case, seed).wrong for case in picked(names, seed)}
    beside = [ready.triton for ready in PROGRAMS.values() if ready.triton.metadata.name in BESIDE]
    broken = {}
    if triton_release() > PINNED:
        compiled = [
            job
            for job in jobs([case.kernel for case in outcomes])
            if job.target == TARGET
            and (job.dtype == "bf16" if job.kernel not in MATMULS else any(is_of(case, job) for case in outcomes))
        ]
        broken = broken_promises(compiled)
    outcomes |= {f"{kernel.metadata.name} {cubin_of(kernel)}": crowding(kernel) for kernel in beside}
    if "copier" in names and (missing := BESIDE - {kernel.metadata.name for kernel in beside}):
        outcomes["not run"] = str(missing)
    return {str(case): wrong for case, wrong in outcomes.items() if wrong} | broken


def is_of(case: cases.Case, job: Job) -> bool:
    return case.title.startswith(str(job.config)) and f" {job.dtype} " in case.title


def crowding(kernel: CompiledKernel) -> str:
    """Return how a kernel takes more of an SM than is kept for it, or how a copier has nothing in flight."""
    cubin, about, is_copier = cubin_of(kernel), kernel.metadata, kernel.metadata.name == "copy_kernel"
    sizes = allotted(cubin.registers, about.num_warps), cubin.shared_bytes + CTA_BYTES
    kept = COPIER if is_copier else SMALL
    if cubin.spills or sizes[0] > kept[0] or sizes[1] > kept[1]:
        return f"takes {sizes} registers and bytes, {kept} are kept"
    inner = kernel.asm["ttgir"].rpartition("scf.for")[2].partition("scf.yield")[0]
    load, store = (re.search(rf"tt\.{move}.*tensor<\d+x\d+x!tt.ptr<i32>", inner) for move in ("load", "store"))
    return "stores a part before it loads the next" * bool(is_copier and load.start() > store.start())


@pytest.mark.parametrize("names", [MATMULS, WAITING, ARMS, OTHERS], ids=lambda names: names[0])
def test_one_configuration_of_each_kernel_is_exact(names, commit_seed, elsewhere):
    again = f"python -m tests.hopper {' '.join(names)} --seeds 1 --seed {commit_seed}"
    assert elsewhere(failures, names, commit_seed) == {}, f"to see it again: {again}"


def lines_without_a_case() -> dict[str, list[int]]:
    """The lines of kernels that no case executes: of matmuls one configuration in bf16 and in fp8, all its ways."""
    torch.set_num_threads(1)
    every = hopper.every()
    few = [case for case in every if case.kernel not in MATMULS and is_short(case)]
    few += [case for case in every if case.thorough and re.match("copier|flagged_spills .* bf16.* lost", str(case))]
    for name in MATMULS:
        kernel = CONTENDERS[name].load()
        by_dtype = {}
        for entry in sorted(table("sm90").of(name), key=lambda entry: len(kernel.variants(entry.config))):
            by_dtype |= {dtype: entry for dtype in entry.dtypes if dtype in ("bf16", "fp8")}
        for dtype, entry in by_dtype.items():
            of_config = cases.matmuls(kernel, entry.config, dtype, entry.m_max)
            few += [case for case in of_config if not case.thorough or "raster-n" in case.title]
    lines = Lines()
    with lines.watched():
        for case in few:
            cases.run(case, 0)
            if not lines.missing():
                break
    return lines.missing()


@pytest.mark.slow
def test_each_line_of_a_kernel_is_executed(elsewhere):
    """By `python -m tests.hopper --lines` one sees which are not."""
    assert elsewhere(lines_without_a_case) == {}


def ways_of(launch: KernelLaunch) -> dict[str, bool]:
    """What the branches and the loops of a matmul's kernel depend on, and whether a launch has it."""
    args = launch.args
    x, w = (args.get(f"{name}_desc", args.get(f"{name}_ptr")) for name in "xw")
    (m, k), n = x.shape, w.shape[0]
    block_m = args.get("BLOCK_M") or x.block_shape[0]
    block_n = args.get("BLOCK_N") or w.block_shape[0]
    block_k = args.get("BLOCK_K") or x.block_shape[1]
    rows = args.get("supers_m", -(-m // block_m))
    columns = args.get("supers_n", -(-n // block_n))
    ways = {
        "a tail of M": m % block_m > 0,
        "a tail of N": n % block_n > 0,
        "a tail of K": k % block_k > 0,
        "more steps than stages": k > block_k * args.get("STAGES", args.get("num_stages")),
    }
    if "GROUP" in args:
        last_group = rows % args["GROUP"]
        ways["a second group of tile rows, shorter"] = 0 < last_group < rows and columns > 1
    if launch.kernel.__name__ != "tiled_kernel":
        ways["a program with several tiles"] = rows * columns > math.prod(launch.grid)
    return ways


def ways_without_a_case() -> list[str]:
    launches = []
    with patch.object(cases, "enqueue", lambda machine, launch: launches.append(launch)):
        for case in cases.cases():
            if case.kernel in MATMULS and re.search("bf16|fp8", case.title):
                case.make(0)[0](Machine())
    reached = {}
    for launch in launches:
        for way, is_there in ways_of(launch).items():
            key = f"{launch.kernel.__name__}: {way}"
            reached[key] = reached.get(key, False) or bool(is_there)
    return [key for key, is_there in reached.items() if not is_there]


def test_cases_have_what_kernels_depend_on(elsewhere):
    assert elsewhere(ways_without_a_case) == []


@pytest.mark.slow
@pytest.mark.parametrize(("only", "seeds"), [(" bf16 ", 8), (" fp8 ", 8), (" fp16 ", 8), (" fp32 ", 1)])
@pytest.mark.parametrize("name", MATMULS)
def test_every_configuration_is_exact(name, only, seeds):
    if only.strip() not in {job.dtype for job in jobs([name])}:
        pytest.skip(f"{name} has none in {only}, or needs a newer Triton")
    exact(name, "--seeds", str(seeds), "--only", only)


@pytest.mark.slow
def test_everything_else_is_exact():
    exact(*WAITING, *ARMS, "--seeds", "8")
    exact(*OTHERS, "--thorough", "--seeds", "8")


def exact(*arguments: str) -> None:
    """Run the command that users have, whose cases are all exact."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command_line = [sys.executable, "-m", "tests.hopper", *arguments]
    done = subprocess.run(command_line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
