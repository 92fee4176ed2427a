"""Sums of parts: in fp32, in the order given, rounded once, and nothing beside them is written."""

import pytest
import torch

from kernels import part_sums

GUARD = 123.0


@pytest.mark.parametrize(
    ("rows", "columns", "parts", "dtype"),
    [(37, 80, 3, torch.float16), (37, 3, 1, torch.float32), (64, 64, 7, torch.float16)],
)
def test_sums_are_in_fp32_in_the_order_given_and_rounded_once(rows, columns, parts, dtype, device):
    generator, size = torch.Generator().manual_seed(0), rows * columns
    arrived, local = (torch.randn(shape, generator=generator).to(device, dtype)
                      for shape in ((parts, rows, columns), (rows, columns)))  # fmt: skip
    around = torch.full((size + 4096,), GUARD, dtype=dtype, device=device)
    out = around[:size].view(rows, columns).fill_(torch.nan)
    assert part_sums.add(arrived, local, out) is out
    sums = torch.zeros_like(local, dtype=torch.float32)
    for part in (*arrived[:-1], local, arrived[-1]):
        sums = sums + part.float()
    assert torch.equal(out, sums.to(dtype))
    assert (around[size:] == GUARD).all(), "something beside out was written"


@pytest.mark.parametrize(
    ("local", "out"),
    [
        (torch.zeros(36, 8), torch.zeros(37, 8)),
        (torch.zeros(37, 8), torch.zeros(36, 8)),
        (torch.zeros(37, 8), torch.zeros(8, 37).T),
    ],
)
def test_parts_that_are_not_alike_are_refused(local, out):
    with pytest.raises(ValueError, match=r"parts \[3, 37, 8\], own .*: all .* must be alike"):
        part_sums.add(torch.zeros(3, 37, 8), local, out)
