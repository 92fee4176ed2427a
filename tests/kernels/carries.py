"""Names that Triton does not carry from one turn of a loop to the next: `python tests/kernels/carries.py` prints, as
JSON, where the loops of all kernels are, and for each that it compiled, with no GPU, the names that are stored in it,
live before it, and not carried. What must come of it stands in test_carries.py.

The code generator visits a loop's body once with the values from before it, and carries each name that then has another
value. After `a = b`, where both begin with one value, `a` has not: it keeps that value through all turns, as in
`aliased`. The compiled text does not tell it from what was meant to be constant, so the generator itself is watched.
"""

import ast
import json
from contextlib import suppress
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.compiler.code_generator import CodeGenerator
from triton.compiler.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from collectives.device_links import Route, copy_launch, wait_launch
from collectives.links import Transfer
from kernels.bench.instruments import clock_launch, gate_launch
from kernels.configs import DTYPE_NAMES, table
from kernels.contract import KernelLaunch, Signals
from kernels.inspect.compiled import jobs
from kernels.inspect.cubin import offline
from kernels.registry import KERNELS

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]


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
    return [f"{path.relative_to(ROOT)}:{node.lineno}" for node in found if node not in unrolled]


class Made(BaseException):
    """Ends a compilation when the code generator is through."""


def watch() -> dict[str, list[str]]:
    """Have what is compiled from now on end there; returns where the names lost in each loop will be found."""
    found: dict[str, set[str]] = {}
    find_carries = CodeGenerator._find_carries

    def watched(self, node, liveins, ignore=()):
        carried = find_carries(self, node, liveins, ignore)
        inside = [n for statement in node.body for n in ast.walk(statement) if isinstance(n, ast.Name)]
        stored = {n.id for n in inside if isinstance(n.ctx, ast.Store)}
        path = Path(self.file_name).resolve().relative_to(ROOT)
        lost = found.setdefault(f"{path}:{self.begin_line + node.lineno}", [])
        lost += sorted(stored & set(liveins) - set(ignore) - set(carried[0]) - set(lost))
        return carried

    def ended(make_ir):
        def make(*args):
            make_ir(*args)
            raise Made

        return make

    CodeGenerator._find_carries = watched
    for source in (ASTSource, GluonASTSource):
        source.make_ir = ended(source.make_ir)
    return found


def launches() -> list[KernelLaunch]:
    """Of every kernel, in every configuration, and in every form that has loops of its own."""
    by_name = {name: dtype for dtype, name in DTYPE_NAMES.items()}
    todo = {(job.kernel, job.config): job for job in jobs([table("sm90")])}.values()
    chunk, words, flag = torch.empty((64, 64)), torch.empty(8, dtype=torch.int64), torch.empty(1, dtype=torch.int32)
    route = Route.of([Transfer(1, 0, chunk, chunk)], "cpu")
    return [
        KernelLaunch(aliased, (1,), dict(p=flag, n=6)),
        *(KERNELS[job.kernel].example(job.config, by_name[job.dtype]) for job in todo),
        copy_launch(route, words, 1e9),
        wait_launch(Signals(flag, 1, flag, 1), 1, words),
        gate_launch(flag, 1),
        clock_launch(words.view(-1, 2), 0),
    ]


if __name__ == "__main__":
    triton.knobs.compilation.always_compile = True  # what was compiled before, too
    lost = watch()
    with offline(90):
        for launch in launches():
            with suppress(Made):
                launch.kernel.warmup(grid=launch.grid, **launch.args)
    sources = [path for folder in ("kernels", "collectives") for path in sorted((ROOT / folder).rglob("*.py"))]
    print(json.dumps({"loops": [loop for path in [HERE, *sources] for loop in loops(path)], "lost": lost}))
