"""Hopper without a GPU: the PTX that Triton emits, executed by NumPy.

This folder is the package `triton_machine` where it is installed, and `kernels.machine` in its checkout. `check` gives
a verdict on any kernel, in words of `report`, for which `trace` watches a run again; README.md says what it proves.
`command` is `python -m` of it: a kernel of yours, or in the checkout every shipped configuration. `run` takes
a launch to the machine, `static` tells what no run shows; what is run of ours stands in tests/machine. The machine:
`ptx` reads, `program` makes ready, `device` schedules by draws from a `pool`; instructions stand in `alu` (with
`integers` and `floats`), `access`, `lanes`, `control`, `sync`, `copies`, `matrices` and `tensor_core`, what they work
on in `memory` and `order`.
"""

from .check import Verdict, check, check_ptx
from .launches import launches

__all__ = ["Verdict", "check", "check_ptx", "launches"]
