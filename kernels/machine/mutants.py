"""How good the machine is: each synchronising instruction that a kernel executes is spoilt in one way after another.

A mutant is *caught* if a run of it faults, gets stuck or computes wrong numbers. A silent one is *harmless* if
`why_harmless` proves it from the PTX or `REASONS` says why, else *missed*.
"""

import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from linecache import getline
from pathlib import Path

import numpy as np
import torch

import kernels
from kernels.machine import links
from kernels.machine.cases import Case, matmul, run
from kernels.machine.device import Machine
from kernels.machine.program import LANES, Program, Step
from kernels.machine.ptx import Instruction
from kernels.machine.static import following
from kernels.machine.waiting import for_chunks, for_rows
from kernels.registry import KERNELS
from kernels.tiles import table

SEEDS = 3
PATIENCE = 5  # times the instructions of the kernel as it is: then a mutant is stuck
NOTHING = Step(lambda w: None)


@dataclass(frozen=True)
class Mutant:
    number: int
    inst: Instruction
    what: str
    steps: dict[int, Step]
    """What stands where in the program."""
    wrong: str = ""
    """What a run showed."""
    reason: str = ""
    """Why a silent one is harmless."""


def subjects() -> dict[str, list[Case]]:
    """Of each kernel that has code of its own, small cases that go all its ways."""

    def one(
        kernel: str, shape: tuple[int, int, int], programs=3, *, number=0, sums=None, unit=8, **changes
    ) -> list[Case]:
        config = [entry.config for entry in table("sm90").entries if entry.kernel == kernel][number]
        return [matmul(KERNELS[kernel], replace(config, **changes), "bf16", shape, programs, unit=unit, out_dtype=sums)]

    chain = links.copier("bf16", 3, 1e9, (37, 72), (9, 1032))
    slow = partial(links.layer, "layer_signalled", "bf16", bytes_per_s=1e9)
    return {
        "tiled": one("tiled", (61, 248, 528), unit=16),
        "tiled-odd": one("tiled", (61, 248, 392)),
        "persistent": one("persistent", (123, 248, 776), 2, number=4),
        "persistent_sums": one("persistent_sums", (251, 504, 328), 2, sums=torch.float32),
        "warpgroup": one("warpgroup", (251, 248, 520), 2, number=2),
        "decode": one("decode", (16, 248, 1032), 1, split=1),
        "decode-split": [
            case for k, programs in ((1032, 3), (3080, 5)) for case in one("decode", (16, 248, k), programs, split=3)
        ],
        "flagged": [
            for_chunks("tile_outer", "bf16", ranks=2, steps=5),
            for_chunks("row_block", "bf16"),
        ],
        "flagged_spills": [
            for_chunks("chunk_outer", "bf16", ranks=2, steps=5),
            for_chunks("any", "bf16"),
        ],
        "flagged_rows": [for_rows("bf16", ranks=4, pause=pause) for pause in (20, 0)],
        "copier": [chain, links.arm("row_block", "bf16", devices=2)],
        "signalled": [
            links.scatter("signalled", "bf16", links.Enqueued, devices=2, **of)
            for of in (dict(depth=328), dict(height=384, grid=2))
        ],
        "counting copier": [links.copier("bf16", 2, 1e9, (37, 72), (9, 1032), counted=True), slow()],
        "wait": [
            links.alone("wait", "late", 30),
            chain,
            links.arm("row_block_launches", "bf16", devices=2),
            slow(links.Enqueued),
        ],
        "gate": [links.alone("gate", title, steps) for title, steps in (("at once", 0), ("late", 30))],
    }


def added(index: int, change: int, least=0, most=1 << 20) -> Callable[[Instruction], Instruction | None]:
    """An argument changed that is a number; None where it is none, or no longer allowed."""

    def rewrite(inst: Instruction) -> Instruction | None:
        args = list(inst.args)
        if index >= len(args) or not args[index].isdigit() or not least <= int(args[index]) + change <= most:
            return None
        args[index] = str(int(args[index]) + change)
        return replace(inst, args=tuple(args))

    return rewrite


def renamed(old: str, new: str) -> Callable[[Instruction], Instruction | None]:
    return lambda inst: replace(inst, op=re.sub(old, new, inst.op)) if re.search(old, inst.op) else None


BARRIER, GROUPS = r"bar(rier)?(\.cta)?\.sync", r"(wgmma|cp\.async(\.bulk)?)\.wait_group"
RELEASE = r"mbarrier\.arrive\.(?!expect_tx)|(atom|red|st)\..*(release|acq_rel)"
REMOVED = (
    rf"{BARRIER}|{GROUPS}|fence\.(proxy|acq_rel|sc)|membar|wgmma\.(fence|commit)|cp\.async\.(bulk\.)?commit|setmaxnreg"
    r"|mbarrier\.(init|inval|arrive)"
)
OTHERS = [
    (BARRIER, "a warp fewer", added(1, -LANES, LANES)),
    (r"fence\.proxy", "of the other space", renamed(r"shared::\w+$", "global")),
    (r"fence\.proxy", "of the other space", renamed("global$", "shared::cta")),
    (GROUPS, "one more in flight", added(0, 1)),
    (GROUPS, "for the reads alone", renamed(r"(bulk\.wait_group)$", r"\1.read")),
    (r"mbarrier\.init", "one arrival more", added(1, 1)),
    (r"mbarrier\.init", "one arrival fewer", added(1, -1, 1)),
    (r"mbarrier\.arrive", "fewer bytes", added(2, -16)),
    (r"mbarrier\.arrive", "more bytes", added(2, 16)),
    (r"setmaxnreg", "8 registers more", added(0, 8, 24, 256)),
    (r"atom|red|ld|st", "relaxed", renamed(r"\.(acq_rel|acquire|release)\b", ".relaxed")),
    (r"atom|red|ld|st|fence", "of a narrower scope", renamed(r"\.gpu\b", ".cta")),
    (r"atom|red|ld|st|fence", "of a narrower scope", renamed(r"\.sys\b", ".gpu")),
    (r"(ld|st)\.", "weak", renamed(r"\.volatile", "")),
]


def mutants(program: Program, number: int) -> Iterator[Mutant]:
    code, inst, step = program.kernel.code, program.kernel.code[number], program.steps[number]
    steps: list[tuple[str, Step]] = [("removed", NOTHING)] * bool(re.match(REMOVED, inst.op))
    found = ((what, rewrite(inst)) for pattern, what, rewrite in OTHERS if re.match(pattern, inst.op))
    steps += [(what, program._effect(other)) for what, other in found if other]
    if inst.op.startswith(("elect", "mbarrier.try_wait")):
        put = program.put(inst.args[0].split("|")[-1], "pred")
        steps.append(("removed" if "wait" in inst.op else "every lane", Step(lambda w: put(w, np.ones(LANES, bool)))))
    if inst.op.startswith("mbarrier.try_wait"):
        parity = program.register(inst.args[2])

        def wait(w):
            before, w.r[parity] = w.r[parity], w.r[parity] ^ 1
            ready, w.r[parity] = step.run(w), before
            return ready

        steps.append(("the other parity", replace(step, run=wait)))
    yield from (Mutant(number, inst, what, {number: new}) for what, new in steps)
    starts = set(program.kernel.labels.values())
    for before in range(number - 1, -1, -1) if re.match(RELEASE, inst.op) else ():
        if before + 1 in starts or code[before].op.startswith(("br", "ret", "exit")):
            break
        if re.match(f"{BARRIER}|{GROUPS}", code[before].op):
            changes = {before: NOTHING, number: swapped(step, program.steps[before])}
            yield Mutant(number, inst, f"before {code[before].op.removesuffix('.sync.aligned')}", changes)


def swapped(release: Step, wait: Step) -> Step:
    """First what releases, then what it had to wait for."""
    begun = set()

    def both(w):
        if w not in begun:
            mask = release.guard(w) if release.guard else np.ones(LANES, bool)
            if mask.any():
                w.mask = None if mask.all() else mask
                release.run(w)
                w.mask = None
            begun.add(w)
            return lambda: True
        ready = wait.run(w)
        begun.difference_update([w] if ready is None else [])
        return ready

    return Step(both, visible=True)


ALL = "rwRWoua"
MEANS = [
    (r"(ld|st)\.param|elect|shfl|redux|setmaxnreg|bra|brx|ret|exit", "", ""),
    (r"wgmma\.(fence|commit)|cp\.async\.(bulk\.)?commit", "", ""),
    (r"ld\.shared|ldmatrix", "r", "r"),
    (r"st\.shared|stmatrix", "w", "w"),
    (r"(ld|st)\..*(volatile|relaxed|acquire|release)", ALL, ALL),
    (r"ld\.global", "R", "R"),
    (r"st\.global", "W", "W"),
    (r"wgmma\.mma", "", "r"),
    (r"wgmma\.wait", "r", ""),
    (r"cp\.async\.bulk\.tensor.*mbarrier", "", "wRu"),
    (r"cp\.async\.bulk\.tensor", "", "rW"),
    (r"cp\.async\.bulk\.wait_group\.read", "r", ""),
    (r"cp\.async\.bulk\.wait_group", "rW", ""),
    (r"cp\.async\.c[ag]", "", "wR"),
    (r"cp\.async\.wait", "wR", ""),
    (r"mbarrier\.in", "o", "o"),
    (r"mbarrier\.arrive\.expect_tx", "a", "u"),  # with bytes that come only behind the next barrier, or conflict
    (r"mbarrier\.arrive", "a", ALL),
    (r"mbarrier\.try_wait", ALL, "u"),
    (r"fence\.proxy", "", "rR"),  # of all warps: what another's would cover too is a write, and that conflicts
    (r"", ALL, ALL),
]
"""Of an opcode: what of it a barrier behind it orders for others, and what of it has to be behind a barrier. Reads and
writes of shared (r, w) and global memory (R, W), an mbarrier made (o), used (u), arrived at (a). A barrier behind what
is asynchronous orders nothing of it: that it is done, only a wait says."""
CONFLICTS = {"rw", "wr", "ww", "RW", "WR", "WW", "oo", "ou", "ao"}
ISSUES = {"wgmma": r"wgmma\.mma", "cp.async.bulk": r"cp\.async\.bulk\.tensor.*group", "cp.async": r"cp\.async\.c[ag]"}
REASONS = [
    (f"({BARRIER}).* removed", r"tl\.dot\(|mbarrier\.wait\(|^persistent.*for (k0|step) in range", (
        "each warp waits for the mbarrier itself; a barrier in front of the slot's next loads still stands")),
    (f"{GROUPS}|{BARRIER}", r"-tail: .*(tl\.range\(tl\.program_id|out_desc\.store)", (
        "a share of the tail stores once, behind another such wait")),
    (r"wgmma\.wait", r"range\((start|tl\.program_id)", "a program's last step ends a tile, whose sums it waited for"),
    (f"({BARRIER}).* removed", r"load\(x_ptr \+ columns|^flagged_spills.*(held|flags \+ position)", (
        "a warp touches what it alone has touched before")),
    (f"({BARRIER}).* removed", r"^flagged.* x = x_desc\.load", (
        "what warps read before lies under the first stage of w, whose load stands behind one more barrier")),
    (r"cp\.async\.commit", r" x = tl\.load\(", "the first x joins the group of its w: one wait is for both"),
    (f"({RELEASE}).* before", r"counters_ptr \+ tile", "an earlier barrier is behind the stores that it counts"),
    (f"({RELEASE}).* relaxed", r"started_ptr, 1", "who waits for it reads nothing that was written before it"),
    (r"ld.* relaxed", r"^flagged.*flags \+ chunk, 0, sem=", "the look at all flags behind it is an acquire, too"),
    (r"fence\.proxy", r"fence_async_shared\(\)", "behind mbarrier.init, where the machine asks for no fence"),
    (r"mbarrier\.inval", "", "nobody touches the mbarrier's bytes again: the machine would see it"),
    (r"setmaxnreg", "", "the pool has registers enough; how many the code needs, ptxas knows alone"),
]  # fmt: skip
"""(opcode and mutation, text in `kernel: source line`, reason): what no rule proves."""


@cache
def ways(program: Program) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Of each instruction, those that may come before it, and behind it."""
    before, behind = ({n: set() for n in range(len(program.kernel.code) + 1)} for _ in range(2))
    for number in range(len(program.kernel.code)):
        for goal in following(program.kernel, number):
            behind[number].add(goal)
            before[goal].add(number)
    return before, behind


def reach(goals: dict[int, set[int]], start: int, stop: set[int]) -> set[int]:
    """Instructions on the ways from `start`, up to those where they `stop`."""
    seen, todo = set(), [start]
    while todo:
        new = goals[todo.pop()] - seen - stop
        seen |= new
        todo += new
    return seen


def why_harmless(name: str, program: Program, mutant: Mutant, warps: dict[int, set[int]]) -> str:
    """`warps`: which ones execute what."""
    code, inst, number = program.kernel.code, mutant.inst, mutant.number

    def means(n: int) -> Sequence[str]:
        some = code[n].op.startswith("fence") and len(warps[n]) < program.warps
        return (ALL, ALL) if some else next(found for pattern, *found in MEANS if re.match(pattern, code[n].op))

    if re.match(BARRIER, inst.op) and mutant.what == "removed":
        like = {
            n for n in warps if re.match(BARRIER, code[n].op) and (len(code[n].args) == 1 or code[n].args == inst.args)
        }
        sides = [[n for n in reach(goals, number, like - {number}) - {number} if n in warps] for goals in ways(program)]
        pairs = product(*([(n, means(n)[i]) for n in side] for i, side in enumerate(sides)))
        apart = (
            len(warps[m] | warps[n]) == 1 or not {a + b for a in x for b in y} & CONFLICTS for (m, x), (n, y) in pairs
        )
        if all(apart):
            return "between the barriers around it no warp needs what another did"
    if inst.op.startswith("fence.proxy"):
        like = {n for n in warps if n != number and code[n].op == inst.op and warps[n] >= warps[number]}
        for side, goals in enumerate(ways(program)):
            between = reach(goals, number, like) - {number}
            if not between & {0, len(code)} and not any(means(n)[side] for n in between if n in warps):
                return "the same fence stands beside it"
    if group := re.match(GROUPS, inst.op):
        ops = inst.op, inst.op.replace(".read", "")
        strict = {n for n in warps if n != number and code[n].op in ops and int(code[n].args[0]) <= int(inst.args[0])}
        if not any(re.match(ISSUES[group[1]], code[n].op) for n in reach(ways(program)[0], number, strict)):
            return "as strict a wait stands before it, and nothing was issued since"
    file, _, line = inst.source.partition(":")
    text, what = f"{name}: {getline(str(path_of(file)), int(line or 0))}", f"{inst.op} {mutant.what}"
    return next((why for op, part, why in REASONS if re.match(op, what) and re.search(part, text)), "")


@cache
def path_of(file: str) -> Path | None:
    top = Path(kernels.__file__).parent
    return next((path for folder in (top, top.parent / "collectives") for path in folder.rglob(file or "-")), None)


@contextmanager
def replaced(program: Program, steps: dict[int, Step]) -> Iterator[None]:
    before, program.steps = program.steps, [steps.get(n, step) for n, step in enumerate(program.steps)]
    try:
        yield
    finally:
        program.steps = before


def judged(name: str, cases: Sequence[Case], sample: int | None = None) -> Iterator[Mutant]:
    """All mutants of the largest program that the first case launches, or some."""
    machine = Machine()
    cases[0].make(0)[0](machine)
    program = max((launch.program for launch in machine.launches), key=lambda program: len(program.kernel.code))
    warps = {n: set() for n, step in enumerate(program.steps) if step and not step.count}  # that execute effect n

    def watched(n: int, step: Step) -> Step:
        return replace(step, run=lambda w: (warps[n].add(w.number), step.run(w))[1])

    with replaced(program, {n: watched(n, program.steps[n]) for n in warps}):
        clean = [run(case, 0) for case in cases]
    if wrong := [outcome.wrong for outcome in clean if outcome.wrong]:
        raise RuntimeError(f"{name} as it is: {wrong[0]}")
    if unseen := [str(program.kernel.code[n]) for n in warps if not warps[n] and any(mutants(program, n))]:
        print(f"{name}: no run executes", *unseen, sep="\n    ", file=sys.stderr)
    every = [mutant for n in warps if warps[n] for mutant in mutants(program, n)]
    for mutant in random.Random(0).sample(every, min(sample, len(every))) if sample else every:
        budget = PATIENCE * max(outcome.instructions for outcome in clean)
        with replaced(program, mutant.steps):
            runs = (run(case, seed, budget=budget).wrong for seed in range(SEEDS) for case in cases)
            wrong = next(filter(None, runs), "")
        yield replace(mutant, wrong=wrong, reason="" if wrong else why_harmless(name, program, mutant, warps))


FAMILIES = {
    "barriers": BARRIER, "waits for groups": GROUPS, "commits, wgmma.fence": r".*commit|wgmma",
    "mbarriers": r"mbarrier\.(init|inval|arrive)", "waits for mbarriers": "mbarrier", "proxy fences": r"fence\.proxy",
    "semantics, scopes": "atom|red|ld|st|fence|membar", "elect": "elect", "setmaxnreg": "setmaxnreg",
}  # fmt: skip
EARLY = "early release"


def counts(some: Sequence[Mutant]) -> str:
    """`caught + harmless ! missed`, the last two where there are some."""
    caught, harmless = (sum(bool(getattr(one, what)) for one in some) for what in ("wrong", "reason"))
    missed = len(some) - caught - harmless
    return f"{caught}{f' + {harmless}' * bool(harmless)}{f' ! {missed}' * bool(missed)}" if some else ""


def markdown(found: dict[str, list[Mutant]]) -> str:
    def family(one: Mutant) -> str:
        return EARLY if one.what[:6] == "before" else next(k for k, op in FAMILIES.items() if re.match(op, one.inst.op))

    names, every = [*FAMILIES, EARLY], [one for some in found.values() for one in some]
    rows = [["kernel", *names, "all"], ["---", *["---:"] * (len(names) + 1)]]
    for kernel, some in [*found.items(), ("all", every)]:
        rows.append([kernel, *(counts([one for one in some if family(one) == name]) for name in names), counts(some)])
    rows += [[], ["harmless", "because"], ["---:", "---"]]
    rows += [[str(n), why] for why, n in Counter(one.reason for one in every if one.reason).most_common()]
    return "\n".join(f"| {' | '.join(row)} |" if row else "" for row in rows)


def report(names: Sequence[str], sample: int | None, table_alone: bool) -> int:
    found: dict[str, list[Mutant]] = {}
    for name, cases in subjects().items():
        if not names or name in names:
            found[name] = list(judged(name, cases, sample))
            lines = [f"    {one.what}, {one.inst}: {one.reason or 'MISSED'}" for one in found[name] if not one.wrong]
            lines = [f"{name}: {counts(found[name])}", *lines]
            print("\n".join(lines), file=sys.stderr if table_alone else sys.stdout, flush=True)
    every = [one for some in found.values() for one in some]
    print(markdown(found) if table_alone else f"caught + harmless: {counts(every)}")
    return 0 if every and all(one.wrong or one.reason for one in every) else 1
