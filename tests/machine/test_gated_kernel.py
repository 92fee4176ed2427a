"""The kernel of kernels.gated on the machine, as float64 has it: each tile of the tables, ragged in M, N and K, two
tiles to a program, in bf16 and fp16."""

from unittest.mock import patch

import pytest
import torch

from kernels import hopper
from kernels.gated import gated, interleaved
from kernels.machine.verdict import check
from kernels.tiles import DTYPES, table

CONFIGURATIONS = 4


def verdict(number: int, dtype: str, seeds: int, by_turns: bool = True) -> str:
    """Return what the machine says of configuration `number` of the table. Without `by_turns` the rows of w are those
    of gate, then those of up."""
    config = [entry.config for entry in table("sm90").entries if entry.kernel == "gated"][number]
    random = torch.Generator().manual_seed(number)
    m, f, k = config.block_m + 5, config.block_n - 8, 2 * config.block_k + 8

    def normal(rows: int) -> torch.Tensor:
        return torch.randn(rows, k, generator=random).to(DTYPES[dtype])

    x, gate, up = normal(m), normal(f) * k**-0.5, normal(f) * k**-0.5
    w = interleaved(gate, up) if by_turns else torch.cat((gate, up))
    out = torch.full((m, f), torch.nan, dtype=x.dtype)
    exact = torch.nn.functional.silu(x.double() @ gate.double().T) * (x.double() @ up.double().T)
    with patch.object(hopper, "programs", lambda device: 2):
        launch = gated.prepare(x, w, out, config)
    return check(launch.kernel, launch.grid, launch.args, expected={"out_desc": exact.to(x.dtype)}, seeds=seeds).kind


def said(run, *arguments) -> str:
    return run(f"import json, test_gated_kernel as t; print(json.dumps(t.verdict(*{arguments})))")


def test_a_tile_is_exact(printed_elsewhere, commit_seed):
    assert said(printed_elsewhere, commit_seed % CONFIGURATIONS, "bf16", 1) == "exact"


def test_weights_by_halves_are_wrong(printed_elsewhere):
    assert said(printed_elsewhere, CONFIGURATIONS - 1, "bf16", 1, False) == "wrong"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("number", range(CONFIGURATIONS))
def test_each_tile_is_exact_under_eight_orders(printed_elsewhere, number, dtype):
    assert said(printed_elsewhere, number, dtype, 8) == "exact"


def test_the_table_has_as_many():
    assert sum(entry.kernel == "gated" for entry in table("sm90").entries) == CONFIGURATIONS
