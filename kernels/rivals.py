"""Matmuls of other projects that people ask for beside cuBLAS: quack's and DeepSeek's DeepGEMM, behind the contract of
`kernels.vendor.Library`. They are not installed with the suite: `INSTALL` brings both.

quack (https://github.com/Dao-AILab/quack) is in CUTLASS's DSL and needs no nvcc. `quack` takes its own guess of a
configuration; `quack_tuned` times dozens at its first call for a shape, and is what our tuned entries are held against.
Without a GPU `compile_quack` compiles what the first would launch. DeepGEMM (https://github.com/deepseek-ai/DeepGEMM)
compiles its kernels with nvcc; its wheel is SGLang's, `sgl-deep-gemm`.
"""

import re
import subprocess
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

from torch import Tensor

from kernels.contract import Scales, dtype_name
from kernels.vendor import Library, require_hopper

INSTALL = "pip install -e '.[rivals]'"
NVCC = 12, 9
"""The first release of nvcc that DeepGEMM takes (its _C.so: "NVCC version must be at least 12.9")."""


def require_installed(package: str, name: str) -> None:
    if not find_spec(package):
        raise ValueError(f"{name} is not installed: {INSTALL}")


def version_of(package: str) -> str:
    """The version of the distribution that has `package`; a fork's is of another name."""
    return version(packages_distributions()[package][0])


def limit_quack(x: Tensor, w: Tensor, scales: Scales | None) -> None:
    if (dtype := dtype_name(x, w, scales)) not in ("bf16", "fp16"):
        raise TypeError(f"quack is here for bf16 and fp16, and these operands are {dtype}; take cublas")
    require_hopper(x, w, "quack")
    require_installed("quack", "quack")


def run_quack(x: Tensor, w: Tensor, out: Tensor, *, tuned: bool) -> Tensor:
    from quack.gemm_interface import gemm

    return gemm(x, w.T, out=out, tuned=tuned)


HOPPER = {"QUACK_ARCH": "sm_90", "CUTE_DSL_ARCH": "sm_90a"}
"""The environment in which quack compiles for a Hopper where there is none, before anything imports it."""


class NoDriverError(Exception):
    """Raised where quack asks the driver how many clusters fit, which is once the kernel is compiled."""


def compile_quack(x: Tensor, w: Tensor, out: Tensor) -> None:
    """Compile what `quack` would launch for these operands, which need no memory, for the GPU of the environment
    (`HOPPER`), into QUACK_CACHE_DIR. CUTE_DSL_KEEP=ptx leaves the PTX in CUTE_DSL_DUMP_DIR."""
    from quack import gemm, gemm_interface

    with patch.object(gemm, "get_max_active_clusters", side_effect=NoDriverError), suppress(NoDriverError):
        gemm_interface.gemm_tuned.fn(x, w.T, out, config=None)


def limit_deep_gemm(x: Tensor, w: Tensor, scales: Scales | None) -> None:
    if (dtype := dtype_name(x, w, scales)) not in ("bf16", "fp8_block"):
        raise TypeError(f"DeepGEMM has bf16 and fp8 with scales by block, and these operands are {dtype}; take cublas")
    require_hopper(x, w, "DeepGEMM")
    require_installed("deep_gemm", "DeepGEMM")
    found = nvcc()
    if found < NVCC:
        has = f"there is {found[0]}.{found[1]}" if any(found) else "there is none in CUDA_HOME and on PATH"
        raise ValueError(f"DeepGEMM compiles with nvcc {NVCC[0]}.{NVCC[1]} or newer, and {has}: install a CUDA toolkit")


@cache
def nvcc() -> tuple[int, int]:
    """The release of nvcc that torch's extensions take, as DeepGEMM does; 0, 0 where there is none."""
    from torch.utils.cpp_extension import CUDA_HOME

    tool = Path(CUDA_HOME or "", "bin", "nvcc")
    if not CUDA_HOME or not tool.exists():
        return 0, 0
    printed = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"release (\d+)\.(\d+)", printed)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def run_deep_gemm(x: Tensor, w: Tensor, out: Tensor, scales: Scales | None = None) -> Tensor:
    """Multiply by DeepGEMM. In fp8, where M is no multiple of 4, it copies the scales of x in each call."""
    import deep_gemm

    if scales:
        x_scales, w_scales = scales
        deep_gemm.fp8_gemm_nt((x, x_scales), (w, w_scales), out)
    else:
        deep_gemm.bf16_gemm_nt(x, w, out)
    return out


def describe_deep_gemm(x: Tensor, w: Tensor, scales: Scales | None = None) -> str:
    return f"deep_gemm {version_of('deep_gemm')}, {'fp8' if scales else 'bf16'}_gemm_nt"


def quack_of(tuned: bool) -> Library:
    return Library(
        run=partial(run_quack, tuned=tuned),
        describe=lambda *_: f"quack {version_of('quack')}{', tuned' * tuned}",
        device="cuda",
        limits=limit_quack,
    )


quack, quack_tuned = quack_of(tuned=False), quack_of(tuned=True)
deep_gemm = Library(run=run_deep_gemm, describe=describe_deep_gemm, device="cuda", limits=limit_deep_gemm)
