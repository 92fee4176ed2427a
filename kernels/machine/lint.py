"""A search for what no run shows: lanes that do not wait for each other, and names that loops do not carry."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from triton.compiler.code_generator import CodeGenerator

from .core.ptx import Instruction, Kernel

BARRIERS = ("bar.", "barrier.")
GOES_ON = ("cp.async.bulk.tensor", "mbarrier.arrive", "mbarrier.inval")
TOUCHES = (*GOES_ON, "ld.shared", "st.shared", "ldmatrix", "stmatrix", "wgmma.mma_async", "cp.async.c")
# The instructions at which a warp's lanes meet, and those that no lane may execute before, by the first word of a wait.
# An mbarrier that goes on while a lane still looks for its phase may be a round ahead at the next look, which then
# waits for ever (https://github.com/NVIDIA/cutlass/issues/3654). A lane waits for its own copies alone (9.7.9.25.3.3).
WAITS = {
    "mbarrier": ((*BARRIERS, "elect.sync", "shfl.sync", "vote.sync", "wgmma."), GOES_ON),
    "cp": (BARRIERS, TOUCHES),
}


def races(kernel: Kernel) -> dict[str, Instruction]:
    """A sentence for each wait of single lanes that one lane may pass, on some path through the code, before all have
    met; and the instruction that it then comes to. The machine keeps a warp's lanes in step, so no run shows this. It
    does not keep warps in step, so warps need no such search."""
    problems = {}
    for number, wait in enumerate(kernel.code):
        meet, early = WAITS.get(wait.op.split(".")[0], ((), ()))
        todo = [number + 1] if meet and "wait" in wait.op else []
        seen = set()
        while todo:
            at = todo.pop()
            inst = kernel.code[at]
            if inst.op.startswith(early):
                passed = f"lanes may not have passed PTX line {wait.line}, {wait.op}"
                problems[f"{inst}: {passed}; put a barrier between"] = inst
                break
            if at not in seen and not inst.op.startswith(meet):
                seen.add(at)
                todo += following(kernel, at)
    return problems


def following(kernel: Kernel, at: int) -> list[int]:
    """The numbers of the instructions that may come next."""
    inst = kernel.code[at]
    word = inst.op.split(".")[0]
    labels = ()
    if word == "brx":
        labels = kernel.targets[inst.args[1]]
    elif word == "bra":
        labels = inst.args
    places = [kernel.labels[label] for label in labels]
    if inst.guard or word not in ("bra", "brx", "ret", "exit", "trap"):
        places.append(at + 1)
    return places


UNCARRIED = "Triton keeps the value from before it; compute it from a name that is carried"


@contextmanager
def carries_watched() -> Iterator[list[str]]:
    """A list that gets a sentence for each loop, of the kernels that are compiled inside the block, that does not carry
    from turn to turn what it stores and is live before it.

    The code generator visits a loop's body once with the values from before it, and carries each name that then has
    another value. After `a = b`, where both begin with one value, `a` has the same value as before: it is not carried,
    and keeps that value for ever. The text that the generator makes does not tell this from a name that was meant to be
    constant, so the generator itself is watched.
    """
    problems: list[str] = []
    find_carries = CodeGenerator._find_carries

    def watched(self, node, liveins, **options):
        carried = find_carries(self, node, liveins, **options)
        names = [name for name in ast.walk(ast.Module(node.body, [])) if isinstance(name, ast.Name)]
        stored = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        lost = stored & set(liveins) - set(options.get("ignore", ())) - set(carried[0])
        loop = f"{Path(self.file_name).name}:{self.begin_line + node.lineno}"
        problem = f"the loop at {loop} does not carry {', '.join(sorted(lost))}: {UNCARRIED}"
        if lost and problem not in problems:  # a function is visited for each of its signatures
            problems.append(problem)
        return carried

    with patch.object(CodeGenerator, "_find_carries", watched):
        yield problems
