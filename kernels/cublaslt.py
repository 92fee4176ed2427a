"""cuBLASLt's matmul by any candidate of its heuristics: a library's best, where torch.mm takes the first.

torch has no way to another candidate on CUDA: its TunableOp knows those of ROCm alone. nvmath-python has one, in six
packages more. So this calls the libcublasLt that torch has loaded, through ctypes: four descriptors, the heuristics,
the matmul. Numbers of its enumerations are those of cublasLt.h of CUDA 12 and 13.

In fp8 scales lie as torch's own calls need them, and sums stay in the tensor cores by row (`kernels.fp8`).

The best of the candidates is chosen by timing, which is the caller's; see `kernels.bench.matmul`. Loses to torch.mm in
host time: each call makes a dozen values of C.
"""

import ctypes
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.contract import FP8, Scales, dtype_name, empty_out, result_dtype
from kernels.vendor import BLOCKS_FROM_CUDA, require_cublas
from kernels.workspace import workspace

CANDIDATES = 10
"""The heuristics are asked for so many."""
WORKSPACE_BYTES = 32 * 2**20
"""What torch gives cuBLAS on a Hopper, for sums of parts of K."""
MOST_ALIGNED = 256
"""Bytes: the heuristics know no larger alignment."""

COMPUTE_32F, REAL_32F, TRANSPOSED = 68, 0, 1
DATA_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14, FP8: 28}
DESC_TRANSA, DESC_FAST_ACCUM = 3, 25
SCALE_POINTER, SCALE_MODE = {"w": 17, "x": 18}, {"w": 31, "x": 32}
SCALE_MODES = {"fp8": {"w": 3, "x": 3}, "fp8_block": {"w": 5, "x": 4}}
"""CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F; BLK128x128_32F and VEC128_32F."""
MAX_WORKSPACE, MIN_ALIGNMENT = 1, {"w": 5, "x": 6, "out": 7, "same": 8}
"""Attributes of a preference. The library's A is our w, its B our x; C and D are out."""


class Candidate(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, and what the heuristics think of it."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Layout(NamedTuple):
    """What the heuristics look at of x[M, K], w[N, K] and out[M, N]."""

    m: int
    n: int
    k: int
    dtype: torch.dtype
    scaled: str
    """`kernels.contract.dtype_name`, which says what scales are by."""
    strides: tuple[int, int, int]
    """Elements from row to row of x, w and out."""
    alignments: tuple[int, int, int]
    """Bytes, of x, w and out."""
    device: int


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
    """What the library's function `name` makes."""
    handle = ctypes.c_void_p()
    call(name, ctypes.byref(handle), *arguments)
    return handle


@cache
def context(device: int) -> ctypes.c_void_p:
    """The library's handle for a device, which is the current one."""
    return made("cublasLtCreate")


def set_attribute(of: str, handle: ctypes.c_void_p, number: int, value) -> None:
    size = ctypes.c_size_t(ctypes.sizeof(value))
    call(f"cublasLt{of}SetAttribute", handle, ctypes.c_int(number), ctypes.byref(value), size)


class Plan:
    """The descriptors for operands of one layout, and the candidates for it.

    The library's matrices lie by columns, and each of ours is the transpose of one: out.T[N, M] = w[N, K] @ x.T[K, M].
    """

    def __init__(self, layout: Layout):
        m, n, k = layout.m, layout.n, layout.k

        def matrix(rows: int, columns: int, stride: int, dtype: torch.dtype = layout.dtype) -> ctypes.c_void_p:
            sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(max(stride, rows))
            return made("cublasLtMatrixLayoutCreate", ctypes.c_int(DATA_TYPES[dtype]), *sizes)

        self.operation = made("cublasLtMatmulDescCreate", ctypes.c_int(COMPUTE_32F), ctypes.c_int(REAL_32F))
        set_attribute("MatmulDesc", self.operation, DESC_TRANSA, ctypes.c_int32(TRANSPOSED))
        for name, mode in SCALE_MODES.get(layout.scaled, {}).items():
            set_attribute("MatmulDesc", self.operation, SCALE_MODE[name], ctypes.c_int32(mode))
        if layout.scaled == "fp8":  # as torch is asked to
            set_attribute("MatmulDesc", self.operation, DESC_FAST_ACCUM, ctypes.c_int8(1))
        of_x, of_w, of_out = layout.strides
        self.w, self.x = matrix(k, n, of_w), matrix(k, m, of_x)
        self.out = matrix(n, m, of_out, result_dtype(layout.dtype))
        self.layout = layout

    def set_scales(self, scales: Scales | None) -> None:
        """Take the scales of fp8. The heuristics want to know that there are such."""
        for name, factors in zip("xw", scales or (), strict=scales is not None):
            pointer = ctypes.c_void_p(factors.data_ptr())
            set_attribute("MatmulDesc", self.operation, SCALE_POINTER[name], pointer)

    @cached_property
    def candidates(self) -> list[Candidate]:
        """Those of the heuristics, the fastest first as they see it. Raises ValueError where there is none."""
        preference = made("cublasLtMatmulPreferenceCreate")
        set_attribute("MatmulPreference", preference, MAX_WORKSPACE, ctypes.c_size_t(WORKSPACE_BYTES))
        of_x, of_w, of_out = self.layout.alignments
        for name, bytes_ in {"x": of_x, "w": of_w, "out": of_out, "same": of_out}.items():
            set_attribute("MatmulPreference", preference, MIN_ALIGNMENT[name], ctypes.c_uint32(bytes_))
        results, count = (Candidate * CANDIDATES)(), ctypes.c_int()
        matrices = self.w, self.x, self.out, self.out
        call(
            "cublasLtMatmulAlgoGetHeuristic", context(self.layout.device), self.operation, *matrices, preference,
            ctypes.c_int(CANDIDATES), results, ctypes.byref(count),
        )  # fmt: skip
        call("cublasLtMatmulPreferenceDestroy", preference)
        able = [candidate for candidate in results[: count.value] if not candidate.status]
        if not able:
            raise ValueError(f"cuBLASLt has no candidate for {self.layout}; take 'cublas'")
        return able

    def run(self, number: int, x: Tensor, w: Tensor, out: Tensor) -> None:
        """Multiply by the candidate `number`."""
        candidate, space = self.candidates[number], workspace(x.device, WORKSPACE_BYTES // 4, 1).partials
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        target = ctypes.c_void_p(out.data_ptr())
        call(
            "cublasLtMatmul", context(self.layout.device), self.operation, ctypes.byref(one),
            ctypes.c_void_p(w.data_ptr()), self.w, ctypes.c_void_p(x.data_ptr()), self.x, ctypes.byref(zero),
            target, self.out, target, self.out, ctypes.byref(candidate.algorithm),
            ctypes.c_void_p(space.data_ptr()), ctypes.c_size_t(WORKSPACE_BYTES),
            ctypes.c_void_p(torch.cuda.current_stream(x.device).cuda_stream),
        )  # fmt: skip


made_plan = lru_cache(maxsize=1024)(Plan)


def plan_for(x: Tensor, w: Tensor, out: Tensor, scales: Scales | None) -> Plan:
    """Return the plan for operands, which is kept for others of the same layout."""
    operands = x, w, out
    strides = tuple(matrix.stride(0) for matrix in operands)
    alignments = tuple(min(MOST_ALIGNED, matrix.data_ptr() & -matrix.data_ptr()) for matrix in operands)
    kind = x.dtype, dtype_name(x, w, scales)
    plan = made_plan(Layout(len(x), len(w), x.shape[1], *kind, strides, alignments, x.device.index or 0))
    plan.set_scales(scales)
    return plan


class Best:
    """A matmul as `kernels.vendor.Library` is one, by the candidate that was taken for its shape: the first, until
    `take` says otherwise."""

    def __init__(self):
        self._taken: dict[tuple, int] = {}

    @staticmethod
    def require(x: Tensor, w: Tensor, out: Tensor | None = None, scales: Scales | None = None) -> None:
        require_cublas(x, w, out, scales)
        if scales and torch.version.cuda < BLOCKS_FROM_CUDA:
            raise ValueError(
                f"torch's CUDA is {torch.version.cuda}, and cuBLASLt has scales by row from {BLOCKS_FROM_CUDA} on; "
                "take cublas"
            )
        library()

    def candidates(self, x: Tensor, w: Tensor, out: Tensor, scales: Scales | None = None) -> int:
        """How many there are for these operands."""
        return len(plan_for(x, w, out, scales).candidates)

    def take(self, number: int, x: Tensor, w: Tensor, scales: Scales | None = None) -> None:
        """Multiply operands of this shape and dtype by the candidate `number` from now on."""
        self._taken[(x.shape, w.shape, dtype_name(x, w, scales))] = number

    def taken(self, x: Tensor, w: Tensor, scales: Scales | None = None) -> int:
        return self._taken.get((x.shape, w.shape, dtype_name(x, w, scales)), 0)

    def run(self, number: int, x: Tensor, w: Tensor, out: Tensor, scales: Scales | None = None) -> Tensor:
        """Write x[M, K] @ w[N, K].T to out[M, N] by the candidate `number`, and return it."""
        if not out.numel() or not x.shape[1]:
            return out.zero_()
        with torch.cuda.device_of(x):
            plan_for(x, w, out, scales).run(number, x, w, out)
        return out

    def __call__(self, x: Tensor, w: Tensor, out: Tensor | None = None, scales: Scales | None = None) -> Tensor:
        self.require(x, w, out, scales)
        out = empty_out(x, w) if out is None else out
        return self.run(self.taken(x, w, scales), x, w, out, scales)

    def describe(self, x: Tensor, w: Tensor, scales: Scales | None = None) -> str:
        return f"cuBLASLt {library().cublasLtGetVersion()}, candidate {self.taken(x, w, scales) + 1} of its heuristics"


best = Best()
