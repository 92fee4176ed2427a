"""The operations that can be measured, with their cases, ids and sweeps. Needs no torch.

A module of this folder that declares an operation registers it when it is imported, which happens here. A file of a
user's declares its own, and finds here what that needs.
"""

from importlib import import_module
from pkgutil import iter_modules

from roofline.operations.base import OPERATIONS, Case, Operation, Planner, Runners, find, parse, places, register
from roofline.operations.contenders import Contender

OF_WORKER = dict.fromkeys(
    ("FAILED", "SKIPPED", "Call", "Entrant", "PreparedCase", "Rejection", "unwatched", "verdict"), "prepared"
)
OF_WORKER["Runner"] = "runner"
"""Names of `roofline.worker` for a user's runner, each with its module. Loaded when it is asked for: it needs torch."""

__all__ = ["OPERATIONS", "Case", "Contender", "Operation", "Planner", "Runners", "find", "parse", "places", "register"]
__all__ += OF_WORKER

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def __getattr__(name: str) -> object:
    if name not in OF_WORKER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"roofline.worker.{OF_WORKER[name]}"), name)
