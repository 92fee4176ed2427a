"""The operations that can be measured, with their cases, ids and sweeps. Needs no torch.

A module of this folder that declares an operation registers it when it is imported, which happens here; so do those
that pyproject.toml of the checkout lists. A file of a user's declares its own, and finds here what that needs.
"""

import sys
import tomllib
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from roofline.operations.base import OPERATIONS, Case, Operation, Planner, Runners, find, parse, places, register
from roofline.operations.contenders import Contender
from roofline.operations.shown import Field, Table

OF_WORKER = dict.fromkeys(
    ("FAILED", "SKIPPED", "Call", "Entrant", "PreparedCase", "Rejection", "unwatched", "verdict"), "prepared"
)
OF_WORKER["Runner"] = "runner"
"""Names of `roofline.worker` for a user's runner, each with its module. Loaded when it is asked for: it needs torch."""

__all__ = ["OPERATIONS", "Case", "Contender", "Field", "Operation", "Planner", "Runners", "Table"]
__all__ += ["find", "parse", "places", "register", *OF_WORKER]


def __getattr__(name: str) -> object:
    if name not in OF_WORKER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"roofline.worker.{OF_WORKER[name]}"), name)


def _import_those_of_checkout(root: Path) -> None:
    """Import the modules that the table of the checkout `root` lists, but for those of a folder that was taken out. An
    installed package has no checkout around it."""
    file = root / "pyproject.toml"
    if not file.is_file():
        return
    tools = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
    sys.path.insert(0, str(root))  # PyPI has another package called `kernels`
    for module in tools.get("roofline", {}).get("operations", ()):
        if (root / module.replace(".", "/")).with_suffix(".py").is_file():
            import_module(module)
    sys.path.remove(str(root))


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
SUITE = tuple(OPERATIONS)
"""Those of roofline, which it knows wherever it is installed."""
_import_those_of_checkout(Path(__file__).parents[2])
