"""What runs beside a matmul, of a link and of the clock, takes no more of an SM than is kept for it, and the copier
keeps something in flight."""

import re

import torch

from collectives import device as device_links
from kernels.bench import instruments
from kernels.contract import EXAMPLE_SIZE, KernelLaunch, Signals
from kernels.hopper import CTA_BYTES, KEPT, allotted
from kernels.inspect import compile_launch


def launches() -> dict[str, KernelLaunch]:
    """By name: the copier of a link of 7 chunks, the link's waits and stamps, and the clock's instruments."""
    target = torch.empty((EXAMPLE_SIZE, EXAMPLE_SIZE), dtype=torch.bfloat16)
    parts = enumerate(target.chunk(8, dim=1)[1:], 1)
    chunks = [device_links.Transfer(chunk, 0, torch.empty(part.shape, dtype=part.dtype), part) for chunk, part in parts]
    route, times = device_links.Route.of(chunks, "cpu"), torch.zeros((64, 2), dtype=torch.int64)
    signals = Signals(route.flags, 1, route.started, 1)
    return {
        "copier of one": device_links.copy_launch(route, 3, 4, 290e9),
        "copier": device_links.copy_launch(route, 0, 7, 290e9),
        "wait": device_links.wait_launch(signals, 1, times),
        "raise": device_links.raise_launch(route, 0, 7, 1),
        "stamp": device_links.stamp_launch(times),
        "gate": instruments.gate_launch(route.flags, 1),
        "clock": instruments.clock_launch(times, 1),
    }


def taken() -> dict[str, tuple]:
    """Return by name whether it spills, the registers and bytes of shared memory that it takes, those that are kept,
    and its inner loop in Triton's IR."""
    by_name = {}
    for name, launch in launches().items():
        cubin, kept = compile_launch(launch, 90), KEPT["copier" if "copier" in name else "wait"]
        sizes = allotted(cubin.registers, launch.args["num_warps"]), cubin.shared_bytes + CTA_BYTES
        by_name[name] = cubin.spills, sizes, kept, cubin.ttgir.rpartition("scf.for")[2].partition("scf.yield")[0]
    return by_name


def test_what_runs_beside_a_matmul_takes_no_more_of_an_sm_than_is_kept_for_it(printed_elsewhere):
    by_name = printed_elsewhere("import json; from test_beside import taken; print(json.dumps(taken()))")
    assert by_name
    for name, (spills, sizes, kept, _) in by_name.items():
        assert not spills, name
        assert all(size <= limit for size, limit in zip(sizes, kept, strict=True)), (name, sizes, kept)
    part, inner = r"tensor<\d+x\d+x!tt.ptr<i32>", by_name["copier of one"][-1]
    load = re.search(rf"(%\w+) = tt.load .*{part}", inner)
    store = re.search(rf"tt.store %\w+, (%\w+), .*{part}", inner)
    assert load.start() < store.start(), "the next part shall be loaded before the last is stored"
    assert load.group(1) != store.group(1)
