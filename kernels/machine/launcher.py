"""Compile a launch and add it to the machine, with the parameters that Triton's own launcher would pass.

Triton passes arguments in their order, without those that became constants (constexprs, and integers equal to 1). A
descriptor is passed as its tensor map, shape and strides. Two pointers to scratch memory come last.
"""

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from . import isa  # noqa: F401 (it registers all instructions)
from .compile import REGISTERS, Call, compile_for, in_binary
from .core.faults import UnknownError
from .core.machine import Machine
from .core.memory import EMPTY
from .core.program import Program
from .core.ptx import Instruction, parse
from .isa.tensor_map import KINDS, encode
from .lint import carries_watched, races
from .ptx_kernel import PtxKernel, number

TARGET = 90


@dataclass(frozen=True)
class Compiled:
    """A binary that is ready to run."""

    triton: Any
    """Triton's compiled kernel; None for plain PTX."""
    program: Program
    lost: list[str]
    """Sentences on names that a loop does not carry, though it may mean to. They are found without running it."""
    races: dict[str, Instruction]
    """Sentences on waits that a lane may pass before others, found without running it, and where that lane then is."""

    @property
    def registers(self) -> int:
        """The number of registers of a thread, which only ptxas knows; 1 for plain PTX."""
        return in_binary(self.triton.asm["cubin"], REGISTERS) if self.triton else 1


PROGRAMS: dict[str, Compiled] = {}
"""All binaries that this process has made ready, by their PTX."""


def compiled(launch: Call, target: int = TARGET) -> Compiled:
    if isinstance(launch.kernel, PtxKernel):
        return Compiled(None, launch.kernel.program, [], races(launch.kernel.code))
    with triton.knobs.compilation.scope(), carries_watched() as lost:
        # Triton's cache on disk may have the same kernel from another file, or other lines of this one. What it has was
        # not watched.
        triton.knobs.compilation.always_compile = True
        triton_kernel = compile_for(target, launch)
    text = triton_kernel.asm["ptx"]
    if text not in PROGRAMS:
        code = parse(text)
        program = Program(code, triton_kernel.metadata.shared)
        PROGRAMS[text] = Compiled(triton_kernel, program, lost, races(code))
    return PROGRAMS[text]


@contextmanager
def old_objects_frozen() -> Iterator[None]:
    """Have the garbage collector look only at objects that are made inside the block, and once more at its end. torch
    and Triton hold 200,000 objects, and looking at them again and again took a tenth of a check of many programs."""
    if gc.get_freeze_count():  # by somebody else, who may want it to last
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()


def whole(tensor: Tensor) -> np.ndarray:
    """All bytes of the storage that a tensor is a view of."""
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
        values.append(_scratch(machine, launch, kernel.metadata, kind))
    return values


def _bits(machine: Machine, kind: str, value: Any) -> int:
    """The number that the launcher puts into a parameter of this Triton type."""
    if kind[0] == "*":
        return address(machine, getattr(value, "base", value))  # of triton.reinterpret, too
    if kind == "bf16":
        return number(value, "f32") >> 16
    if kind[:2] == "fp":
        return number(value, f"f{kind[2:]}")
    return int(value)


def _scratch(machine: Machine, launch: Call, metadata, kind: str) -> int:
    """The address of scratch memory, of which each CTA has a part; 0 where the kernel asks for none."""
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
    made = encode(address(machine, tensor), value.shape, value.strides, kind, meta["block_size"], meta["swizzle"], nan)
    return [machine.memory.add_map(made), *sizes]


def enqueue(machine: Machine, launch: Call, after: Sequence[int] = (), device: int = 0, target: int = TARGET) -> int:
    """Compile a launch, add it to the machine, and return its number, for others that come `after` it."""
    made = compiled(launch, target)
    machine.problems += [*made.lost, *made.races]
    x, *more = launch.grid
    if made.triton:  # which counts clusters, where the hardware counts CTAs
        x *= made.program.cluster
    is_early = bool(after and launch.args.get("launch_pdl"))
    return machine.launch(made.program, (x, *more), parameters(machine, launch, made), after, device, is_early)
