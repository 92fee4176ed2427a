"""What is run of the kernel of the gated layer."""

import math
from functools import partial

import torch
from cases import Case, grids_of
from torch.nn.functional import silu

from kernels.contract import FP8, result_dtype
from kernels.fp8 import quantise
from kernels.gated.kernel import gated as gated_matmul
from kernels.gated.kernel import interleaved
from kernels.machine.launcher import enqueue
from kernels.machine.trial import difference
from kernels.tiles import DTYPES, Config, table


def gated(config: Config, dtype: str, **more) -> Case:
    """The kernel, as float64 has it: ragged in M, N and K, two groups of tiles, several tiles to a
    program."""
    config = config.changed(group_m=2)
    m, f, k = 2 * config.block_m + 5, config.block_n - 8, 2 * config.block_k + 16

    def make(seed: int):
        random = torch.Generator().manual_seed(seed)
        matrices = [torch.randn(rows, k, generator=random) * k**-0.25 for rows in (m, f, f)]
        if DTYPES[dtype] == FP8:
            (x, of_x), (gate, of_gate), (up, of_up) = map(quantise, matrices)
            scales = of_x, interleaved(of_gate, of_up).T
        else:
            x, gate, up = (matrix.to(DTYPES[dtype]) for matrix in matrices)
            of_x, of_gate, of_up, scales = 1.0, 1.0, 1.0, None
        out = torch.full((m, f), math.nan, dtype=result_dtype(x.dtype))
        with grids_of(2):
            launch = gated_matmul.prepare(x, interleaved(gate, up), out, config, scales)
        whole_x = x.double() * of_x
        exact = silu(whole_x @ (gate.double() * of_gate).T) * (whole_x @ (up.double() * of_up).T)

        def wrong() -> str:
            found = difference(out, exact.to(out.dtype), 0.01)
            return f"out{list(found[0])} {found[1]}" if found else ""

        return partial(enqueue, launch=launch), wrong

    return Case("gated", f"{config} {dtype}, {m} rows", make, **more)


def cases() -> list[Case]:
    return [gated(entry.config, dtype) for entry in table("sm90").of("gated") for dtype in entry.dtypes]
