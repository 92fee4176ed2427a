"""The baselines, and other matmuls that are not ours: of libraries, and of a user's file, behind the same contract.

`cublas` is torch.mm on a CUDA device. In fp8 it is torch._scaled_mm, with scales by row and fast accumulation
(`kernels.fp8`), or its second version, with scales by block and without fast accumulation. `torch` is torch.mm on a CPU
(oneDNN or MKL), `numpy` NumPy's BLAS, `inductor` the best that torch.compile finds with max-autotune. They are measured
beside ours in the same rounds and are not tuned here. Two facts belong beside their numbers: PyTorch lets cuBLAS reduce
split-K partial sums in bf16 unless told otherwise, and the configuration string says when it does; Inductor writes its
own result and copies it to `out` where it cannot fuse the copy, and that copy is part of its time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy
import torch
from torch import Tensor
from torch.nn.functional import ScalingType

from kernels.contract import Scales, are_by_block, blocks_of, dtype_name, empty_out, refuse_fp8, validate
from kernels.tiles import capability
from roofline.operations import contenders

SCALES_FROM_CUDA = "12.9"
"""The first CUDA whose cuBLASLt has scales by block, and scales by row for a call of ours, as in torch's
ScaledBlas.cpp, _check_deepseek_support. Compared as text: there are two digits before the point."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """A matmul that is not ours, called as `matmul(x, w, out=None, scales=None)`, and with `candidate=NUMBER` where it
    has `candidates`. Raises what `require` raises."""

    run: Callable[..., Tensor]
    """Writes x[M, K] @ w[N, K].T to out[M, N], none of them 0, and returns it. In fp8 it gets scales, too."""
    describe: Callable[..., str]
    """(x, w, scales=None): the configuration for these inputs, in words."""
    candidates: Callable[..., int] | None = None
    """(x, w, out, scales=None): how many ways it has to multiply these inputs, which `run` and `describe` take as
    `candidate`. None: it has one."""
    device: str = ""
    """The device that it runs on, "cuda" or "cpu"; empty: any."""
    limits: Callable[[Tensor, Tensor, Scales | None], None] = lambda x, w, scales: None
    """Raises TypeError or ValueError for inputs of the contract that it does not take."""
    tolerance: float | None = None
    """Largest relative Frobenius error that is right, where it is not that of the dtype."""

    def require(self, x: Tensor, w: Tensor, out: Tensor | None = None, scales: Scales | None = None) -> None:
        validate(x, w, out, scales)
        if self.device:
            require_device(self.device, x)
        self.limits(x, w, scales)

    def __call__(
        self, x: Tensor, w: Tensor, out: Tensor | None = None, scales: Scales | None = None, **choice: int | Scales
    ) -> Tensor:
        self.require(x, w, out, scales)
        out = empty_out(x, w) if out is None else out
        if not out.numel() or not x.shape[1]:
            return out.zero_()
        if scales:
            choice["scales"] = scales
        return self.run(x, w, out, **choice)


def require_device(kind: str, x: Tensor) -> None:
    if x.device.type != kind:
        other = "torch" if kind == "cuda" else "cublas"
        raise ValueError(
            f"x is on {x.device}, this contender runs on {kind}; move the tensors or take the contender {other!r}"
        )


def limit_cublas(x: Tensor, w: Tensor, scales: Scales | None) -> None:
    if not scales:
        return
    require_hopper(x, w, "torch._scaled_mm")
    if not are_by_block(w, scales):
        return
    if (blocks := blocks_of(x.shape[1])) % 4:
        raise ValueError(
            f"w has K={x.shape[1]}, {blocks} blocks, of which torch's scaled_mm needs a multiple of 4; take blockwise"
        )
    require_cuda("block", "blockwise")


def require_cuda(scaled_by: str, other: str) -> None:
    """Raise ValueError where cuBLASLt does not know such scales yet, but the contender `other` does."""
    if torch.version.cuda < SCALES_FROM_CUDA:
        raise ValueError(
            f"torch's CUDA is {torch.version.cuda}, and cuBLASLt has scales by {scaled_by} from {SCALES_FROM_CUDA} on; "
            f"take {other}"
        )


def require_hopper(x: Tensor, w: Tensor, name: str) -> None:
    """Raise ValueError, in the words of the library `name`, unless this is a Hopper GPU and rows are of 16 bytes."""
    other, way_out = ("decode", "cast x and w to bfloat16") if x.itemsize == 1 else ("cublas", "take cublas")
    major, minor = capability(x.device)
    if (major, minor) != (9, 0):
        raise ValueError(f"{x.device} has compute capability {major}.{minor}, {name} needs 9.0 (Hopper); {way_out}")
    unit = 16 // x.itemsize
    for letter, size in (("N", len(w)), ("K", x.shape[1])):
        if size % unit:
            raise ValueError(f"w has {letter}={size}, no multiple of {unit}, as {name} wants; pad it or take {other}")


def limit_numpy(x: Tensor, w: Tensor, scales: Scales | None) -> None:
    if x.dtype != torch.float32:
        raise TypeError(f"x is {x.dtype}, NumPy's BLAS takes float32; cast it or take the contender 'torch'")


def run_torch(x: Tensor, w: Tensor, out: Tensor) -> Tensor:
    return torch.mm(x, w.T, out=out)


def run_cublas(x: Tensor, w: Tensor, out: Tensor, scales: Scales | None = None) -> Tensor:
    if not scales:
        return run_torch(x, w, out)
    if not are_by_block(w, scales):
        return torch._scaled_mm(x, w.T, *scales, out_dtype=out.dtype, use_fast_accum=True, out=out)
    x_scales, w_scales = scales
    columns = x_scales.as_strided(x_scales.shape, (1, len(x)))  # torch wants these strides of a single row, too
    of_x = ScalingType.BlockWise1x128.value
    of_w = ScalingType.BlockWise128x128.value
    return torch.ops.aten._scaled_mm_v2.out(
        x, w.T, [columns], [of_x], [], [w_scales.T], [of_w], [], None, out.dtype, out=out
    )


def run_numpy(x: Tensor, w: Tensor, out: Tensor) -> Tensor:
    numpy.matmul(x.numpy(), w.numpy().T, out=out.numpy())
    return out


def run_inductor(x: Tensor, w: Tensor, out: Tensor) -> Tensor:
    """The first call at a shape takes minutes. No CUDA graphs: they would copy inputs, and hide launches."""
    return compiled(multiply, fullgraph=True, mode="max-autotune-no-cudagraphs")(x, w, out)


def multiply(x: Tensor, w: Tensor, out: Tensor) -> Tensor:
    return out.copy_(x @ w.T)


@cache
def compiled(function: Callable, **options) -> Callable:
    """A function compiled by torch.compile, once.

    Past recompile_limit shapes (8), Dynamo would fall back to eager and be timed under the wrong name; `fullgraph`
    makes that an error, and the raised limit lets a whole table of shapes pass.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 256)
    return torch.compile(function, dynamic=False, **options)


def describe_torch(x: Tensor, w: Tensor, scales: Scales | None = None) -> str:
    if not x.is_cuda:
        return f"torch {torch.__version__}"
    reduced = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    split_k = ", bf16 split-K sums" if reduced and x.dtype == torch.bfloat16 else ""
    kinds = {"fp8": ", _scaled_mm by row, use_fast_accum", "fp8_block": ", scaled_mm by block"}
    kind = kinds.get(dtype_name(x, w, scales), "")
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}{split_k}{kind}"


def describe_numpy(x: Tensor, w: Tensor, scales: Scales | None = None) -> str:
    built_with = numpy.show_config(mode="dicts").get("Build Dependencies", {})
    blas = built_with.get("blas", {}).get("name", "unknown BLAS")
    return f"numpy {numpy.__version__} ({blas.removeprefix('scipy-')})"


cublas = Library(run=run_cublas, describe=describe_torch, device="cuda", limits=limit_cublas)
torch_cpu = Library(
    run=run_torch,
    describe=describe_torch,
    device="cpu",
    limits=lambda x, w, scales: refuse_fp8("torch", x),
)
numpy_cpu = Library(run=run_numpy, describe=describe_numpy, device="cpu", limits=limit_numpy)
inductor = Library(
    run=run_inductor,
    describe=lambda *_: f"torch {torch.__version__} max-autotune",
    limits=lambda x, w, scales: refuse_fp8("inductor", x),
)


@cache
def of_user(place: str, version: str = "") -> Library:
    """The matmul that `roofline.operations.contenders.parse` names.

    Raises ValueError where it cannot be loaded, and where its file is not of that `version` any more.
    """
    function = contenders.load(place, version)
    name = place.rpartition(":")[2]
    declared = getattr(function, "declaration", contenders.Declaration())
    limit = f"tolerance {declared.tolerance:g}" if declared.tolerance else ""
    config = ", ".join(filter(None, (declared.label, contenders.short(place, version), limit)))

    def limits(x: Tensor, w: Tensor, scales: Scales | None) -> None:
        if scales and not contenders.takes_scales(function):
            raise TypeError(f"{name} has no scales, and x is {x.dtype}; write {name}(x, w, out=None, scales=None)")
        if refusal := declared.refusal(len(x), len(w), x.shape[1], dtype_name(x, w, scales), x.device.type):
            raise ValueError(f"{name} {refusal}")

    def run(x: Tensor, w: Tensor, out: Tensor, **scales: Scales) -> Tensor:
        return function(x, w, out=out, **scales)

    return Library(run=run, describe=lambda *_: config, limits=limits, tolerance=declared.tolerance)
