"""Compile a launch of Triton or of Gluon for a GPU that is not here.

It goes through `JITFunction.warmup`, under a driver that knows a target and nothing else. So the signature, the
divisibility of every argument and the descriptors are those of a real launch.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

WARP_SIZE = 32
REGISTERS, FRAME = 0x2F, 0x11
"""EIATTR_REGCOUNT and EIATTR_FRAME_SIZE in .nv.info of a binary: 8 bytes, the number of a function and its value."""

Arguments = Mapping[str, Any]
"""Arguments by name."""


@dataclass(frozen=True)
class Call:
    """A kernel with its grid and its arguments by name: constexprs, num_warps and num_stages among them."""

    kernel: Any
    grid: Sequence[int]
    args: dict[str, Any] = field(repr=False)
    config: str = ""
    """The configuration of an autotuned kernel, in words."""
    configs: int = 1
    """How many it has."""


def driver_for(target: int) -> SimpleNamespace:
    """The part of a driver that Triton asks for where it compiles."""
    return SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", target, WARP_SIZE),
        # Triton keys compiled kernels by it: a number that no device has keeps ours apart from those of a GPU here.
        get_current_device=lambda: target,
        get_current_stream=lambda device=0: 0,
    )


@contextmanager
def offline(target: int) -> Iterator[None]:
    """Make Triton compile for compute capability `target` (90 for 9.0) inside the block."""
    driver = triton.runtime.driver
    before = driver._active  # no public getter leaves a driver uncreated, and creating one without a GPU raises
    driver.set_active(driver_for(target))
    try:
        yield
    finally:
        driver.set_active(before)


def compile_for(target: int, launch: Call) -> Any:
    """Triton's compiled kernel, with its `hash`, `metadata`, and texts by kind in `asm`. `launch` is a `Call`, or has
    its three fields.

    Raises RuntimeError under the interpreter. Errors of the compiler pass through.
    """
    if not isinstance(launch.kernel, JITFunction) or triton.knobs.runtime.interpret:  # Gluon is never interpreted
        raise RuntimeError("TRITON_INTERPRET is set, so there is no compiler; unset it before the kernel is imported")
    with offline(target):
        try:
            return launch.kernel.warmup(grid=launch.grid, **launch.args)
        except AttributeError:  # of Triton's search for dependencies, which names no line and is made once
            return launch.kernel.warmup(grid=launch.grid, **launch.args)


def in_binary(cubin: bytes, attribute: int) -> int:
    """The largest number that a binary has of its functions for an attribute, 1 where it has none."""
    values = re.findall(rb"\x04" + re.escape(bytes([attribute])) + rb"\x08\0.{4}(.{4})", cubin, re.DOTALL)
    return max((int.from_bytes(value, "little") for value in values), default=1)


def innermost(error: BaseException) -> str:
    """A compiler's error in one line: the message of the innermost function, and the source line that it is about."""
    while error.__cause__:
        error = error.__cause__
    *before, last = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if before[-1:] == ["^"]:
        return f"{before[-2]}: {last}"
    return why([*before, last])


def why(lines: Sequence[str]) -> str:
    """The line of what a compiler printed that says why it failed; else the last."""
    return next((line for line in lines if re.search(r"\b(error|ERROR) *:(?! Internal)", line)), lines[-1])
