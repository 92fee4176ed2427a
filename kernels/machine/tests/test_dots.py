"""tl.dot of every type, as Triton compiles it for sm_80, sm_89 and sm_90a: exact on the machine, by torch's product."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import re

import torch
import triton
import triton.language as tl

from kernels.machine.compile import Call
from kernels.machine.gpus import ARCHITECTURES
from kernels.machine.launcher import compiled
from kernels.machine.verdict import check

TYPES = {
    "bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32, "tf32x3": torch.float32, "f64": torch.float64,
    "s8": torch.int8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2,
}  # fmt: skip
RELEASE = tuple(map(int, triton.__version__.split(".")[:2]))
SUMS = {"f16": torch.float16, "f32": torch.float32, "f64": torch.float64, "s32": torch.int32}


@triton.jit
def dot(
    x_ptr, w_ptr, out_ptr, x_m, x_k, w_n, w_k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr,
    PRECISION: tl.constexpr, IMPRECISE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N), tl.arange(0, K)
    sums = tl.zeros((M, N), out_ptr.dtype.element_ty)
    for step in range(STEPS):
        x = tl.load(x_ptr + m * x_m + (step * K + k[None, :]) * x_k)
        w = tl.load(w_ptr + n[None, :] * w_n + (step * K + k[:, None]) * w_k)
        if MASKED:  # x comes from registers
            x = tl.where(m + k[None, :] < MASKED, tl.zeros_like(x), x)
        sums = tl.dot(
            x, w, sums, input_precision=PRECISION, max_num_imprecise_acc=IMPRECISE, out_dtype=out_ptr.dtype.element_ty
        )
    tl.store(out_ptr + m * N + n[None, :], sums)


# Architecture; types of x and w, and of sums; M, N, K of a step; warps; who lies with K along its rows (x, w), whether
# x is masked (m), whether sums of 32 products are added up apart (32); and what stands in the PTX for it.
ROWS = r"""
sm_80   f64 f64 f64     16 16 16   1  -   mma\S+m8n8k4\.row\.col\.f64
sm_80   tf32 tf32 f32   32 32 32   4  xw  mma\S+m16n8k8\.row\.col\.f32\.tf32
sm_80   s8 s8 s32       32 32 64   2  m   mma\S+m16n8k32\.row\.col\.satfinite\.s32\.s8
sm_80   f16 f16 f16     32 32 32   2  w   mma\S+m16n8k16\.row\.col\.f16\.f16
sm_89   e4m3 e5m2 f32   32 64 64   4  -   mma\S+m16n8k32\.row\.col\.f32\.e4m3\.e5m2
sm_89   e5m2 e5m2 f16   32 16 32   1  w   mma\S+m16n8k32\.row\.col\.f16\.e5m2\.e5m2
sm_90a  f64 f64 f64     32 32 32   2  m   mma\S+\.row\.col\.f64
sm_90a  tf32 tf32 f32   64 64 32   4  xw  wgmma\S+n64k8\S+tf32 \{[^}]*\}, %\w
sm_90a  s8 s8 s32       128 32 64  8  -   wgmma\S+n32k32\.s32\.s8\.s8 \{[^}]*\}, %\w
sm_90a  e4m3 e5m2 f32   64 64 64   4  -   wgmma\S+n64k32\.f32\.e4m3\.e5m2 \{[^}]*\}, %\w
sm_90a  e5m2 e4m3 f16   64 16 64   4  m   wgmma\S+n16k32\.f16\.e5m2\.e4m3 \{[^}]*\}, \{
sm_90a  f16 f16 f16     64 16 32   4  xw  wgmma\S+n16k16\.f16\.f16\.f16
sm_90a  bf16 bf16 f32   64 64 64   4  x   wgmma\S+n64k16\.f32\.bf16\.bf16 \{[^}]*\}, %\w
"""
REUSED = r"""
sm_90a  tf32 tf32 f32   64 32 32   4  m   wgmma\S+n32k8\S+tf32 \{[^}]*\}, \{
sm_90a  bf16 bf16 f32   128 32 32  8  mw  wgmma\S+n32k16\.f32\.bf16\.bf16 \{[^}]*\}, \{
"""
PARTIAL = r"sm_90a  e4m3 e4m3 f32  64 16 64  4  32  wgmma\S+n16k32\.f32\.e4m3\.e4m3 [^;]*, 0, 1, 1;\s+.*\s+add\.f32"


def wrong(rows: str, seeds: int = 2) -> list[str]:
    """Return the rows that are not exact, or compiled to something else."""
    found = []
    for row in rows.strip().splitlines():
        arch, types, sizes, warps, more, form = re.split(r"\s{2,}", row)
        x_kind, w_kind, sums = types.split()
        m, n, k = map(int, sizes.split())
        random = torch.Generator().manual_seed(m + n + k)
        x, w = (
            torch.randint(-3, 4, (3 * k, size), generator=random).float().to(TYPES[kind]).T
            if name in more
            else torch.randint(-3, 4, (size, 3 * k), generator=random).float().to(TYPES[kind])
            for name, size, kind in (("x", m, x_kind), ("w", n, w_kind))
        )
        x_used = x.double()
        if "m" in more:
            x_used = torch.where(torch.arange(m)[:, None] + torch.arange(3 * k) % k < 8, 0, x_used)
        args = dict(
            x_ptr=x, w_ptr=w, out_ptr=torch.zeros((m, n), dtype=SUMS[sums]), x_m=x.stride(0), x_k=x.stride(1),
            w_n=w.stride(0), w_k=w.stride(1), M=m, N=n, K=k, STEPS=3, PRECISION=x_kind if "tf32" in x_kind else None,
            IMPRECISE=32 if "32" in more else None, MASKED=8 * ("m" in more), num_warps=int(warps), num_stages=2,
        )  # fmt: skip
        expected = (x_used @ w.double().T).to(SUMS[sums])
        verdict = check(dot, (1,), args, expected=dict(out_ptr=expected), seeds=seeds, arch=arch)
        ptx = compiled(Call(dot, (1,), args), ARCHITECTURES[arch]).triton.asm["ptx"]
        if not verdict or not re.search(form, ptx):
            found.append(f"{row}: {verdict}")
    return found


def test_dots_are_exact(elsewhere):
    assert elsewhere(wrong, ROWS) == []


def test_partial_sums_are_read_before_a_wait(elsewhere):
    """With max_num_imprecise_acc on sm_90a Triton (to 3.9) adds up sums of wgmma that no wait covers, which 9.7.15.7.3
    leaves undefined. ptxas 12.8 mends it: "(C7517) warpgroup.wait is injected [...] to allow use of registers"."""
    (row,) = elsewhere(wrong, PARTIAL)
    assert re.search("misuse: reads an accumulator of a wgmma that is not waited for", row)


def test_registers_of_x_are_loaded_anew_before_a_wait(elsewhere):
    """Where x comes from registers, Triton 3.7.1 waits for all but the last wgmma of a step and loads the next x into
    the registers that this one reads, which 9.7.15.7.1 leaves undefined. ptxas 12.8 says nothing of it. From 3.8 on the
    next x has registers of its own, and is moved behind the next wait."""
    rows = elsewhere(wrong, REUSED)
    assert len(rows) == (0 if RELEASE >= (3, 8) else 2)
    for row in rows:
        assert re.search("misuse: .* writes %r.*, an operand of a wgmma that nobody has waited for", row)
