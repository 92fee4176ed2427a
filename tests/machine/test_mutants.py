"""Each synchronising instruction of the compiled kernels is dropped, or made relaxed, and the machine runs the rest.
It is told if a run faults, gets stuck or computes wrong numbers; else it was not needed, or is missed.

How many may be silent is bounded for each kernel and kind, by what was looked at when the bound was set.
"""

import re
from collections import Counter
from dataclasses import replace
from functools import partial

import links
import numpy as np
import pytest
from cases import matmul, run
from waiting import for_chunks, for_rows

from kernels.machine.device import Machine
from kernels.machine.program import LANES, Program, Step
from kernels.registry import CONTENDERS
from kernels.tiles import table

SEEDS, PATIENCE = 3, 5  # orders of events; times the instructions of the kernel as it is: then a mutant is stuck
BARRIER, WAIT, COMMIT = "barrier", "wait_group", "commit"
# What is of a kind, and why one of it may be silent.
SYNCHRONISES = {
    # Triton puts one between two TMA loads of a warp, around what each warp has waited for itself, and between the wait
    # of a warpgroup, which is for all of its reads, and what overwrites or releases what it read.
    BARRIER: r"bar(rier)?(\.cta)?\.sync",
    # As strict a wait stands before it, and nothing was issued since.
    WAIT: r"(wgmma|cp\.async(\.bulk)?)\.wait_group",
    # The first x joins the group of its w: one wait is for both.
    COMMIT: r"wgmma\.(fence|commit)|cp\.async\.(bulk\.)?commit",
    # Behind mbarrier.init, where the machine asks for none.
    "proxy fence": r"fence\.proxy",
    # inval: nobody touches the mbarrier's bytes again, or nobody has used it when it is initialised again.
    "mbarrier": r"mbarrier\.(init|inval|arrive)",
    "mbarrier wait": r"mbarrier\.try_wait",
    # The pool has registers enough; how many the code needs, ptxas knows alone.
    "setmaxnreg": "setmaxnreg",
    # Who waits reads nothing that was written before, or looks once more with acquire.
    "semantics": r"(atom|red|ld|st)\..*(acq_rel|acquire|release)",
}
BOUNDS = {
    "tiled": {BARRIER: 4, COMMIT: 1},
    "persistent": {BARRIER: 12},
    "warpgroup": {BARRIER: 8, "proxy fence": 1, "setmaxnreg": 3},
    "decode": {BARRIER: 19, WAIT: 1, "mbarrier": 6},
    "flagged": {BARRIER: 11},
    "flagged_spills": {BARRIER: 15},
    "pieces_flags": {BARRIER: 12, "semantics": 1},
    "pieces_counters": {BARRIER: 12, WAIT: 1, "mbarrier": 2},
    "copier": {"semantics": 1},
    "wait": {BARRIER: 3},
}
"""{kernel: {kind: how many may be silent}}."""


def subjects() -> dict[str, list]:
    """Of each kernel that has code of its own, small cases that go all its ways."""

    def plain(kernel: str, shape: tuple[int, int, int], programs=3, *, number=0, unit=8, **changes):
        config = [entry.config for entry in table("sm90").entries if entry.kernel == kernel][number]
        return matmul(CONTENDERS[kernel].load(), replace(config, **changes), "bf16", shape, programs, unit=unit)

    chain = links.copier("bf16", 3, 1e9, (37, 72), (9, 1032))
    slow = partial(links.layer, "layer_signalled", "bf16", bytes_per_s=1e9)
    return {
        "tiled": [plain("tiled", (61, 248, 528), unit=16)],
        "persistent": [plain("persistent", (123, 248, 776), 2, number=4)],
        "warpgroup": [plain("warpgroup", (251, 248, 520), 2, number=2)],
        "decode": [plain("decode", (16, 248, k), programs, split=3) for k, programs in ((1032, 3), (3080, 5))],
        "flagged": [for_chunks("tile_outer", "bf16", ranks=2, steps=5), for_chunks("row_block", "bf16")],
        "flagged_spills": [for_chunks("chunk_outer", "bf16", ranks=2, steps=5), for_chunks("spill_once", "bf16")],
        "pieces_flags": [for_rows("bf16", ranks=4, pause=pause) for pause in (20, 0)],
        "pieces_counters": [
            links.scatter(**sizes)
            for sizes in (dict(depth=328), dict(depth=72, height=384, grid=2))  # one binary
        ],
        "copier": [links.copier("bf16", 2, 1e8, (9, 1032), (37, 72)), slow()],
        "wait": [links.alone("wait", "late", 30), chain, slow()],
    }


def kind_of(op: str) -> str | None:
    return next((kind for kind, pattern in SYNCHRONISES.items() if re.match(pattern, op)), None)


def spoilt(program: Program, number: int) -> Step | None:
    """What stands in the place of an instruction; None of one that synchronises nothing."""
    inst = program.kernel.code[number]
    kind = kind_of(inst.op)
    if kind == "mbarrier wait":
        put = program.put(inst.args[0].split("|")[-1], "pred")
        return Step(lambda warp: put(warp, np.ones(LANES, bool)))
    if kind == "semantics":
        return program._effect(replace(inst, op=re.sub(r"\.(acq_rel|acquire|release)\b", ".relaxed", inst.op)))
    return Step(lambda warp: None) if kind else None


def judged(name: str) -> tuple[int, dict[str, int]]:
    """Return how many mutants are caught and how many of each kind are silent, of the first case's largest program."""
    cases, machine = subjects()[name], Machine()
    cases[0].make(0)[0](machine)
    program = max((launch.program for launch in machine.launches), key=lambda program: len(program.kernel.code))
    plain, executed, caught, silent = program.steps, set(), 0, Counter()

    def watched(number: int, step: Step) -> Step:
        return replace(step, run=lambda warp: (executed.add(number), step.run(warp))[1])

    program.steps = [watched(n, step) if step and not step.count else step for n, step in enumerate(plain)]
    clean = [run(case, 0) for case in cases]
    assert not any(outcome.wrong for outcome in clean), clean
    budget = PATIENCE * max(outcome.instructions for outcome in clean)
    for number in sorted(executed):
        if kind := kind_of(program.kernel.code[number].op):
            program.steps = [*plain[:number], spoilt(program, number), *plain[number + 1 :]]
            if any(run(case, seed, budget=budget).wrong for seed in range(SEEDS) for case in cases):
                caught += 1
            else:
                silent[kind] += 1
    program.steps = plain
    return caught, dict(silent)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(BOUNDS))
def test_what_is_dropped_is_told(name, printed_elsewhere):
    caught, silent = printed_elsewhere(
        f"import json; from test_mutants import judged; print(json.dumps(judged({name!r})))"
    )
    print(f"{name}: {caught} caught, silent {silent}")
    assert caught >= 2
    assert all(count <= BOUNDS[name].get(kind, 0) for kind, count in silent.items()), silent
