"""What the kernel tests share: the device, operands that punish sloppy masks, and the error that is allowed."""

import json
import math

import pytest
import torch

TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-4, torch.bfloat16: 3e-3}  # relative Frobenius error
GUARD = 123.0  # exact in every dtype


@pytest.fixture(autouse=True)
def few_operands(small_cache):
    """No test here times anything."""


class Operands:
    """x[M, K], w[N, K] and out[M, N] as views of larger arrays: NaN, or what is told, lies `behind` the rows of x and
    w, NaN all over out, and a guard value around out. A kernel that reads or writes past an edge shows it."""

    def __init__(self, m: int, n: int, k: int, dtype: torch.dtype, device: str, behind=math.nan):
        from cases import padded  # not before it is known whether Triton interprets

        generator = torch.Generator().manual_seed(0)
        self.x, self.w, self.out = (padded(*shape, dtype=dtype, device=device) for shape in ((m, k), (n, k), (m, n)))
        for matrix in (self.x, self.w):
            matrix._base.fill_(behind)
            matrix.copy_(torch.randn(matrix.shape, generator=generator))
        self.out._base.fill_(GUARD)
        self.out.fill_(math.nan)

    def verify(self, result: torch.Tensor) -> None:
        assert result is self.out
        close(result, self.x, self.w)
        self.out.fill_(GUARD)
        assert (self.out._base == GUARD).all(), "something beside out was written"


def close(result: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> None:
    """Against float64, by relative Frobenius error; NaN anywhere fails."""
    reference = x.double() @ w.double().T
    assert result.shape == reference.shape
    assert result.isfinite().all(), "something in out was left unwritten, or NaN leaked in"
    error = (result.double() - reference).norm() / reference.norm().clamp(min=1e-300)
    assert error <= TOLERANCE[result.dtype], f"relative error {error:.2e}"


@pytest.fixture
def operands(device):
    """Operands(m, n, k, dtype) on the test's device, or on `where`."""
    return lambda m, n, k, dtype, where=device, **more: Operands(m, n, k, dtype, where, **more)


@pytest.fixture
def assert_close():
    return close


@pytest.fixture
def read_anew():
    """`read_anew()`: tables are read again; they are after the test, too."""
    from kernels import tiles

    def forget():
        tiles.table.cache_clear(), tiles.choose.cache_clear()

    yield forget
    forget()


@pytest.fixture
def tables(tmp_path, monkeypatch, read_anew):
    """The checked-in tables without what was measured, in a folder of their own, where they are looked up."""
    from kernels import tiles

    for arch in tiles.architectures():
        document = json.loads((tiles.FOLDER / f"{arch}.json").read_text())
        document["entries"] = [row for row in document["entries"] if not row["measured"]]
        (tmp_path / f"{arch}.json").write_text(json.dumps(document))
    monkeypatch.setattr(tiles, "FOLDER", tmp_path)
    read_anew()
    return tmp_path


@pytest.fixture
def on_top(tables, read_anew):
    """`on_top(*rows)` writes these above all rows of the table for Hopper, which it returns."""
    path = tables / "sm90.json"
    document = json.loads(path.read_text())

    def write(*rows: dict) -> list[dict]:
        path.write_text(json.dumps(document | {"entries": [*rows, *document["entries"]]}))
        read_anew()
        return document["entries"]

    return write


@pytest.fixture
def ours(device):
    """`ours(name)`: a contender, where it runs here."""
    from kernels.registry import CONTENDERS

    def load(name: str):
        probe = torch.zeros((16, 16), dtype=torch.float16, device=device)
        if reason := CONTENDERS[name].why_not(probe, probe):
            pytest.skip(reason)  # on a GPU that is no Hopper; in the interpreter of Gluon alone
        return CONTENDERS[name].load()

    return load
