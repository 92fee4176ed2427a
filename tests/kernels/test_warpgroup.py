"""The Gluon kernel without a GPU: its own source on a machine of NumPy, mistakes planted in that source and in what the
compiler made of it, and what it refuses. On a Hopper GPU, test_matmul.py runs it."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gluon_machine
import numpy as np
import pytest
import torch

from kernels import CONTENDERS, persistent, warpgroup
from kernels.configs import Config, table
from kernels.contract import interpreted
from kernels.cubin import Cubin, compile_launch
from kernels.ring_order import misplaced, unsynchronised

ROOT = Path(__file__).parents[2]
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
    "the stage that is read is released": ("arrive(empty.index(before), pred", "arrive(empty.index(stage), pred"),
    "two groups are in flight": ("warpgroup_mma_wait(1", "warpgroup_mma_wait(2"),
    "a first release with nothing read": (", pred=k0 > 0", ""),
    "the last stage of a tile is not released": ("        mbarrier.arrive(empty.index(before))\n", ""),
    "sums are stored before they are complete": ("warpgroup_mma_wait(0, deps=[acc])", "acc"),
    "one consumer's arrival is enough": ("count=CONSUMERS", "count=1"),
    "one arrival too many is asked for": ("count=CONSUMERS", "count=CONSUMERS + 1"),
    "both consumers multiply the same rows": ("slice(WHO * rows", "slice(0 * rows"),
    "both consumers share a buffer": ("WHO * buffers + PART", "PART"),
    "a buffer is used again at once": ("tma.store_wait(buffers - 1)", "pass"),
    "one store too many is pending": ("tma.store_wait(buffers - 1)", "tma.store_wait(buffers)"),
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


# One configuration of two parts, at M, N and K that Triton specialises in every way there is.
COMPILE = """
import json, torch
from kernels import warpgroup
from kernels.configs import Config
from kernels.cubin import compile_launch

config = Config(128, 64, 32, num_warps=8, num_stages=3, subtile=2)
found = []
for m, n, k in ((256, 256, 256), (1, 1, 1), (130, 1, 33), (3, 5, 200)):
    padded = lambda rows, columns: torch.empty((rows, -(-columns // 8) * 8), dtype=torch.float16)[:, :columns]
    cubin = compile_launch(warpgroup.prepare(padded(m, k), padded(n, k), padded(m, n), config), 90)
    found.append([cubin.ttgir, cubin.ptx, cubin.spills, cubin.wgmma_waits, cubin.register_counts])
print(json.dumps(found))
"""


def python(script: str, **more: str) -> str:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | more
    env |= {"PYTHONPATH": os.pathsep.join([*filter(None, [env.get("PYTHONPATH")]), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def compiled() -> list:
    return json.loads(python(COMPILE))


def test_every_specialisation_is_sound(compiled):
    for ttgir, ptx, spills, waits, registers in compiled:
        assert misplaced(ttgir) == unsynchronised(ptx) == []
        assert not spills
        assert waits == [0, 1]
        assert {24, 240} <= set(registers)


def lines(text: str, word: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines()) if word in line]


def without(text: str, word: str, which: int) -> str:
    kept = text.splitlines()
    del kept[lines(text, word)[which]]
    return "\n".join(kept)


def moved(text: str, word: str, which: int, behind: str, behind_which: int) -> str:
    """The line with `word`, put behind the one with `behind`."""
    kept, source, target = text.splitlines(), lines(text, word)[which], lines(text, behind)[behind_which]
    line = kept.pop(source)
    kept.insert(target + (source > target), line)
    return "\n".join(kept)


STAGE = re.compile(r"memdesc_index %x_ring\[(%\w+)\]")
# A change to the TTGIR, and what is said of it. The first consumer comes first in the text, the producer last.
REORDERED = {
    "a load ahead of its wait": (
        lambda t: moved(t, "ttng.wait_barrier", -1, "ttng.async_tma_copy_global_to_local", -1),
        "behind a wait for the stage that it fills",
    ),
    "a load without its bytes": (
        lambda t: without(t, "ttng.barrier_expect", 0),
        "behind the expectation of its bytes",
    ),
    "wgmma ahead of its wait": (
        lambda t: moved(t, "ttng.wait_barrier", 0, "ttng.warp_group_dot ", 0),
        "behind a wait for the stage that it reads",
    ),
    "a release ahead of the wait for wgmma": (
        lambda t: moved(t, "pendings = 1 : i32} : tensor", 0, "ttng.arrive_barrier", 0),
        "behind a wait that leaves one wgmma group in flight",
    ),
    "a release of what is in flight": (
        lambda t: re.sub(r"(memdesc_index %empty)\[%(?!c\d)\w+\]", rf"\1[{STAGE.search(t)[1]}]", t, count=1),
        "to release another stage",
    ),
    "the last release ahead of the last wait": (
        lambda t: t.replace("pendings = 0 : i32} : tensor", "pendings = 1 : i32} : tensor"),
        "or none where no other follows",
    ),
    "no fence": (lambda t: without(t, "ttng.fence_async_shared", -1), "behind a fence"),
    "a buffer used again": (lambda t: without(t, "ttng.async_tma_store_wait", 1), "behind a wait for the store"),
    "stores left at the end": (
        lambda t: without(t, "ttng.async_tma_store_wait {pendings = 0", 0),
        "ahead of a wait for all stores",
    ),
    "no stores at all": (
        lambda t: t.replace("ttng.async_tma_copy_local_to_global", "ttng.other"),
        "has no TMA store in a partition",
    ),
}


@pytest.mark.parametrize("change", REORDERED)
def test_a_compiler_that_reorders_is_caught(change, compiled):
    plant, said = REORDERED[change]
    found = misplaced(plant(compiled[0][0]))
    assert any(said in fault for fault in found), found


def test_a_barrier_that_is_missing_between_threads_is_caught(compiled):
    ptx = compiled[0][1]
    noticed = [i for i in range(len(lines(ptx, "bar.sync"))) if unsynchronised(without(ptx, "bar.sync", i))]
    assert len(noticed) == 2 * (2 + 2 * 2)  # for each consumer: before both releases, and around each part's store
    for word in ("fence.proxy.async", "cp.async.bulk.wait_group.read", "wgmma.wait_group"):
        noticed = [i for i in range(len(lines(ptx, word))) if unsynchronised(without(ptx, word, i))]
        assert len(noticed) == 2 * 2  # not the fence of the barriers' start, nor the waits at the end
    assert len(unsynchronised("")) == 2


def test_a_kernel_that_is_not_specialised_is_a_finding():
    from kernels.compiled import Finding, Job

    config = next(entry.config for entry in table("sm90").entries if entry.kernel == "warpgroup")
    plain = Cubin(160, 0, 0, 1024, {"wgmma": 1}, 1, 1, wgmma_waits=(0,), register_counts=(232, 40))
    problems = Finding(Job("warpgroup", "sm90", config, "bf16", 90, 232_448, "wgmma"), plain).problems()
    for words in (
        "(0,) wgmma groups",
        "[24, 240] is missing",
        "no TMA load",
        "releases a stage",
        "TMA stores out of",
        "64512 registers",
    ):
        assert any(words in problem for problem in problems), words
    assert not Finding(Job("persistent", "sm90", config, "bf16", 90, 232_448, "wgmma"), plain).problems()


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
import sys
sys.modules["triton.experimental.gluon.language.nvidia.hopper"] = None
import torch, kernels
x = torch.zeros(8, 8)
print(kernels.CONTENDERS["warpgroup"].why_not(x, x), kernels.CONTENDERS["persistent"].name)
"""


def test_without_gluon_the_others_work():
    said = python(ABSENT)
    assert said.startswith("this Triton lacks a part of Gluon")
    assert said.endswith("take 3.6, 3.7 or 'persistent' persistent\n")
