"""Compile a launch for Hopper and run it on the machine: what Triton's own launcher would pass becomes the parameters.

Triton passes arguments in their order, without those that became constants (constexprs, and integers equal to 1), each
descriptor as its tensor map, shape and strides, and two pointers to scratch memory last.
"""

import gc
import math
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import cluster, control, copies, lanes, local, matrices, sync, tensor_core  # noqa: F401 (they register)
from .compile import Call, compile_for
from .device import Machine
from .memory import EMPTY
from .plain import PtxKernel
from .program import Program
from .ptx import UnknownError, parse
from .static import carries, races
from .tensor_map import KINDS, encode

TARGET = 90
FLOATS = {"fp16": "e", "bf16": "f", "fp32": "f", "fp64": "d"}


@dataclass(frozen=True)
class Compiled:
    """A binary that is ready to run."""

    triton: Any
    """What Triton calls the compiled kernel; None of plain PTX."""
    program: Program
    lost: tuple[str, ...]
    """Found without running it: names that a loop does not carry, though it may mean to, ..."""
    races: tuple[str, ...]
    """... and waits that a lane may pass before others."""


PROGRAMS: dict[str, Compiled] = {}
"""By its PTX, all that this process has made ready."""


def compiled(launch: Call, target: int = TARGET) -> Compiled:
    if isinstance(launch.kernel, PtxKernel):
        return Compiled(None, launch.kernel.program, (), tuple(races(launch.kernel.code)))
    lost = []
    for loop, names in carries(launch, target).items():
        if names:
            lost.append(
                f"the loop at {loop} does not carry {', '.join(names)}: Triton keeps the value from before it; compute "
                "it from a name that is carried"
            )
    triton_kernel = compile_for(target, launch)
    text = triton_kernel.asm["ptx"]
    if text not in PROGRAMS:
        code = parse(text)
        program = Program(code, triton_kernel.metadata.shared)
        PROGRAMS[text] = Compiled(triton_kernel, program, tuple(lost), tuple(races(code)))
    return PROGRAMS[text]


@contextmanager
def old_objects_frozen() -> Iterator[None]:
    """The garbage collector looks at what is made meanwhile alone, and in the end once: torch and Triton hold 200,000
    objects, and to look at them again and again took a tenth of a check of many programs."""
    if gc.get_freeze_count():  # by somebody else, who may want it to last
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()


REGISTER_COUNT = re.compile(rb"\x04\x2f\x08\0.{4}(.)\0\0\0", re.DOTALL)
"""EIATTR_REGCOUNT in .nv.info of a binary: 8 bytes, the number of a function and its registers."""


def registers_of(cubin: bytes) -> int:
    """Return the registers of a thread."""
    return max(count[0] for count in REGISTER_COUNT.findall(cubin))


def whole(tensor: Tensor) -> np.ndarray:
    """Return all bytes of the memory that a tensor is a view of."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()


def address(machine: Machine, tensor: Tensor) -> int:
    return machine.memory.add(whole(tensor)) + tensor.storage_offset() * tensor.element_size()


def parameters(machine: Machine, launch: Call, kernel_compiled: Compiled) -> list[int | bytes]:
    if isinstance(launch.kernel, PtxKernel):
        place = partial(address, machine)
        return launch.kernel.values(launch.args, place, machine.memory.add_map)
    kernel = kernel_compiled.triton
    names = kernel.src.fn.arg_names
    descriptors = iter(kernel.metadata.tensordesc_meta or ())
    constants = {names[path[0]] for path in kernel.src.constants if len(path) == 1}
    values: list[int] = []

    def add(kind, value) -> None:
        if isinstance(kind, tuple):
            for inner in zip(kind, value, strict=True):
                add(*inner)
        elif hasattr(value, "block_shape"):
            values.extend(_descriptor(machine, value, next(descriptors, None)))
        elif kind != "constexpr":
            values.append(_bits(machine, kind, value))

    for name, kind in kernel.src.signature.items():
        if name not in constants:
            default = kernel.src.fn.params[names.index(name)].default
            add(kind, launch.args.get(name, default))
    for kind in ("global", "profile"):
        scratch = _scratch(machine, launch, kernel.metadata, kind)
        values.append(scratch)
    return values


def _bits(machine: Machine, kind: str, value: Any) -> int:
    """Return what the launcher puts into a parameter of this kind of Triton's."""
    if kind[0] == "*":
        return address(machine, getattr(value, "base", value))  # of triton.reinterpret, too
    if kind[:2] in ("fp", "bf"):
        packed = struct.pack(FLOATS[kind], value)
        if kind == "bf16":
            packed = packed[2:]
        return int.from_bytes(packed, "little")
    return int(value)


def _scratch(machine: Machine, launch: Call, metadata, kind: str) -> int:
    """Return the address of memory that each CTA has some bytes of; 0 where the kernel asks for none."""
    size = getattr(metadata, f"{kind}_scratch_size") * math.prod(launch.grid) * metadata.num_ctas
    if size == 0:
        return 0
    return machine.memory.add(np.full(size, EMPTY, np.uint8))


def _descriptor(machine: Machine, value, meta: dict | None) -> list[int]:
    tensor = getattr(value.base, "base", value.base)  # of triton.reinterpret, too
    sizes = [*value.shape, *value.strides]
    if meta is None:  # there is no TMA: loads and stores through a pointer
        return [address(machine, tensor), *sizes, value.padding == "nan", value.round_f32_to_tf32, *sizes]
    if meta["elem_size"] != tensor.element_size():
        raise ValueError(f"a descriptor of elements of {meta['elem_size']} bytes, the tensor's are {tensor.dtype}")
    if meta["fp4_padded"] or meta.get("is_im2col"):
        raise UnknownError("a descriptor of padded fp4, or for im2col")
    kind = meta["elem_type"]
    if getattr(value, "round_f32_to_tf32", False):
        kind = KINDS.index("tf32")
    nan = value.padding == "nan"
    start = address(machine, tensor)
    made = encode(start, value.shape, value.strides, kind, meta["block_size"], meta["swizzle"], nan)
    return [machine.memory.add_map(made), *sizes]


def enqueue(machine: Machine, launch: Call, after: Sequence[int] = (), device: int = 0, target: int = TARGET) -> int:
    """Returns the launch's number, for others that come `after` it."""
    made = compiled(launch, target)
    machine.problems += made.lost + made.races
    x, *more = launch.grid
    if made.triton:  # which counts clusters, where the hardware counts CTAs
        x *= made.program.cluster
    is_early = bool(after and launch.args.get("launch_pdl"))
    return machine.launch(made.program, (x, *more), parameters(machine, launch, made), after, device, is_early)
