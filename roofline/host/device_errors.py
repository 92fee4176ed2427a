"""The meaning of an exception for a run: this case lacks something, it crashed, or the device is lost for all."""

import traceback
from pathlib import Path

from roofline.store.lines import plain

OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError", "out of memory", "can't allocate memory", "STATUS_ALLOC_FAILED")
UNSUPPORTED = (
    *("NotImplementedError", "OutOfResources", "STATUS_NOT_SUPPORTED"),
    *("Failed to find C compiler", "'-shared', '-fPIC'"),  # of Triton: it compiles a module of C that loads kernels
)
"""Types of exceptions, or words in them, by which Python, torch, Triton, NumPy and cuBLAS say that they cannot."""


class CallError(Exception):
    """The call of the entrant `name` raised its `__cause__` while it was timed."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


class RefusedError(Exception):
    """What the suite itself says of a contender: its text is the reason as it stands."""


def lack(error: BaseException) -> str | None:
    """`out of memory` or `not supported` where `error` says so, which is no fault of the contender's; else None."""
    error = _cause(error)
    text = f"{type(error).__mro__} {_text(error)}"
    for words in UNSUPPORTED:
        if words in text:
            return "not supported"
    for words in OUT_OF_MEMORY:
        if words in text:
            return "out of memory"
    return None


def reason(error: BaseException) -> str:
    """`error` in one line: what is lacking, or else its type and where it was raised."""
    error = _cause(error)
    lines = [plain(line) for line in _text(error).splitlines() if line.strip()]
    first = lines[0] if lines else ""
    if (missing := lack(error)) and first:
        return f"{missing}: {first}"
    if isinstance(error, RefusedError):
        return first
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{missing or type(error).__name__}: {first or 'it said no more'}{where}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as other:  # of a contender's own kind
        return f"its text raises {type(other).__name__}"


def _cause(error: BaseException) -> BaseException:
    return (isinstance(error, CallError) and error.__cause__) or error


def device_lost(device: str) -> bool:
    """True where `device` (`cpu` or `cuda`) has stopped to answer this process.

    An illegal access, a failed assertion on the device or a launch timeout loses the CUDA context: every later call
    fails, whoever makes it, until a new process begins.
    """
    if device != "cuda":
        return False
    import torch

    try:
        torch.ones(1, device=device).add_(1).item()
    except Exception as error:  # torch.AcceleratorError from 2.8 on, RuntimeError before
        return lack(error) != "out of memory"
    return False
