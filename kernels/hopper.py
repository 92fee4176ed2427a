"""The common parts of kernels for Hopper: which inputs TMA can address, descriptors, the grid of a persistent kernel,
and how much of an SM is left for one."""

from functools import cache

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.contract import FP8, Scales, dtype_name, empty_out, interpreted, require_runnable, validate
from kernels.tiles import capability

TMA_ALIGNMENT_BYTES = 16  # of base addresses and row strides; CUDA driver API, cuTensorMapEncodeTiled
INTERPRETED_PROGRAMS = 3  # fewer than there are tiles, so that the interpreter walks the persistent loop too

CHIPS = ("H100 SXM", "H100 PCIe", "H200")
"""Chips of compute capability 9.0: the choice of tiles depends on their SMs and the size of their cache."""

# An SM of Hopper (CUDA C++ programming guide, technical specifications). Warps take registers by 256, each CTA takes
# 1,024 bytes of shared memory beyond its own.
SM_REGISTERS, SM_SHARED_BYTES = 65_536, 233_472
WARP_SIZE, UNIT, CTA_BYTES = 32, 256, 1_024
COPIER = 6_144, CTA_BYTES
"""The registers and the bytes of shared memory that are kept for a link's copier."""
SMALL = 1_024, CTA_BYTES + 128
"""Those for one of the small kernels of links and instruments."""
ROOM = SM_REGISTERS - COPIER[0] - SMALL[0], SM_SHARED_BYTES - COPIER[1] - SMALL[1] - CTA_BYTES
"""Those that are left for a kernel beside both."""


def require(
    name: str,
    x: Tensor,
    w: Tensor,
    out: Tensor | None = None,
    scales: Scales | None = None,
    any_out: bool = False,
    by_block: bool = False,
) -> None:
    """Refuse what `kernels.contract.validate` and `require_hopper` do, and tensors that TMA cannot address: x, w and,
    unless `any_out`, out. ValueError for rows that overlap or are no multiple of 16 bytes, and for a base address that
    is none. TypeError for scales by block; for a kernel that takes those, TypeError for anything else."""
    validate(x, w, out, scales)
    if (dtype_name(x, w, scales) == "fp8_block") != by_block:
        if by_block:
            raise TypeError(f"{name} takes fp8 with scales by block alone; take persistent, warpgroup or decode")
        raise TypeError(f"{name} takes no scales by block; take blockwise or warpgroup_blockwise")
    require_hopper(x, name)
    if not len(x) * len(w) * x.shape[1]:
        return  # nothing is launched
    out = empty_out(x, w, device="meta") if out is None else out
    _require_tma("x", "K", x)
    _require_tma("w", "K", w)
    if not any_out:
        _require_tma("out", "N", out)


def require_hopper(x: Tensor, name: str) -> None:
    """Raise ValueError or TypeError, in the words of the kernel `name`, unless this is a Hopper GPU and a dtype of its
    tensor cores, or the interpreter and a dtype of that."""
    require_runnable(x)
    if interpreted():
        return
    if (version := capability(x.device))[0] != 9:
        way_out = "cast x and w to bfloat16" if x.dtype == FP8 else "use kernels.tiled"
        raise ValueError(
            f"{x.device} has compute capability {version[0]}.{version[1]}, {name} needs 9.x (Hopper); {way_out}"
        )
    if x.dtype == torch.float32:
        raise TypeError(f"x is float32, {name} takes bfloat16 and float16 on a GPU; cast it or use kernels.tiled")


def _require_tma(name: str, dim: str, matrix: Tensor) -> None:
    (rows, columns), row = matrix.shape, matrix.stride(0)
    unit = TMA_ALIGNMENT_BYTES // matrix.element_size()
    if rows > 1 and row < columns:  # one row has no stride
        raise ValueError(
            f"{name} has a row stride of {row}, TMA needs {dim}={columns} or more; "
            "call .contiguous() or use kernels.tiled"
        )
    if rows > 1 and row % unit:
        raise ValueError(
            f"{name} has {dim}={columns} and a row stride of {row}, not a multiple of {unit}: TMA needs 16-byte rows; "
            "pad them or use kernels.tiled"
        )
    if name == "out" and columns % unit:
        raise ValueError(
            f"out has {dim}={columns}, not a multiple of {unit}: TMA stores whole 16 bytes, beyond the end of "
            "each row; pad w or use kernels.tiled"
        )
    if past := matrix.data_ptr() % TMA_ALIGNMENT_BYTES:
        raise ValueError(
            f"{name} starts {past} bytes past a multiple of 16: TMA needs 16-byte addresses; "
            ".clone() it or use kernels.tiled"
        )


def describe(tensor: Tensor, block: tuple[int, int]) -> TensorDescriptor:
    """A host descriptor that reads zeros outside `tensor`. torch leaves the row stride of a single row to chance; TMA
    wants one."""
    rows, columns = tensor.shape
    unit = TMA_ALIGNMENT_BYTES // tensor.element_size()
    row_stride = tensor.stride(0) if rows > 1 else -(-columns // unit) * unit
    return TensorDescriptor(tensor, [rows, columns], [row_stride, 1], list(block))


@cache
def programs(device: torch.device) -> int:
    """The number of SMs of a GPU: a tile of this size leaves room for one program on each."""
    if device.type != "cuda":
        return INTERPRETED_PROGRAMS
    return torch.cuda.get_device_properties(device).multi_processor_count


def allotted(registers: int, warps: int) -> int:
    """The registers that an SM gives to a CTA whose threads have so many each.

    >>> allotted(218, 8)
    57344
    """
    return warps * -(-registers * WARP_SIZE // UNIT) * UNIT
