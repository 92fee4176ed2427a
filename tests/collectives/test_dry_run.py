"""What a dry run compiles ahead is what a launch looks up: for Hopper, without a GPU, in processes of their own."""

import os
from pathlib import Path

import pytest
import torch
import triton

from collectives import device
from kernels import persistent, tiles
from kernels.bench.instruments import clock_launch, gate_launch
from kernels.contract import KernelLaunch, Signals, example_operands
from kernels.registry import CONTENDERS
from kernels.waves import GpuSpec
from results import dry_run
from roofline.operations import OPERATIONS
from roofline.operations.options import resolve
from roofline.theory import chips

LINKS = {"copy_kernel", "wait_kernel", "raise_kernel", "stamp_kernel"}
INSTRUMENTS = {"gate_kernel", "clock_kernel"}
MATMULS = {
    f"{name}_kernel"
    for name, ours in CONTENDERS.items()
    if ours.kind == "triton" and ours.default and (not ours.dtypes or "bf16" in ours.dtypes)
}
ARMS = {"flagged_kernel", "flagged_spills_kernel", "pieces_kernel", "add_kernel"}
OF_OPERATIONS = {
    "attention": {"forward_kernel", "delta_kernel", "dkdv_kernel", "dq_kernel"},
    "ffn_gated": {"gated_kernel"},
}
OTHERS = set().union(*(kernels for name, kernels in OF_OPERATIONS.items() if name in OPERATIONS))
CHIP = chips.find("H100 SXM")
PLAN = {"model": "xxl/16", "tokens": (16, 1024), "tp": (1,), "link_bandwidth": ("balance172",)}


def plan(cache: str, time: str) -> list:
    """Of a dry run of a small plan into a compile cache, the first or a second time: how often each kernel was
    launched, what was compiled for that, and who raised, as the kernel that `fails` does."""
    from kernels.bench import absent_gpu

    os.environ["TRITON_CACHE_DIR"] = cache
    launches = absent_gpu.Launches()
    dry_run.install(CHIP, launches)
    dry_run.REACHED_SHARES = (0.65,)

    KernelLaunch.run = lambda launch, on: launches.take(launch)
    options = resolve(PLAN, device="cuda", timed=True, root=Path())
    names = [name for name, operation in OPERATIONS.items() if operation.default or name in dry_run.OURS]
    failures = dry_run.launch_all(options, CHIP, names)
    return [launches.launched, launches.compiled, failures]


def with_memory(cache: str) -> list:
    """What was found, and compiled, for launches of the same plan on tensors of the host."""
    from kernels.bench import absent_gpu

    os.environ["TRITON_CACHE_DIR"] = cache
    launches = absent_gpu.Launches()
    triton.knobs.compilation.listener = launches.note
    x, w, out = example_operands(torch.bfloat16, 1024, 3328, 1024)
    flags, times = torch.zeros(8, dtype=torch.int32), torch.zeros((4, 2), dtype=torch.int64)
    up = Signals(flags, 1, torch.zeros(1, dtype=torch.int32), 1)
    for rows in range(64, 1025, 64):  # what an arm may multiply at a time
        config = tiles.choose("persistent", "sm90", rows, 3328, 1024, x.dtype, GpuSpec.of_chip(CHIP))
        launches.take(persistent.prepare(x[:rows], w, out[:rows], config))
    launches.take(gate_launch(flags, 0))
    launches.take(clock_launch(times, 0))
    launches.take(device.stamp_launch(times))
    launches.take(device.wait_launch(up, 1, times.view(-1)[1:]))
    launches.take(device.wait_launch(up, 2, times.view(-1)[2:]))
    return [launches.found, launches.compiled]


@pytest.mark.slow
def test_a_dry_run_compiles_every_kernel_once_and_a_launch_on_tensors_with_memory_finds_it(elsewhere, tmp_path):
    launched, compiled, failures = elsewhere(plan, str(tmp_path), "first")
    assert failures == []
    assert launched.keys() == compiled.keys() == LINKS | INSTRUMENTS | MATMULS | ARMS | OTHERS
    assert compiled["wait_kernel"] == 2  # its times align, or do not
    assert sum(compiled.values()) == len(list(tmp_path.iterdir()))
    assert elsewhere(plan, str(tmp_path), "second") == [launched, {}, []]
    found, compiled = elsewhere(with_memory, str(tmp_path))
    assert found.pop("persistent_kernel") > 1
    assert found == {"gate_kernel": 1, "clock_kernel": 1, "stamp_kernel": 1, "wait_kernel": 2}
    assert compiled == {}
