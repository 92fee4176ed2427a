"""What is measured: the cases of each operation, their ids and sweeps. Needs no torch.

A module of this folder that declares an operation registers it when it is imported, which happens here.
"""

from importlib import import_module
from pkgutil import iter_modules

from roofline.operations.base import OPERATIONS, Case, Operation, Planner, Runners, find, parse, places, register

__all__ = ["OPERATIONS", "Case", "Operation", "Planner", "Runners", "find", "parse", "places", "register"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
