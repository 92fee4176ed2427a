"""How much memory a run is reckoned to take: against bytes counted by hand, and against cards."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.bench import matmul
from roofline import operations, options
from roofline.measure import memory
from roofline.operations import all_gather_matmul, ffn, matmul_reduce_scatter, weight_prefetch
from roofline.operations import matmul as mm
from roofline.operations.matmul import Matmul

GIB = 2**30


def test_ledger_counts_storages_that_live_at_once():
    with memory.Ledger() as ledger:
        kept = torch.zeros(1000)
        for _ in range(3):
            torch.ones(500)
        view = kept[:10].add_(1)
    assert ledger.peak_bytes == 4000 + 2000
    assert view.numel() == 10


@pytest.fixture
def asked(monkeypatch):
    """The options of a default run on an H100, whose tensors are made on the CPU: none of them takes memory."""
    monkeypatch.setattr(matmul, "machine", lambda device: {"cache_bytes": 50 * 2**20, "memory_bytes": 80 * GIB})
    resolved = options.resolve(lambda name: None, device="cuda", timed=True, root=Path("unused"))
    return replace(resolved, device="cpu")


def cases(asked):
    runners = operations.Runners(asked)
    declared = [module.OPERATION for module in (mm, all_gather_matmul, matmul_reduce_scatter, ffn, weight_prefetch)]
    return [(runners.of(operation), case) for operation in declared for case in operation.sweep(asked)]


def test_matmul_takes_its_pool_its_probes_and_its_check(asked):
    case = Matmul("xxl", "up", 1, 1, "bf16")
    asked = replace(asked, tokens=(1,), tp=(1,), layers=("up",), dtypes=("bf16",))
    w, d_model, d_ff = 2 * 53248 * 16384, 16384, 53248
    peak = memory.peak_bytes([(matmul.Runner(asked), case)])
    probes = sum(2 * (m * n + m * k + n * k) for m, n, k in ((1024,) * 3, (512, 3328, 1024), (256, 3328, 1024)))
    probes += 3 * 400 * 2**20
    assert peak == pytest.approx(2 * w + probes + w, rel=0.01)  # two sets in rotation, and a copy to compare with
    assert peak > 2 * w + probes + 8 * (d_model + d_ff)


@pytest.mark.parametrize(("card_gib", "fits"), [(24, True), (16, False)])
def test_default_run_fits_on_a_card(asked, card_gib, fits):
    peak = memory.peak_bytes(cases(asked))
    assert (peak + GIB < card_gib * GIB) == fits


def test_nothing_fake_is_kept(asked):
    memory.peak_bytes(cases(asked)[:1])
    x, _, _ = matmul.operands(Matmul("100x300", "up", 1, 3, "fp32"), replace(asked, tokens=(3,)))[0]
    assert type(x) is torch.Tensor
    assert x.any()
