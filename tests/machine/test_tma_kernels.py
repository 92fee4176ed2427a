"""Compiled kernels of TMA and of clusters, exact against PyTorch under several orders of events; and each without one
instruction that it needs."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import copy
import re

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import async_copy, cluster, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.machine.check import check
from kernels.machine.compile import Call
from kernels.machine.device import Machine
from kernels.machine.order import FaultError
from kernels.machine.program import Step
from kernels.machine.run import compiled, parameters

SEEDS = 4
OLD = not hasattr(cluster, "barrier")  # Triton 3.7: the kernel itself synchronises a cluster
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
gather = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@triton.jit
def copy_box(x_desc, out_desc, place, RANK: tl.constexpr):
    """A box of x at (place, ..., place) to the beginning of out."""
    if RANK == 1:
        out_desc.store([0], x_desc.load([place]))
    elif RANK == 3:
        out_desc.store([0, 0, 0], x_desc.load([place, place, place]))
    elif RANK == 4:
        out_desc.store([0, 0, 0, 0], x_desc.load([place, place, place, place]))
    else:
        out_desc.store([0, 0, 0, 0, 0], x_desc.load([place, place, place, place, place]))


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
def reduce_rows(x, out_desc, M: tl.constexpr, N: tl.constexpr, KIND: tl.constexpr):
    """Each program its block of x to the same rows of out."""
    rows, columns = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    block = tl.load(x + (tl.program_id(0) * M + rows) * N + columns)
    if KIND == "add":
        out_desc.atomic_add([1, 0], block)
    elif KIND == "min":
        out_desc.atomic_min([1, 0], block)
    elif KIND == "max":
        out_desc.atomic_max([1, 0], block)
    else:
        out_desc.atomic_xor([1, 0], block)


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


if OLD:

    @gluon.jit
    def meet():
        cluster.arrive()
        cluster.wait()
else:
    meet = cluster.barrier


@gluon.jit
def multiply(
    a_desc, b_desc, out, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr, BK: gl.constexpr,
    layout: gl.constexpr, total_layout: gl.constexpr, SYNC: gl.constexpr,
):  # fmt: skip
    a = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_shape, b_desc.layout)
    landed = mbarrier.allocate_mbarrier()
    mbarrier.init(landed, count=1)
    if SYNC:
        mbarrier.sync_cluster_init()
    total = gl.zeros([M, N], dtype=gl.float32, layout=total_layout)
    for step in range(K // BK):
        mbarrier.expect(landed, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        async_load(a_desc, [0, step * BK], landed, a, multicast=True)
        async_load(b_desc, [step * BK, 0], landed, b, multicast=True)
        mbarrier.wait(landed, phase=step & 1, deps=[a, b])
        total = hopper.warpgroup_mma(a, b, total, is_async=False)
        meet()
    mbarrier.invalidate(landed)
    rows, columns = gl.arange(0, M, gl.SliceLayout(1, layout)), gl.arange(0, N, gl.SliceLayout(0, layout))
    gl.store(out + rows[:, None] * N + columns[None, :], gl.convert_layout(total, layout))


@gluon.jit
def gather_and_arrive(x, out, N: gl.constexpr, COUNTED: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    tile = gl.allocate_shared_memory(gl.float32, [N], gl.SwizzledSharedLayout(1, 1, 1, order=[0]))
    landed = mbarrier.allocate_mbarrier()
    mbarrier.init(landed, count=1 if COUNTED else 128)
    places = gl.arange(0, N, layout)
    gather(tile, x + places, mask=places < N - 5)
    async_copy.mbarrier_arrive(landed, increment_count=COUNTED)
    if COUNTED:
        mbarrier.arrive(landed, count=1)
    mbarrier.wait(landed, phase=0)
    gl.store(out + places, tile.load(layout))
    mbarrier.invalidate(landed)


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


Trial = tuple[Call, dict[str, Tensor]]
"""A launch, and what arguments of it hold then."""


def box(rank: int, dtype: torch.dtype, place: int, padding: str) -> Trial:
    shape, sizes = (3, 4, 5, 6, 48)[-rank:], (1, 2, 2, 4, 32)[-rank:]
    x, out = numbers(*shape).to(dtype), torch.empty(sizes).to(dtype)
    margins = [(max(-place, 0), max(place + n - size, 0)) for n, size in zip(sizes, shape, strict=True)]
    around = torch.nn.functional.pad(x.float(), [n for pair in margins[::-1] for n in pair], value=float(padding))
    seen = around[tuple(slice(max(place, 0), max(place, 0) + n) for n in sizes)]
    x_desc = TensorDescriptor.from_tensor(x, list(sizes), padding="nan" if padding == "nan" else "zero")
    out_desc = TensorDescriptor.from_tensor(out, list(sizes))
    return Call(copy_box, (1,), dict(x_desc=x_desc, out_desc=out_desc, place=place, RANK=rank)), dict(out_desc=seen)


def made_by_the_kernel(padding: str, num_ctas: int = 1) -> Trial:
    x, out = numbers(50, 80)[:, :60], torch.empty(64, 64)
    filler = 0.0 if padding == "zero" else torch.nan
    expected = torch.nn.functional.pad(2 * x, [0, 4, 0, 14], value=filler)
    args = dict(x=x, out=out, m=50, n=60, stride=80, M=16, N=64, PADDING=padding, num_ctas=num_ctas)
    return Call(double, (2,), args), dict(out=expected)


def reduction(kind: str, dtype: torch.dtype) -> Trial:
    x, out = numbers(3 * 16, 32, dtype=dtype), numbers(20, 32, dtype=dtype, seed=1)
    expected, blocks = out.clone(), x.reshape(3, 16, 32)
    for block in blocks:
        by = {"add": torch.add, "min": torch.minimum, "max": torch.maximum, "xor": torch.bitwise_xor}[kind]
        expected[1:17] = by(expected[1:17], block)
    args = dict(x=x, out_desc=TensorDescriptor.from_tensor(out, [16, 32]), M=16, N=32, KIND=kind)
    return Call(reduce_rows, (3,), args), dict(out_desc=expected)


def of_two_ctas() -> Trial:
    a, b, c = numbers(128, 64, dtype=torch.half), numbers(64, 256, dtype=torch.half, seed=1), torch.empty(128, 256)
    args = dict(a=a, b=b, c=c, M=128, N=256, K=64, BM=128, BN=128, BK=32, num_ctas=2)
    return Call(matmul, (1, 2), args), dict(c=a.float() @ b.float())


def sums_of(num_ctas: int) -> Trial:
    x, out = numbers(32, 64), torch.empty(96)
    args = dict(x=x, out=out, M=32, N=64, num_ctas=num_ctas)
    return Call(sums, (1,), args), dict(out=torch.cat([x.sum(1), x.sum(0)]))


def descriptor(tensor: Tensor, block: list[int], ctas: list[list[int]]) -> GluonDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.float16, cga_layout=ctas)
    return GluonDescriptor.from_tensor(tensor, block, layout)


def multicast_to(ctas: list[list[int]], more_bytes: int = 0) -> Trial:
    """`ctas`: of each bit of a rank, how far that CTA's part of the tile is away; [0, 0] where it has the same."""
    x, out = numbers(32, 32, dtype=torch.float16), torch.empty(32, 32, dtype=torch.float16)
    x_desc, out_desc = (descriptor(tensor, [32, 32], ctas) for tensor in (x, out))
    size = 2048 // 2 ** sum(basis != [0, 0] for basis in ctas) + more_bytes
    args = dict(x_desc=x_desc, out_desc=out_desc, BYTES=size, SYNC=OLD, num_warps=4, num_ctas=2 ** len(ctas))
    return Call(multicast, (1,), args), dict(out_desc=x)


def product_of_two_ctas() -> Trial:
    """Each has its rows of a, and both the same columns of b."""
    a, b, out = numbers(128, 64, dtype=torch.half), numbers(64, 32, dtype=torch.half, seed=1), torch.empty(128, 32)
    rows, sizes = [[1, 0]], dict(M=128, N=32, K=64, BK=32, SYNC=OLD, num_warps=4, num_ctas=2)
    args = dict(a_desc=descriptor(a, [128, 32], rows), b_desc=descriptor(b, [32, 32], [[0, 0]]), out=out, **sizes)
    args["layout"] = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0], cga_layout=rows)
    total = dict(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 32, 16], cga_layout=rows)
    args["total_layout"] = gl.NVMMADistributedLayout(**total)
    return Call(multiply, (1,), args), dict(out=a.float() @ b.float())


def gathered(counted: bool) -> Trial:
    x, out = numbers(512), torch.empty(512)
    args = dict(x=x, out=out, N=512, COUNTED=counted, num_warps=4)
    return Call(gather_and_arrive, (1,), args), dict(out=torch.where(torch.arange(512) < 507, x, 0))


TRIALS = {
    "1d": lambda: box(1, torch.float32, 3, "0"), "1d int64": lambda: box(1, torch.int64, -7, "0"),
    "3d NaN": lambda: box(3, torch.float16, 3, "nan"), "4d fp8": lambda: box(4, torch.float8_e4m3fn, -1, "0"),
    "4d bf16 NaN": lambda: box(4, torch.bfloat16, -1, "nan"), "5d int8": lambda: box(5, torch.int8, 2, "0"),
    "descriptors in a loop": lambda: made_by_the_kernel("zero"),
    "descriptors with NaN": lambda: made_by_the_kernel("nan"),
    "descriptors of two CTAs": lambda: made_by_the_kernel("zero", 2),
    "add": lambda: reduction("add", torch.float32), "add bf16": lambda: reduction("add", torch.bfloat16),
    "min": lambda: reduction("min", torch.int32), "max fp16": lambda: reduction("max", torch.float16),
    "xor": lambda: reduction("xor", torch.int64), "matmul of two CTAs": of_two_ctas,
    "multicast to 2": lambda: multicast_to([[0, 0]]), "multicast to 2 of 4": lambda: multicast_to([[1, 0], [0, 0]]),
    "product of two CTAs": product_of_two_ctas, "arrivals behind copies": lambda: gathered(True),
    "arrivals that are expected": lambda: gathered(False),
} | ({} if OLD else {"sums of 2": lambda: sums_of(2), "sums of 4": lambda: sums_of(4)})  # fmt: skip
CLUSTER_WAIT = r"barrier\.cluster\.wait"
# Of a trial: instructions that are dropped; which of them, all or the last; and what the machine says then.
MISTAKES = {
    ("descriptors in a loop", r"fence\.proxy\.tensormap"): (None, "race: .* with no fence.proxy.tensormap behind"),
    ("descriptors in a loop", r"tensormap\.replace.*box_dim"): (None, "tma: .* a box of .*, neither may be empty"),
    ("descriptors in a loop", r"tensormap\.cp_fenceproxy"): (None, "tma: .* no tensor map"),
    ("multicast to 2", r"barrier\.cluster"): (None, "race: .* initialised yet|barrier: .* no mbarrier was initialised"),
    ("multicast to 2", r"fence\.mbarrier_init"): (None, "race: .* may not have initialised yet"),
    ("product of two CTAs", r"barrier\.cluster\.(arrive|wait)\.aligned"): (None, "race|barrier"),
    ("arrivals behind copies", r"cp\.async\.mbarrier"): (None, "race: .* reads shared memory that .* wrote"),
} | ({} if triton.__version__ < "3.9" else {  # 3.8 sums them within each CTA
    ("sums of 2", r"barrier\.cluster"): (6, "race: .* (while reader|with no order|may still access)|barrier"),
    ("sums of 2", r"barrier\.cluster\.(arrive|wait)"): (None, "race|uninitialised"),
})  # fmt: skip


def judgement(name: str) -> str:
    launch, expected = TRIALS[name]()
    return str(check(*vars(launch).values(), expected=expected, seeds=SEEDS))


def without(name: str, pattern: str) -> list[str]:
    """Return what the machine says under two orders of events, where matching instructions do nothing."""
    launch, _ = TRIALS[name]()
    kernel, faults = compiled(launch), []
    program = copy.copy(kernel.program)
    found = [at for at, inst in enumerate(program.kernel.code) if re.match(pattern, inst.op)]
    count, _ = MISTAKES[name, pattern]
    dropped = set(found[-count:] if count else found)
    assert dropped
    program.steps = [Step(lambda w: None) if at in dropped else step for at, step in enumerate(program.steps)]
    for seed in range(2):
        machine, (x, *more) = Machine(seed, budget=200_000), launch.grid
        machine.launch(program, (x * program.cluster, *more), parameters(machine, launch, kernel))
        try:
            machine.run()
            faults.append("nothing")
        except FaultError as error:
            faults.append(f"{error.kind}: {error}")
    return faults


def everything() -> list[list[str]]:
    return [[name, judgement(name)] for name in TRIALS]


def all_mistakes() -> list[list]:
    return [[name, pattern, without(name, pattern)] for name, pattern in MISTAKES]


def test_kernels_are_exact(printed_elsewhere):
    judgements = printed_elsewhere("import json, test_tma_kernels as t; print(json.dumps(t.everything()))")
    assert [entry for entry in judgements if not entry[1].startswith("exact")] == []


def test_what_they_need(printed_elsewhere):
    for name, pattern, faults in printed_elsewhere(
        "import json, test_tma_kernels as t; print(json.dumps(t.all_mistakes()))"
    ):
        assert all(re.match(MISTAKES[name, pattern][1], text, re.DOTALL) for text in faults), (name, pattern, faults)


def wrong_bytes() -> str:
    launch, _ = multicast_to([[0, 0]], 64)
    return str(check(*vars(launch).values(), seeds=2))


def test_too_many_bytes_are_expected(printed_elsewhere):
    text = printed_elsewhere("import json, test_tma_kernels as t; print(json.dumps(t.wrong_bytes()))")
    assert text.startswith("hang: nobody can go on")
