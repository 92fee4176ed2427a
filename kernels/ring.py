"""What Gluon's kernels for Hopper share: a ring of stages that one warp fills and others empty, and TMA.

A stage is room in shared memory for a block of x and one of w, with two mbarriers. `full` completes when their bytes
have landed, `empty` when all that multiply have read them. Each side counts stages, and flips the parity that it waits
for when the ring wraps. The side that loads waits for the opposite parity, so that its first round passes barriers
which nobody has completed yet.

Gluon is experimental, and its names move between releases. Those that differ from Triton 3.7 to 3.9 are here.

Source: barriers by parity, and aggregates for what goes from function to function, are those of Triton's Gluon
tutorial on warp specialisation (python/tutorials/gluon/08-warp-specialization.py).
"""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

from functools import cache
from typing import dataclass_transform

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.core import _aggregate, base_value

from kernels import hopper
from kernels.contract import FP8, interpreted

# Since Triton 3.9 these are called what TMA does; the older names are gone.
tma_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
tma_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global


@dataclass_transform()
def aggregate(fields):
    """Gluon's aggregate, made of values in the order of its fields. What is no value of Triton, as None, becomes a
    constexpr. Triton 3.7 wants an `__init__`."""

    def init(self, *values):
        for name, value in zip(fields.__annotations__, values, strict=True):
            setattr(self, name, value if isinstance(value, base_value) else gl.constexpr(value))

    init.__triton_builtin__ = True  # it is no code of a kernel
    fields.__init__ = init
    return _aggregate(fields)


@aggregate
class Smem:
    """The stages of a ring and the mbarriers of each, and what else lies in shared memory."""

    x: gl.shared_memory_descriptor
    w: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    staging: object  # where tiles lie that TMA stores, or None
    staged: object  # where another warp stores tiles: mbarriers of each buffer, that a consumer has filled it
    freed: object  # and that it has been read; else None
    w_free: object  # UNTIMED (clusters): in the first CTA, where the consumers of both arrive; else None


@aggregate
class Ring:
    """A place in a ring of stages, and the parity of its round.

    The stage before is computed, not remembered as `before = ring.stage`: where two names begin with one value, the
    code generator of Triton does not see that a loop changes one of them, and leaves it at that value.
    """

    stage: gl.tensor
    phase: gl.tensor
    STAGES: gl.constexpr

    @gluon.jit
    def next(self):
        """The place after this one."""
        wraps = self.stage == self.STAGES - 1
        return Ring(gl.where(wraps, 0, self.stage + 1), gl.where(wraps, self.phase ^ 1, self.phase), self.STAGES)

    @gluon.jit
    def before(self):
        """The stage before this one."""
        return gl.where(self.stage == 0, self.STAGES - 1, self.stage - 1)


@gluon.jit
def begin(STAGES: gl.constexpr):
    """The first place in a ring."""
    return Ring(gl.to_tensor(0), gl.to_tensor(0), STAGES)


@gluon.jit
def allocate(count: gl.constexpr, desc):
    """Shared memory for so many blocks of `desc`."""
    return gl.allocate_shared_memory(desc.dtype, [count] + desc.block_type.shape, desc.layout)  # noqa: RUF005


@gluon.jit
def as_block(buffer, desc):
    """Shared memory as room for a block of `desc`."""
    if hasattr(buffer, "_reinterpret"):  # until Triton 3.8
        return buffer._reinterpret(desc.dtype, desc.block_type.shape, desc.layout)
    else:
        return buffer.reinterpret(desc.dtype, desc.block_type.shape, desc.layout)


@gluon.jit
def prefetch_descriptors(KERNEL: gl.constexpr, COUNT: gl.constexpr):
    """Fetch the descriptors that are the first COUNT arguments of a kernel, before a load asks for them. Triton has no
    name for this."""
    gl.inline_asm_elementwise(prefetch_text(KERNEL, COUNT), "=r", [], gl.int32, is_pure=False, pack=1)


@gluon.constexpr_function
def prefetch_text(kernel, count):
    """The PTX of that: a descriptor is one parameter, with its two sizes and two strides as four more."""
    lines = [f"prefetch.param.tensormap [{kernel}_param_{5 * place}];" for place in range(count)]
    return "\n".join([*lines, "mov.u32 $0, 0;"])


def require_compiled(name: str, other: str) -> None:
    """Raise ValueError in Triton's interpreter, in the words of the Gluon kernel `name` that has an `other` there."""
    if interpreted():
        raise ValueError(
            f"TRITON_INTERPRET is set, and Gluon, which {name} is written in, has no interpreter; "
            f"use kernels.{other}, or unset it on a machine with a Hopper GPU"
        )


def describe(tensor: Tensor, block: tuple[int, int], ctas: tuple = ()) -> TensorDescriptor:
    """The descriptor of `kernels.hopper` with its layout in shared memory: a swizzle of rows as wide as the block
    allows. In a cluster, `ctas` says which part each CTA has, as in Gluon's layouts."""
    plain = hopper.describe(tensor, block)
    return TensorDescriptor(
        plain.base, plain.shape, plain.strides, plain.block_shape, _layout(block, tensor.dtype, ctas)
    )


@cache  # making one takes longer than the rest of a descriptor
def _layout(block: tuple[int, int], dtype: torch.dtype, ctas: tuple) -> gl.NVMMASharedLayout:
    of_gluon = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32, FP8: gl.float8e4nv}
    return gl.NVMMASharedLayout.get_default_for(list(block), of_gluon[dtype], cga_layout=[*map(list, ctas)])
