"""Hopper without a GPU: NumPy executes the PTX that Triton emits.

This folder is the package `triton_machine` where it is installed, and `kernels.machine` in its checkout. README.md says
what a verdict proves. The tool stands here, on two rooms:

- `verdict` has `check`, which judges any kernel: a `trial` runs it under several orders of events, in `processes` if
  need be; `stand_ins` run for programs that are alike. `arguments` makes the launch, `report` has the words of a
  verdict, and `trace` watches a run again for them.
- `intercept` has `launches`, `pretend` the GPU that code asks for, and `plugin` is pytest's.
- `command` is `python -m` of the package: it judges a kernel of yours.
- `launcher` compiles a launch (`compile`) and takes it to the machine, as `ptx_kernel` does plain PTX. `lint` tells
  what no run shows.
- `core` is the machine itself: `ptx` reads a kernel, `program` makes it ready for `registers`, and `machine` schedules
  what each `launch` has in its CTAs, each `warp`, and what the hardware does by itself, by draws from a `pool`.
  `memory` and `order` say who accessed what before whom, and `faults` what is wrong with that.
- `isa` has the instructions, a file for each family. The core imports none of them.
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
