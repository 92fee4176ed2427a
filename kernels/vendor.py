"""The baselines: matmuls of other libraries behind the same contract.

`cublas` is torch.mm on a CUDA device, `torch` the same call on a CPU, `numpy` NumPy's BLAS, `inductor` what
torch.compile finds with max-autotune. They are measured beside ours in the same rounds and are not tuned here; of the
libraries' global state only Dynamo's recompile limit is raised, and only once `inductor` runs. Two facts belong
beside their numbers: PyTorch lets cuBLAS reduce split-K partial sums in bf16 unless told otherwise, and the
configuration string says when it does; Inductor writes its own result and copies it to `out` where it cannot fuse the
copy, and that copy is part of its time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy
import torch
from torch import Tensor

from kernels.contract import check, validate


def mm(x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
    """Run torch.mm into `out`: cuBLAS on a CUDA device, oneDNN or MKL on a CPU. Raises what `kernels.contract.validate`
    raises."""
    out = check(x, w, out)
    return torch.mm(x, w.T, out=out)


def numpy_mm(x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
    """Run NumPy's matmul into `out`, fp32 on the CPU. TypeError for other dtypes, ValueError for other devices."""
    require_numpy(x, w, out)
    out = check(x, w, out)
    numpy.matmul(x.numpy(), w.numpy().T, out=out.numpy())
    return out


def inductor_mm(x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
    """Run torch.compile(mode="max-autotune-no-cudagraphs") of the same matmul. The first call at a shape takes
    minutes."""
    out = check(x, w, out)
    return _compiled()(x, w, out) if out.numel() and x.shape[1] else out.zero_()


@cache
def _compiled():
    # Past recompile_limit shapes (8), Dynamo would fall back to eager torch.mm and be timed under the wrong name;
    # fullgraph makes that an error, and the raised limit lets a whole table of shapes pass. No CUDA graphs: they would
    # copy inputs, and hide launches.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 256)
    return torch.compile(_mm_into, dynamic=False, fullgraph=True, mode="max-autotune-no-cudagraphs")


def _mm_into(x: Tensor, w: Tensor, out: Tensor) -> Tensor:
    return out.copy_(x @ w.T)


def require_device(kind: str, x: Tensor, w: Tensor, out: Tensor | None = None) -> None:
    validate(x, w, out)
    if x.device.type != kind:
        other = "torch" if kind == "cuda" else "cublas"
        raise ValueError(
            f"x is on {x.device}, this contender runs on {kind}; move the tensors or take the contender {other!r}"
        )


def require_numpy(x: Tensor, w: Tensor, out: Tensor | None = None) -> None:
    require_device("cpu", x, w, out)
    if x.dtype != torch.float32:
        raise TypeError(f"x is {x.dtype}, NumPy's BLAS takes float32; cast it or take the contender 'torch'")


def torch_config(x: Tensor, w: Tensor) -> str:
    if not x.is_cuda:
        return f"torch {torch.__version__}"
    reduced = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    split_k = ", bf16 split-K sums" if reduced and x.dtype == torch.bfloat16 else ""
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}{split_k}"


@cache
def numpy_config() -> str:
    blas = numpy.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {}).get("name", "unknown BLAS")
    return f"numpy {numpy.__version__} ({blas.removeprefix('scipy-')})"


@dataclass(frozen=True, kw_only=True)
class Library:
    """A matmul of another library, called as `matmul(x, w, out=None)`."""

    run: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    require: Callable[..., None]
    describe: Callable[[Tensor, Tensor], str]

    def __call__(self, x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
        return self.run(x, w, out)


cublas = Library(run=mm, require=partial(require_device, "cuda"), describe=torch_config)
torch_cpu = Library(run=mm, require=partial(require_device, "cpu"), describe=torch_config)
numpy_cpu = Library(run=numpy_mm, require=require_numpy, describe=lambda x, w: numpy_config())
inductor = Library(run=inductor_mm, require=validate, describe=lambda x, w: f"torch {torch.__version__} max-autotune")
