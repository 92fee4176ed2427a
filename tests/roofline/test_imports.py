"""Imports run down the floors of the house, and no function is hard to follow.

An import is one at the top of a module, inside a function, or by `import_module`.
"""

import ast
from collections.abc import Container
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from radon.complexity import cc_visit
from radon.visitors import Function

from conftest import ROOT
from tests.covering import names_imported

FLOORS = (
    ("theory",),
    ("store",),
    ("host",),
    ("operations",),
    ("protocol",),
    ("worker", "analysis"),
    ("supervise",),
    ("report", "account", "measure"),
    ("pytest_plugin", "commands", "__main__"),
)
"""Rooms of `roofline` from the ground up: each imports those beside it and below."""

APART = {"worker", "analysis"}
"""The store lies between what measures and what analyses."""

OF_PYTEST = {"supervise", "pytest_plugin"}
FROM_WORKER = {"roofline.worker.METHOD_VERSION", "roofline.worker.worker"}
"""What pytest's own process imports of the room of another process: a number, and what `--pdb` runs here."""

MOST_COMPLEX = 12
"""The most that a function may have by radon's count of its branches."""

MOST_PARAMETERS = 10
"""Of a function that a kernel calls: what travels together is an aggregate."""

FOR_KERNELS = ("roofline.theory", "roofline.host.arguments", "roofline.operations.contenders", "kernels")
FOR_COLLECTIVES = (*FOR_KERNELS, "collectives")
FOR_BENCH = ("roofline", "kernels", "collectives")


def modules(*packages: str) -> dict[str, Path]:
    paths = (path for package in packages for path in (ROOT / package).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imported(path: Path, packages: Container[str] = ("roofline", "kernels", "collectives")) -> set[str]:
    """Return the whole names of what `path` imports of `packages`, by a string too: modules, and names of modules."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names.update(names_imported(node, str(path.relative_to(ROOT))))
        if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return {name for name in names if name.split(".")[0] in packages}


def room_of(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def floor_of(room: str) -> int:
    return next(floor for floor, rooms in enumerate(FLOORS) if room in rooms)


HOUSE = {module: path for module, path in modules("roofline").items() if module != "roofline"}


MACHINE = {
    module: path
    for module, path in modules("kernels").items()
    if module.startswith("kernels.machine") and ".tests" not in module
}
TESTS = modules("kernels/machine/tests")


def graph_of(house: dict[str, Path]) -> dict[str, set[str]]:
    """Return, of each module, those that it imports."""

    def target(name: str) -> str:
        return name if name in house else name.rpartition(".")[0]

    return {module: {target(name) for name in imported(path)} - {module} for module, path in house.items()}


def test_each_room_stands_on_a_floor():
    assert {room_of(module) for module in HOUSE} == {room for rooms in FLOORS for room in rooms}


def test_imports_run_down_the_floors():
    wrong = [
        (module, name)
        for module, path in HOUSE.items()
        for name in imported(path) - {"roofline.__version__"}
        if not name.startswith("roofline.")
        or floor_of(room_of(name)) > floor_of(room_of(module))
        or {room_of(name), room_of(module)} == APART
    ]
    assert not wrong


def test_a_room_is_of_one_process():
    """A worker knows no supervisor by its floor; here, pytest's process runs nothing of a worker's."""
    paths = [path for module, path in HOUSE.items() if room_of(module) in OF_PYTEST]
    names = set().union(*map(imported, paths))
    assert {name for name in names if name.startswith("roofline.worker.")} == FROM_WORKER


FREE_OF = {
    ("theory",): ("os", "sys", "argparse", "subprocess", "torch", "triton", "pytest"),
    ("store", "analysis", "report", "account"): ("torch", "triton", "pytest"),
}
"""Theory asks nothing of the system, and what reports need runs without torch."""


@pytest.mark.parametrize("rooms", FREE_OF)
def test_a_room_does_without(rooms):
    paths = [path for module, path in HOUSE.items() if room_of(module) in rooms]
    assert set().union(*(imported(path, FREE_OF[rooms]) for path in paths)) == set()


def test_no_imports_run_in_a_circle():
    graph = graph_of(HOUSE)
    TopologicalSorter(graph).prepare()  # raises CycleError, which names them
    rooms: dict[str, set[str]] = {}
    for module, targets in graph.items():
        room = room_of(module)
        rooms.setdefault(room, set()).update(other for other in map(room_of, targets) if other != room)
    TopologicalSorter(rooms).prepare()


@pytest.mark.parametrize("room", sorted({room for rooms in FLOORS for room in rooms}))
def test_no_function_is_hard_to_follow(room):
    hard = {}
    for module, path in HOUSE.items():
        for block in cc_visit(path.read_text(encoding="utf-8")) if room_of(module) == room else ():
            if isinstance(block, Function) and block.complexity > MOST_COMPLEX:
                hard[f"{module}.{block.fullname}"] = block.complexity
    assert not hard


def test_what_kernels_call_has_few_parameters():
    """Not they themselves: what is launched has as many as there are tensors, sizes and constants."""
    many = {}
    for module, path in modules("kernels", "collectives").items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef) or node.name.endswith("_kernel") or ".tests" in module:
                continue
            is_jitted = any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
            if is_jitted and len(node.args.args) > MOST_PARAMETERS:
                many[f"{module}.{node.name}"] = len(node.args.args)
    assert not many


def test_the_machine_is_a_package_of_its_own():
    """It goes by another name where it is installed, so every import of its own is relative."""
    graph = graph_of(MACHINE)
    assert set().union(*graph.values()) <= MACHINE.keys()
    assert graph["kernels.machine.verdict"] >= {"kernels.machine.report", "kernels.machine.trial"}
    TopologicalSorter(graph).prepare()
    for path in MACHINE.values():
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        absolute = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
        absolute += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        assert not [name for name in absolute if name.split(".")[0] in (*FOR_BENCH, "tests")], path


def test_the_machines_tests_import_nothing_else_of_this_project():
    graph = {module: imported(path, (*FOR_BENCH, "results", "tests")) for module, path in TESTS.items()}
    names = set().union(*graph.values())
    assert len(names) > 20
    assert not [name for name in names if not name.startswith("kernels.machine")]


def test_the_machines_rooms_stand_on_floors():
    """The core needs no instruction, and neither needs the tool on top."""

    def floor(module: str) -> int:
        return {"core": 0, "isa": 1}.get(module.removeprefix("kernels.machine.").partition(".")[0], 2)

    wrong = []
    for module, targets in graph_of(MACHINE).items():
        wrong += [(module, target) for target in targets if floor(target) > floor(module)]
    assert not wrong


def may_measure(module: str) -> bool:
    """Return whether `module` is a runner's, which may import what measures, the trial's, or an operation's."""
    words = module.split(".")
    return words[1:2] in (["bench"], ["experiments"]) or words[-1] in ("bench", "operation", "figure", "transformer")


@pytest.mark.parametrize("package", ["kernels", "collectives"])
def test_what_kernels_and_collectives_may_import(package):
    allowed = FOR_KERNELS if package == "kernels" else FOR_COLLECTIVES
    wrong = {
        (module, name)
        for module, path in modules(package).items()
        for name in imported(path)
        if not f"{name}.".startswith(tuple(f"{prefix}." for prefix in (FOR_BENCH if may_measure(module) else allowed)))
    }
    assert not wrong
