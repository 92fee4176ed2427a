"""What kernels for Hopper share: which inputs TMA can address, descriptors, the grid of a persistent kernel, and how
much of an SM there is for one.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.contract import interpreted, require_runnable, validate
from kernels.tiles import capability

TMA_ALIGNMENT_BYTES = 16  # of base addresses and row strides; CUDA driver API, cuTensorMapEncodeTiled
INTERPRETED_PROGRAMS = 3  # fewer than there are tiles, so that the interpreter walks the persistent loop too

# An SM of Hopper (CUDA C++ programming guide, technical specifications). Warps take registers by 256, each CTA takes
# 1,024 bytes of shared memory beyond its own.
SM_REGISTERS, SM_SHARED_BYTES = 65_536, 233_472
WARP_SIZE, UNIT, CTA_BYTES = 32, 256, 1_024
# What of it is kept for a link's copier, and for one of the links' and instruments' small kernels: registers, bytes.
KEPT = {"copier": (6_144, CTA_BYTES), "wait": (1_024, CTA_BYTES + 128)}


def require(kernel: Any, x: Tensor, w: Tensor, out: Tensor | None, name: str) -> None:
    """Refuse what `kernels.contract.validate` does, and what TMA cannot address, in the words of the kernel `name`,
    whose Triton function is `kernel`.

    TypeError: fp32 outside the interpreter. ValueError: a GPU that is no Hopper, rows that are no multiple of 16 bytes
    or overlap, a base address that is no multiple of 16.
    """
    validate(x, w, out)
    require_hopper(kernel, x, name)
    (m, k), n = x.shape, w.shape[0]
    if m and n and k:  # else nothing is launched
        require_tma("x", "K", m, k, x.stride(0), x)
        require_tma("w", "K", n, k, w.stride(0), w)
        require_tma("out", "N", m, n, n if out is None else out.stride(0), x if out is None else out)


def require_hopper(kernel: Any, x: Tensor, name: str) -> None:
    """Raise TypeError or ValueError, in the words of the kernel `name`, unless this is a Hopper GPU and a dtype of its
    tensor cores, or the interpreter and a dtype of that."""
    require_runnable(kernel, x)
    if interpreted(kernel):
        return
    if (version := capability(x.device))[0] != 9:
        raise ValueError(
            f"{x.device} has compute capability {version[0]}.{version[1]}, {name} needs 9.x (Hopper); use kernels.tiled"
        )
    if x.dtype == torch.float32:
        raise TypeError(f"x is float32, {name} takes bfloat16 and float16 on a GPU; cast it or use kernels.tiled")


def require_tma(name: str, dim: str, rows: int, columns: int, row_stride: int, tensor: Tensor) -> None:
    """Raise ValueError unless TMA can address `rows` rows of `columns` elements that lie `row_stride` elements
    apart."""
    size = tensor.element_size()
    unit = TMA_ALIGNMENT_BYTES // size
    if rows > 1:  # one row has no stride
        if row_stride < columns:
            raise ValueError(
                f"{name} has a row stride of {row_stride}, TMA needs {dim}={columns} or more; "
                "call .contiguous() or use kernels.tiled"
            )
        if row_stride % unit:
            lengths = f"{dim}={columns} is" if row_stride == columns else f"{name} has a row stride of {row_stride},"
            way_out = f"pad {dim}" if row_stride == columns else "pad the rows"
            raise ValueError(
                f"{lengths} not a multiple of {unit}: TMA needs 16-byte rows; {way_out} or use kernels.tiled"
            )
    if past := tensor.data_ptr() % TMA_ALIGNMENT_BYTES:
        raise ValueError(
            f"{name} starts {past} bytes past a multiple of 16: TMA needs 16-byte addresses; "
            ".clone() it or use kernels.tiled"
        )


def describe(tensor: Tensor, block: tuple[int, int]) -> TensorDescriptor:
    """Return a host descriptor that reads zeros outside `tensor`. torch leaves the row stride of a single row to
    chance; TMA wants one."""
    rows, columns = tensor.shape
    unit = TMA_ALIGNMENT_BYTES // tensor.element_size()
    row_stride = tensor.stride(0) if rows > 1 else -(-columns // unit) * unit
    return TensorDescriptor(tensor, [rows, columns], [row_stride, 1], list(block))


def programs(device: torch.device) -> int:
    """Return the number of SMs of a GPU: a tile of this size leaves room for one program on each."""
    return _sms(device) if device.type == "cuda" else INTERPRETED_PROGRAMS


@cache
def _sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def allotted(registers: int, warps: int) -> int:
    """Return the registers that an SM gives to a CTA whose threads have so many each.

    >>> allotted(218, 8)
    57344
    """
    return warps * -(-registers * WARP_SIZE // UNIT) * UNIT


def room() -> tuple[int, int]:
    """Return the registers and bytes of shared memory that are left for a kernel beside the copier and one of the small
    ones."""
    registers, shared = (sum(kept) for kept in zip(*KEPT.values(), strict=True))
    return SM_REGISTERS - registers, SM_SHARED_BYTES - shared - CTA_BYTES
