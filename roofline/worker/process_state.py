"""What contenders share beside their tensors: settings of the process, which one may change for all that follow.

`noted` reads them, `put_back` sets what has changed since to what it was, and names it. Environment variables are left
out: libraries read them once, and some of torch's own set some.
"""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """How a change of it is told, and what reads and sets it."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


ATTRIBUTES = {
    "torch": ("mm", "matmul", "addmm", "empty", "empty_like", "zeros", "randn"),
    "torch.Tensor": ("copy_", "mul_", "fill_", "double"),
    "torch.backends": ("fp32_precision",),
    "torch.backends.mkldnn.matmul": ("fp32_precision",),
    "torch.backends.cuda.matmul": (
        "fp32_precision",
        "allow_tf32",
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    ),
    "numpy": ("matmul", "dot", "empty"),
    "time": ("perf_counter", "monotonic"),
    "sys": ("stdout", "stderr"),
}
"""Where flags and functions stand that the baseline, operands, checks and clocks are made by -> their names."""
FUNCTIONS = ("num_threads", "float32_matmul_precision", "default_dtype", "deterministic_debug_mode")
"""What torch has a `get_` and a `set_` for."""


TIMERS = signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF


def settings() -> Iterator[Setting]:
    """All settings. One that a module has not, as an older torch, reads as an AttributeError each time."""
    for place, names in ATTRIBUTES.items():
        yield from _of_place(place, names)
    torch = sys.modules.get("torch")
    for name in FUNCTIONS:
        if hasattr(torch, f"get_{name}") and hasattr(torch, f"set_{name}"):
            yield Setting(f"torch.set_{name}", getattr(torch, f"get_{name}"), getattr(torch, f"set_{name}"))
    if hasattr(torch, "set_grad_enabled"):
        yield Setting("torch.set_grad_enabled", torch.is_grad_enabled, torch.set_grad_enabled)
    yield Setting("the garbage collector", gc.isenabled, lambda was: gc.enable() if was else gc.disable())
    yield Setting("the working folder", os.getcwd, os.chdir)
    if hasattr(os, "sched_getaffinity"):
        yield Setting("its cores", partial(os.sched_getaffinity, 0), partial(os.sched_setaffinity, 0))
    for number, name in ((1, "stdout"), (2, "stderr")):
        yield Setting(f"an open sys.{name}", partial(_is_open, name), partial(_open_again, name, number))
    if threading.current_thread() is threading.main_thread():
        yield from _of_signals()


def _of_place(place: str, names: tuple[str, ...]) -> Iterator[Setting]:
    module, *parts = place.split(".")
    holder = sys.modules.get(module)
    for part in parts:
        holder = getattr(holder, part, None)
    for name in names:
        yield Setting(f"{place}.{name}", partial(getattr, holder, name), partial(setattr, holder, name))


def _of_signals() -> Iterator[Setting]:
    for number in sorted(signal.valid_signals()):
        name = f"the handler of signal {number}"
        yield Setting(name, partial(signal.getsignal, number), partial(signal.signal, number))
    for number in TIMERS:
        yield Setting("a timer", partial(_is_running, number), partial(_stop, number))


def _is_open(name: str) -> bool:
    return not getattr(sys, name).closed


def _open_again(name: str, number: int, was: bool) -> None:
    setattr(sys, name, os.fdopen(number, "w", closefd=False))


def _is_running(timer: int) -> bool:
    return signal.getitimer(timer)[0] > 0


def _stop(timer: int, was: bool) -> None:
    signal.setitimer(timer, 0.0)


def noted() -> list[tuple[Setting, Any]]:
    """Each setting with its value."""
    return [(setting, value_of(setting)) for setting in settings()]


def value_of(setting: Setting) -> Any:
    """The value that is read, or the kind of error that reading raises, as where torch's older and newer flags
    contradict."""
    try:
        return setting.read()
    except Exception as error:
        return type(error)


def put_back(before: list[tuple[Setting, Any]]) -> tuple[list[str], list[str]]:
    """Set what has changed since `before` to what it was then. Returns the names of what changed, and of what of that
    cannot be put back. What cannot be the same again, as a closed file, is from now on what it is."""
    changed = []
    lost = []
    for setting, value in before:
        now = value_of(setting)
        if now is value or now == value:
            continue
        changed.append(setting.name)
        try:
            setting.write(value)
        except Exception:
            lost.append(setting.name)
    if changed:
        before[:] = [(setting, value_of(setting)) for setting, _ in before]
    return changed, lost
