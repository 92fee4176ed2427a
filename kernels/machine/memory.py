"""Shared memory of a CTA, and global memory of all devices.

Each keeps its bytes, and of each 2 bytes by whom they were last written and read. Global memory is made of the arrays
that are given to a launch, at made-up addresses far apart: what lies outside of all of them is a fault.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kernels.machine.order import GENERIC, GRANULE, BoundsError, Ledger, RaceError, Scope, UninitialisedError

REGION_BITS = 36  # of an address, inside one array
MAPS = 1 << 31  # addresses of tensor maps: Triton 3.9 keeps 32 bits of a parameter's
MAP_BYTES = 128
EMPTY = 0xFF  # bytes that nobody wrote: NaN in every float type
LOCAL_WINDOW = 1 << 57  # of generic addresses: what a thread has for itself


def spread(at: np.ndarray, size: int, unit: int = 1) -> np.ndarray:
    """[n, size / unit] numbers of the units, a power of two, that `size` bytes at each address are made of."""
    if unit > 1:
        at, size = at >> unit.bit_length() - 1, max(size // unit, 1)
    return at[:, None] + upto(size) if size > 1 else at[:, None]


def first_byte(g, holds: np.ndarray) -> int:
    """Return the first byte of the granules `g`, an index of any kind, that something holds for."""
    every = np.arange(g.start, g.stop) if isinstance(g, slice) else g
    return every.reshape(-1).item(int(np.argmax(holds.reshape(-1)))) * GRANULE


@lru_cache(maxsize=64)
def upto(count: int) -> np.ndarray:
    return np.arange(count)


class Shared:
    """Agents `first` and on, `readers` of them, are those that read here."""

    def __init__(self, size: int, first: int, readers: int, ledger: Ledger):
        self.data = np.full(size, EMPTY, np.uint8)
        self.first, self.ledger, self.number = first, ledger, 0
        count = -(-size // GRANULE)
        self.writes, self.reads = np.zeros(count, np.int32), np.zeros((readers, count), np.int32)

    def granules(self, at: np.ndarray, size: int, instruction: object) -> np.ndarray:
        """Of `size` bytes at each address."""
        every = at.tolist()
        if every and (min(every) < 0 or max(every) + size > len(self.data)):
            wrong = max(every) if min(every) >= 0 else min(every)
            raise BoundsError(f"{instruction}: shared address {wrong}, the CTA has {len(self.data)} bytes", self, wrong)
        if np.count_nonzero(at % min(size, 16)):
            wrong = at[at % min(size, 16) > 0].item(0)
            raise BoundsError(f"{instruction}: shared address {wrong} is no multiple of {size}", self, wrong)
        return spread(at, size, GRANULE)

    def note_read(self, g, clock: np.ndarray, row: int, agent: int, epoch: int, instruction: object) -> None:
        """Check and remember a read. `g`: granules, an index of any kind."""
        numbers = self.writes[g]
        if np.count_nonzero(numbers) < numbers.size:
            byte = first_byte(g, numbers == 0)
            raise UninitialisedError(f"{instruction} reads shared memory that nobody wrote", self, byte)
        if late := self.ledger.unordered(numbers, clock, row):
            fence = late.generic and clock[GENERIC, late.agent] >= late.epoch
            missing = "with no fence.proxy.async after it" if fence else "with no order between"
            message = f"{instruction} reads shared memory that {late} wrote, {missing}"
            raise RaceError(message, self, first_byte(g, numbers == late.number), late.agent)
        self.reads[agent - self.first, g] = epoch

    def note_write(self, g, clock: np.ndarray, row: int, number: int, instruction: object) -> None:
        numbers = self.writes[g]
        if late := self.ledger.unordered(numbers, clock, row):
            message = f"{instruction} overwrites shared memory that {late} wrote, with no order between"
            raise RaceError(message, self, first_byte(g, numbers == late.number), late.agent)
        clock_of_readers = clock[GENERIC, self.first : self.first + len(self.reads)]
        reads = self.reads[:, g]
        if np.count_nonzero(late := reads > clock_of_readers.reshape(-1, *[1] * (reads.ndim - 1))):
            reader = int(np.nonzero(late)[0][0])
            message = f"{instruction} overwrites shared memory while reader {reader} of the CTA may still read it"
            raise RaceError(message, self, first_byte(g, late[reader]), self.first + reader)
        self.writes[g] = number

    def load(self, at: np.ndarray, size: int) -> np.ndarray:
        """[n, size] bytes."""
        return self.data[spread(at, size)]


@dataclass
class Region:
    """An array in global memory."""

    data: np.ndarray
    writes: np.ndarray
    reads: np.ndarray
    number: int
    """Below 0; those of shared memory are above."""

    @property
    def start(self) -> int:
        return self.data.__array_interface__["data"][0]


class GlobalMemory:
    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        self.regions: list[Region] = []
        self.maps: list[bytes] = []
        # By address of a map: the numbers of what wrote it, and the agent and epoch of a fence that covers these.
        self.map_fences: dict[int, list[tuple[bytes, int, int]]] = {}

    def add(self, data: np.ndarray) -> int:
        """Return the address of `data`, bytes of which are read and written in place; the same one for the same
        array."""
        start = data.__array_interface__["data"][0]
        for number, region in enumerate(self.regions, 1):
            if region.start == start and len(region.data) == len(data):
                return number << REGION_BITS
        count = -(-len(data) // GRANULE)
        number = len(self.regions) + 1
        self.regions.append(Region(data, np.zeros(count, np.int32), np.zeros(count, np.int32), -number))
        return number << REGION_BITS

    def region(self, address: int, instruction: object) -> Region:
        number = address >> REGION_BITS
        if not 0 < number <= len(self.regions):
            raise BoundsError(f"{instruction}: global address {address:#x} is outside of every tensor", None, address)
        return self.regions[number - 1]

    def places(
        self, at: np.ndarray, size: int, instruction: object, unit: int = 0
    ) -> Iterator[tuple[Region, np.ndarray, np.ndarray]]:
        """For each array that `size` bytes at some of the addresses are of: it, which of them, and where in it.
        Addresses are multiples of `unit`, of `size` by default."""
        numbers = at >> REGION_BITS
        regions = sorted(set(numbers.tolist()))
        for number in regions:
            chosen = numbers == number if len(regions) > 1 else np.s_[:]
            region, offsets = self.region(at[chosen].item(0), instruction), at[chosen] & ((1 << REGION_BITS) - 1)
            if (last := max(offsets.tolist())) + size > len(region.data):
                raise BoundsError(f"{instruction}: byte {last} of a tensor of {len(region.data)}", region, last)
            if np.count_nonzero(wrong := offsets % (unit or size)):
                byte = offsets.item(int(np.argmax(wrong > 0)))
                raise BoundsError(f"{instruction}: global address is no multiple of {unit or size}", region, byte)
            yield region, chosen, offsets

    def note_read(
        self, region: Region, g, clock, row: int, number: int, instruction: object, scope: Scope | None = None
    ):
        if late := self.ledger.unordered(numbers := region.writes[g], clock, row, scope):
            message = f"{instruction} reads global memory that {late} wrote, {_missing(late, clock, scope)}"
            raise RaceError(message, region, first_byte(g, numbers == late.number), late.agent)
        region.reads[g] = number

    def note_write(
        self, region: Region, g, clock, row: int, number: int, instruction: object, scope: Scope | None = None
    ):
        for done, accesses in (("wrote", region.writes), ("reads", region.reads)):
            numbers = accesses[g]
            if late := self.ledger.unordered(numbers, clock, row if done == "wrote" else GENERIC, scope):
                message = f"{instruction} overwrites global memory that {late} {done}, {_missing(late, clock, scope)}"
                raise RaceError(message, region, first_byte(g, numbers == late.number), late.agent)
        region.writes[g] = number

    def add_map(self, tensor_map: bytes) -> int:
        """Return the address of a tensor map that the host passes to a kernel."""
        self.maps.append(tensor_map)
        return MAPS + (len(self.maps) - 1) * MAP_BYTES


def _missing(late, clock: np.ndarray, scope: Scope | None) -> str:
    if late.generic and clock[GENERIC, late.agent] >= late.epoch:
        return "with no fence.proxy.async after it"
    return "and one of their scopes does not reach the other" if scope and late.scope else "with no order between"


def swizzled(address: np.ndarray, mode: int) -> np.ndarray:
    """Return where a 16-byte unit lies: bits 4 and on of its address, as many as the mode, times those from bit 7 (PTX
    ISA 8.7, 5.5.7 and 9.7.15.5.1)."""
    return address ^ (address >> 7 & (1 << mode) - 1) << 4 if mode else address
