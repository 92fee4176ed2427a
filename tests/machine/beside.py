"""What runs on an SM beside our kernels, of a link and of the clock, and what that takes."""

import torch

from collectives import device_links
from kernels.bench import instruments
from kernels.contract import EXAMPLE_SIZE, KernelLaunch, Signals
from kernels.hopper import CTA_BYTES, KEPT, allotted
from kernels.inspect.cubin import compile_launch


def beside(target: int = 90) -> dict[str, dict]:
    """By name, of what runs beside kernels that are `beside_link`: what it takes of an SM, what is kept, problems."""
    found = {}
    for name, launch in launches().items():
        cubin, kept = compile_launch(launch, target), KEPT["copier" if "copier" in name else "wait"]
        taken = allotted(cubin.registers, launch.args["num_warps"]), cubin.shared_bytes + CTA_BYTES
        problems = (
            [f"spills {cubin.stack_bytes} bytes of stack, 0 allowed; keep less in flight"] if cubin.spills else []
        )
        for what, own, limit in zip(("registers", "bytes of shared memory"), taken, kept, strict=True):
            if own > limit:
                problems.append(f"takes {own} {what}, {limit} are kept for it; make it smaller, or `KEPT` larger")
        found[name] = {"registers": taken[0], "shared_bytes": taken[1], "kept": kept, "problems": problems}
    return found


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
