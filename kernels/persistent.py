"""The matmul for Hopper at compute-bound M: TMA descriptors, one program per SM, subtiled epilogue.

out[M, N] = x[M, K] @ w[N, K].T. Host-made descriptors let the TMA unit copy whole blocks, so that no thread computes
addresses; it reads zeros outside the matrices, which covers ragged M, N and K. As many programs as there are SMs stay
for the whole kernel and take tile after tile. The epilogue is stored in two halves: that halves its shared memory, and
128x256x64 gets a fourth stage into the 232,448 bytes of a Hopper SM (4 stages need 262,176 bytes with a whole epilogue,
229,408 with a halved one).

Wins at M of a few hundred and more in bf16 and fp16, where reuse of a 128x256 tile is what the tensor cores need; tile,
group, raster and whether the last wave is shared out along K (kernels.stream_tail) are the model's of
roofline.theory.waves. Loses at small M: the weights are read once, and a tile of 64 rows is mostly padding. Needs rows
of a multiple of 16 bytes. Descriptors are encoded anew at each launch, which costs tens of microseconds of host time.

Sources: the persistent grid and the fourth stage are those of Triton's persistent matmul tutorial and of
https://github.com/meta-pytorch/tritonbench/pull/1149; grouping after the L2 model of DeepGEMM (heuristics/sm90.hpp), by
which 132 SMs read the fewest rows per wave with groups of 16 for 128x256 and of 8 for 256x128.
"""

# ruff: noqa: N803 (kernel arguments: sizes and compile-time constants in capitals, as Triton code has them)

from dataclasses import replace
from functools import cache, partial

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.contract import KernelLaunch, example_operands, host, interpreted, reason, require_runnable, validate
from kernels.registry import Kernel, register
from kernels.stream_tail import CHUNK_N, add_sums, first_step, is_last, leave_sums, sharer_of
from kernels.tiles import Config, capability, choose_for
from kernels.workspace import workspace
from roofline.theory import waves

TMA_ALIGNMENT_BYTES = 16  # of base addresses and row strides; CUDA driver API, cuTensorMapEncodeTiled
TMA_STRIDE_LIMIT_BYTES = 2**40  # same source
INTERPRETED_PROGRAMS = 3  # fewer than there are tiles, so that the interpreter walks the persistent loop too
GRID: int | None = None  # programs in place of one an SM, for what tries small shapes (kernels.machine)


@triton.jit
def tile_corner(
    tile, tiles_m, tiles_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr, ALONG_N: tl.constexpr
):
    """First row and column of a tile. GROUP tiles along M (or N) share one sweep along the other dimension, see
    kernels.tiled."""
    if ALONG_N:
        grouped, swept = tiles_n, tiles_m
    else:
        grouped, swept = tiles_m, tiles_n
    group = tile // (GROUP * swept)
    height = min(grouped - group * GROUP, GROUP)
    inside = tile % (GROUP * swept)
    a = group * GROUP + inside % height
    b = inside // height
    if ALONG_N:
        m, n = b, a
    else:
        m, n = a, b
    return m * BLOCK_M, n * BLOCK_N


@triton.jit
def store_tile(out_desc, acc, m0, n0, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SUBTILE: tl.constexpr):
    """Round a tile's sums to the output's dtype and store them, in SUBTILE parts."""
    if SUBTILE == 1:
        out_desc.store([m0, n0], acc.to(out_desc.dtype))
    else:
        # Columns to the front, cut in two. A half is rounded and staged in shared memory while the other stays in
        # registers.
        halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        out_desc.store([m0, n0], left.to(out_desc.dtype))
        out_desc.store([m0, n0 + BLOCK_N // 2], right.to(out_desc.dtype))


@triton.jit(do_not_specialize=["M", "sharers"])  # they differ from shape to shape
def persistent_kernel(
    x_desc, w_desc, out_desc, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, ALONG_N: tl.constexpr, SUBTILE: tl.constexpr, FLATTEN: tl.constexpr,
    out_ptr=None, out_stride=None, sums_ptr=None, arrived_ptr=None, sharers=0,
    TAIL: tl.constexpr = False, CHUNK: tl.constexpr = 32,
):  # fmt: skip
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles = tiles_m * tiles_n
    whole = tiles // tl.num_programs(0) * tl.num_programs(0) if TAIL else tiles
    # Program p takes tiles p, p + programs, ...: what runs at the same time stays close together, as in a grid of
    # single tiles.
    for tile in tl.range(tl.program_id(0), whole, tl.num_programs(0), flatten=FLATTEN):
        m0, n0 = tile_corner(tile, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP, ALONG_N)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k0 in range(0, K, BLOCK_K):
            x = x_desc.load([m0, k0])
            w = w_desc.load([n0, k0])
            acc = tl.dot(x, w.T, acc, input_precision="ieee")
        store_tile(out_desc, acc, m0, n0, BLOCK_M, BLOCK_N, SUBTILE)
    if TAIL:
        # What is left is shared out along K, see kernels.stream_tail.
        sharer = tl.program_id(0)
        tile_steps = tl.cdiv(K, BLOCK_K)
        steps = (tiles - whole) * tile_steps
        begin, end = first_step(sharer, steps, sharers), first_step(sharer + 1, steps, sharers)
        for second in range(2):
            tile = begin // tile_steps + second
            first_k = tl.maximum(begin, tile * tile_steps) - tile * tile_steps
            last_k = tl.minimum(end - tile * tile_steps, tile_steps)
            if (sharer < sharers) & (first_k < last_k):
                m0, n0 = tile_corner(whole + tile, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP, ALONG_N)
                acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
                for step in range(first_k, last_k):
                    x = x_desc.load([m0, step * BLOCK_K])
                    w = w_desc.load([n0, step * BLOCK_K])
                    acc = tl.dot(x, w.T, acc, input_precision="ieee")
                first = sharer_of(tile * tile_steps, steps, sharers)
                last = sharer_of(tile * tile_steps + tile_steps - 1, steps, sharers)
                if first == last:
                    store_tile(out_desc, acc, m0, n0, BLOCK_M, BLOCK_N, SUBTILE)
                else:
                    leave_sums(sums_ptr, acc, 2 * sharer + second, BLOCK_M, BLOCK_N)
                    if is_last(arrived_ptr, tile, last - first + 1):
                        add_sums(
                            sums_ptr, out_ptr, out_stride, m0, n0, M, N, tile, first, last, steps, tile_steps, sharers,
                            BLOCK_M, BLOCK_N, CHUNK,
                        )  # fmt: skip


def matmul(x: Tensor, w: Tensor, out: Tensor | None = None, config: Config | None = None) -> Tensor:
    """out[M, N] = x[M, K] @ w[N, K].T in bf16 or fp16 (fp32 in the interpreter); returns `out` (a new tensor when
    None).

    `config` overrides the checked-in table. Raises what `require` raises.
    """
    return host(x, w, out, require, lambda out: prepare(x, w, out, config or choose_for("persistent", x, w)))


def products(x: Tensor, w: Tensor, out: Tensor) -> Tensor:
    """As `matmul`, but `out` is fp32: for sums over parts of K."""
    require(x, w)
    require_tma("out", "N", *out.shape, out.stride(0), out)
    prepare(x, w, out, choose_for("persistent_sums", x, w)).run(x.device)
    return out


def require(x: Tensor, w: Tensor, out: Tensor | None = None, name: str = "persistent") -> None:
    """What `kernels.tiled.require` refuses, and what TMA cannot address, in the words of the kernel `name`.

    TypeError: fp32 outside the interpreter. ValueError: a GPU that is no Hopper, rows that are no multiple of 16 bytes
    or overlap, a base address that is no multiple of 16.
    """
    validate(x, w, out)
    require_hopper(x, name)
    (m, k), n = x.shape, w.shape[0]
    if m and n and k:  # else nothing is launched
        require_tma("x", "K", m, k, x.stride(0), x)
        require_tma("w", "K", n, k, w.stride(0), w)
        require_tma("out", "N", m, n, n if out is None else out.stride(0), x if out is None else out)


def require_hopper(x: Tensor, name: str) -> None:
    """TypeError or ValueError, in the words of the kernel `name`, unless this is a Hopper GPU and a dtype of its tensor
    cores, or the interpreter and a dtype of that."""
    require_runnable(persistent_kernel, x)
    if interpreted(persistent_kernel):
        return
    if (found := capability(x.device))[0] != 9:
        raise ValueError(
            f"{x.device} has compute capability {found[0]}.{found[1]}, {name} needs 9.x (Hopper); use kernels.tiled"
        )
    if x.dtype == torch.float32:
        raise TypeError(f"x is float32, {name} takes bfloat16 and float16 on a GPU; cast it or use kernels.tiled")


def require_tma(name: str, dim: str, rows: int, columns: int, row_stride: int, tensor: Tensor) -> None:
    """ValueError unless TMA can address `rows` rows of `columns` elements that lie `row_stride` elements apart."""
    size = tensor.element_size()
    unit = TMA_ALIGNMENT_BYTES // size
    if rows > 1:  # one row has no stride
        if row_stride < columns:
            raise ValueError(
                f"{name} has a row stride of {row_stride}, TMA needs {dim}={columns} or more; "
                "call .contiguous() or use kernels.tiled"
            )
        if row_stride % unit:
            what = f"{dim}={columns} is" if row_stride == columns else f"{name} has a row stride of {row_stride},"
            way_out = f"pad {dim}" if row_stride == columns else "pad the rows"
            raise ValueError(f"{what} not a multiple of {unit}: TMA needs 16-byte rows; {way_out} or use kernels.tiled")
        if row_stride * size >= TMA_STRIDE_LIMIT_BYTES:
            raise ValueError(
                f"{name} has a row stride of {row_stride * size} bytes, TMA's limit is 2**40; use kernels.tiled"
            )
    if past := tensor.data_ptr() % TMA_ALIGNMENT_BYTES:
        raise ValueError(
            f"{name} starts {past} bytes past a multiple of 16: TMA needs 16-byte addresses; "
            ".clone() it or use kernels.tiled"
        )


def describe(tensor: Tensor, block: tuple[int, int]) -> TensorDescriptor:
    """A host descriptor that reads zeros outside `tensor`. torch leaves the row stride of a single row to chance; TMA
    wants one."""
    rows, columns = tensor.shape
    unit = TMA_ALIGNMENT_BYTES // tensor.element_size()
    row_stride = tensor.stride(0) if rows > 1 else -(-columns // unit) * unit
    return TensorDescriptor(tensor, [rows, columns], [row_stride, 1], list(block))


def prepare(x: Tensor, w: Tensor, out: Tensor, config: Config) -> KernelLaunch:
    """The launch for checked, non-empty tensors."""
    if config.subtile not in (1, 2):
        raise ValueError(f"subtile={config.subtile}, the epilogue is stored in 1 or 2 parts; change the configuration")
    (m, k), n = x.shape, w.shape[0]
    tiles = -(-m // config.block_m) * -(-n // config.block_n)  # triton.cdiv takes microseconds
    args = dict(
        x_desc=describe(x, (config.block_m, config.block_k)),
        w_desc=describe(w, (config.block_n, config.block_k)),
        out_desc=describe(out, (config.block_m, config.block_n // config.subtile)),
        M=m, N=n, K=k,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
        GROUP=config.group_m, ALONG_N=config.raster == "n", SUBTILE=config.subtile, FLATTEN=config.flatten,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    left = tiles % programs(x.device)
    # Each has a step at least: one without would be counted among those whose sums are waited for.
    steps = left * -(-k // config.block_k)
    sharers = min(max(left, min(config.tail, programs(x.device))), steps)
    if not config.tail or not left or (steps + 1) * sharers > 2**31 - 1:  # which the kernel reckons with in 32 bits
        return KernelLaunch(persistent_kernel, (min(programs(x.device), tiles),), args)
    # Two slots for each program: it has parts of two tiles at most.
    sums, arrived = workspace(x.device, 2 * sharers * config.block_m * config.block_n, left)
    args |= dict(
        out_ptr=out, out_stride=out.stride(0), sums_ptr=sums, arrived_ptr=arrived, sharers=sharers, TAIL=True,
        CHUNK=min(CHUNK_N, config.block_n),
    )  # fmt: skip
    return KernelLaunch(persistent_kernel, (programs(x.device),), args)


def programs(device: torch.device) -> int:
    """As many programs as the GPU has SMs: a tile of this size leaves room for one per SM."""
    return GRID or (_sms(device) if device.type == "cuda" else INTERPRETED_PROGRAMS)


@cache
def _sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def variants(config: Config) -> list[Config]:
    """Tile after tile, one loop over tiles and K, and in both forms the last wave shared out."""
    return [replace(config, tail=tail, flatten=flatten) for tail in (0, 3) for flatten in (False, True)]


register(Kernel(
    name="persistent", run=matmul, why_not=partial(reason, require),
    config=lambda x, w: str(choose_for("persistent", x, w)),
    jit=persistent_kernel, prepare=prepare, variants=variants,
    example=lambda config, dtype: prepare(*example_operands(dtype), config), least_tma=(1, 1),
    modelled="sm90", tailed=True,
    grid=dict(num_stages=(3, 4, 5), subtile=(1, 2), group_m=waves.GROUPS, raster=("m", "n"), flatten=(False, True)),
))  # fmt: skip
register(Kernel(
    name="persistent_sums", jit=persistent_kernel, prepare=prepare, least_tma=(1, 1), beside_link=True,
    example=lambda config, dtype: prepare(*example_operands(dtype, out_dtype=torch.float32), config),
))  # fmt: skip
