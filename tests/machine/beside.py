"""What runs on an SM beside our kernels, of a link and of the clock."""

import torch

from collectives import device_links
from kernels.bench import instruments
from kernels.contract import EXAMPLE_SIZE, KernelLaunch, Signals


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
