"""quack's matmul on the machine: CUTLASS's pingpong over clusters of two, whose tiles are dealt by st.async. It is
compiled here for a Hopper, where the extra `rivals` is installed."""

import re
from types import SimpleNamespace

import pytest
import torch

from kernels import rivals
from kernels.machine import check_ptx

TILE = M, N, K = 128, 192, 64
OF_CLUSTER = 2 * M, N


def box(tensor: torch.Tensor, shape: tuple[int, int], swizzled: int) -> SimpleNamespace:
    """The tensor map of a matrix, as a descriptor of Gluon's: boxes of `shape`, swizzled over so many bytes."""
    about = dict(shape=tensor.shape, strides=tensor.stride(), layout=SimpleNamespace(swizzle_byte_width=swizzled))
    return SimpleNamespace(base=tensor, block_shape=shape, padding="zero", **about)


def division(divisor: int) -> tuple[int, int, int]:
    """What CUTLASS's FastDivmod is: a factor, a shift and the divisor; the factor 0 stands for a division by 1."""
    bits = (divisor - 1).bit_length()
    return (-(-(1 << (31 + bits)) // divisor), bits - 1, divisor) if divisor > 1 else (0, 0, 1)


def arguments(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> list:
    """The kernel's, by its PTX and quack's tile_scheduler.py: three tensor maps with their sizes, the tiles, whether
    they go along M, and how they are dealt in groups of up to 8 along it."""
    along_m, along_n = (-(-size // tile) for size, tile in zip(out.shape, OF_CLUSTER, strict=True))
    group = min(8, along_m)
    maps = box(x, (M, K), 128), box(w, (N // 2, K), 128), box(out, (64, 32), 64)
    sizes = [("ii", *tensor.shape) for tensor in (x, w, out)]
    dealt = *division(along_m * along_n), along_m // group, *division(group), *division(along_m % group or 1)
    of_maps = sum(zip(maps, sizes, strict=True), ())
    return [b"\0", *of_maps, along_m, along_n, 1, 0, *dealt, *division(group * along_n)]


@pytest.mark.slow
def test_the_matmul_that_quack_launches_is_exact(tmp_path, monkeypatch):
    for name, value in (rivals.HOPPER | dict(CUTE_DSL_KEEP="ptx", CUTE_DSL_DUMP_DIR=str(tmp_path))).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("QUACK_CACHE_DIR", str(tmp_path / "cache"))
    pytest.importorskip("quack.gemm", reason=rivals.INSTALL)  # which reads them
    torch.manual_seed(0)
    x, w = torch.randn(300, 200).bfloat16(), torch.randn(400, 200).bfloat16()
    out = torch.full((300, 400), torch.nan, dtype=torch.bfloat16)
    rivals.compile_quack(*(tensor.to("meta") for tensor in (x, w, out)))
    (path,) = tmp_path.glob("*.ptx")
    text = path.read_text()
    assert re.search(rf"ShapeMNK64{N}16", text)
    verdict = check_ptx(
        text, None, (2, 1, 2), (384,), arguments(x, w, out), 231_424, cluster=2, seeds=2, expected=x @ w.T
    )
    assert verdict.kind == "exact", str(verdict)
