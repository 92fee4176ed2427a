"""Dry runs of a small plan, each in a process of its own, which prints what Triton compiled: `python dry_runs.py`.

They are forked from one that has imported all, torch's compiler too: that takes longer than they do.
"""

import json
from multiprocessing import get_context
from pathlib import Path

import torch
import triton

from collectives import device
from kernels import persistent, tiles
from kernels.bench import absent_gpu
from kernels.bench.instruments import clock_launch, gate_launch
from kernels.contract import KernelLaunch, Signals
from kernels.waves import GpuSpec
from results import dry_run
from roofline.operations import OPERATIONS
from roofline.operations.options import resolve
from roofline.theory import chips

CHIP = chips.find("H100 SXM")
PLAN = {"ffn_model": "xxl/16", "ffn_tokens": "16,1024", "ffn_tp": "1", "ffn_link_bandwidth": "balance172"}
OPTIONS = resolve(PLAN.get, device="cuda", timed=True, root=Path())


def plan(names: list[str]) -> list:
    """Return how often each kernel was launched, what was compiled for that, and who raised."""
    launches = absent_gpu.Launches()
    dry_run.install(CHIP, launches)
    dry_run.REACHED_SHARES = (0.65,)
    failures = dry_run.launch_all(OPTIONS, CHIP, names)
    return [launches.launched, launches.compiled, failures]


def failing(names: list[str]) -> list[str]:
    """Return who raised, where one of the kernels does."""
    launches = absent_gpu.Launches()
    dry_run.install(CHIP, launches)

    def fail(launch, on):
        if launch.kernel.__name__ == "decode_kernel":
            raise RuntimeError("no such kernel")
        return launches.take(launch)

    KernelLaunch.run = fail
    return dry_run.launch_all(OPTIONS, CHIP, names)


def with_memory(names: list[str]) -> list:
    """Return what was found, and compiled, for launches of the same plan on tensors of the host."""
    launches = absent_gpu.Launches()
    triton.knobs.compilation.listener = launches.note
    x, w, out = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((1024, 1024), (3328, 1024), (1024, 3328)))
    gpu = GpuSpec.of_chip(CHIP)
    flags, times = torch.zeros(8, dtype=torch.int32), torch.zeros((4, 2), dtype=torch.int64)
    up = Signals(flags, 1, torch.zeros(1, dtype=torch.int32), 1)
    for rows in range(64, 1025, 64):  # what an arm may multiply at a time
        config = tiles.choose("persistent", "sm90", rows, 3328, 1024, x.dtype, gpu)
        launches.take(persistent.prepare(x[:rows], w, out[:rows], config))
    launches.take(gate_launch(flags, 0))
    launches.take(clock_launch(times, 0))
    launches.take(device.stamp_launch(times))
    launches.take(device.wait_launch(up, 1, times.view(-1)[1:]))
    launches.take(device.wait_launch(up, 2, times.view(-1)[2:]))
    return [launches.found, launches.compiled]


def main() -> None:
    import torch._dynamo  # noqa: F401 (here, since it takes a second: what torch does with `meta` imports it)

    names = [name for name, operation in OPERATIONS.items() if operation.default] + [*dry_run.OURS]
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for function, operations in ((plan, names), (plan, names), (failing, ["matmul"]), (with_memory, names)):
            print(json.dumps(pool.apply(function, (operations,))))


if __name__ == "__main__":
    main()
