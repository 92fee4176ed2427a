"""The Gluon kernel without a GPU: its own source on a machine of NumPy, mistakes planted in that source, and what it
refuses. What the compiler makes of it: test_ring_order.py. On a Hopper GPU, test_matmul.py runs it."""

from dataclasses import replace

import gluon_machine
import numpy as np
import pytest
import torch

from kernels import CONTENDERS, persistent, warpgroup
from kernels.configs import Config
from kernels.contract import interpreted
from kernels.inspect.cubin import compile_launch

TILE = (4, 4, 2)  # rows, columns, along K: the machine has no smallest wgmma
# M, N, K, stages, parts of the epilogue, programs
CASES = {
    "one step of one tile": (4, 4, 2, 4, 1, 1),
    "K shorter than the ring": (4, 8, 4, 4, 2, 1),
    "K of one ring": (4, 4, 6, 3, 1, 1),
    "ragged": (7, 10, 9, 3, 2, 2),
    "a ring of two": (8, 8, 5, 2, 4, 1),
    "fewer tiles than programs": (3, 1, 1, 2, 1, 3),
    "many tiles": (12, 12, 3, 4, 2, 2),
}


def operands(m, n, k, seed=0):
    """Small integers, so that sums are exact."""
    random = np.random.default_rng(seed)
    return (random.integers(-8, 9, shape).astype(float) for shape in ((m, k), (n, k)))


def run(text, case, seed, **more):
    m, n, k, stages, parts, programs = CASES[case]
    x, w = operands(m, n, k, seed)
    out = gluon_machine.matmul(text, x, w, TILE, stages, parts, programs=programs, seed=seed, **more)
    np.testing.assert_array_equal(out, x @ w.T)


@pytest.mark.parametrize("case", CASES)
def test_the_product_is_right_in_any_order_of_events(case):
    for seed in range(30):
        run(gluon_machine.source(), case, seed, along_n=seed % 2 == 1, group=1 + seed % 3)


# A mistake, where it stands, and what stands there instead.
MISTAKES = {
    "the producer waits for the consumers' parity": ("empty.index(stage), phase ^ 1", "empty.index(stage), phase"),
    "the consumers wait for the producer's parity": ("full.index(stage), phase)", "full.index(stage), phase ^ 1)"),
    "parity never flips": ("gl.where(wraps, phase ^ 1, phase)", "phase"),
    "parity flips at every stage": ("gl.where(wraps, phase ^ 1, phase)", "phase ^ 1"),
    "the ring wraps one stage late": ("stage == STAGES - 1", "stage == STAGES"),
    "the producer does not wait": ("mbarrier.wait(empty.index(stage), phase ^ 1)", "pass"),
    "the consumers do not wait": ("mbarrier.wait(full.index(stage), phase)", "pass"),
    "no bytes are expected": ("w_desc.block_type.nbytes)", "w_desc.block_type.nbytes) if False else None"),
    "the bytes of w are not expected": ("nbytes + w_desc.block_type.nbytes", "nbytes"),
    "the loads of w arrive at another stage's barrier": (
        "[n0, k0], full.index(stage)",
        "[n0, k0], full.index((stage + 1) % full.shape[0])",
    ),
    "the stage that is read is released": ("preceding(stage, full.shape[0])), pred", "stage), pred"),
    "the stage where the tile began is released": (
        "preceding(stage, full.shape[0])), pred",
        "(stage - k0 // block_k) % full.shape[0]), pred",
    ),
    "no stage comes before the first": ("gl.where(stage == 0, STAGES - 1, stage - 1)", "stage - 1"),
    "two groups are in flight": ("warpgroup_mma_wait(1", "warpgroup_mma_wait(2"),
    "a first release with nothing read": (", pred=k0 > 0", ""),
    "the last stage of a tile is not released": (
        "        mbarrier.arrive(empty.index(preceding(stage, full.shape[0])))\n",
        "",
    ),
    "sums are stored before they are complete": ("warpgroup_mma_wait(0, deps=[acc])", "acc"),
    "one consumer's arrival is enough": ("count=CONSUMERS", "count=1"),
    "one arrival too many is asked for": ("count=CONSUMERS", "count=CONSUMERS + 1"),
    "both consumers multiply the same rows": ("slice(WHO * rows", "slice(0 * rows"),
    "both consumers share a buffer": ("WHO * buffers + PART", "PART"),
    "a buffer is used again at once": ("tma.store_wait(buffers - 1)", "pass"),
    "one store too many is pending": ("tma.store_wait(buffers - 1)", "tma.store_wait(buffers)"),
    "the barriers' start is not fenced": ("fence_async_shared()  # TMA completes", "pass  # TMA completes"),
    "the proxies are not fenced": ("fence_async_shared()  # TMA reads", "pass  # TMA reads"),
    "the end does not wait for the stores": ("tma.store_wait(0)", "pass"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_caught(mistake):
    right, wrong = MISTAKES[mistake]
    text = gluon_machine.source()
    assert text.count(right) == 1, "the mistake fits nowhere, or in two places"
    text = text.replace(right, wrong)
    for seed in range(60):
        for case in ("a ring of two", "ragged", "K shorter than the ring"):
            try:
                run(text, case, seed)
            except (AssertionError, IndexError):  # of NumPy, and those of the machine
                return
    pytest.fail("every run gave the right product")


X = torch.zeros((16, 16), dtype=torch.float16)


def test_it_is_measured_by_default_and_says_that_it_has_no_interpreter(monkeypatch):
    contender = CONTENDERS["warpgroup"]
    assert contender.default
    if interpreted(persistent.persistent_kernel):
        assert "TRITON_INTERPRET is set" in contender.why_not(X, X)
        with pytest.raises(ValueError, match=r"no interpreter; use kernels\.persistent"):
            contender.run(X, X, X.clone())
    monkeypatch.setattr(persistent, "require_runnable", lambda kernel, x: None)
    monkeypatch.setattr(persistent, "interpreted", lambda kernel: False)
    monkeypatch.setattr(persistent, "capability", lambda device: (10, 0))
    assert "capability 10.0, warpgroup needs 9.x (Hopper); use kernels.tiled" in contender.why_not(X, X)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_warps": 4}, "num_warps=4, warpgroup multiplies with 2 warpgroups of 4"),
        ({"block_m": 64}, "block_m=64, 2 consumers of 64-row wgmma need a multiple of 128"),
        ({"subtile": 8}, "subtile=8, warpgroup stores in 1, 2 or 4 parts"),
    ],
)
def test_configurations_for_other_kernels_are_refused(change, said):
    config = replace(Config(128, 64, 64, num_warps=8, num_stages=2), **change)
    with pytest.raises(ValueError, match=f"{said}; change the configuration"):
        warpgroup.prepare(X, X, X, config)


def test_a_configuration_becomes_a_launch(monkeypatch):
    config = Config(128, 64, 32, num_warps=8, num_stages=3, group_m=5, subtile=4, raster="n")
    x, w, out = (torch.empty(shape, dtype=torch.float16) for shape in ((129, 8), (64, 8), (129, 64)))
    launch = warpgroup.prepare(x, w, out, config)
    assert launch.grid == (2,), "no more programs than tiles"
    blocks = [launch.args[f"{name}_desc"].block_shape for name in ("x", "w", "out")]
    assert blocks == [[128, 32], [64, 32], [64, 16]]
    plain = {name: value for name, value in launch.args.items() if not name.endswith("_desc")}
    assert plain == dict(M=129, N=64, K=8, STAGES=3, BUFFERS=2, GROUP=5, ALONG_N=True, num_warps=4)
    again = warpgroup.prepare(x, w, out, config)
    assert again.args["x_desc"].layout is launch.args["x_desc"].layout, "it takes longer to make than all else"
    launch = warpgroup.prepare(x, w, out, replace(config, subtile=1, raster="m"))
    assert (launch.args["BUFFERS"], launch.args["ALONG_N"]) == (1, False)
    monkeypatch.setattr(warpgroup, "programs", lambda device: 1)
    assert warpgroup.prepare(x, w, out, config).grid == (1,)


@pytest.mark.skipif(not interpreted(persistent.persistent_kernel), reason="Triton compiles here")
def test_an_interpreting_process_does_not_compile():
    config = Config(128, 64, 32, num_warps=8, num_stages=3)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET is set, so there is no compiler"):
        compile_launch(warpgroup.prepare(X, X, X, config), 90)


ABSENT = """
import json, sys
sys.modules["triton.experimental.gluon.language.nvidia.hopper"] = None
import torch, kernels
x = torch.zeros(8, 8)
print(json.dumps([kernels.CONTENDERS["warpgroup"].why_not(x, x), kernels.CONTENDERS["persistent"].why_not(x, x)]))
"""


def test_without_gluon_the_others_work(printed_elsewhere):
    absent, there = printed_elsewhere(ABSENT)
    assert absent.startswith("this Triton lacks a part of Gluon")
    assert absent.endswith("take 3.6, 3.7 or 'persistent'")
    assert there.startswith("x is on cpu")
