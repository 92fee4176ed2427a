"""Flash attention for Hopper, forward and backward: out = softmax(q @ k.T * width**-0.5) @ v, head by head.

q, k, v and out are [batch, heads, length, width], contiguous. A program owns a block of queries (of keys, for their
gradients) and meets the other side block by block, so that the scores of a row never leave the chip: all that is kept
beside the tensors is lse[batch, heads, length], the logarithm of each row's sum of exponentials, in fp32. Blocks on
the diagonal, and the last one where the length is ragged, have loops of their own: the long loops carry no mask. TMA
reads zeros beyond the length of a head and stores nothing there.

Wins where lengths are thousands, for which matmuls outweigh the exponentials: their results are rescaled in registers,
never stored. On an H200, at width 128, it takes 0.5 to 0.7 of the time of FlashAttention-2 (README.md). Loses
at few queries, as in decoding, whose grid is a handful of programs; and to cuDNN, which has warps of their own for
loads, softmax and matmuls: it takes 1.1 to 1.3 of that one's time. The backward computes scores twice, for keys and for
queries, 7 matmuls where atomic sums of dq would do with 5: results are the same to the bit from run to run.

Sources: T. Dao, "FlashAttention-2" (https://arxiv.org/abs/2307.08691), loops and lse; the order of heads and blocks is
that of FlashAttention-3's scheduler (longest first, as many heads at a time as L2 holds the keys and values of).
"""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

from math import e, log2

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.contract import KernelLaunch, interpreted, require_runnable
from kernels.hopper import TMA_ALIGNMENT_BYTES
from kernels.tiles import capability
from roofline.theory.data import tables_of

LOG2_E = tl.constexpr(log2(e))
WIDTHS = 16, 32, 64, 128
L2_BYTES = 32 * 2**20
"""Bytes of keys and values that programs read at a time, as in FlashAttention-3's scheduler (hopper/flash_api.cpp)."""
DELTA_ROWS = 64
"""Rows of a program of `delta_kernel`."""


@triton.jit
def place_of(L, heads, GROUP, BLOCK: tl.constexpr, DESCENDING: tl.constexpr):
    """The head of a program and the first row of its block. GROUP heads run at a time, block by block."""
    blocks, program = tl.cdiv(L, BLOCK), tl.program_id(0)
    first = program // (GROUP * blocks) * GROUP
    group = min(heads - first, GROUP)
    inside = program - first * blocks
    block = inside // group
    return first + inside % group, (blocks - 1 - block if DESCENDING else block) * BLOCK


@triton.jit
def read(rows_of, head, row, L, ROWS: tl.constexpr, WIDTH: tl.constexpr, TMA: tl.constexpr, INSIDE: tl.constexpr):
    """A block of rows of a head, [ROWS, WIDTH], with zeros beyond the length unless all are INSIDE.

    Blocks that stay are read by pointers: a TMA load outside of a loop has an mbarrier of its own, whose bytes Triton
    (3.7.1) gives to the loop's TMA buffers later, with no proxy fence between.
    """
    if TMA:
        return rows_of.load([head, row, 0]).reshape(ROWS, WIDTH)
    else:
        rows = row + tl.arange(0, ROWS)[:, None]
        place = rows_of + head.to(tl.int64) * L * WIDTH + rows * WIDTH + tl.arange(0, WIDTH)
        return tl.load(place) if INSIDE else tl.load(place, mask=rows < L, other=0.0)


@triton.jit
def write(rows_of, head, row, values, L, TMA: tl.constexpr, INSIDE: tl.constexpr):
    """Round and store a block of rows of a head, as far as the length goes."""
    if TMA:
        rows_of.store([head, row, 0], values.to(rows_of.dtype).reshape(rows_of.block_shape))
    else:
        rows, width = row + tl.arange(0, values.shape[0])[:, None], tl.arange(0, values.shape[1])
        place = rows_of + (head.to(tl.int64) * L + rows) * values.shape[1] + width
        tl.store(place, values.to(rows_of.dtype.element_ty), mask=None if INSIDE else rows < L)


@triton.jit
def seen(m0, n0, L, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN: tl.constexpr, CAUSAL: tl.constexpr):
    """mask[BLOCK_M, BLOCK_N] of the keys from n0 that each of the queries from m0 attends to."""
    m, n = m0 + tl.arange(0, BLOCK_M)[:, None], n0 + tl.arange(0, BLOCK_N)[None, :]
    if CAUSAL:
        return n <= m if EVEN else (n <= m) & (n < L)
    else:
        return n < L


@triton.jit(do_not_specialize=["heads", "GROUP"])
def forward_kernel(
    q_ptr, k_of, v_of, out_of, lse_ptr, scale, L, heads, GROUP, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, TMA: tl.constexpr, EVEN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    head, start = place_of(L, heads, GROUP, BLOCK_M, CAUSAL)
    scale *= LOG2_E  # powers of two are what the hardware has
    q = read(q_ptr, head, start, L, BLOCK_M, WIDTH, False, EVEN)
    highest, total = tl.full([BLOCK_M], -float("inf"), tl.float32), tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    end = min(start + BLOCK_M, L) if CAUSAL else L
    whole = (start if CAUSAL else L) // BLOCK_N * BLOCK_N
    for masked in tl.static_range(2 if CAUSAL or not EVEN else 1):
        for n0 in range(whole if masked else 0, end if masked else whole, BLOCK_N):
            k = read(k_of, head, n0, L, BLOCK_N, WIDTH, TMA, EVEN or not masked)
            scores = tl.dot(q, k.T, input_precision="ieee")
            if masked:
                scores = tl.where(seen(start, n0, L, BLOCK_M, BLOCK_N, EVEN, CAUSAL), scores, -float("inf"))
            higher = tl.maximum(highest, tl.max(scores, 1) * scale)
            p = tl.exp2(scores * scale - higher[:, None])
            shrunk = tl.exp2(highest - higher)
            total = total * shrunk + tl.sum(p, 1)
            v = read(v_of, head, n0, L, BLOCK_N, WIDTH, TMA, EVEN or not masked)
            acc = tl.dot(p.to(v.dtype), v, acc * shrunk[:, None], input_precision="ieee")
            highest = higher
    write(out_of, head, start, acc / total[:, None], L, TMA, EVEN)
    m, lse = start + tl.arange(0, BLOCK_M), (highest + tl.log2(total)) / LOG2_E
    tl.store(lse_ptr + head.to(tl.int64) * L + m, lse, mask=m < L)


@triton.jit
def delta_kernel(out_ptr, grad_ptr, delta_ptr, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Store the sums of out * grad along each row."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place, inside = row[:, None] * WIDTH + tl.arange(0, WIDTH), (row < rows)[:, None]
    out, grad = tl.load(out_ptr + place, mask=inside, other=0.0), tl.load(grad_ptr + place, mask=inside, other=0.0)
    tl.store(delta_ptr + row, tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1), mask=row < rows)


@triton.jit(do_not_specialize=["heads", "GROUP"])
def dkdv_kernel(
    q_of, k_ptr, v_ptr, grad_of, dk_of, dv_of, lse_ptr, delta_ptr, scale, L, heads, GROUP, WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TMA: tl.constexpr, EVEN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Scores are [keys, queries]. Queries beyond the length are zeros, and so is what they add."""
    head, start = place_of(L, heads, GROUP, BLOCK_N, False)
    lse_ptr += head.to(tl.int64) * L
    delta_ptr += head.to(tl.int64) * L
    k = read(k_ptr, head, start, L, BLOCK_N, WIDTH, False, EVEN)
    v = read(v_ptr, head, start, L, BLOCK_N, WIDTH, False, EVEN)
    dk, dv = tl.zeros([BLOCK_N, WIDTH], tl.float32), tl.zeros([BLOCK_N, WIDTH], tl.float32)
    for m0 in range(start // BLOCK_M * BLOCK_M if CAUSAL else 0, L, BLOCK_M):
        m = m0 + tl.arange(0, BLOCK_M)
        q = read(q_of, head, m0, L, BLOCK_M, WIDTH, TMA, EVEN)
        lse = tl.load(lse_ptr + m) if EVEN else tl.load(lse_ptr + m, mask=m < L, other=0.0)
        p = tl.exp2(tl.dot(k, q.T, input_precision="ieee") * (scale * LOG2_E) - (lse * LOG2_E)[None, :])
        if CAUSAL and m0 < start + BLOCK_N:
            p = tl.where(start + tl.arange(0, BLOCK_N)[:, None] <= m[None, :], p, 0.0)
        grad = read(grad_of, head, m0, L, BLOCK_M, WIDTH, TMA, EVEN)
        dv = tl.dot(p.to(grad.dtype), grad, dv, input_precision="ieee")
        delta = tl.load(delta_ptr + m) if EVEN else tl.load(delta_ptr + m, mask=m < L, other=0.0)
        dscores = p * (tl.dot(v, grad.T, input_precision="ieee") - delta[None, :])
        dk = tl.dot(dscores.to(q.dtype), q, dk, input_precision="ieee")
    write(dv_of, head, start, dv, L, TMA, EVEN)
    write(dk_of, head, start, dk * scale, L, TMA, EVEN)


@triton.jit(do_not_specialize=["heads", "GROUP"])
def dq_kernel(
    q_ptr, k_of, v_of, grad_ptr, dq_of, lse_ptr, delta_ptr, scale, L, heads, GROUP, WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TMA: tl.constexpr, EVEN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    head, start = place_of(L, heads, GROUP, BLOCK_M, CAUSAL)
    m, base = start + tl.arange(0, BLOCK_M), head.to(tl.int64) * L
    lse = tl.load(lse_ptr + base + m, mask=m < L, other=0.0) * LOG2_E
    delta = tl.load(delta_ptr + base + m, mask=m < L, other=0.0)
    q = read(q_ptr, head, start, L, BLOCK_M, WIDTH, False, EVEN)
    grad = read(grad_ptr, head, start, L, BLOCK_M, WIDTH, False, EVEN)
    dq, end = tl.zeros([BLOCK_M, WIDTH], tl.float32), min(start + BLOCK_M, L) if CAUSAL else L
    whole = (start if CAUSAL else L) // BLOCK_N * BLOCK_N
    for masked in tl.static_range(2 if CAUSAL or not EVEN else 1):
        for n0 in range(whole if masked else 0, end if masked else whole, BLOCK_N):
            k = read(k_of, head, n0, L, BLOCK_N, WIDTH, TMA, EVEN or not masked)
            p = tl.exp2(tl.dot(q, k.T, input_precision="ieee") * (scale * LOG2_E) - lse[:, None])
            if masked:
                p = tl.where(seen(start, n0, L, BLOCK_M, BLOCK_N, EVEN, CAUSAL), p, 0.0)
            v = read(v_of, head, n0, L, BLOCK_N, WIDTH, TMA, EVEN or not masked)
            dscores = p * (tl.dot(grad, v.T, input_precision="ieee") - delta[:, None])
            dq = tl.dot(dscores.to(k.dtype), k, dq, input_precision="ieee")
    write(dq_of, head, start, dq * scale, L, TMA, EVEN)


KERNELS = {"forward": forward_kernel, "dkdv": dkdv_kernel, "dq": dq_kernel}
"""{direction: its kernel}. A backward pass launches `dkdv` and `dq`, behind `delta_kernel`."""


BLOCKS = tables_of(__file__, "kernel.toml")
"""{GPU: {direction: sizes of blocks, warps and stages}}; on Hopper by width, too."""


def launch(direction: str, tensors: dict[str, Tensor], causal: bool, tma: bool | None = None) -> KernelLaunch:
    """The launch of `direction` on `tensors`, {name of the argument: tensor}. `tma` says whether tensors of arguments
    named `_of` are moved by TMA; None: on Hopper."""
    q = tensors["q_ptr" if "q_ptr" in tensors else "q_of"]
    batch, heads, length, width = q.shape
    tma = (q.device.type != "cuda" or capability(q.device)[0] == 9) if tma is None else tma
    blocks = BLOCKS["hopper"][direction][str(max(width, 64))] if tma else BLOCKS["elsewhere"][direction]
    block_m = blocks["BLOCK_M"]
    block_n = blocks["BLOCK_N"]
    args = tensors | blocks | dict(scale=width**-0.5, L=length, heads=batch * heads)
    args |= dict(WIDTH=width, TMA=tma, EVEN=length % max(block_m, block_n) == 0, CAUSAL=causal)
    args["GROUP"] = max(1, L2_BYTES // (2 * length * width * q.element_size()))
    for name, tensor in tensors.items():
        if tma and name.endswith("_of"):
            rows = block_n if name in ("k_of", "v_of", "dk_of", "dv_of") else block_m
            sizes = [batch * heads, length, width]
            args[name] = TensorDescriptor(tensor, sizes, [length * width, width, 1], [1, rows, width])
    programs = -(-length // (block_n if direction == "dkdv" else block_m)) * batch * heads
    return KernelLaunch(KERNELS[direction], (programs,), args)


def launch_delta(out: Tensor, grad: Tensor, delta: Tensor) -> KernelLaunch:
    """The launch that stores the sums of out * grad along rows to `delta`, on which the backward depends."""
    rows = delta.numel()
    args = dict(out_ptr=out, grad_ptr=grad, delta_ptr=delta, rows=rows, WIDTH=out.shape[-1], BLOCK=DELTA_ROWS)
    return KernelLaunch(delta_kernel, (-(-rows // DELTA_ROWS),), args)


def require(q: Tensor, k: Tensor, v: Tensor, **others: Tensor) -> None:
    """Refuse what the kernels cannot take here: ValueError for a width, a dtype, or tensors (`others` by name too) that
    are not all like q, contiguous, from a multiple of 16 bytes on; TypeError for bf16 in the interpreter."""
    require_runnable(q)
    if q.ndim != 4 or q.shape[-1] not in WIDTHS or not q.numel():
        raise ValueError(
            f"q has shape {[*q.shape]}, [batch, heads, length, width] is needed, none of them 0, and a width of "
            f"{', '.join(map(str, WIDTHS))}; fold, split or pad it"
        )
    dtypes = [torch.float16, torch.float32 if interpreted() else torch.bfloat16]
    if q.dtype not in dtypes:
        raise ValueError(f"q is {q.dtype}, the kernels take {dtypes[0]} and {dtypes[1]} here; cast it with .to()")
    for name, tensor in {"q": q, "k": k, "v": v, **others}.items():
        if (tensor.shape, tensor.dtype, tensor.device) != (q.shape, q.dtype, q.device):
            raise ValueError(
                f"{name} is {[*tensor.shape]} {tensor.dtype} on {tensor.device}, q is {[*q.shape]} {q.dtype} on "
                f"{q.device}; make them alike"
            )
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {tensor.stride()}, rows without gaps are needed; call .contiguous()")
        if past := tensor.data_ptr() % TMA_ALIGNMENT_BYTES:
            raise ValueError(f"{name} starts {past} bytes past a multiple of 16, which TMA needs; .clone() it")


def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """out, like q, and lse[batch, heads, length] in fp32. Raises what `require` raises."""
    require(q, k, v)
    out = torch.empty_like(q)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    launch("forward", dict(q_ptr=q, k_of=k, v_of=v, out_of=out, lse_ptr=lse), causal).run(q.device)
    return out, lse


def backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v for `grad`, that of out, from the results of `forward`. Raises what `require`
    raises."""
    require(q, k, v, out=out, grad=grad)
    dq, dk, dv = (torch.empty_like(q) for _ in range(3))
    sums = dict(lse_ptr=lse, delta_ptr=torch.empty_like(lse))
    launch_delta(out, grad, sums["delta_ptr"]).run(q.device)
    launch("dkdv", sums | dict(q_of=q, k_ptr=k, v_ptr=v, grad_of=grad, dk_of=dk, dv_of=dv), causal).run(q.device)
    launch("dq", sums | dict(q_ptr=q, k_of=k, v_of=v, grad_ptr=grad, dq_of=dq), causal).run(q.device)
    return dq, dk, dv


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        out, lse = forward(q, k, v, causal)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.causal = causal
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return *backward(*ctx.saved_tensors, grad.contiguous(), ctx.causal), None


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """out, like q, in the graph of autograd: for the backward it keeps q, k, v, out and lse. Raises what `require`
    raises."""
    return _Attention.apply(q, k, v, causal)
