"""Which lines of the shipped kernels the machine has executed.

A line is executed once one of its instructions is. A line that became no instruction, as that of a constant, has been
looked at once Triton's front end has: a branch that was never compiled has not.
"""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, update_wrapper
from pathlib import Path
from unittest.mock import patch

from triton.compiler.code_generator import CodeGenerator

from kernels.machine.core.machine import Machine
from kernels.machine.core.program import Program, Step

ROOT = Path(__file__).parents[2]
PLACES = "kernels/*.py", "kernels/experiments/*.py", "kernels/bench/*.py", "collectives/*.py"
"""Where kernels are shipped."""
BY_RELEASE = (
    'hasattr(buffer, "_reinterpret")',
    "POLLS",
    "READ_ONCE is None",
    "len(acc) == 1",
    "# UNTIMED (odd widths)",
    "# UNTIMED (clusters)",
)
"""What stands beside a condition that holds for some releases of Triton, or for what a release lacks: the other branch
is not compiled."""


def lines_of(path: Path) -> dict[int, bool]:
    """The first lines of the statements of a file's kernels, and of the functions that these call; whether each is
    compiled by every release of Triton."""
    lines = {}
    text = path.read_text()
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef) and any("jit" in ast.unparse(by) for by in function.decorator_list):
            body = function.body[1:] if ast.get_docstring(function) else function.body
            lines |= dict.fromkeys(first_lines(body), True)
            for node in ast.walk(function):
                if isinstance(node, ast.If) and is_by_release(node, text):
                    lines |= dict.fromkeys(first_lines(node.body + node.orelse), False)
    return dict(sorted(lines.items()))


def is_by_release(node: ast.If, text: str) -> bool:
    branches = (node.orelse or node.body)[0].lineno
    head = "\n".join(text.splitlines()[node.lineno - 1 : branches - 1])
    return any(condition in head for condition in BY_RELEASE)


def first_lines(body: list[ast.stmt]) -> list[int]:
    return [node.lineno for node in ast.walk(ast.Module(body, [])) if isinstance(node, ast.stmt)]


def shipped() -> dict[str, dict[int, bool]]:
    """{file: the lines of its kernels, as `lines_of` has them}."""
    paths = [path for place in PLACES for path in sorted(ROOT.glob(place))]
    by_file = {str(path.relative_to(ROOT)): lines_of(path) for path in paths}
    return {name: lines for name, lines in by_file.items() if lines}


@dataclass
class Lines:
    """What was done with lines, each as (path, number)."""

    visited: set[tuple[str, int]] = field(default_factory=set)
    compiled: set[tuple[str, int]] = field(default_factory=set)
    executed: set[tuple[str, int]] = field(default_factory=set)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, notes what Triton's front end visits, and what machines execute."""
        visit, launch = CodeGenerator.visit, Machine.launch

        def noted_visit(generator: CodeGenerator, node: ast.AST):
            if hasattr(node, "lineno"):  # default values of parameters have none
                self.visited.add((generator.file_name, generator.begin_line + node.lineno))
            return visit(generator, node)

        def noted_launch(machine: Machine, program: Program, *args, **more) -> int:
            self._watch(program)
            return launch(machine, program, *args, **more)

        with patch.object(CodeGenerator, "visit", noted_visit), patch.object(Machine, "launch", noted_launch):
            yield

    def _watch(self, program: Program) -> None:
        """Have each step of a program note that it runs, the first time."""
        for number, step in enumerate(program.steps):
            if step and (program, number) not in self._noted:
                self._noted.add((program, number))
                self.compiled |= places(program, number, step)
                run = update_wrapper(partial(self._run, program, number, step), step.run)  # with its attributes
                program.steps[number] = replace(step, run=run)

    _noted: set[tuple[Program, int]] = field(default_factory=set)

    def _run(self, program: Program, number: int, step: Step, warp):
        program.steps[number] = step
        self.executed |= places(program, number, step)
        return step.run(warp)

    def missing(self) -> dict[str, list[int]]:
        """By file, the lines of kernels that were neither executed nor turned to nothing."""
        missing = {}
        for name, lines in shipped().items():
            for line, always in lines.items():
                place = str(ROOT / name), line
                is_looked_at = place in self.visited and place not in self.compiled
                if place not in self.executed and not is_looked_at and (always or place in self.visited):
                    missing.setdefault(name, []).append(line)
        return missing


def places(program: Program, number: int, step: Step) -> set[tuple[str, int]]:
    """The lines whose instructions a step has."""
    kernel = program.kernel
    sources = {inst.source for inst in kernel.code[number : number + (step.count or 1)]} & kernel.paths.keys()
    return {(kernel.paths[source], int(source.rpartition(":")[2])) for source in sources}


def as_text(lines: Lines) -> str:
    """A line for each file of kernels, and each of its lines that is missing, where others are not."""
    rows = []
    missing = lines.missing()
    for name, all_lines in shipped().items():
        left = missing.get(name, [])
        done = len(all_lines) - len(left)
        rows.append(f"{name}: {len(left)} of {len(all_lines)} lines")
        text = (ROOT / name).read_text().splitlines()
        rows.extend(f"    {number}: {text[number - 1].strip()}" for number in left if done)
    return "\n".join(rows)
