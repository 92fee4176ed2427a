"""What is looked for before a run: single lanes that go by a wait, and names that loops do not carry.

Every loop of every kernel is looked at, and one that loses a name. Where the source runs as Python, as in the
interpreter, nothing of that can be seen.
"""

import ast
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from beside import launches
from small_ptx import program

from kernels import part_sums
from kernels.contract import KernelLaunch
from kernels.inspect.compiled import jobs
from kernels.machine.static import carries, races
from kernels.registry import KERNELS
from kernels.tiles import DTYPE_NAMES, table

ROOT = Path(__file__).parents[2]


@triton.jit
def aliased(p, n):
    """In Python 5, 5, 6, 7, ...; compiled, 5 for ever."""
    b = tl.load(p)
    a = b
    for i in range(n):
        tl.store(p + i, a)
        a = b
        b = b + 1


def loops(path: Path) -> list[str]:
    """Where the loops of a file's kernels begin, but for those that are unrolled: "file:line"."""
    functions = [f for f in ast.walk(ast.parse(path.read_text())) if isinstance(f, ast.FunctionDef)]
    jitted = [f for f in functions if any(".jit" in ast.unparse(decorator) for decorator in f.decorator_list)]
    found = [node for f in jitted for node in ast.walk(f) if isinstance(node, ast.For | ast.While)]
    unrolled = [node for node in found if isinstance(node, ast.For) and "static_range" in ast.unparse(node.iter)]
    return [f"{path.name}:{node.lineno}" for node in found if node not in unrolled]


def main() -> dict[str, list[str]]:
    """Of every kernel, in every configuration, and in every form that has loops of its own."""
    by_name = {name: dtype for dtype, name in DTYPE_NAMES.items()}
    todo = {(job.kernel, job.config): job for job in jobs([table("sm90")])}.values()
    planted = KernelLaunch(aliased, (1,), dict(p=torch.empty(8, dtype=torch.int32), n=6))
    matmuls = [KERNELS[job.kernel].example(job.config, by_name[job.dtype]) for job in todo]
    found: dict[str, list[str]] = {}
    parts = torch.empty((2, 8, 8), dtype=torch.bfloat16)
    added = part_sums.prepare(parts, parts[0], torch.empty_like(parts[0]))
    for launch in (planted, added, *matmuls, *launches().values()):
        for loop, names in carries(launch, 90).items():
            found.setdefault(loop, []).extend(names)
    return found


def test_no_name_is_lost_in_any_loop_but_the_planted_one(printed_elsewhere):
    lost = printed_elsewhere("import json; from test_static import main; print(json.dumps(main()))")
    sources = [path for folder in ("kernels", "collectives") for path in sorted((ROOT / folder).rglob("*.py"))]
    planted, *others = [loop for path in (Path(__file__), *sources) for loop in loops(path)]
    assert sorted(lost) == sorted([planted, *others]), "have this file compile what has the loop"
    assert {loop: names for loop, names in lost.items() if names} == {planted: ["a"]}, "take a name that is carried"


WAIT = "again: mbarrier.try_wait.parity.shared.b64 %p1, [global_smem], %r1; @!%p1 bra again;"
ELECT = "setp.eq.u32 %p2, %l, 0;"
TMA = "@{} cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [1024], [%M, {{%r2, %r3}}], [%r4];"
ARRIVE = "@%p2 mbarrier.arrive.shared.b64 _, [global_smem];"
COPIED = "cp.async.wait_group 0;"
STORED = "@%p2 cp.async.bulk.wait_group.read 0;"
READ, WRITE = "ld.shared.b32 %r5, [global_smem];", "st.shared.b32 [global_smem], %r5;"


@pytest.mark.parametrize(
    ("body", "goes_by"),
    [
        (f"{ELECT} {WAIT} {TMA.format('%p2')}", "cp.async.bulk.tensor"),  # cutlass issue 3654
        (f"{ELECT} {WAIT} bar.warp.sync -1; {TMA.format('%p2')}", None),
        (f"{WAIT} elect.sync %r9|%p2, -1; {TMA.format('%p2')}", None),
        (f"{ELECT} {WAIT} bar.sync 0; {ARRIVE}", None),
        (f"{ELECT} {WAIT} @%p3 bra on; bar.sync 0; on: {ARRIVE}", "mbarrier.arrive"),  # on one of the ways
        (f"{ELECT} on: {ARRIVE} {WAIT} @%p3 bra on;", "mbarrier.arrive"),  # in the loop's next turn
        (f"{WAIT} {READ}", None),  # each lane has waited itself
        (f"{COPIED} {READ}", "ld.shared"),  # what another lane has copied
        (f"{COPIED} bar.sync 0; {READ}", None),
        (f"{ELECT} {STORED} {WRITE}", "st.shared"),
        (f"{ELECT} {STORED} bar.sync 0; {WRITE}", None),
        (f"{ELECT} {STORED} ret; {WRITE}", None),
    ],
)
def test_no_lane_goes_by_a_wait_of_its_warp(body, goes_by):
    said = races(program(body, names="M", shared=4096).kernel)
    assert [f" {goes_by}" in one for one in said] == [True] * (goes_by is not None)
