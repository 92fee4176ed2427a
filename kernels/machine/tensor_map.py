"""Tensor maps: by what TMA finds a box of a tensor, in global and in shared memory (PTX ISA 8.7, 5.5).

A map is 128 bytes, whose fields lie where this file says; the hardware's own order is not public. The host's maps are
parameters of the kernel. Their limits are those of cuTensorMapEncodeTiled (CUDA driver API, 6.30).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kernels.machine.memory import MAP_BYTES, MAPS, Region, spread, swizzled
from kernels.machine.order import GRANULE, BoundsError, TmaError
from kernels.machine.ptx import UnknownError

FIELDS = np.dtype([
    ("global_address", "u8"), ("global_stride", "u8", 4), ("global_dim", "u4", 5), ("box_dim", "u4", 5),
    ("element_stride", "u4", 5), ("rank", "u4"), ("elemtype", "u4"), ("interleave_layout", "u4"),
    ("swizzle_mode", "u4"), ("fill_mode", "u4"), ("zero", "u8"),
])  # fmt: skip
assert FIELDS.itemsize == MAP_BYTES
KINDS = ["u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32.ftz", "f64", "bf16", "tf32", "tf32.ftz"]
"""By the number that tensormap.replace.elemtype takes (9.7.9.26, table 33)."""
SIZES = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4)


class Layout(NamedTuple):
    """How a box lies in shared memory."""

    extent: tuple[int, ...]
    """Of the box, the outermost first; the last in bytes."""
    swizzle: int = 0
    """0: none; 1, 2, 3: of 32, 64, 128 bytes."""
    kind: str = "u8"
    """Of its elements."""
    fill: bytes = b"\0"
    """What stands for an element outside of the tensor."""

    @property
    def bytes(self) -> int:
        return int(np.prod(self.extent))

    def place(self, address: int) -> np.ndarray:
        """Return the address in shared memory of each byte of a box that begins at `address`."""
        return address // 1024 * 1024 + _places(address % 1024, self.extent, self.swizzle)


@lru_cache(maxsize=256)
def _places(address: int, extent: tuple[int, ...], swizzle: int) -> np.ndarray:
    units = swizzled(address + np.arange(np.prod(extent) // 16) * 16, swizzle)
    return spread(units, 16).reshape(extent)


class Part(NamedTuple):
    """What of a box lies in its tensor."""

    region: Region
    offsets: np.ndarray
    """In the region, of each byte."""
    inside: tuple
    """Of the box: which bytes these are."""
    layout: Layout

    @property
    def granules(self) -> np.ndarray:
        offsets = self.offsets if self.layout.kind == "u8" else self.offsets[..., ::GRANULE]
        return offsets // GRANULE


@dataclass(frozen=True)
class TensorMap:
    address: int
    shape: tuple[int, ...]
    """Of the tensor, in elements, as `strides`, in bytes, and the box: the outermost first."""
    strides: tuple[int, ...]
    layout: Layout

    def part(self, region: Region, start: int, coordinates: Sequence[int]) -> Part:
        """Return what of the box at these coordinates, the outermost first, is in the tensor that begins at byte
        `start` of the region."""
        offsets, inside, last = np.full((1,) * len(self.shape), start), [], start - 1
        size = self.strides[-1]
        for axis, (at, length, stride) in enumerate(zip(coordinates, self.shape, self.strides, strict=True)):
            inner = axis == len(self.shape) - 1
            unit = size if inner else 1
            first, end = max(at, 0), max(min(at + self.layout.extent[axis] // unit, length), max(at, 0))
            inside.append(slice((first - at) * unit, (end - at) * unit))
            steps = np.arange(first * unit, end * unit) * (1 if inner else stride)
            offsets = offsets + steps.reshape(-1, *[1] * (len(self.shape) - 1 - axis))
            last += (end - 1) * stride if not inner else end * size
        if offsets.size and last >= len(region.data):
            raise BoundsError(f"a box of TMA has byte {last} of a tensor of {len(region.data)}")
        return Part(region, offsets, tuple(inside), self.layout)


def encode(
    address: int, shape: Sequence[int], strides: Sequence[int], kind: int, box: Sequence[int], swizzle: int, nan=False
) -> bytes:
    """Return the host's map of a tensor; shape, strides in elements and box begin with the outermost dimension. Raises
    TmaError as `decode`."""
    raw = np.zeros(1, FIELDS)
    fields, rank = raw[0], len(shape)
    fields["global_address"], fields["rank"] = address, rank - 1
    fields["elemtype"], fields["swizzle_mode"], fields["fill_mode"] = kind, swizzle, nan
    fields["global_dim"][:rank], fields["box_dim"][:rank] = shape[::-1], box[::-1]
    fields["global_stride"][: rank - 1] = [stride * SIZES[kind] for stride in strides[-2::-1]]
    fields["element_stride"][:rank] = 1
    decode(raw.tobytes())
    decode(raw.tobytes())
    return raw.tobytes()


@lru_cache(maxsize=256)
def decode(raw: bytes) -> TensorMap:
    fields = np.frombuffer(raw, FIELDS)[0]
    rank, number, swizzle = int(fields["rank"]) + 1, int(fields["elemtype"]), int(fields["swizzle_mode"])
    if fields["zero"] or rank > 5 or number >= len(KINDS) or swizzle > 3:
        raise TmaError("TMA is given no tensor map")
    if fields["interleave_layout"] or (fields["element_stride"][:rank] != 1).any() or KINDS[number].endswith(".ftz"):
        raise UnknownError("a tensor map of an interleaved layout, of element strides or of type .ftz")
    address, size, nan = int(fields["global_address"]), SIZES[number], bool(fields["fill_mode"])
    shape, box = (tuple(fields[name][:rank][::-1].tolist()) for name in ("global_dim", "box_dim"))
    pitches = tuple(fields["global_stride"][: rank - 1][::-1].tolist())
    inner, is_float = box[-1] * size, "f" in KINDS[number]
    limits = [
        (address % 16, f"begins at {address:#x}, a multiple of 16 is needed"),
        (any(pitch % 16 or pitch >= 1 << 40 for pitch in pitches), f"strides of {pitches} bytes, multiples of 16 are "
         "needed"),
        (0 in shape or 0 in box, f"a tensor of {shape} and a box of {box}, neither may be empty"),
        (max(box) > 256, f"a box of {box}, 256 is the limit"),
        (inner % 16, f"a box with rows of {inner} bytes, a multiple of 16 is needed"),
        (swizzle and inner > 16 << swizzle, f"rows of {inner} bytes, a swizzle of {16 << swizzle}"),
        (nan and not is_float, f"fills with NaN elements of type {KINDS[number]}"),
    ]  # fmt: skip
    for broken, problem in limits:
        if broken:
            raise TmaError(f"tensor map: {problem}")
    if swizzle and inner < 16 << swizzle:
        raise UnknownError(f"a tensor map with rows of {inner} bytes, narrower than its swizzle")
    # The constant for NaN is not public; this is what arithmetic on the GPU makes.
    fill = (b"\xff" * (size - 1) + b"\x7f") if nan else bytes(size)
    layout = Layout((*box[:-1], inner), swizzle, KINDS[number], fill)
    return TensorMap(address, shape, (*pitches, size), layout)


def map_at(w, address: int, number: int, inst) -> TensorMap:
    """Return the map that TMA is given by its address. `number`: of who reads it."""
    maps = w.cta.machine.memory.maps
    if address < MAPS or (address - MAPS) % MAP_BYTES or (address - MAPS) // MAP_BYTES >= len(maps):
        raise TmaError("TMA is given no tensor map")
    return decode(maps[(address - MAPS) // MAP_BYTES])
