"""The tests to run for a file: `python -m tests.covering PATH...` prints them, and `make test FOR=PATH` runs them.

Nothing is imported or run to find them. A file uses what it imports, and the pages and files of data that it names.
What it uses is used by all that use it, up to the tests. These also use the modules that they name, what the fixtures
use that they ask for, what whole runs do in processes of their own (`RUNS`), and all kernels where they ask for the
registry of these.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

from roofline.host.arguments import Parser

ROOT = Path(__file__).parents[1]
RUNS = {
    "zygote": ("roofline", "tests/roofline/small_project.py", "tests/roofline/forked.py", "conftest.py"),
    "rehearse": ("kernels/bench", "collectives/bench", "tests/benchmarks"),
}
"""Fixture -> files and folders that its processes run, beyond what its own file names."""
BY_NAME = {
    "kernels/tiles.py": "kernels/configs/",
    "collectives/bench/links.py": "collectives/device_ranks.py",
    "kernels/machine/tests/test_check.py": "kernels/machine/__main__.py",
    "kernels/machine/tests/test_package.py": "kernels/machine/plugin.py",
}
"""File -> the file or folder that it uses by a name that is put together, or in a process."""
ALWAYS = "pyproject.toml", "conftest.py", "roofline_pytest.py", "tests/conftest.py"
"""For these all tests are run."""
MODULE = re.compile(r"\b(?:roofline|kernels|collectives|results|tests)(?:\.\w+)+")


@cache
def files() -> tuple[str, ...]:
    """All that is committed and there, but for the runs."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.splitlines() if not name.startswith("results/reference/")]
    return tuple(name for name in names if (ROOT / name).exists())


def beginning(places: str | tuple[str, ...]) -> set[str]:
    """The files whose paths begin so."""
    return {name for name in files() if name.startswith(places)}


@cache
def modules() -> dict[str, str]:
    """{name of a module: its file}, also by the folders that pytest puts on the path. None is a conftest: who asks for
    its fixtures uses them."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["pythonpath"]
    names = {}
    for path in map(Path, files()):
        for folder in folders:
            if path.suffix == ".py" and path.name != "conftest.py" and path.is_relative_to(folder):
                parts = path.relative_to(folder).with_suffix("").parts
                names[".".join(parts).removesuffix(".__init__")] = str(path)
    return names


def file_of(name: str) -> str | None:
    """The file of a module, or of the module that has this name."""
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return modules().get(name)


def names_imported(node: ast.AST, path: str) -> list[str]:
    """The whole names that an import in the file `path` names: modules, and names of modules."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    package = ".".join(Path(path).parent.parts)
    module = resolve_name("." * node.level + (node.module or ""), package)
    return [f"{module}.{alias.name}" for alias in node.names]


def used_by(node: ast.AST, path: str) -> Iterator[str]:
    """The files that a part of a file uses."""
    data = [name for name in files() if not name.endswith(".py")]
    for part in ast.walk(node):
        names = names_imported(part, path)
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and " " not in part.value.strip():
            if path.startswith("tests/"):  # others load what they name where somebody runs it
                names = MODULE.findall(part.value.replace(":", "."))
            yield from (name for name in data if f"/{name}".endswith(f"/{part.value.lstrip('/')}"))
        yield from filter(None, map(file_of, names))


@cache
def fixtures(path: str) -> dict[str, ast.FunctionDef]:
    nodes = ast.parse((ROOT / path).read_text()).body
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return {node.name: node for node in functions if any("fixture" in ast.unparse(by) for by in node.decorator_list)}


@cache
def uses(path: str) -> frozenset[str]:
    """The files that a module uses by itself."""
    tree = ast.parse((ROOT / path).read_text())
    if path.endswith("__init__.py"):  # what a package hands on when it is asked is no use of its own
        tree.body = [node for node in tree.body if not isinstance(node, ast.FunctionDef)]
    found = set(used_by(tree, path))
    if "/test_" in path:
        found |= used_through_fixtures(path, arguments_in(tree))
        if "kernels/registry.py" in found:
            named = MODULE.findall((ROOT / "kernels/registry.toml").read_text().replace(":", "."))
            found |= set(filter(None, map(file_of, named)))
    return frozenset(found | beginning(BY_NAME.get(path, ())))


@cache
def all_used(test: str) -> frozenset[str]:
    """The files that a test uses, directly or not, and its own."""
    found = set()
    todo = [test]
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += uses(name) if name.endswith(".py") else ()
    return frozenset(found)


def arguments_in(tree: ast.AST) -> set[str]:
    """The names of all arguments of functions: fixtures are among them."""
    return {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


def used_through_fixtures(path: str, names: set[str]) -> set[str]:
    """The files that a test with arguments of these names uses through fixtures of the conftests above it."""
    found = set()
    for conftest in (str(folder / "conftest.py") for folder in Path(path).parents):
        if conftest not in files() or conftest == "conftest.py":  # that one's plugin is all of roofline
            continue
        for name, node in reversed(fixtures(conftest).items()):  # later ones use those before
            if name in names or "autouse" in ast.unparse(node.decorator_list[0]):
                names |= arguments_in(node)
                found |= set(used_by(node, conftest))
    for name, runs in RUNS.items():
        if name in names:
            found |= beginning(runs)
    return found


def tests_for(*paths: str) -> list[str]:
    """The files of tests that use one of these, directly or not. ValueError for a path that is no file of the suite, or
    that no test uses."""
    tests = [name for name in files() if re.search(r"(^|/)test_\w+\.py$", name)]
    for path in paths:
        if path not in files():
            raise ValueError(f"{path} is no file of this checkout that is committed; name one from its root")
    if {*paths} & {*ALWAYS}:
        return tests
    covering = [name for name in tests if {*paths} & all_used(name)]
    if not covering:
        raise ValueError(f"no test uses {', '.join(paths)}; run them all")
    return covering


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m tests.covering", description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="+", help="from the root of the checkout")
    options = parser.parse_args(arguments)
    try:
        print(" ".join(tests_for(*options.path)))
    except ValueError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
