"""cuBLASLt's candidates, by a stand-in for the library that multiplies matrices of the host as it would read them."""

# ruff: noqa: N802, N815 (the names of the library's functions)

import ctypes
from types import SimpleNamespace

import pytest
import torch
from numpy.ctypeslib import as_array

from kernels import cublaslt, vendor, workspace
from kernels.bench import matmul
from kernels.contract import FP8
from kernels.fp8 import scale_rows, scales_of_rows


class FakeLibrary:
    """The functions that are called. What they make are numbers, and stand for what they were made of."""

    def __init__(self):
        self.made, self.attributes, self.algorithms = {}, {}, []

    def _make(self, handle, *about):
        handle._obj.value = len(self.made) + 1
        self.made[handle._obj.value] = [getattr(value, "value", value) for value in about]
        return 0

    cublasLtCreate = cublasLtMatmulDescCreate = cublasLtMatrixLayoutCreate = cublasLtMatmulPreferenceCreate = _make

    def _set(self, handle, number, value, size):
        assert size.value == ctypes.sizeof(value._obj)
        self.attributes[handle.value, number] = value._obj.value
        return 0

    cublasLtMatmulDescSetAttribute = cublasLtMatmulPreferenceSetAttribute = _set

    def cublasLtMatmulPreferenceDestroy(self, preference):
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, *about):
        *_, wanted, results, count = about
        count._obj.value = min(3, wanted)
        for number in range(3):
            results[number].algorithm[0] = 100 + number
        results[1].status = 15  # which the heuristics cannot take
        return 0

    def matrix(self, layout, at):
        """[rows, columns] of fp32 at an address, columns one after another."""
        kind, rows, columns, stride = self.made[layout.value]
        dtype = {number: dtype for dtype, number in cublaslt.DATA_TYPES.items()}[kind]
        size = dtype.itemsize * (stride * (columns - 1) + rows)
        memory = torch.from_numpy(as_array((ctypes.c_uint8 * size).from_address(at.value))).view(dtype)
        return memory.as_strided((rows, columns), (1, stride))

    def scales(self, operation, name, matrix):
        """What a matrix of K rows is multiplied by, in the mode that it is told."""
        at = self.attributes.get((operation.value, cublaslt.SCALE_POINTER[name]))
        if at is None:
            return 1
        mode = self.attributes[operation.value, cublaslt.SCALE_MODE[name]]
        k, columns = matrix.shape
        high, wide = {3: (k, 1), 4: (128, 1), 5: (128, 128)}[mode]
        shape = -(-k // high), -(-columns // wide)
        memory = torch.from_numpy(as_array((ctypes.c_float * (shape[0] * shape[1])).from_address(at)).copy())
        scales = memory.view(shape[::-1]).T if mode == 5 else memory.view(shape)
        return scales.repeat_interleave(high, 0).repeat_interleave(wide, 1)[:k, :columns]

    def cublasLtMatmul(self, context, operation, one, a, a_layout, b, b_layout, zero, c, c_layout, d, d_layout, *more):
        algorithm, space, size, stream = more
        assert self.attributes[operation.value, cublaslt.DESC_TRANSA] == cublaslt.TRANSPOSED
        assert (one._obj.value, zero._obj.value, c.value, c_layout) == (1, 0, d.value, d_layout)
        assert (size.value, stream.value) == (cublaslt.WORKSPACE_BYTES, 7)
        assert space.value
        w, x = self.matrix(a_layout, a).float(), self.matrix(b_layout, b).float()
        w, x = w * self.scales(operation, "w", w), x * self.scales(operation, "x", x)
        self.matrix(d_layout, d).copy_(w.T @ x)
        self.algorithms.append(algorithm._obj[0])
        return 0

    def cublasLtGetVersion(self):
        return 130100


@pytest.fixture
def library(monkeypatch):
    fake = FakeLibrary()
    monkeypatch.setattr(cublaslt, "library", lambda: fake)
    monkeypatch.setattr(workspace, "KEPT", {})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(cublaslt, "context", lambda device: ctypes.c_void_p(1))
    monkeypatch.setattr(cublaslt, "made_plan", cublaslt.Plan)
    monkeypatch.setattr(vendor, "require_device", lambda kind, x: None)
    monkeypatch.setattr(vendor, "limit_cublas", lambda x, w, scales: None)
    monkeypatch.setattr(vendor, "require_cuda", lambda scaled_by, other: None)
    return fake


def test_operands_are_told_as_the_library_reads_them(library):
    x, w = torch.randn(5, 24)[:, :16], torch.randn(9, 16)
    out = torch.full((5, 12), torch.nan)[:, :9]
    best = cublaslt.best
    assert best.candidates(x, w, out) == 2
    for number in range(2):
        assert best(x, w, out, candidate=number) is out
        torch.testing.assert_close(out, x @ w.T)
    assert library.algorithms == [100, 102]
    assert best.describe(x, w, candidate=1) == "cuBLASLt 130100, candidate 2 of its heuristics"
    assert not best(x[:, :0], w[:, :0], out.fill_(torch.nan)).any()
    (kept,) = workspace.KEPT.values()
    assert not kept.counters.numel(), "a graph would zero them in each call"
    best.candidates(x[:, 1:], w[:, 1:], out)
    assert {library.attributes[max(library.made), attribute] for attribute in cublaslt.MIN_ALIGNMENTS} == {4}


@pytest.mark.parametrize("by_block", [False, True])
def test_scales_are_told_as_the_library_reads_them(library, by_block):
    numbers = torch.Generator().manual_seed(0)
    x, w = (torch.randn(rows, 512, generator=numbers).to(FP8) for rows in (5, 144))
    scales = matmul.scales_of(x, w, by_block, numbers)
    out = cublaslt.best(x, w, scales=scales, candidate=1)
    of_x, of_w = scales_of_rows(w, scales)
    exact = scale_rows(x.float(), of_x) @ scale_rows(w.float(), of_w).T
    torch.testing.assert_close(out.float(), exact, rtol=1e-2, atol=1e-3)
    assert library.algorithms == [102]
    assert ((1, cublaslt.DESC_FAST_ACCUM) in library.attributes) != by_block
