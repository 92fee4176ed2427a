"""Mistakes in the source of a kernel, none of them one instruction: compiled as they stand, the machine catches each.

Mistakes of one instruction are those of test_mutants.py. All of it runs in one process beside this one,
which may be interpreting.
"""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from cases import Case, matmul, run, whole_numbers

from kernels.contract import KernelLaunch
from kernels.hopper import describe
from kernels.machine.run import enqueue, raise_flag, write
from kernels.tiles import Config

RELEASE = "preceding(stage, full.shape[0])"
CONFIG, SHAPE = Config(128, 64, 32, num_warps=8, num_stages=2, subtile=4), (120, 120, 136)
# By kernel and mistake: what is replaced in its file, and by what; and what the machine says of it.
IN_SOURCE = {
    "warpgroup, as it is": ({}, "exact"),
    "warpgroup, as in commit 13c912d": (  # see `preceding`
        {
            "        acc = gl.zeros(": "        before = stage\n        acc = gl.zeros(",
            f"{RELEASE}), pred=k0 > 0)": "before), pred=k0 > 0)\n            before = stage",
            f"{RELEASE}))\n": "before))\n",
        },
        "Stuck",
    ),
    "warpgroup, parity never flips": ({"wraps, phase ^ 1, phase": "wraps, phase, phase"}, "arrivals at an mbarrier"),
    "warpgroup, the ring wraps late": ({"stage == STAGES - 1": "stage == STAGES"}, "no mbarrier was initialised"),
    "warpgroup, w arrives at another stage": (
        {"[n0, k0], full.index(stage)": "[n0, k0], full.index(stage ^ 1)"},
        "reads",
    ),
    "warpgroup, the stage that is read is released": ({f"{RELEASE}), pred": "stage), pred"}, "Stuck"),
    "warpgroup, nothing comes before the first": ({"stage == 0, STAGES - 1, stage - 1": "stage == 0, 0, 0"}, "Stuck"),
    "warpgroup, a release with nothing read": ({", pred=k0 > 0": ""}, "overwrites"),
    "warpgroup, both consumers multiply the same rows": ({"slice(WHO * rows": "slice(0 * rows"}, "out are wrong"),
    "warpgroup, both consumers share a buffer": ({"WHO * buffers + PART": "PART"}, "overwrites"),
    # Triton adds the fence that is missing.
    "warpgroup, stores are not fenced": ({"fence_async_shared()  # TMA reads": "pass  # TMA reads"}, "exact"),
}
CHUNKS, STEPS, BLOCK = 2, tl.constexpr(3), tl.constexpr(64)
# When a kernel waits for the flags of chunks, and what the machine says. In a flat loop Triton loads ahead of the wait.
WAITS = {"before": "exact"} | dict.fromkeys(("flat", "after", "for the first alone", "never"), "with no order between")


@triton.jit
def wait(flag_ptr):
    while tl.atomic_add(flag_ptr, 0, sem="acquire", scope="sys") == 0:
        pass
    tl.inline_asm_elementwise("fence.proxy.async.global; mov.u32 $0, 0;", "=r", [], tl.int32, is_pure=False, pack=1)


@triton.jit
def step(x_desc, w_desc, acc, k):
    return tl.dot(x_desc.load([0, k * BLOCK]), w_desc.load([0, k * BLOCK]).T, acc)


@triton.jit
def waiting(x_desc, w_desc, out_desc, flags, chunks, WHEN: tl.constexpr):
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    if WHEN == "flat":
        for k in range(0, chunks * STEPS):
            if k % STEPS == 0:
                wait(flags + k // STEPS)
            acc = step(x_desc, w_desc, acc, k)
    else:
        if WHEN == "for the first alone":
            wait(flags)
        for chunk in range(0, chunks):
            if WHEN == "before":
                wait(flags + chunk)
            for k in range(chunk * STEPS, chunk * STEPS + STEPS):
                acc = step(x_desc, w_desc, acc, k)
            if WHEN == "after":
                wait(flags + chunk)
    out_desc.store([0, 0], acc.to(out_desc.dtype))


def changed(kernel: str, changes: dict[str, str], folder: Path) -> SimpleNamespace:
    """A module made of a kernel's file, unregistered, with something replaced in one place each."""
    text = Path("kernels", f"{kernel}.py").read_text().partition("\nregister(")[0]
    for right, wrong in changes.items():
        assert text.count(right) == 1, f"{right!r} stands nowhere, or in two places"
        text = text.replace(right, wrong)
    path = folder / f"{kernel}_{len(list(folder.iterdir()))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return SimpleNamespace(name=kernel, prepare=module.prepare)


def waits(when: str):
    """The host brings chunk after chunk of x, and raises its flag."""

    def make(seed: int):
        width = STEPS.value * BLOCK
        source, w = (whole_numbers(torch.empty((BLOCK, CHUNKS * width), dtype=torch.bfloat16), i) for i in (0, 1))
        x, flags, out = torch.zeros_like(source), torch.zeros(CHUNKS, dtype=torch.int32), torch.zeros_like(w[:, :BLOCK])
        x_desc, w_desc, out_desc = (describe(matrix, (BLOCK.value, BLOCK.value)) for matrix in (x, w, out))
        args = dict(x_desc=x_desc, w_desc=w_desc, out_desc=out_desc, flags=flags, chunks=CHUNKS, WHEN=when)
        launch = KernelLaunch(waiting, (1,), args | dict(num_warps=4, num_stages=3))

        def bring(host):
            for chunk in range(CHUNKS):
                part = slice(chunk * width, (chunk + 1) * width)
                write(host, x[:, part], source[:, part])
                yield
                raise_flag(host, flags[chunk : chunk + 1], 1)
                yield

        def add(machine):
            enqueue(machine, launch)
            machine.host(bring)

        return add, lambda: "" if (out == (source.double() @ w.double().T).to(out.dtype)).all() else "out is wrong"

    return Case("waiting", when, make)


def main() -> dict[str, str]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (changes, _) in IN_SOURCE.items():
            made = changed(name.split(",")[0], changes, Path(folder))
            found[name] = matmul(made, CONFIG, "bf16", SHAPE, programs=1)
        found |= {when: waits(when) for when in WAITS}
        return {name: run(case, seed=0, budget=200_000).wrong or "exact" for name, case in found.items()}


@pytest.fixture(scope="module")
def found(printed_elsewhere) -> dict[str, str]:
    return printed_elsewhere('import runpy; runpy.run_path("tests/machine/test_planted.py", run_name="__main__")')


@pytest.mark.parametrize(("name", "said"), [*((name, said) for name, (_, said) in IN_SOURCE.items()), *WAITS.items()])
def test_what_is_planted_is_caught(name, said, found):
    assert said in found[name]


if __name__ == "__main__":
    print(json.dumps(main(), indent=1))
