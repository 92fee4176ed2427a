"""The kernel of kernels.gated on the machine, as float64 has it: each tile of the tables in each of its dtypes, ragged
in M, N and K, two tiles to a program."""

from unittest.mock import patch

import pytest
import torch

from kernels import hopper
from kernels.contract import FP8, result_dtype
from kernels.gated import gated, interleaved
from kernels.machine.verdict import check
from kernels.tiles import DTYPES, table

LAUNCHES = [
    (entry.config, dtype) for entry in table("sm90").entries if entry.kernel == "gated" for dtype in entry.dtypes
]


def verdict(number: int, seeds: int, by_turns: bool = True) -> str:
    """Return what the machine says of launch `number`. Without `by_turns` the rows of w are those of gate, then of up.
    In fp8 sums are exact, and scales make them small."""
    config, dtype = LAUNCHES[number]
    random = torch.Generator().manual_seed(number)
    m, f, k = config.block_m + 5, config.block_n - 8, 2 * config.block_k + 16
    is_fp8 = DTYPES[dtype] == FP8

    def matrix(rows: int, scale: float = 1.0) -> torch.Tensor:
        if is_fp8:
            return torch.randint(-2, 3, (rows, k), generator=random).to(FP8)
        return torch.randn(rows, k, generator=random).to(DTYPES[dtype]) * scale

    x, gate, up = matrix(m), matrix(f, k**-0.5), matrix(f, k**-0.5)
    powers = torch.randint(-3, 0, (m + 2 * f, 1), generator=random)
    of_x, of_gate, of_up = (2.0**powers if is_fp8 else torch.ones(m + 2 * f, 1)).split((m, f, f))
    put_together = interleaved if by_turns else lambda gate, up: torch.cat((gate, up))
    scales = (of_x, put_together(of_gate, of_up).T) if is_fp8 else None
    w = put_together(gate, up)
    out = torch.full((m, f), torch.nan, dtype=result_dtype(x.dtype))
    exact_gate, exact_up = ((x.double() * of_x) @ (half.double() * by).T for half, by in ((gate, of_gate), (up, of_up)))
    exact = torch.nn.functional.silu(exact_gate) * exact_up
    with patch.object(hopper, "programs", lambda device: 2):
        launch = gated.launch(x, w, out, config, scales)
    return check(launch.kernel, launch.grid, launch.args, expected={"out_desc": exact.to(out.dtype)}, seeds=seeds).kind


def said(run, *arguments) -> str:
    return run(f"import json, test_gated_kernel as t; print(json.dumps(t.verdict(*{arguments})))")


@pytest.mark.parametrize("of_dtype", ["bf16", "fp8"])
def test_a_tile_is_exact(printed_elsewhere, commit_seed, of_dtype):
    numbers = [number for number, (_, dtype) in enumerate(LAUNCHES) if dtype == of_dtype]
    assert said(printed_elsewhere, numbers[commit_seed % len(numbers)], 1) == "exact"


def test_weights_by_halves_are_wrong(printed_elsewhere):
    assert said(printed_elsewhere, 0, 1, False) == "wrong"


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(LAUNCHES)))
def test_each_tile_is_exact_under_eight_orders(printed_elsewhere, number):
    assert said(printed_elsewhere, number, 8) == "exact"
