"""The things that contenders share beside their tensors: settings of the process, which one may change for all that
follow.

`guarded` reads them, names those that have changed since, and sets them to what they were: what the import of a
contender changes is told, what its calls change is its failure. Environment variables are left out: libraries read them
once, and some of torch's own set some.
"""

import bdb
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache, partial
from types import FunctionType
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """The name by which a change of it is told, and functions that read and set it."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


ATTRIBUTES = {
    "torch": ("mm", "matmul", "addmm", "empty", "empty_like", "zeros", "randn", "randint", "randperm"),
    "torch.Tensor": ("copy_", "mul_", "fill_", "double", "norm"),
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
    "time": ("perf_counter", "monotonic", "sleep"),
    "sys": ("stdout", "stderr"),
}
"""Where flags and functions stand that the baseline, operands, checks and clocks are made by -> their names."""
FUNCTIONS = {
    "torch.set_num_threads": "torch.get_num_threads",
    "torch.set_float32_matmul_precision": "torch.get_float32_matmul_precision",
    "torch.set_default_dtype": "torch.get_default_dtype",
    "torch.set_deterministic_debug_mode": "torch.get_deterministic_debug_mode",
    "torch.set_grad_enabled": "torch.is_grad_enabled",
    "sys.setprofile": "sys.getprofile",
    "sys.setswitchinterval": "sys.getswitchinterval",
    "sys.setrecursionlimit": "sys.getrecursionlimit",
    "threading.settrace": "threading.gettrace",
    "threading.setprofile": "threading.getprofile",
    "os.chdir": "os.getcwd",
}
"""What sets a value -> what gets it."""
JUDGES = "roofline.worker.", "roofline.protocol.", "roofline.store.", "kernels.bench.", "collectives.bench."
"""How the names of the suite's modules begin that measure and judge."""
TIMERS = signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF


@lru_cache(maxsize=1)
def settings(modules: int) -> list[Setting]:
    """All settings, which are found once for so many `modules` that are loaded."""
    return [*_settings()]


def _settings() -> Iterator[Setting]:
    """All settings. One that a module has not, as an older torch, reads as an AttributeError each time."""
    for place, names in ATTRIBUTES.items():
        holder = _at(place)
        for name in names:
            yield Setting(f"{place}.{name}", partial(getattr, holder, name), partial(setattr, holder, name))
    for setter, getter in FUNCTIONS.items():
        yield Setting(setter, _at(getter), _at(setter))
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "set_autocast_enabled"):
        # Back to none: a default device that is set slows all calls down, even if it is the same.
        yield Setting("torch.set_default_device", torch.get_default_device, lambda was: torch.set_default_device(None))
        for device in ("cpu", "cuda"):
            switch = partial(torch.set_autocast_enabled, device)
            yield Setting(f"torch.autocast of {device}", partial(torch.is_autocast_enabled, device), switch)
        yield Setting("the depth of torch.autocast", _depth, _leave_autocast)
    for name, holder in _judges():
        yield Setting(f"functions of {name}", partial(_functions, holder), partial(_restore, holder))
    yield Setting("sys.settrace", _tracer, sys.settrace)
    yield Setting("the garbage collector", gc.isenabled, lambda was: gc.enable() if was else gc.disable())
    if hasattr(os, "sched_getaffinity"):
        yield Setting("its cores", partial(os.sched_getaffinity, 0), partial(os.sched_setaffinity, 0))
    yield from _of_signals()


def _judges() -> Iterator[tuple[str, Any]]:
    """The suite's own modules that measure and judge, and their classes, by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith(JUDGES):
            yield name, module
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == name:
                    yield f"{name}.{value.__name__}", value


@cache
def _callable(holder: Any, held: int) -> list[str]:
    """The names of what can be called of a module or a class, which holds so many."""
    return [name for name, value in vars(holder).items() if callable(value) or isinstance(value, property)]


def _functions(holder: Any) -> tuple[dict[str, Any], dict[FunctionType, Any]]:
    """{name: value} of what can be called, and {function: its code}."""
    held = vars(holder)
    values = {name: held.get(name) for name in _callable(holder, len(held))}
    codes = {value: value.__code__ for value in values.values() if type(value) is FunctionType}
    return values, codes


def _restore(holder: Any, was: tuple[dict[str, Any], dict[FunctionType, Any]]) -> None:
    values, codes = was
    for name, value in values.items():
        setattr(holder, name, value)
    for function, code in codes.items():
        function.__code__ = code


def _at(place: str) -> Any:
    """The object of that name now; None where there is none."""
    module, *parts = place.split(".")
    found = sys.modules.get(module)
    for part in parts:
        found = getattr(found, part, None)
    return found


def _tracer() -> Any:
    """The tracing function, unless that is a debugger, which somebody sets by hand."""
    function = sys.gettrace()
    return None if isinstance(getattr(function, "__self__", None), bdb.Bdb) else function


def _depth() -> int:
    """How many blocks of autocast this is in: within one, casts of weights are kept, also of weights that change."""
    import torch

    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _leave_autocast(was: int) -> None:
    import torch

    while torch.autocast_decrement_nesting() > was:
        pass
    torch.clear_autocast_cache()


def _of_signals() -> Iterator[Setting]:
    for number in sorted(signal.valid_signals()):
        name = f"the handler of signal {number}"
        yield Setting(name, partial(signal.getsignal, number), partial(signal.signal, number))
    for timer in TIMERS:  # of which a worker has none of its own
        yield Setting("a timer", partial(signal.getitimer, timer), partial(_set, timer))


def _set(timer: int, was: tuple[float, float]) -> None:
    signal.setitimer(timer, *was)


@contextmanager
def guarded(is_guarded: bool) -> Iterator[list[str]]:
    """Gives the names of the settings that were changed in the context, all of them once that is over; they are set to
    what they were before, as far as that can be. None is looked at unless that `is_guarded`."""

    def value_of(setting: Setting) -> Any:
        """The value, or the kind of error that reading raises, as where torch's older and newer flags contradict."""
        try:
            return setting.read()
        except Exception as error:
            return type(error)

    known = settings(len(sys.modules)) if is_guarded else []
    before = [(setting, value_of(setting)) for setting in known]
    changed: list[str] = []
    try:
        yield changed
    finally:
        for setting, value in before:
            now = value_of(setting)
            if now is value or now == value:
                continue
            changed.append(setting.name)
            with suppress(Exception):
                setting.write(value)
