"""The contract of every kernel of this package, and its checks.

The contract is `out[M, N] = x[M, K] @ w[N, K].T`: weights lie as `nn.Linear` stores them, rows may have any stride,
products are summed in fp32, and `out` may be preallocated.

In fp8 (e4m3) it is `out = x_scales[M, 1] * w_scales[1, N] * (x @ w.T)`, rounded to bf16 once: the two scales, fp32, are
given as `scales=(x_scales, w_scales)` exactly where x is fp8. Or scales are by block, one for 1 x 128 elements of x and
one for 128 x 128 of w: x_scales[M, K / 128] and w_scales[N / 128, K / 128], sizes rounded up. They multiply the
products of a block. These x_scales are column-major: those of a step along K are neighbours. `kernels.fp8` says how
exact sums are.

Legend for shape suffixes: M rows of x, N rows of w (columns of out), K the summed dimension.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from kernels.tiles import DTYPE_NAMES, DTYPES, Config, choose_for
from roofline.theory.work import SCALE_BLOCK

# Kernels count rows, columns and steps along K in 32 bits; the last tile may reach past the end by less than one tile.
# Offsets in memory, a row times its stride, are another matter: those are 64 bits wide.
MAX_SIZE = 2**31 - 2**10
FP8 = DTYPES["fp8"]
BLOCK = SCALE_BLOCK
"""Rows of w, and columns of x and w, that share a scale by block."""
Scales = tuple[Tensor, Tensor]
"""x_scales[M, 1] and w_scales[1, N], or by block x_scales[M, K / BLOCK] and w_scales[N / BLOCK, K / BLOCK]."""
EXAMPLE_SIZE = 4096  # a multiple of 16, as at the launches that count, so that Triton specialises alike


C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel bound to its grid and arguments: what `kernels.inspect` compiles is what the host function runs."""

    kernel: Any  # triton.runtime.JITFunction, or its interpreted twin
    grid: tuple[int, ...]
    args: dict[str, Any] = field(repr=False)  # kernel arguments, constexprs, num_warps and num_stages

    def run(self, device: torch.device) -> Any:
        """Launch it. Returns the compiled kernel; None from the interpreter."""
        # Triton launches on the current device, which need not be the one the tensors are on. -1 is a no-op (CPU).
        with torch.cuda.device(device if device.type == "cuda" else -1):
            return self.kernel[self.grid](**self.args)


@dataclass(frozen=True)
class Signals:
    """The flags by which a link tells a waiting kernel which transfers are here: one for each, in their order."""

    flags: Tensor
    """int32, on the device."""
    wanted: int
    """A flag that has grown to this is up: the transfer's data may be read. Flags are never reset."""
    lost: Tensor
    """int32 [1]: 1 + the number of the first flag that the kernel gave up, after `patience`."""
    patience: int
    """Microseconds that a wait may take."""


@dataclass(frozen=True, kw_only=True)
class Kernel(Generic[C]):
    """The host side of a Triton matmul, called as `matmul(x, w, out=None, scales=None, config=None)`. C is the class of
    its configurations."""

    name: str
    """Its tiles stand in the tables of `kernels.tiles` under this name."""
    require: Callable[..., None]
    """(x, w, out=None, scales=None): raises TypeError or ValueError for what the kernel cannot take here."""
    prepare: Callable[..., KernelLaunch]
    """(x, w, out, config, scales=None): the launch for checked, non-empty tensors."""
    by_block: bool = False
    """Whether its scales are by block."""
    variants: Callable[[C], Sequence[C]] = lambda config: (config,)
    """The configurations of the same tile that compile to other code, or take other paths through it."""

    def __call__(
        self,
        x: Tensor,
        w: Tensor,
        out: Tensor | None = None,
        scales: Scales | None = None,
        config: C | None = None,
    ) -> Tensor:
        """Write x[M, K] @ w[N, K].T to `out`, a new tensor when None, and return it. `config` overrides the checked-in
        table. Raises what `require` raises, and ValueError for a `config` that does not fit the shape."""
        self.require(x, w, out, scales)
        if out is None:
            out = x.new_empty((len(x), self.columns(w)), dtype=result_dtype(x.dtype))
        if out.numel() and x.shape[1]:
            self.prepare(x, w, out, config or self.choose(x, w), scales).run(x.device)
            return out
        return out.zero_()

    def columns(self, w: Tensor) -> int:
        """The width of `out`."""
        return len(w)

    def choose(self, x: Tensor, w: Tensor) -> C:
        """The configuration for x and w."""
        return cast(C, choose_for(self.name, x, w))  # under a kernel's name stand configurations of its own class

    def describe(self, x: Tensor, w: Tensor, scales: Scales | None = None) -> str:
        return str(self.choose(x, w))

    def example(self, config: C, dtype: torch.dtype, rows: int = EXAMPLE_SIZE) -> KernelLaunch:
        """A launch to be compiled and inspected, like those that count: it is never run."""
        x, w, out = example_operands(dtype, rows)
        scales = empty_scales(x, w, self.by_block) if dtype == FP8 else None
        return self.prepare(x, w, out[:, : self.columns(w)], config, scales)


def example_operands(
    dtype: torch.dtype, m: int = EXAMPLE_SIZE, n: int = EXAMPLE_SIZE, k: int = EXAMPLE_SIZE
) -> tuple[Tensor, Tensor, Tensor]:
    """x[m, k], w[n, k] and out of a launch to be compiled. Their memory is never touched."""
    x = torch.empty((m, k), dtype=dtype)
    w = torch.empty((n, k), dtype=dtype)
    return x, w, empty_out(x, w)


def example_signals(count: int) -> Signals:
    """So many flags of a launch to be compiled."""
    flags = torch.empty(count, dtype=torch.int32)
    return Signals(flags, 1, flags[:1], 1)


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of `out` for x and w of `dtype`."""
    return torch.bfloat16 if dtype == FP8 else dtype


def empty_out(x: Tensor, w: Tensor, **kind) -> Tensor:
    """A new `out` for x and w."""
    return x.new_empty((len(x), len(w)), dtype=result_dtype(x.dtype), **kind)


def empty_scales(x: Tensor, w: Tensor, by_block: bool) -> Scales:
    """New scales for x and w, by block or by row."""
    (m, k) = x.shape
    n = len(w)
    of_x, of_w = (1, m), (1, n)
    if by_block:
        of_x, of_w = (blocks_of(k), m), (blocks_of(n), blocks_of(k))
    return x.new_empty(of_x, dtype=torch.float32).T, x.new_empty(of_w, dtype=torch.float32)


def scale_arguments(scales: Scales | None) -> dict[str, Tensor | None]:
    """The arguments of a kernel for its scales: None in all dtypes but fp8."""
    x_scales, w_scales = scales or (None, None)
    return {"x_scales_ptr": x_scales, "w_scales_ptr": w_scales}


def are_by_block(w: Tensor, scales: Scales) -> bool:
    """Whether scales are by block. They are by row where their shapes fit both: N is 1, and K is no longer than a
    block."""
    x_scales, w_scales = scales
    return (x_scales.shape[1], *w_scales.shape) != (1, 1, len(w))


def dtype_name(x: Tensor, w: Tensor, scales: Scales | None = None) -> str:
    """The name of the dtype of x, with its scales, in options and case ids."""
    return "fp8_block" if scales and are_by_block(w, scales) else DTYPE_NAMES[x.dtype]


def blocks_of(size: int) -> int:
    return -(-size // BLOCK)


def refuse_fp8(name: str, x: Tensor) -> None:
    """Raise TypeError, in the words of the contender `name`, where x is fp8."""
    if x.dtype == FP8:
        raise TypeError(
            f"x is {x.dtype}, which {name} does not multiply; take cublas, persistent, warpgroup or, of few rows, "
            "decode, or cast x and w to bfloat16"
        )


def validate(x: Tensor, w: Tensor, out: Tensor | None = None, scales: Scales | None = None) -> None:
    """Refuse what breaks the contract; allocate nothing.

    TypeError: unsupported or unequal dtypes, fp8 without scales, or scales of another dtype. ValueError: rank, inner
    sizes, device, sizes beyond MAX_SIZE, a last dimension that is not contiguous, a tensor that wants a gradient, an
    `out` of another shape, or one that overlaps itself, or lies in the memory of x or w from their first element to
    their last; scales of another shape or device, or that do not lie without gaps. Nobody looks at their values.
    """
    for name, matrix in (("x", x), ("w", w), ("out", out)):
        if matrix is None:
            continue
        if matrix.dtype not in DTYPE_NAMES:
            raise TypeError(
                f"{name} is {matrix.dtype}, supported are bfloat16, float16 and float32, and float8_e4m3fn with "
                "scales; cast it with .to()"
            )
        wanted = result_dtype(x.dtype) if name == "out" else x.dtype
        if matrix.dtype != wanted:
            raise TypeError(
                f"{name} is {matrix.dtype} but x is {x.dtype}, beside which {name} is {wanted}; cast one with .to()"
            )
        if problem := _problem(matrix, x.device):
            raise ValueError(f"{name} {problem}")
    (m, k) = x.shape
    (n, w_k) = w.shape
    if k != w_k:
        raise ValueError(
            f"x has K={k} but w has K={w_k}; w is [N, K] as nn.Linear stores it, pass w.T.contiguous() if it is [K, N]"
        )
    _validate_scales(x, w, scales)
    if out is None:
        return
    if out.shape != (m, n):
        raise ValueError(f"out has shape {[*out.shape]}, x and w need [{m}, {n}]; allocate that or leave out=None")
    row = out.stride(0)
    if m > 1 and n > 0 and row < n:
        raise ValueError(f"out has a row stride of {row}, so its rows of N={n} overlap; allocate it with torch.empty")
    for name, matrix in (("x", x), ("w", w)):
        if overlap(out, matrix):
            raise ValueError(
                f"out shares memory with {name}, or lies between rows of it, and {name} is read while out is written; "
                "pass an out of its own"
            )


def _validate_scales(x: Tensor, w: Tensor, scales: Scales | None) -> None:
    m = len(x)
    n = len(w)
    if (scales is None) == (x.dtype == FP8):
        problem = "needs scales" if scales is None else "has no scales"
        raise TypeError(f"x is {x.dtype}, which {problem}: give scales=(x_scales[{m}, 1], w_scales[1, {n}]) beside fp8")
    if scales is None:
        return
    blocks = blocks_of(x.shape[1])
    by_row = (m, 1), (1, n)
    by_block = (m, blocks), (blocks_of(n), blocks)
    wanted = by_block if tuple(factors.shape for factors in scales) == by_block else by_row
    for name, factors, shape in zip(("x_scales", "w_scales"), scales, wanted, strict=True):
        if factors.dtype != torch.float32:
            raise TypeError(f"{name} is {factors.dtype}, scales are float32; cast it with .to()")
        if factors.shape != shape:
            raise ValueError(
                f"{name} has shape {[*factors.shape]}, a scale for each row needs {[*shape]}, and both by block "
                f"{[*by_block[0]]} and {[*by_block[1]]}; reshape it"
            )
        if factors.device != x.device:
            raise ValueError(f"{name} is on {factors.device} but x is on {x.device}; move one of them with .to()")
        if wanted is by_block and name == "x_scales":
            if not factors.T.is_contiguous():
                raise ValueError("x_scales by block lie by columns; take x_scales.T.contiguous().T")
        elif not factors.is_contiguous():
            raise ValueError(f"{name} is not contiguous; call .contiguous() first")


def _problem(matrix: Tensor, device: torch.device) -> str | None:
    """How one matrix breaks the contract, in words, its dtype aside; None if it does not."""
    shape = [*matrix.shape]
    if len(shape) != 2:
        return f"has shape {shape}, rank 2 is needed; fold leading dimensions with .flatten(0, -2)"
    if matrix.device != device:
        return f"is on {matrix.device} but x is on {device}; move one of them with .to()"
    if max(shape) > MAX_SIZE:
        return f"has shape {shape}, sizes up to {MAX_SIZE} are supported; split the matrix"
    if matrix.numel() and shape[1] > 1 and matrix.stride(1) != 1:
        return f"has a last stride of {matrix.stride(1)}, 1 is needed; call .contiguous() first"
    if matrix.requires_grad and torch.is_grad_enabled():
        return "requires a gradient, these kernels have no backward; use torch.no_grad() or .detach() it"
    return None


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two matrices with contiguous rows lie in one storage, and one begins before the other ends."""
    if not a.numel() or not b.numel() or a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return False
    first, second = sorted((a, b), key=Tensor.storage_offset)
    (rows, columns) = first.shape
    begin = first.storage_offset()
    return second.storage_offset() < begin + (rows - 1) * first.stride(0) + columns


def interpreted() -> bool:
    """Whether Triton's functions are interpreted in this process: then they may be checked, and never timed."""
    import triton  # vendors need no Triton

    return not isinstance(triton.language.cdiv, triton.JITFunction)  # one of its own, decorated as it was imported


def require_runnable(x: Tensor) -> None:
    """Refuse what a Triton kernel cannot run here: a compiled kernel on CPU tensors, bf16 in the interpreter."""
    if not interpreted():
        if not x.is_cuda:
            raise ValueError(
                f"x is on {x.device}, a compiled Triton kernel needs a CUDA device; move the tensors there, or set "
                "TRITON_INTERPRET=1 before kernels is imported (correctness only, never timed)"
            )
    elif result_dtype(x.dtype) == torch.bfloat16:  # NumPy has none: the interpreter computes with its bits in uint16
        raise TypeError(
            f"x is {x.dtype}, which Triton's interpreter multiplies wrongly; use float16 or float32, or unset "
            "TRITON_INTERPRET on a GPU"
        )
