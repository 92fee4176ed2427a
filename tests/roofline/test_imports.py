"""Imports run one way: what a package may import of this project, at the top of a module or inside a function."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FOR_READERS = ("report.format", "report.kernel_words", "report.tables", "report.theme")
"""How numbers, tables and figures look: of these reports are made, and they import nothing else."""

ALLOWED = {
    # package: what it may import beside itself; the first that a module's name begins with counts
    "roofline.theory": (),
    "roofline.stats": (),
    "roofline.arguments": (),
    "roofline.store": ("theory", "stats", "analysis"),
    "roofline.measure": ("store", "theory", "stats"),
    "roofline.analysis": ("store", "theory", "stats", "operations", *FOR_READERS),
    "roofline.operations": ("theory",),
    "roofline.predict": ("analysis", "operations", "store", "theory", "report.format", "report.tables"),
    "roofline.account": (
        *("theory", "arguments", "report.tables", "report.theme"),
        *("store.journal", "analysis.overlap.analysis"),  # of a run that it was asked to look at
    ),
    "roofline.profile": ("measure", "store", "operations", "analysis", "report.format", "worker"),
    "roofline.report": ("analysis", "store", "operations", "predict", "profile", "theory", "stats"),
    "roofline": ("",),  # cli, pytest_plugin, worker, __init__
}
FOR_KERNELS = ("roofline.theory", "roofline.arguments", "kernels")
FOR_COLLECTIVES = (*FOR_KERNELS, "collectives")
FOR_BENCH = ("roofline", "kernels", "collectives")


def allowed_of(module: str) -> tuple[str, ...]:
    package, _, rest = module.partition(".")
    if rest.startswith(("bench", "tune")):  # what measures
        return FOR_BENCH
    if package != "roofline":
        return FOR_KERNELS if package == "kernels" else FOR_COLLECTIVES
    own = next(name for name in ALLOWED if f"{module}.".startswith(f"{name}."))
    return (own, "roofline.__version__", *(f"roofline.{name}".rstrip(".") for name in ALLOWED[own]))


def imported(path: Path) -> set[str]:
    """Whole names of what `path` imports: modules, and names of modules."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] in ("roofline", "kernels", "collectives")}


def modules(*packages: str) -> dict[str, Path]:
    paths = (path for package in packages for path in (ROOT / package).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


@pytest.mark.parametrize("package", ["roofline", "kernels", "collectives"])
def test_imports_run_one_way(package):
    wrong = {
        (module, name)
        for module, path in modules(package).items()
        for name in imported(path)
        if not any(f"{name}.".startswith(f"{known}.") for known in allowed_of(module))
    }
    assert not wrong


def test_what_reports_need_is_free_of_torch():
    heavy = {"torch", "triton", "pytest"}
    free = ("theory", "stats", "store", "operations", "analysis", "report", "account", "predict", "cli")
    for module, path in modules("roofline").items():
        if any(f"{module}.".startswith(f"roofline.{name}.") for name in free):
            names = {
                alias.name.split(".")[0] if isinstance(node, ast.Import) else (node.module or "").split(".")[0]
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names
            }
            assert not names & heavy, module
