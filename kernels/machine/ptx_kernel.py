"""An entry of plain PTX, as NVRTC, tilelang or CUTLASS write it, in place of a kernel of Triton's.

The parameters are those of the PTX, in their order. The PTX says what each takes: a number of so many bits, a pointer,
a tensor map, or the bytes of a structure.
"""

import operator
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from .compile import Arguments
from .core.faults import FaultError
from .core.program import Program
from .core.ptx import parse
from .isa.tensor_map import KINDS, encode

FLOATS = {16: "e", 32: "f", 64: "d"}


class PtxKernel:
    def __init__(self, text: str, entry: str | None, block: Sequence[int], shared: int, cluster: int):
        threads = np.prod(block)
        along_z = max(block[2:], default=1)
        if min(block) < 1 or threads > 1024 or along_z > 64 or shared < 0:
            limits = "a CTA has 1 to 1024 threads, at most 64 of them along z, and 0 bytes or more"
            raise ValueError(f"the block {block} with shared={shared}: {limits}")
        self.code = parse(text, entry, block)
        self.code.cluster = max(self.code.cluster, cluster)
        self.__name__ = self.code.name
        self.shared_bytes = self.code.shared_bytes + shared
        targets = re.findall(r"\.target\s+(\w+)", text)
        self.target = [*targets, "sm_90a"][0]

    def is_gluon(self) -> bool:
        return True  # its barriers are the author's, not Triton's

    @cached_property
    def program(self) -> Program:
        return Program(self.code, self.shared_bytes)

    def named(self, args: Arguments | Sequence[Any]) -> dict[str, Any]:
        """The arguments by name. Raises ValueError where there are too few, or too many."""
        names = self.code.parameters
        if not isinstance(args, (Mapping, Sequence)) or len(args) != len(names):
            listed = ", ".join(f"{name} ({variable.form})" for name, variable in names.items())
            raise ValueError(f"{self.__name__} takes {len(names)} arguments: {listed}; given are {args!r:.60}")
        if not isinstance(args, Mapping):
            args = zip(names, args, strict=True)
        return dict(args)

    def values(self, args: Arguments, address: Callable, add_map: Callable[[bytes], int]) -> list[int | bytes]:
        """The value of each parameter: a number, or the bytes of a structure. Raises ValueError where it does not take
        its argument."""
        values = []
        for (given, value), taken in zip(args.items(), self.code.parameters.values(), strict=True):
            try:
                if hasattr(value, "block_shape") and taken.size == 128:
                    values.append(add_map(map_of(value, address)))
                elif taken.is_array:
                    values.append(structure(value, taken.size, address))
                else:
                    values.append(number(value, taken.kind, address))
            except (FaultError, KeyError, TypeError, ValueError, OverflowError, struct.error) as error:
                text = f"{given} is {type(value).__name__} {value!r:.40}".replace("\n", " ")
                raise ValueError(f"{text}; {taken.name} takes {taken.form}: {error}") from None
        return values


def number(value: Any, kind: str, address: Callable | None = None) -> int:
    """The bits of a number, or the address of a tensor, as an integer from 0 on."""
    width = int(kind[1:])
    if kind[0] == "f" or (kind[0] == "b" and isinstance(value, float)):
        packed = struct.pack(FLOATS[width], value)
        return int.from_bytes(packed, "little")
    if isinstance(value, Tensor):
        value = address(value)
    integer = operator.index(value)
    packed = integer.to_bytes(width // 8, "little", signed=integer < 0)
    return int.from_bytes(packed, "little")


def structure(value: Any, size: int, address: Callable) -> bytes:
    """The bytes of a structure. It is given as bytes, as a tuple of a format of `struct` and its values, or as a tensor
    whose address is all that it holds."""
    if isinstance(value, Tensor):
        value = "P", value
    if isinstance(value, tuple):
        parts = []
        for part in value:
            if isinstance(part, Tensor):
                part = address(part)
            parts.append(part)
        packed = struct.pack(*parts)
        return structure(packed.ljust(size, b"\0"), size, address)
    if isinstance(value, (int, float, str)):
        raise ValueError('give bytes, or a tuple as ("Pif", x, 3, 0.5), by the formats of struct')
    value = bytes(value)
    if len(value) != size:
        raise ValueError(f"these are {len(value)}")
    return value


def map_of(descriptor: Any, address: Callable) -> bytes:
    """The tensor map of a TensorDescriptor: a box of its block_shape, swizzled as its layout says."""
    tensor = descriptor.base
    layout = getattr(descriptor, "layout", None)
    width = getattr(layout, "swizzle_byte_width", 0)
    floats = re.fullmatch(r"torch\.(b?f)loat(16|32|64)", str(tensor.dtype))
    kind = f"u{8 * tensor.itemsize}"
    if floats:
        kind = floats[1] + floats[2]
    swizzle = max(width.bit_length() - 5, 0)  # 1 for 32 bytes, 2 for 64, 3 for 128
    return encode(
        address(tensor),
        descriptor.shape,
        descriptor.strides,
        KINDS.index(kind),
        descriptor.block_shape,
        swizzle,
        descriptor.padding == "nan",
    )
