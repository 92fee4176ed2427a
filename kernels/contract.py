"""What every kernel of this package promises, and the checks of that.

The contract is `out[M, N] = x[M, K] @ w[N, K].T`: weights lie as `nn.Linear` stores them, every row may be longer than
it looks (any row stride), products are summed in fp32, and `out` may be preallocated. This module multiplies nothing
itself.

Legend for shape suffixes: M rows of x, N rows of w (columns of out), K the summed dimension.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernels.tiles import Config

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Kernels count rows, columns and steps along K in 32 bits; the last tile may reach past the end by less than one tile.
# Offsets in memory, a row times its stride, are another matter: those are 64 bits wide.
MAX_SIZE = 2**31 - 2**10
EXAMPLE_SIZE = 4096  # a multiple of 16, as at the launches that count, so that Triton specialises alike


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel bound to its grid and arguments: the host function runs it, `kernels.inspect` compiles it. One object
    for both, so that what is inspected is what is launched."""

    kernel: Any  # triton.runtime.JITFunction, or its interpreted twin
    grid: tuple[int, ...]
    args: dict[str, Any] = field(repr=False)  # kernel arguments, constexprs, num_warps and num_stages

    def run(self, device: torch.device) -> Any:
        """Launch it. Returns the compiled kernel; None from the interpreter."""
        # Triton launches on the current device, which need not be the one the tensors are on. A no-op for the CPU
        # (interpreter).
        with torch.cuda.device(device if device.type == "cuda" else -1):
            return self.kernel[self.grid](**self.args)


@dataclass(frozen=True)
class Signals:
    """A link tells a kernel that waits through these which transfers are here: a flag for each, in their order."""

    flags: Tensor
    """int32, on the device."""
    wanted: int
    """A flag that has grown to this is up: the transfer's data may be read. Flags are never reset."""
    lost: Tensor
    """int32 [1]: the kernel leaves 1 + the number of the first flag that it gave up here, after `patience`."""
    patience: int
    """Microseconds that a wait may take; in the interpreter, looks at the flag."""


def check(x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
    """Return `out`, or a new contiguous [M, N] tensor when it is None. Raises what `validate` raises."""
    validate(x, w, out)
    return empty_out(x, w) if out is None else out


def empty_out(x: Tensor, w: Tensor) -> Tensor:
    return torch.empty((x.shape[0], w.shape[0]), dtype=x.dtype, device=x.device)


def validate(x: Tensor, w: Tensor, out: Tensor | None = None) -> None:
    """Refuse what breaks the contract; allocates nothing.

    TypeError: unsupported or unequal dtypes. ValueError: rank, inner sizes, device, sizes beyond MAX_SIZE, a last
    dimension that is not contiguous, a tensor that wants a gradient, an `out` of another shape, or one that overlaps x,
    w or itself.
    """
    _validate_matrix("x", x, x)
    _validate_matrix("w", w, x)
    (m, k), (n, w_k) = x.shape, w.shape
    if k != w_k:
        raise ValueError(
            f"x has K={k} but w has K={w_k}; "
            "w is [N, K] as nn.Linear stores it, pass w.T.contiguous() if yours is [K, N]"
        )
    if out is None:
        return
    _validate_matrix("out", out, x)
    if out.shape != (m, n):
        raise ValueError(f"out has shape {list(out.shape)}, x and w need [{m}, {n}]; allocate that or leave out=None")
    if m > 1 and n > 0 and out.stride(0) < n:
        raise ValueError(
            f"out has a row stride of {out.stride(0)}, so its rows of N={n} overlap; allocate it with torch.empty"
        )
    for name, tensor in (("x", x), ("w", w)):
        if overlap(out, tensor):
            raise ValueError(
                f"out shares memory with {name}, which is read while out is written; pass an out of its own"
            )


def _validate_matrix(name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.dtype not in DTYPES:
        raise TypeError(f"{name} is {tensor.dtype}, supported are bfloat16, float16 and float32; cast it with .to()")
    if tensor.dtype != x.dtype:
        raise TypeError(f"{name} is {tensor.dtype} but x is {x.dtype}; cast one of them with .to()")
    if tensor.dim() != 2:
        raise ValueError(
            f"{name} has shape {list(tensor.shape)}, rank 2 is needed; fold leading dimensions with .flatten(0, -2)"
        )
    if tensor.device != x.device:
        raise ValueError(f"{name} is on {tensor.device} but x is on {x.device}; move one of them with .to()")
    if max(tensor.shape) > MAX_SIZE:
        raise ValueError(
            f"{name} has shape {list(tensor.shape)}, sizes up to {MAX_SIZE} are supported; split the matrix"
        )
    if tensor.numel() and tensor.shape[1] > 1 and tensor.stride(1) != 1:
        raise ValueError(f"{name} has a last stride of {tensor.stride(1)}, 1 is needed; call .contiguous() first")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} requires a gradient, these kernels have no backward; use torch.no_grad() or {name}.detach()"
        )


def overlap(a: Tensor, b: Tensor) -> bool:
    """Return whether two matrices with contiguous rows may share an element: both lie in one storage, their spans meet,
    and they are not columns apart from each other in rows of one stride."""
    if not a.numel() or not b.numel() or a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return False
    if a.storage_offset() > b.storage_offset():
        a, b = b, a
    (rows, columns), row = a.shape, a.stride(0)
    ahead = b.storage_offset() - a.storage_offset()
    if ahead >= (rows - 1) * row + columns:
        return False
    return row != b.stride(0) or not (row and columns <= ahead % row <= row - b.shape[1])


def reason(require: Callable[..., Any], *args: Any) -> str | None:
    """Return None when `require(*args)` passes, else the message of the TypeError or ValueError it raised."""
    try:
        require(*args)
    except (TypeError, ValueError) as error:
        return str(error)
    return None


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """The host side of a Triton matmul, called as `matmul(x, w, out=None, config=None)`."""

    name: str
    """Its tiles stand in the tables of `kernels.tiles` under this name."""
    jit: Any
    """The Triton function, so that nobody times an interpreted one."""
    require: Callable[..., None]
    """(x, w, out=None): raises TypeError or ValueError for what the kernel cannot take here."""
    prepare: Callable[[Tensor, Tensor, Tensor, Config], KernelLaunch]
    """The launch for checked, non-empty tensors."""
    example: Callable[[Config, torch.dtype], KernelLaunch]
    """The launch to be compiled and looked at, like those that count: it is never run."""
    choose: Callable[[Tensor, Tensor], Config]
    """The configuration for x and w."""
    variants: Callable[[Config], Sequence[Config]] = lambda config: (config,)
    """The configurations that share a tile and are code of their own, or take other ways through it."""
    grid: dict[str, tuple] = field(default_factory=dict)
    """Values of fields of its configuration that `kernels.tune` tries."""

    def __call__(self, x: Tensor, w: Tensor, out: Tensor | None = None, config: Config | None = None) -> Tensor:
        """Write x[M, K] @ w[N, K].T to `out`, a new tensor when None, and return it. `config` overrides the checked-in
        table. Raises what `require` raises, and ValueError for a `config` that does not fit the shape."""
        self.require(x, w, out)
        out = empty_out(x, w) if out is None else out
        if not out.numel():
            return out
        if not x.shape[1]:
            return out.zero_()
        self.prepare(x, w, out, config or self.choose(x, w)).run(x.device)
        return out

    def describe(self, x: Tensor, w: Tensor) -> str:
        return str(self.choose(x, w))


def example_operands(dtype: torch.dtype, rows: int = EXAMPLE_SIZE) -> list[Tensor]:
    """Return x[rows, EXAMPLE_SIZE], w and out of a launch to be compiled. Their memory is never touched or
    committed."""
    return [torch.empty((height, EXAMPLE_SIZE), dtype=dtype) for height in (rows, EXAMPLE_SIZE, rows)]


def interpreted(kernel: Any) -> bool:
    """Return whether `kernel` is no real `triton.runtime.JITFunction`: then it may be checked, and never timed."""
    try:
        from triton.runtime import JITFunction
    except ImportError:
        return True
    return not isinstance(kernel, JITFunction)


def require_runnable(kernel: Any, x: Tensor) -> None:
    """Refuse what a Triton kernel cannot run here: tensors without numbers, a compiled kernel on CPU tensors, bf16 in
    the interpreter."""
    if x.untyped_storage().device.type == "meta":  # a fake one says the device that it stands for
        raise ValueError(f"x is a meta or fake tensor of shape {list(x.shape)}, without numbers; pass a real one")
    if interpreted(kernel):
        if x.dtype == torch.bfloat16:
            # NumPy has no bf16: the interpreter keeps the bits in uint16 and its tl.dot multiplies those.
            raise TypeError(
                "x is bfloat16, which Triton's interpreter multiplies wrongly; "
                "use float16 or float32 with TRITON_INTERPRET=1"
            )
    elif not x.is_cuda:
        raise ValueError(
            f"x is on {x.device}, a compiled Triton kernel needs a CUDA device; move the tensors there, "
            "or set TRITON_INTERPRET=1 before kernels is imported (correctness only, never timed)"
        )
