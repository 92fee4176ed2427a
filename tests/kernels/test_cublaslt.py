"""cuBLASLt's candidates, by a stand-in for the library that notes what it is told of matrices and their scales."""

# ruff: noqa: N802, N815 (the names of the library's functions)

import ctypes
from types import SimpleNamespace

import pytest
import torch

from kernels import cublaslt, vendor, workspace
from kernels.contract import FP8, empty_scales


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

    def cublasLtMatmul(self, context, operation, one, a, a_layout, b, b_layout, zero, c, c_layout, d, d_layout, *more):
        algorithm, space, size, stream = more
        assert self.attributes[operation.value, cublaslt.DESC_TRANSA] == cublaslt.TRANSPOSED
        assert (one._obj.value, zero._obj.value, c.value, c_layout) == (1, 0, d.value, d_layout)
        assert (size.value, stream.value) == (cublaslt.WORKSPACE_BYTES, 7)
        assert space.value
        matrices = ((a, a_layout), (b, b_layout), (d, d_layout))
        self.matrices = [(at.value, *self.made[layout.value]) for at, layout in matrices]
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
    """By columns: w of K rows, which it transposes, x of K rows, and out of N."""
    x, w = torch.zeros(5, 24)[:, :16], torch.zeros(9, 16)
    out = torch.full((5, 12), torch.nan)[:, :9]
    best, fp32 = cublaslt.best, 0
    assert best.candidates(x, w, out) == 2
    for number in range(2):
        assert best(x, w, out, candidate=number) is out
        assert library.matrices == [
            (w.data_ptr(), fp32, 16, 9, 16),
            (x.data_ptr(), fp32, 16, 5, 24),
            (out.data_ptr(), fp32, 9, 5, 12),
        ]
    assert library.algorithms == [100, 102]
    assert best.describe(x, w, candidate=1) == "cuBLASLt 130100, candidate 2 of its heuristics"
    assert not best(x[:, :0], w[:, :0], out.fill_(torch.nan)).any()
    (kept,) = workspace.KEPT.values()
    assert not kept.counters.numel(), "a graph would zero them in each call"
    best.candidates(x[:, 1:], w[:, 1:], out)
    assert {library.attributes[max(library.made), attribute] for attribute in cublaslt.MIN_ALIGNMENTS} == {4}


@pytest.mark.parametrize(("by_block", "modes"), [(False, (3, 3)), (True, (4, 5))])
def test_scales_are_told_as_the_library_reads_them(library, by_block, modes):
    """A factor for each row; or of x for each 128 along K, of w for each 128 x 128."""
    x, w = (torch.zeros(rows, 512).to(FP8) for rows in (5, 144))
    scales = empty_scales(x, w, by_block)
    cublaslt.best(x, w, scales=scales, candidate=1)
    (operation,) = {handle for handle, attribute in library.attributes if attribute == cublaslt.DESC_TRANSA}
    for name, factors, mode in zip(("x", "w"), scales, modes, strict=True):
        assert library.attributes[operation, cublaslt.SCALE_POINTER[name]] == factors.data_ptr()
        assert library.attributes[operation, cublaslt.SCALE_MODE[name]] == mode
    assert library.algorithms == [102]
    assert ((operation, cublaslt.DESC_FAST_ACCUM) in library.attributes) != by_block
