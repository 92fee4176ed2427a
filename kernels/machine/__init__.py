"""Hopper without a GPU: the PTX that Triton emits, executed by NumPy.

This folder is the package `triton_machine` where it is installed, and `kernels.machine` in its checkout. `verdict` has
`check`, which judges any kernel, given by `arguments`, in words of `report`, for which `trace` watches a run again;
README.md says what it proves. `functions` has `launches`, and `plugin` is pytest's. `command` is `python -m` of it: a
kernel of yours, or in the checkout every shipped configuration. `run` takes a launch to the machine, `static` tells
what no run shows; what is run of ours stands in tests/machine. The machine: `ptx` reads, `program` makes ready,
`device` schedules by draws from a `pool`; instructions stand in `alu` (with `integers` and `floats`), `access`,
`lanes`, `control`, `sync`, `copies`, `matrices` and `tensor_core`, what they work on in `memory` and `order`.
"""

from typing import Any

__all__ = ["Verdict", "check", "check_ptx", "launches"]


def __getattr__(name: str) -> Any:
    """Import one of these four, with torch and Triton: pytest takes `plugin` alone when it starts."""
    if name == "launches":
        from .functions import launches

        return launches
    if name in __all__:
        from . import verdict

        return getattr(verdict, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
