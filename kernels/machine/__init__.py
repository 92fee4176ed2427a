"""Hopper without a GPU: NumPy executes the PTX that Triton emits.

This folder is the package `triton_machine` where it is installed, and `kernels.machine` in its checkout. README.md says
what a verdict proves. The files, in the order to read them:

- `verdict` has `check`, which judges any kernel. `arguments` makes the launch, `report` has the words of a verdict, and
  `trace` watches a run again for them.
- `functions` has `launches`, and `plugin` is pytest's.
- `command` is `python -m` of the package: it judges a kernel of yours, or in the checkout every shipped configuration.
  The suite's own cases stand in tests/machine.
- `run` takes a launch to the machine, and `static` tells what no run shows.
- The machine itself: `ptx` reads a kernel, `program` makes it ready, and `device` schedules by draws from a `pool`.
- Instructions stand in `alu` (with `integers` and `floats`), `access`, `lanes`, `control`, `sync`, `copies`, `matrices`
  and `tensor_core`. `memory` and `order` have what they work on.
"""

from typing import Any

__all__ = ["Verdict", "check", "check_ptx", "launches"]


def __getattr__(name: str) -> Any:
    """Import one of these four, and torch and Triton with it. pytest imports `plugin` alone when it starts."""
    if name == "launches":
        from .intercept import launches

        return launches
    if name in __all__:
        from . import verdict

        return getattr(verdict, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
