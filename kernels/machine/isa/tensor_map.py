"""Tensor maps, by which TMA finds a box of a tensor in global and in shared memory (PTX ISA 8.7, 5.5).

A map has 128 bytes. Its fields lie where this file says, since the hardware's own order is not public. The host's maps
are parameters of the kernel. Their limits are those of cuTensorMapEncodeTiled (CUDA driver API, 6.30).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..core.faults import BoundsError, RaceError, TmaError, UnknownError
from ..core.memory import MAP_BYTES, MAPS, REGION_BITS, Region, each_byte, swizzled
from ..core.order import GENERIC, Attempt
from ..core.program import effect, family, lanes_of, uniform
from .alu import table
from .sync import SCOPES

FIELDS = table("""
global_address    u8
global_stride     4u8
global_dim        5u4
box_dim           5u4
element_stride    5u4
rank              u4
elemtype          u4
interleave_layout u4
swizzle_mode      u4
fill_mode         u4
zero              u8
""")
FIELDS = np.dtype([*FIELDS.items()])
assert FIELDS.itemsize == MAP_BYTES
KINDS = ["u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32.ftz", "f64", "bf16", "tf32", "tf32.ftz"]
"""Types of elements, by the number that tensormap.replace.elemtype takes (9.7.9.26, table 33)."""
SIZES = [int(re.search(r"\d+", kind)[0]) // 8 for kind in KINDS]
"""Bytes of an element of each type."""

INSTRUCTIONS = """
tensormap.replace.tile.FIELD.shared::cta.b1024 | a weak read and write of all the map
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.SCOPE.sync.aligned | a generic copy
fence.proxy.tensormap::generic.acquire.SCOPE | without it between, TMA must not use what was copied
"""
"""The opcodes that this module models, and how: rows of the table that `--coverage` prints."""

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class TensorMap:
    """A tensor, and a box that may lie anywhere on it. Sizes begin with the outermost dimension."""

    address: int
    shape: Sizes
    strides: Sizes
    """Bytes from one index of a dimension to the next; the last is the size of an element."""
    box: Sizes
    swizzle: int = 0
    """0: none; 1, 2, 3: of 32, 64, 128 bytes."""
    kind: str = "u8"
    """The type of the elements."""
    fill: bytes = b"\0"
    """The bytes that stand for an element outside of the tensor."""

    @property
    def extent(self) -> Sizes:
        """The sizes of the box, the innermost in bytes."""
        return (*self.box[:-1], self.box[-1] * self.strides[-1])

    @property
    def bytes(self) -> int:
        return math.prod(self.extent)

    def places(self, address: int) -> np.ndarray:
        """The address in shared memory of each byte of a box that begins at `address`."""
        return address // 1024 * 1024 + _places(address % 1024, self.extent, self.swizzle)

    def part(self, region: Region, start: int, coordinates: Sequence[int], whole: int = 1) -> "Part":
        """The part of the box at these coordinates that lies in the tensor, which begins at byte `start` of a region.
        Along the innermost dimension it ends at a multiple of `whole` bytes, which may be beyond the tensor's end."""
        offsets = np.array(start)
        inside = []
        innermost = len(self.shape) - 1
        axes = zip(coordinates, self.shape, self.extent, self.strides, strict=True)
        for axis, (at, length, size, step) in enumerate(axes):
            if axis == innermost:  # this one is counted in bytes
                at *= step
                length *= step
                step = 1
            first = max(at, 0)
            end = max(min(at + size, length), first)
            if axis == innermost and end > first:
                end = min(-(-end // whole) * whole, at + size)
            inside.append(slice(first - at, end - at))
            offsets = offsets[..., None] + np.arange(first, end) * step
        if offsets.size and (last := offsets.item(-1)) >= len(region.data):
            raise BoundsError(f"a box of TMA has byte {last} of a tensor of {len(region.data)}", region, last)
        return Part(self, region, offsets, tuple(inside))


@lru_cache(maxsize=256)
def _places(address: int, extent: Sizes, swizzle: int) -> np.ndarray:
    count = math.prod(extent) // 16
    units = swizzled(address + np.arange(count) * 16, swizzle)
    return each_byte(units, 16).reshape(extent)


class Part(NamedTuple):
    map: TensorMap
    region: Region
    offsets: np.ndarray
    """The offset of each byte in the region."""
    inside: tuple[slice, ...]
    """The index in the box of these bytes."""


def encode(
    address: int, shape: Sequence[int], strides: Sequence[int], kind: int, box: Sequence[int], swizzle: int, nan=False
) -> bytes:
    """A map of the host's. Strides are in elements, and sizes begin with the outermost dimension. Raises TmaError where
    the driver refuses it."""
    raw = np.zeros(1, FIELDS)
    fields = raw[0]
    rank = len(shape)
    fields["global_address"] = address
    fields["rank"] = rank - 1
    fields["elemtype"] = kind
    fields["swizzle_mode"] = swizzle
    fields["fill_mode"] = nan
    fields["element_stride"][:rank] = 1
    fields["global_dim"][:rank] = shape[::-1]
    fields["box_dim"][:rank] = box[::-1]
    fields["global_stride"][: rank - 1] = np.multiply(strides[-2::-1], SIZES[kind])
    tensor_map = raw.tobytes()
    decode(tensor_map)
    return tensor_map


@lru_cache(maxsize=256)
def decode(raw: bytes) -> TensorMap:
    fields = np.frombuffer(raw, FIELDS)[0]
    rank = int(fields["rank"]) + 1
    number = int(fields["elemtype"])
    swizzle = int(fields["swizzle_mode"])
    if fields["zero"] or rank > 5 or number >= len(KINDS) or swizzle > 3:
        raise TmaError("TMA is given no tensor map")
    kind = KINDS[number]
    size = SIZES[number]
    nan = fields["fill_mode"]
    address = int(fields["global_address"])
    shape = tuple(fields["global_dim"][:rank][::-1].tolist())
    box = tuple(fields["box_dim"][:rank][::-1].tolist())
    pitches = tuple(fields["global_stride"][: rank - 1][::-1].tolist())
    inner = box[-1] * size
    limits = [
        (address % 16, f"begins at {address:#x}, a multiple of 16 is needed"),
        (np.mod(pitches, 16).any(), f"strides of {pitches} bytes, multiples of 16 are needed"),
        (0 in shape or 0 in box, f"a tensor of {shape} and a box of {box}, neither may be empty"),
        (max(box) > 256, f"a box of {box}, 256 is the limit"),
        (inner % 16, f"a box with rows of {inner} bytes, a multiple of 16 is needed"),
        (swizzle and inner > 16 << swizzle, f"rows of {inner} bytes, a swizzle of {16 << swizzle}"),
        (nan and "f" not in kind, f"fills with NaN elements of type {kind}"),
    ]
    for broken, problem in limits:
        if broken:
            raise TmaError(f"tensor map: {problem}")
    unusual = fields["interleave_layout"] or (fields["element_stride"][:rank] != 1).any() or kind.endswith(".ftz")
    if unusual or (swizzle and inner < 16 << swizzle):
        raise UnknownError("a tensor map that is interleaved, of element strides, .ftz, or narrower than its swizzle")
    # The constant for NaN is not public; this is what arithmetic on the GPU makes.
    fill = bytes(size)
    if nan:
        fill = b"\xff" * (size - 1) + b"\x7f"
    return TensorMap(address, shape, (*pitches, size), box, swizzle, kind, fill)


def map_at(w, address: int, number: int, inst) -> TensorMap:
    """The map that TMA is given by its address. `number`: the number of the access that reads it."""
    memory = w.cta.machine.memory
    if address >> REGION_BITS == 0:  # the host's
        which, rest = divmod(address - MAPS, MAP_BYTES)
        if rest or not 0 <= which < len(memory.maps):
            raise TmaError("TMA is given no tensor map")
        return decode(memory.maps[which])
    region, places = _in_global(w, address, inst)
    region.note_read(places, Attempt(w.clock, number, inst))
    tensor_map = decode(region.data[places].tobytes())
    writes = region.writes[places].tobytes()
    fences = memory.map_fences.get(address, ())
    if not any(seen == writes and w.clock.item(GENERIC, agent) >= epoch for seen, agent, epoch in fences):
        message = f"{inst} uses the tensor map of {address:#x} with no fence.proxy.tensormap behind what wrote it"
        raise RaceError(message, region, places.start)
    return tensor_map


def _in_global(w, address: int, inst) -> tuple[Region, slice]:
    """The place of a map in global memory."""
    ((region, _, places),) = w.cta.machine.memory.places(np.array([address]), MAP_BYTES, inst, 64)
    return region, places


def _in_shared(w, address: int) -> slice:
    if address % MAP_BYTES or not 0 <= address <= len(w.cta.shared.data) - MAP_BYTES:
        raise TmaError(f"a tensor map at {address} of shared memory", w.cta.shared, address)
    return slice(address, address + MAP_BYTES)


# Maps that a kernel makes: in shared memory, field by field, then copied to global memory for TMA.


@family("tensormap.replace.tile")
def replace(program, inst):
    """9.7.9.26: one weak operation on the whole map."""
    match = re.fullmatch(r"tensormap\.replace\.tile\.(\w+)\.shared::cta\.b1024\.(b32|b64)", inst.op)
    if not match or match[1] not in FIELDS.names:
        raise UnknownError("a field or a space that this machine does not know")
    name, kind = match.groups()
    place, *ordinals, text = inst.args
    index = 0, *(int(number, 0) for number in ordinals)
    where = program.shared_address(place)
    value = program.get(text, kind)

    def write(w):
        shared = w.cta.shared
        for lane in lanes_of(w):
            places = _in_shared(w, int(where(w)[lane]))
            attempt = w.attempt(inst)
            shared.note_read(places, attempt)
            shared.note_write(places, attempt)
            field = shared.data[places].view(FIELDS)[name]
            field[index] = value(w)[lane]

    return write


PUBLISH = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.{}.sync.aligned"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.{}"


@effect(*map(PUBLISH.format, SCOPES), operands="@ S #")
def publish(w, inst, to, source, size):
    """9.7.13.16: the copy belongs to the generic proxy. TMA may see it only behind an acquire, too."""
    if size != MAP_BYTES:
        raise UnknownError(f"{inst}: a tensor map of another size")
    shared = w.cta.shared
    attempt = w.attempt(inst)
    places = _in_shared(w, uniform(w, source(w), "the source of a tensor map"))
    shared.note_read(places, attempt)
    region, target = _in_global(w, uniform(w, to(w), "where a tensor map goes"), inst)
    region.note_write(target, attempt)
    region.data[target] = shared.data[places]
    w.tick()


@effect(*map(ACQUIRE.format, SCOPES), operands="@ #")
def acquire(w, inst, where, size):
    """9.7.13.4: any warp that knows of this fence may give TMA the map as it is now."""
    address = uniform(w, where(w), "the address of a fence")
    fences = w.cta.machine.memory.map_fences
    region, places = _in_global(w, address, inst)
    writes = region.writes[places].tobytes()
    kept = [fence for fence in fences.get(address, ()) if fence[0] == writes]
    fences[address] = [*kept, (writes, w.agent, w.epoch)]
    w.tick()
