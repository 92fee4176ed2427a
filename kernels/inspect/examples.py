"""For every kernel a launch as those that count, to be compiled and looked at: its memory is never touched."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module

import torch

from kernels import decode, flagged, instruments, persistent, tiled
from kernels.configs import Config
from kernels.contract import Launch, Signals
from roofline.theory.schedule import Grid, chunk_outer, tile_outer

# M, N and K: multiples of 16, as at the launches that count, so that Triton specialises alike.
SIZE = 4096


def matmul_example(prepare: Callable[..., Launch], config: Config, dtype: torch.dtype) -> Launch:
    """The launch a [SIZE, SIZE] @ [SIZE, SIZE].T would make. The memory is never touched, hence never committed."""
    x, w, out = (torch.empty((SIZE, SIZE), dtype=dtype) for _ in range(3))
    return prepare(x, w, out, config)


def decode_example(config: Config, dtype: torch.dtype, split: int = 3) -> Launch:
    """The launch for as many rows as the tile has, K split, which takes more registers and shared memory than not."""
    x, w, out = (torch.empty((rows, SIZE), dtype=dtype) for rows in (config.block_m, SIZE, config.block_m))
    return decode.prepare(x, w, out, replace(config, split=split))


def flagged_example(visits: Callable, config: Config, dtype: torch.dtype, *, stamped: bool = False) -> Launch:
    """The launch over 8 ranks by the table that `visits` makes, which spills or does not; `stamped` as for a trace."""
    ranks = 8
    grid = Grid(SIZE // config.block_m, SIZE // config.block_n)
    plan = flagged.plan(visits(grid, 2, ranks), grid, range(ranks), SIZE, config, "cpu")
    flags = torch.empty(ranks - 1, dtype=torch.int32)
    signals = Signals(flags, 1, flags[:1], 1)
    stamps = flagged.stamps_for(plan) if stamped else None
    return matmul_example(lambda *operands: flagged.prepare(*operands[:3], plan, signals, stamps), config, dtype)


def sums_example(config: Config, dtype: torch.dtype) -> Launch:
    """The launch that leaves fp32 products."""
    return matmul_example(lambda x, w, out, config: persistent.prepare(x, w, out.float(), config), config, dtype)


def beside_examples() -> dict[str, Launch]:
    """By name: the copier of a link of 7 chunks, the link's waits and stamps, and the instruments of the clock."""
    device_links, links = import_module("collectives.device_links"), import_module("collectives.links")
    source, target = (
        torch.empty((SIZE, SIZE // 8), dtype=torch.bfloat16),
        torch.empty((SIZE, SIZE), dtype=torch.bfloat16),
    )
    chunks = [links.Transfer(chunk, 0, source, target[:, chunk * SIZE // 8 :][:, : SIZE // 8]) for chunk in range(1, 8)]
    route, times = device_links.Route.of(chunks, "cpu"), torch.zeros((64, 2), dtype=torch.int64)
    return {
        "copier": device_links.copy_launch(route, times, 290e9),
        "wait": device_links.wait_launch(route.flags, 1, times, route.started, 1),
        "stamp": device_links.stamp_launch(times),
        "gate": instruments.gate_launch(route.flags, 1),
        "clock": instruments.clock_launch(times, 1),
    }


EXAMPLES: dict[str, Callable[[Config, torch.dtype], Launch]] = {
    "tiled": partial(matmul_example, tiled.prepare),
    "persistent": partial(matmul_example, persistent.prepare),
    "persistent_sums": sums_example,
    # Imported late: where Gluon lacks something, that is a finding of its own.
    "warpgroup": lambda *config: matmul_example(import_module("kernels.warpgroup").prepare, *config),
    "decode": decode_example,
    "flagged": partial(flagged_example, tile_outer),
    "flagged_spills": partial(flagged_example, chunk_outer),
}
