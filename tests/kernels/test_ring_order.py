"""Whether what the compiler made of a ring kept its order: it is sound as it is, and changes to its text are caught.

All compiling happens in another process: this one may be interpreting, and Triton cannot do both in one."""

import re
from dataclasses import replace

import pytest

from kernels.configs import table
from kernels.inspect.compiled import Finding, Job
from kernels.inspect.cubin import Cubin
from kernels.inspect.ring_order import misplaced, unfenced, unsynchronised

# One configuration of two parts, at M, N and K that Triton specialises in every way there is, and one of cp.async.
COMPILE = """
import json, torch
from kernels import tiled, warpgroup
from kernels.configs import Config
from kernels.inspect.cubin import compile_launch

config = Config(128, 64, 32, num_warps=8, num_stages=3, subtile=2)
found = []
for m, n, k in ((256, 256, 256), (1, 1, 1), (130, 1, 33), (3, 5, 200)):
    padded = lambda rows, columns: torch.empty((rows, -(-columns // 8) * 8), dtype=torch.float16)[:, :columns]
    cubin = compile_launch(warpgroup.prepare(padded(m, k), padded(n, k), padded(m, n), config), 90)
    found.append([cubin.ttgir, cubin.ptx, cubin.spills, cubin.wgmma_waits, cubin.register_counts])
x, w, out = (torch.empty((256, 256), dtype=torch.float16) for _ in range(3))
pipelined = compile_launch(tiled.prepare(x, w, out, Config(64, 64, 64, num_warps=4, num_stages=3)), 90)
print(json.dumps({"ring": found, "pipelined": pipelined.ptx}))
"""


@pytest.fixture(scope="module")
def found(printed_elsewhere) -> dict:
    return printed_elsewhere(COMPILE)


@pytest.fixture(scope="module")
def ttgir(found) -> str:
    return found["ring"][0][0]


@pytest.fixture(scope="module")
def ptx(found) -> str:
    return found["ring"][0][1]


def test_every_specialisation_is_sound(found):
    for ttgir, ptx, spills, waits, registers in found["ring"]:
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
    "a load that another stage's barrier counts": (
        lambda t: re.sub(r"(memdesc_index %\w+)\[%\w+\](.*\n\s*ttng\.barrier_expect)", r"\1[%other]\2", t),
        "to arrive at the barrier of the stage that it fills",
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
    "a store left at the end": (
        lambda t: t.replace("ttng.async_tma_store_wait {pendings = 0", "ttng.async_tma_store_wait {pendings = 1"),
        "ahead of a wait for all stores",
    ),
    "no stores at all": (
        lambda t: t.replace("ttng.async_tma_copy_local_to_global", "ttng.other"),
        "has no TMA store in a partition",
    ),
}


@pytest.mark.parametrize("change", REORDERED)
def test_a_compiler_that_reorders_is_caught(change, ttgir):
    plant, said = REORDERED[change]
    faults = misplaced(plant(ttgir))
    assert any(said in fault for fault in faults), faults


def test_a_barrier_that_is_missing_between_threads_is_caught(ptx):
    noticed = [i for i in range(len(lines(ptx, "bar.sync"))) if unsynchronised(without(ptx, "bar.sync", i))]
    assert len(noticed) == 2 * (2 + 2 * 2)  # for each consumer: before both releases, and around each part's store
    for word in ("fence.proxy.async", "cp.async.bulk.wait_group.read", "wgmma.wait_group"):
        noticed = [i for i in range(len(lines(ptx, word))) if unsynchronised(without(ptx, word, i))]
        assert len(noticed) == 2 * 2  # not the fence of the barriers' start, nor the waits at the end
    assert len(unsynchronised("")) == 2


UNFENCED = {
    "no fence": lambda t: without(t, "fence.proxy.async", 0),
    "a fence ahead of the loop": lambda t: moved(t, "fence.proxy.async", 0, "cp.async.commit_group", 1),
    "a fence ahead of the wait": lambda t: moved(t, "fence.proxy.async", 0, "$L__BB", 0),
    "no barrier": lambda t: re.sub(r"(cp\.async\.wait_group.*\n)\s*bar\.sync.*\n", r"\1", t, count=1),
}


@pytest.mark.parametrize("change", UNFENCED)
def test_wgmma_that_reads_unfenced_what_cp_async_wrote_is_a_finding(change, found):
    sound = Cubin(110, 0, 0, 1024, {"wgmma": 1}, 0, 0, wgmma_waits=(0, 1), ptx=found["pipelined"])
    assert not problems("tiled", sound)
    (problem,) = problems("tiled", replace(sound, ptx=UNFENCED[change](sound.ptx)))
    assert "no fence.proxy.async behind the wait and the barrier" in problem


def test_what_tma_wrote_needs_no_fence(ptx):
    assert "wgmma.mma_async" in ptx
    assert unfenced(ptx) == []


def problems(kernel: str, cubin: Cubin) -> list[str]:
    config = next(entry.config for entry in table("sm90").entries if entry.kernel == kernel)
    return Finding(Job(kernel, "sm90", config, "bf16", 90, 232_448, "wgmma"), cubin).problems()


def test_a_kernel_that_is_not_specialised_is_a_finding():
    plain = Cubin(160, 0, 0, 1024, {"wgmma": 1}, 1, 1, wgmma_waits=(0,), register_counts=(232, 40))
    said = "\n".join(problems("warpgroup", plain))
    for words in ("(0,) wgmma groups", "[24, 240] is missing", "no TMA load", "releases a stage", "TMA stores out of",
                  "64512 registers"):  # fmt: skip
        assert words in said
    assert len(problems("persistent", plain)) == 1, "its wgmma shall be pipelined too"
    assert not problems("persistent", replace(plain, wgmma_waits=(0, 1)))
