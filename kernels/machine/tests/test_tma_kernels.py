"""Compiled kernels of TMA and of clusters, exact against PyTorch under several orders of events."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import cluster, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.machine.compile import Call
from kernels.machine.verdict import check

SEEDS = 4
OLD = not hasattr(cluster, "barrier")  # Triton 3.7: the kernel itself synchronises a cluster
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@triton.jit
def copy_box(x_desc, out_desc, place):
    """A box of x at (place, place, place) to the beginning of out."""
    out_desc.store([0, 0, 0], x_desc.load([place, place, place]))


@triton.jit
def double(x, out, m, n, stride, M: tl.constexpr, N: tl.constexpr, PADDING: tl.constexpr):
    """Row blocks, by descriptors that the kernel makes anew for each."""
    for start in range(tl.program_id(0) * M, m, 2 * M):
        x_desc = tl.make_tensor_descriptor(
            x + start * stride, [m - start, n], [stride, 1], [M, N], padding_option=PADDING
        )
        out_desc = tl.make_tensor_descriptor(out + start * N, [M, N], [N, 1], [M, N])
        out_desc.store([0, 0], x_desc.load([0, 0]) * 2)


@triton.jit
def reduce_rows(x, out_desc, M: tl.constexpr, N: tl.constexpr):
    """Each program adds its block of x to the same rows of out."""
    rows, columns = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    out_desc.atomic_add([1, 0], tl.load(x + (tl.program_id(0) * M + rows) * N + columns))


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for i in range(0, K, BK):
        total += tl.dot(tl.load(a + m[:, None] * K + (i + k)[None, :]), tl.load(b + (i + k)[:, None] * N + n[None, :]))
    tl.store(c + m[:, None] * N + n[None, :], total)


@triton.jit
def sums(x, out, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    block = tl.load(x + m[:, None] * N + n[None, :])
    tl.store(out + m, tl.sum(block, 1))
    tl.store(out + M + n, tl.sum(block, 0))


@gluon.jit
def multicast(x_desc, out_desc, BYTES: gl.constexpr, SYNC: gl.constexpr):
    tile = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_shape, x_desc.layout)
    landed = mbarrier.allocate_mbarrier()
    mbarrier.init(landed, count=1)
    if SYNC:
        mbarrier.sync_cluster_init()
    mbarrier.expect(landed, BYTES)
    async_load(x_desc, [0, 0], landed, tile, multicast=True)
    mbarrier.wait(landed, phase=0, deps=[tile])
    async_store(out_desc, [0, 0], tile)
    tma.store_wait(0)
    mbarrier.invalidate(landed)


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


Trial = tuple[Call, dict[str, Tensor]]
"""A launch, and what arguments of it hold then."""


def box(dtype: torch.dtype, place: int, padding: str) -> Trial:
    shape, sizes = (5, 6, 48), (2, 4, 32)
    x, out = numbers(*shape).to(dtype), torch.empty(sizes).to(dtype)
    margins = [(max(-place, 0), max(place + n - size, 0)) for n, size in zip(sizes, shape, strict=True)]
    around = torch.nn.functional.pad(x.float(), [n for pair in margins[::-1] for n in pair], value=float(padding))
    seen = around[tuple(slice(max(place, 0), max(place, 0) + n) for n in sizes)]
    x_desc = TensorDescriptor.from_tensor(x, list(sizes), padding="nan" if padding == "nan" else "zero")
    out_desc = TensorDescriptor.from_tensor(out, list(sizes))
    return Call(copy_box, (1,), dict(x_desc=x_desc, out_desc=out_desc, place=place)), dict(out_desc=seen)


def made_by_the_kernel(padding: str, num_ctas: int = 1) -> Trial:
    x, out = numbers(50, 80)[:, :60], torch.empty(64, 64)
    filler = 0.0 if padding == "zero" else torch.nan
    expected = torch.nn.functional.pad(2 * x, [0, 4, 0, 14], value=filler)
    args = dict(x=x, out=out, m=50, n=60, stride=80, M=16, N=64, PADDING=padding, num_ctas=num_ctas)
    return Call(double, (2,), args), dict(out=expected)


def reduction() -> Trial:
    x, out = numbers(3 * 16, 32, dtype=torch.bfloat16), numbers(20, 32, dtype=torch.bfloat16, seed=1)
    expected = out.clone()
    expected[1:17] += x.reshape(3, 16, 32).sum(0)
    args = dict(x=x, out_desc=TensorDescriptor.from_tensor(out, [16, 32]), M=16, N=32)
    return Call(reduce_rows, (3,), args), dict(out_desc=expected)


def of_two_ctas() -> Trial:
    a, b, c = numbers(128, 64, dtype=torch.half), numbers(64, 256, dtype=torch.half, seed=1), torch.empty(128, 256)
    args = dict(a=a, b=b, c=c, M=128, N=256, K=64, BM=128, BN=128, BK=32, num_ctas=2)
    return Call(matmul, (1, 2), args), dict(c=a.float() @ b.float())


def sums_of(num_ctas: int) -> Trial:
    x, out = numbers(32, 64), torch.empty(96)
    args = dict(x=x, out=out, M=32, N=64, num_ctas=num_ctas)
    return Call(sums, (1,), args), dict(out=torch.cat([x.sum(1), x.sum(0)]))


def multicast_to_two_of_four() -> Trial:
    """The halves of a tile, each for two CTAs."""
    x, out = numbers(32, 32, dtype=torch.float16), torch.empty(32, 32, dtype=torch.float16)
    layout = gl.NVMMASharedLayout.get_default_for([32, 32], gl.float16, cga_layout=[[1, 0], [0, 0]])
    x_desc, out_desc = (GluonDescriptor.from_tensor(tensor, [32, 32], layout) for tensor in (x, out))
    args = dict(x_desc=x_desc, out_desc=out_desc, BYTES=1024, SYNC=OLD, num_warps=4, num_ctas=4)
    return Call(multicast, (1,), args), dict(out_desc=x)


TRIALS = {
    "int64": lambda: box(torch.int64, -1, "0"), "fp16 NaN": lambda: box(torch.float16, 3, "nan"),
    "bf16 NaN": lambda: box(torch.bfloat16, -1, "nan"), "fp8": lambda: box(torch.float8_e4m3fn, -1, "0"),
    "descriptors in a loop": lambda: made_by_the_kernel("zero"),
    "descriptors with NaN": lambda: made_by_the_kernel("nan"),
    "descriptors of two CTAs": lambda: made_by_the_kernel("zero", 2),
    "added up": reduction, "matmul of two CTAs": of_two_ctas,
    "multicast to 2 of 4": multicast_to_two_of_four,
} | ({} if OLD else {"sums of 2": lambda: sums_of(2), "sums of 4": lambda: sums_of(4)})  # fmt: skip


def judgement(name: str) -> str:
    launch, expected = TRIALS[name]()
    return str(check(launch.kernel, launch.grid, launch.args, expected=expected, seeds=SEEDS))


def everything() -> list[list[str]]:
    return [[name, judgement(name)] for name in TRIALS]


def test_kernels_are_exact(elsewhere):
    judgements = elsewhere(everything)
    assert [entry for entry in judgements if not entry[1].startswith("exact")] == []
