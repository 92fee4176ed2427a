"""What runs beside a matmul, of a link and of the clock, takes no more of an SM than is kept for it."""

import torch

from collectives import device_links
from kernels.bench import instruments
from kernels.contract import EXAMPLE_SIZE, KernelLaunch, Signals
from kernels.hopper import CTA_BYTES, KEPT, allotted
from kernels.inspect.cubin import compile_launch


def launches() -> dict[str, KernelLaunch]:
    """By name: the copier of a link of 7 chunks, the link's waits and stamps, and the clock's instruments."""
    target = torch.empty((EXAMPLE_SIZE, EXAMPLE_SIZE), dtype=torch.bfloat16)
    parts = enumerate(target.chunk(8, dim=1)[1:], 1)
    chunks = [device_links.Transfer(chunk, 0, torch.empty(part.shape, dtype=part.dtype), part) for chunk, part in parts]
    route, times = device_links.Route.of(chunks, "cpu"), torch.zeros((64, 2), dtype=torch.int64)
    signals = Signals(route.flags, 1, route.started, 1)
    return {
        "copier": device_links.copy_launch(route, times, 290e9),
        "counting copier": device_links.copy_launch(route, times, 290e9, counted=signals),
        "wait": device_links.wait_launch(signals, 1, times),
        "raise": device_links.raise_launch(route, 0, 7, 1),
        "stamp": device_links.stamp_launch(times),
        "gate": instruments.gate_launch(route.flags, 1),
        "clock": instruments.clock_launch(times, 1),
    }


def taken() -> dict[str, tuple]:
    """By name: whether it spills, the registers and bytes of shared memory that it takes, and those that are kept."""
    found = {}
    for name, launch in launches().items():
        cubin, kept = compile_launch(launch, 90), KEPT["copier" if "copier" in name else "wait"]
        sizes = allotted(cubin.registers, launch.args["num_warps"]), cubin.shared_bytes + CTA_BYTES
        found[name] = cubin.spills, sizes, kept
    return found


def test_what_runs_beside_a_matmul_takes_no_more_of_an_sm_than_is_kept_for_it(printed_elsewhere):
    by_name = printed_elsewhere("import json; from test_beside import taken; print(json.dumps(taken()))")
    assert by_name
    for name, (spills, sizes, kept) in by_name.items():
        assert not spills, name
        assert all(size <= limit for size, limit in zip(sizes, kept, strict=True)), (name, sizes, kept)
