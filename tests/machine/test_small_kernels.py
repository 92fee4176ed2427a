"""Small Triton kernels whose code has forms that no shipped kernel has: other layouts of operands, mma and ldmatrix,
boxes of TMA with each swizzle, inside and outside of a tensor."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import re
from itertools import product

import torch
import triton
import triton.language as tl
from cases import DTYPES, whole_numbers

from kernels.contract import KernelLaunch
from kernels.hopper import describe
from kernels.machine.device import Machine
from kernels.machine.run import compiled, enqueue


@triton.jit
def dot(
    x_ptr, w_ptr, out_ptr, x_m, x_k, w_n, w_k,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N), tl.arange(0, K)
    x = tl.load(x_ptr + m * x_m + k[None, :] * x_k)
    w = tl.load(w_ptr + n[None, :] * w_n + k[:, None] * w_k)
    if MASKED:  # x comes from registers
        x = tl.where(m + k[None, :] < MASKED, 0.0, x)
    tl.store(out_ptr + m * N + n[None, :], tl.dot(x, w))


@triton.jit
def add_places(x_desc, out_desc, from_row, from_column, row, column, M: tl.constexpr, N: tl.constexpr):
    """Each number of a box of x, and where in the box it lies, to a box of out."""
    places = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = x_desc.load([from_row, from_column])
    out_desc.store([row, column], x + places)


# Who lies with K along its rows; M, N and K; warps; how much of x is masked; and what stands in the PTX for it.
SHARED, REGISTERS = r"\}}, %\w+, %\w+, %?\w+, 1, 1, {}, {};", r"\}}, \{{[^}}]*\}}, %\w+, %?\w+, 1, 1, {};"
FORMS = [
    ("bf16", "", (64, 32, 64), 4, 0, SHARED.format(0, 0)), ("bf16", "x", (128, 256, 32), 8, 0, SHARED.format(1, 0)),
    ("fp16", "w", (64, 128, 64), 4, 0, SHARED.format(0, 1)), ("bf16", "xw", (64, 64, 32), 4, 0, SHARED.format(1, 1)),
    ("fp16", "", (64, 16, 16), 4, 0, SHARED.format(0, 0)), ("fp16", "x", (64, 16, 16), 4, 0, SHARED.format(1, 0)),
    ("bf16", "w", (64, 16, 16), 4, 0, SHARED.format(0, 1)), ("bf16", "w", (128, 32, 32), 8, 8, REGISTERS.format(1)),
    ("fp16", "", (64, 32, 64), 4, 8, REGISTERS.format(0)), ("bf16", "", (32, 32, 64), 1, 0, r"ldmatrix.*mma\.sync"),
    ("fp16", "xw", (64, 32, 32), 2, 0, r"ldmatrix\S*trans"),
]  # fmt: skip
BOXES = [(8, 8), (4, 16), (16, 32)]  # of each swizzle
PLACES = [(0, 0), (8, 5), (-3, -6), (17, 75), (0, 100), (-30, -90), (19, 16)]


def executed(kernel, **args) -> tuple[list[str], str]:
    """Run it under two orders of events. Return the problems, and the PTX."""
    launch, problems = KernelLaunch(kernel, (1,), args), []
    for seed in range(2):
        machine = Machine(seed)
        enqueue(machine, launch)
        machine.run()
        problems += machine.problems
    return problems, compiled(launch).triton.asm["ptx"]


def wrong_products() -> list:
    wrong = []
    for dtype, turned, (m, n, k), warps, masked, form in FORMS:
        x, w = (
            whole_numbers(torch.empty((k, rows), dtype=DTYPES[dtype]), rows).T if name in turned
            else whole_numbers(torch.empty((rows, k), dtype=DTYPES[dtype]), rows)
            for name, rows in (("x", m), ("w", n))
        )  # fmt: skip
        out, strides = torch.empty((m, n)), dict(x_m=x.stride(0), x_k=x.stride(1), w_n=w.stride(0), w_k=w.stride(1))
        sizes = dict(M=m, N=n, K=k, MASKED=masked, num_warps=warps)
        problems, ptx = executed(dot, x_ptr=x, w_ptr=w, out_ptr=out, **strides, **sizes)
        x = torch.where(torch.arange(m)[:, None] + torch.arange(k) < masked, 0, x)
        if problems or not re.search(form, ptx, re.DOTALL) or (out != x.float() @ w.float().T).any():
            wrong.append([dtype, turned, m, n, k, problems])
    return wrong


def wrong_boxes() -> list:
    """What lies outside of a tensor arrives as zeros, and is not stored."""
    wrong = []
    for (m, n), (row, column) in product(BOXES, PLACES):
        around, x = torch.zeros((20 + 200, 80 + 300), dtype=torch.int32), torch.arange(1600, dtype=torch.int32)
        around[100:120, 100:180] = x = x.reshape(20, 80)
        out, expected, places = torch.zeros_like(x), torch.zeros_like(around), torch.arange(m * n).reshape(m, n)
        for target, source in (((row, column), (0, 0)), ((0, 0), (row, column))):
            problems, _ = executed(
                add_places, x_desc=describe(x, (m, n)), out_desc=describe(out, (m, n)), from_row=source[0],
                from_column=source[1], row=target[0], column=target[1], M=m, N=n, num_warps=1,
            )  # fmt: skip
            box = around[100 + source[0] :, 100 + source[1] :][:m, :n]
            expected[100 + target[0] :, 100 + target[1] :][:m, :n] = box + places
            if problems or (out != expected[100:120, 100:180]).any():
                wrong.append([m, n, source, target, problems])
    return wrong


def test_tensor_cores_multiply_in_every_form(printed_elsewhere):
    """PTX ISA 8.7, 9.7.15.5.1: matrix descriptors, swizzles, turned operands; 9.7.14.5: fragments of mma, ldmatrix."""
    assert printed_elsewhere("import json, test_small_kernels as t; print(json.dumps(t.wrong_products()))") == []


def test_boxes_are_loaded_and_stored_where_they_lie(printed_elsewhere):
    """PTX ISA 8.7, 5.5.3.3 and 5.5.7."""
    assert printed_elsewhere("import json, test_small_kernels as t; print(json.dumps(t.wrong_boxes()))") == []
