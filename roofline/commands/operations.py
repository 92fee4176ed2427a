"""`roofline operations`: what can be measured, by operation, and where each of them lies. Needs no torch."""

from pathlib import Path
from textwrap import fill

from roofline.operations import OPERATIONS, Operation, Runners
from roofline.operations.options import resolve
from roofline.report.write import ANALYSES

ROOT = Path(__file__).parents[2]


def run(options) -> int:
    """Print each operation's cases, contenders, files, fields and figures. Returns the exit code, 0."""
    for operation in OPERATIONS.values():
        print(operation.name)
        for topic, words in described(operation).items():
            print(fill(", ".join(words), 118, initial_indent=f"  {topic:<12}", subsequent_indent=14 * " "))
    return 0


def described(operation: Operation) -> dict[str, list[str]]:
    """What there is of `operation`, by default on both devices. Fields are the columns of its analysis' table."""
    on_gpu = resolve({}.get, device="cuda", timed=True, root=ROOT)
    on_cpu = resolve({}.get, device="cpu", timed=True, root=ROOT)
    analysis = ANALYSES[operation.analysis]
    return {
        "cases": [f"{len(operation.sweep(on_gpu))} on a GPU", f"{len(operation.sweep(on_cpu))} on a CPU"],
        "for example": [operation.example],
        "contenders": Runners(on_gpu).planner(operation).choices(),
        "files": files(operation),
        "fields": [*analysis.COLUMNS],
        "figures": [*analysis.FIGURES],
    }


def files(operation: Operation) -> list[str]:
    """The files of its declaration, its planner, its runner, its kernel or arms, and its test."""
    paths = [Path("tests", "benchmarks", f"test_{operation.name}.py")]
    for place in (operation.case.__module__, operation.planner, operation.runner):
        if isinstance(place, str):
            path = Path(place.partition(":")[0].replace(".", "/")).with_suffix(".py")
            paths += [path, path.parents[1] / path.name]  # an arm lies above the runner of its name
    return [str(path) for path in paths if (ROOT / path).exists()]
