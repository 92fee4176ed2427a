"""cuBLASLt's matmul by any candidate of its heuristics: a library's best, where torch.mm takes the first.

torch offers no other candidate on CUDA: its TunableOp knows those of ROCm alone. nvmath-python offers all, with six
packages more. So this calls the libcublasLt that torch has loaded, through ctypes: four descriptors, the heuristics,
the matmul. Numbers of its enumerations are those of cublasLt.h of CUDA 12 and 13.

In fp8 scales lie as torch's own calls need them. With scales by row, sums stay in the tensor cores (`kernels.fp8`).

The caller chooses the best candidate, by timing: see `kernels.bench.matmul`. Without a choice it is the first. Loses to
torch.mm in host time: each call makes a dozen values of C.
"""

import ctypes
import math
from functools import cache, cached_property, lru_cache

import torch
from torch import Tensor

from kernels import vendor
from kernels.contract import FP8, Scales, dtype_name, result_dtype
from kernels.vendor import Library
from kernels.workspace import workspace

CANDIDATES = 10
"""The number of candidates that the heuristics are asked for."""
WORKSPACE_BYTES = 32 * 2**20
"""The workspace that torch gives cuBLAS on a Hopper, for sums of parts of K."""
MOST_ALIGNED = 256
"""Bytes: the heuristics know no larger alignment."""

COMPUTE_32F, REAL_32F, TRANSPOSED = 68, 0, 1
DATA_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14, FP8: 28}
DESC_TRANSA, DESC_FAST_ACCUM = 3, 25
SCALE_POINTER, SCALE_MODE = {"w": 17, "x": 18}, {"w": 31, "x": 32}
SCALE_MODES = {"fp8": {"w": 3, "x": 3}, "fp8_block": {"w": 5, "x": 4}}
"""CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F; BLK128x128_32F and VEC128_32F."""
MAX_WORKSPACE, MIN_ALIGNMENTS = 1, (5, 6, 7, 8)
"""Attributes of a preference. The alignments are those of the library's A (our w), its B (our x), and C and D (both
out)."""


class Candidate(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, and what the heuristics think of it."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("others", ctypes.c_int * 5),
    )


@cache
def library() -> ctypes.CDLL:
    """The libcublasLt that torch's own calls go to. Raises ValueError where there is none."""
    major = (torch.version.cuda or "none").partition(".")[0]
    try:
        return ctypes.CDLL(f"libcublasLt.so.{major}")
    except OSError as error:
        raise ValueError(f"cublaslt_best needs the cuBLASLt of torch's CUDA: {error}; take 'cublas'") from None


def call(name: str, *arguments) -> None:
    """Call the library's function. Raises RuntimeError for any status but success."""
    status = getattr(library(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} ended with the cuBLAS status {status}")


def made(name: str, *arguments) -> ctypes.c_void_p:
    """The handle that the library's function `name` creates."""
    handle = ctypes.c_void_p()
    call(name, ctypes.byref(handle), *arguments)
    return handle


@cache
def context(device: int) -> ctypes.c_void_p:
    """The library's handle for a device, which is the current one."""
    return made("cublasLtCreate")


def set_attribute(of: str, handle: ctypes.c_void_p, number: int, value) -> None:
    size = ctypes.c_size_t(ctypes.sizeof(value))
    call(f"cublasLt{of}SetAttribute", handle, number, ctypes.byref(value), size)


def matrix(rows: int, columns: int, stride: int, dtype: torch.dtype) -> ctypes.c_void_p:
    """The layout of a column-major matrix, each column `stride` elements behind the one before."""
    sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(max(stride, rows))
    return made("cublasLtMatrixLayoutCreate", DATA_TYPES[dtype], *sizes)


class Plan:
    """The descriptors for operands of one layout, and the candidates for it.

    The library's matrices are column-major, and each of ours is the transpose of one: out.T[N, M] = w[N, K] @ x.T[K,
    M].
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: torch.dtype,
        scaled: str,
        alignment: int,
        device: int,
    ):
        """`sizes` are M, N and K. `strides` are elements from row to row of x, w and out, all three aligned to
        `alignment` bytes. `scaled` is the name of the dtype by `kernels.contract.dtype_name`, which tells scales by row
        from those by block."""
        m, n, k = sizes
        x_stride, w_stride, out_stride = strides
        self.sizes = sizes
        self.alignment = alignment
        self.device = device
        self.operation = made("cublasLtMatmulDescCreate", COMPUTE_32F, REAL_32F)
        self.w = matrix(k, n, w_stride, dtype)
        self.x = matrix(k, m, x_stride, dtype)
        self.out = matrix(n, m, out_stride, result_dtype(dtype))
        self._set(DESC_TRANSA, ctypes.c_int32(TRANSPOSED))
        for name, mode in SCALE_MODES.get(scaled, {}).items():
            self._set(SCALE_MODE[name], ctypes.c_int32(mode))
        if scaled == "fp8":  # as in torch's own call
            self._set(DESC_FAST_ACCUM, ctypes.c_int8(1))

    def _set(self, number: int, value) -> None:
        set_attribute("MatmulDesc", self.operation, number, value)

    def set_scales(self, scales: Scales | None) -> None:
        """Set the pointers to the scales of fp8. The heuristics want to know that there are such."""
        if scales:
            for name, factors in zip(("x", "w"), scales, strict=True):
                self._set(SCALE_POINTER[name], ctypes.c_void_p(factors.data_ptr()))

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The candidates of the heuristics, the fastest first by their estimate. Raises ValueError where there is
        none."""
        preference = made("cublasLtMatmulPreferenceCreate")
        set_attribute("MatmulPreference", preference, MAX_WORKSPACE, ctypes.c_size_t(WORKSPACE_BYTES))
        for attribute in MIN_ALIGNMENTS:
            set_attribute("MatmulPreference", preference, attribute, ctypes.c_uint32(self.alignment))
        results = (Candidate * CANDIDATES)()
        count = ctypes.c_int()
        call(
            "cublasLtMatmulAlgoGetHeuristic",
            context(self.device),
            self.operation,
            self.w,
            self.x,
            self.out,
            self.out,
            preference,
            CANDIDATES,
            results,
            ctypes.byref(count),
        )
        call("cublasLtMatmulPreferenceDestroy", preference)
        able = [candidate for candidate in results[: count.value] if not candidate.status]
        if not able:
            raise ValueError(f"cuBLASLt has no candidate for M, N, K = {self.sizes}; take 'cublas'")
        return able

    def run(self, number: int, x: Tensor, w: Tensor, out: Tensor) -> None:
        """Multiply by the candidate `number`."""
        candidate = self.candidates[number]
        space = workspace(x.device, WORKSPACE_BYTES // 4, counters=0).partials
        one = ctypes.c_float(1)
        zero = ctypes.c_float(0)
        w_at, x_at, out_at, space_at = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (w, x, out, space))
        call(
            "cublasLtMatmul",
            context(self.device),
            self.operation,
            ctypes.byref(one),
            w_at,
            self.w,
            x_at,
            self.x,
            ctypes.byref(zero),
            out_at,
            self.out,
            out_at,
            self.out,
            ctypes.byref(candidate.algorithm),
            space_at,
            ctypes.c_size_t(WORKSPACE_BYTES),
            ctypes.c_void_p(torch.cuda.current_stream(x.device).cuda_stream),
        )


made_plan = lru_cache(maxsize=1024)(Plan)


def plan_for(x: Tensor, w: Tensor, out: Tensor, scales: Scales | None) -> Plan:
    """The plan for operands, which is kept for others of the same layout."""
    sizes = len(x), len(w), x.shape[1]
    strides = x.stride(0), w.stride(0), out.stride(0)
    alignment = math.gcd(MOST_ALIGNED, x.data_ptr(), w.data_ptr(), out.data_ptr())
    plan = made_plan(sizes, strides, x.dtype, dtype_name(x, w, scales), alignment, x.device.index or 0)
    plan.set_scales(scales)
    return plan


def limit(x: Tensor, w: Tensor, scales: Scales | None) -> None:
    vendor.limit_cublas(x, w, scales)
    if scales:
        vendor.require_cuda("row", "cublas")
    library()


def candidates(x: Tensor, w: Tensor, out: Tensor, scales: Scales | None = None) -> int:
    """The number of candidates for these operands."""
    return len(plan_for(x, w, out, scales).candidates)


def run(x: Tensor, w: Tensor, out: Tensor, scales: Scales | None = None, candidate: int = 0) -> Tensor:
    with torch.cuda.device_of(x):
        plan_for(x, w, out, scales).run(candidate, x, w, out)
    return out


def describe(x: Tensor, w: Tensor, scales: Scales | None = None, candidate: int = 0) -> str:
    return f"cuBLASLt {library().cublasLtGetVersion()}, candidate {candidate + 1} of its heuristics"


best = Library(run=run, describe=describe, device="cuda", limits=limit, candidates=candidates)
