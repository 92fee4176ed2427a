"""Shared memory of a CTA, and global memory of all devices.

Each keeps its bytes, and who last wrote and read each of them. Global memory is made of the arrays that are
given to a launch, at made-up addresses far apart: an access outside of all of them is a fault.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from .faults import BoundsError, RaceError, UninitialisedError
from .order import CLUSTER_BITS, GENERIC, KNOWN, Attempt, Clock, Ledger, Released, Replicas, joined

REGION_BITS = 36  # the lowest of an address: an offset inside one array
MAPS = 1 << 31  # the first address of a tensor map: Triton 3.9 keeps 32 bits of a parameter's address
MAP_BYTES = 128
EMPTY = 0xFF  # a byte that nobody wrote: NaN in every float type
SHARED_WINDOW = 1 << 56  # where shared memory begins among generic addresses (6.4.1.1)
LOCAL_WINDOW = 1 << 57  # where a thread's local memory begins
EVERY = slice(None)
PARAMETERS = 1 << 30  # the first address of a launch's parameters, of 32 bits as MAPS
PARAMETER_BYTES = 16  # parameters begin at multiples of it


Addresses = np.ndarray
"""[n], int64: where n accesses begin."""
Rows = np.ndarray
"""[n, size] bytes of accesses."""
Places = np.ndarray | slice
"""An index of bytes: [n, size], or a slice where all of them follow one another."""
Which = np.ndarray | slice
"""An index of accesses: some of them, or EVERY."""
OfBytes = dict[int, np.ndarray]
"""An item for each byte of arrays, by the address in this process where an array begins."""


@lru_cache(maxsize=64)
def upto(count: int) -> np.ndarray:
    return np.arange(count)


def each_byte(at: Addresses, size: int) -> np.ndarray:
    """[n, size] addresses of the bytes of n accesses."""
    return at[:, None] + upto(size)


@lru_cache(maxsize=64)
def steps(count: int, size: int) -> bytes:
    return (upto(count) * size).tobytes()


def in_a_row(at: Addresses, size: int) -> slice | None:
    """The bytes of accesses that follow one another, as most do; None for other accesses."""
    first = at.item(0)
    if (at - first).tobytes() != steps(len(at), size):
        return None
    return slice(first, first + size * len(at))


def starts(places: Places, size: int) -> list[int]:
    """The addresses of elements of `size` bytes each."""
    if isinstance(places, slice):
        return list(range(places.start, places.stop, size))
    return places[:, ::size].reshape(-1).tolist()


MANY = -1
"""Stands for several clusters."""
READS = "reads {} that {} wrote"
OVERWRITES = "overwrites {} that {} wrote"
READ_BEFORE = "overwrites {} that {} reads"


class Noted:
    """A memory that notes who last wrote and read each byte. `note_read` and `note_write` check an access and remember
    it, by its number in the ledger."""

    name: str
    covered: np.ndarray | None = None
    """Whether each byte belongs to an argument; None: all do."""
    empty: np.ndarray | None = None
    """Whether the host has left each byte uninitialised; None: it has left none so."""

    def __init__(self, ledger: Ledger, data: np.ndarray, number: int, *readers: int):
        """`number`: below 0 for global memory, above 0 for shared memory."""
        self.ledger = ledger
        self.data = data
        self.number = number
        self.writes = np.zeros(len(data), np.int32)
        self.reads = np.zeros((len(data), *readers), np.int32)
        self.released: dict[int, Released] = {}
        """What was released at each address. A warp that reads there with acquire semantics then knows it."""

    def places(self, at: Addresses, size: int, instruction, unit: int) -> Places:
        """The bytes of accesses, of `size` bytes each. Raises BoundsError unless all are inside and at multiples of
        `unit`."""
        places = in_a_row(at, size)
        if places is None:
            places = each_byte(at, size)
            every = at.tolist()
        else:
            every = range(places.start, places.stop, size)
            every = [*every[:2], every[-1]]  # the others are as far apart
        for at in every:
            problem = ""
            if not 0 <= at <= len(self.data) - size:
                problem = f" of {len(self.data)} bytes"
            elif at % unit:
                problem = f"; its address is no multiple of {unit}"
            if problem:
                raise BoundsError(f"{instruction}: byte {at} of {self.name}{problem}", self, at)
        return places

    def load(self, places: Places, size: int) -> Rows:
        return self.data[places].reshape(-1, size)

    def store(self, places: Places, rows: Rows) -> None:
        if isinstance(places, slice):
            rows = rows.reshape(-1)
        self.data[places] = rows

    def bytes_at(self, places: Places, holds: np.ndarray) -> np.ndarray:
        """Those bytes at `places` for which `holds` is true."""
        return np.arange(len(self.data))[places][holds]

    def check_covered(self, places: np.ndarray, instruction) -> None:
        """Raise BoundsError where a byte that is written belongs to no argument. A halo is only read."""
        if self.covered is None:
            return
        inside = self.covered[places]
        if not inside.all():
            byte = self.bytes_at(places, ~inside).item(0)
            message = f"{instruction}: byte {byte} of {self.name}; it is written, and no argument covers it"
            raise BoundsError(message, self, byte)

    def conflict(
        self, access: tuple[int, int], places: np.ndarray, attempt: Attempt, text: str, *, wrote=False, is_equal=False
    ) -> None:
        """Let the ledger decide on an access, by its agent and epoch, which an attempt's clock does not cover at these
        bytes. Of a warp it may cover some lanes."""
        agent, epoch = access
        clock = attempt.clock
        if agent in clock.lanes:
            warp = self.ledger.accesses[self.ledger.latest[agent]].by
            places = warp.among.beyond(clock.lanes[agent] >= epoch, self, places, wrote=wrote)
        if places.size:
            fault = RaceError(f"{attempt.instruction} {text}", self, places.item(0), agent)
            if self.ledger.accepts(fault, attempt, epoch, is_equal):
                clock.learn(agent, epoch)

    def compare(self, noted, places: Places, attempt: Attempt, did: str) -> None:
        """Raise RaceError if an access that is `noted` there is not ordered before the one that is attempted."""
        numbers = noted[places]
        clock, number, _, row, stored = attempt
        scope = self.ledger.accesses[number].scope
        wrote = noted is self.writes
        for late in self.ledger.unordered(numbers, clock, row, scope):
            held = numbers == late.number
            late_bytes = self.bytes_at(places, held)
            missing = "with no order between"
            if late.generic and clock.item(KNOWN, late.agent) >= late.epoch:
                missing = "with no fence.proxy.async after it"
                if row == GENERIC:
                    missing = "and an mbarrier between them is used with a scope that does not reach so far"
            elif scope and late.scope:
                missing = "and one of their scopes does not reach the other"
            text = f"{did.format(self.name, late)}, {missing}"
            is_equal = wrote and late.is_plain and self.holds(late_bytes, stored, held)
            self.conflict((late.agent, late.epoch), late_bytes, attempt, text, wrote=wrote, is_equal=is_equal)

    def publish(self, address: int, released: Released, *, read: bool) -> None:
        """Note a write at an address, and what it releases, if anything. A write that `read` what it replaces continues
        the release pattern; any other ends it (8.9.2)."""
        if read and not released:
            return
        kept = dict(self.released.get(address, ())) if read else {}
        for scope, clock in released.items():
            kept[scope] = joined([clock, kept[scope]]) if scope in kept else clock
        self.released[address] = kept

    def holds(self, places: np.ndarray, stored: Rows | None, which: np.ndarray) -> bool:
        """Whether bytes are already what a store leaves there: those of its bytes that `which`, one for each, says."""
        return stored is not None and np.array_equal(self.data[places], stored.reshape(which.shape)[which])


class Shared(Noted):
    """Shared memory of a CTA. The agents that read here are `readers` in number, from `first` on."""

    name = "shared memory"

    def __init__(self, ledger: Ledger, data: np.ndarray, number: int, first: int, readers: int):
        super().__init__(ledger, data, number, readers)
        self.first = first
        self.replicas = Replicas()

    def note_read(self, places: Places, attempt: Attempt) -> None:
        numbers = self.writes[places]
        if self.ledger.bears and np.count_nonzero(numbers) < numbers.size:
            byte = self.bytes_at(places, numbers == 0).item(0)
            error = UninitialisedError(f"{attempt.instruction} reads shared memory that nobody wrote", self, byte)
            self.ledger.early = self.ledger.early or error
        self.compare(self.writes, places, attempt, READS)
        read = self.ledger.accesses[attempt.number]
        self.reads[places, read.agent - self.first] = -read.epoch if read.scope else read.epoch

    def note_write(self, places: Places, attempt: Attempt, of_writers: Clock | None = None) -> None:
        """`of_writers`: a clock that knows more of other writes than the attempt's."""
        clock = attempt.clock
        self.compare(self.writes, places, attempt._replace(clock=of_writers or clock), OVERWRITES)
        reads = self.reads[places]
        if not self.ledger.accesses[attempt.number].scope:  # else strong reads may happen at the same time
            reads = np.abs(reads)
        late = reads > clock.of(self.first, reads.shape[-1], min(attempt.row, KNOWN))
        for reader in np.unique(late.nonzero()[-1]).tolist() if late.any() else ():
            late_bytes = self.bytes_at(places, late[..., reader])
            access = self.first + reader, reads[..., reader].max()
            text = f"overwrites {self.name} while reader {reader} of the CTA may still read it"
            self.conflict(access, late_bytes, attempt, text)
        self.writes[places] = attempt.number

    def end(self) -> None:
        """Release the memory, which nobody may access any more. It keeps its length."""
        self.data = np.ndarray(len(self.data), np.uint8, bytes(1), strides=(0,))
        del self.writes, self.reads, self.replicas


class Region(Noted):
    """An array in global memory."""

    name = "global memory"
    readers: np.ndarray | None = None
    """The number of the cluster that reads each byte, or MANY; 0 for nobody. None where nobody asks."""

    @property
    def start(self) -> int:
        return self.data.__array_interface__["data"][0]

    def note_read(self, places: Places, attempt: Attempt) -> None:
        if self.empty is not None:
            early = self.empty[places] & (self.writes[places] == 0)
            if early.any():
                byte = self.bytes_at(places, early).item(0)
                raise UninitialisedError(f"{attempt.instruction} reads global memory that nobody wrote", self, byte)
        self.compare(self.writes, places, attempt, READS)
        self.reads[places] = attempt.number
        if self.readers is not None:
            program = self.ledger.accesses[attempt.number].agent >> CLUSTER_BITS
            before = self.readers[places]
            self.readers[places] = np.where((before == 0) | (before == program), program, MANY)

    def note_write(self, places: Places, attempt: Attempt, of_readers: Clock | None = None) -> None:
        """`of_readers`: a clock that knows more of reads than the attempt's."""
        self.compare(self.writes, places, attempt, OVERWRITES)
        after_reads = attempt._replace(clock=of_readers or attempt.clock, row=min(attempt.row, KNOWN))
        self.compare(self.reads, places, after_reads, READ_BEFORE)
        self.writes[places] = attempt.number


class GlobalMemory:
    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        self.notes_readers = False
        self.regions: list[Region] = []
        self.maps: list[bytes] = []
        self.covered: OfBytes = {}  # as in the region of an array
        self.empty: OfBytes = {}  # likewise
        # Fences by the address of a map: the numbers of the writes that a fence covers, its agent and its epoch.
        self.map_fences: dict[int, list[tuple[bytes, int, int]]] = {}

    def add(self, data: np.ndarray) -> int:
        """Add an array, whose bytes are read and written in place, and return its address. An array that was added
        before keeps its address."""
        start = data.__array_interface__["data"][0]
        for number, region in enumerate(self.regions, 1):
            if region.start == start and len(region.data) == len(data):
                return number << REGION_BITS
        number = len(self.regions) + 1
        region = Region(self.ledger, data, -number)
        region.covered = self.covered.get(start)
        region.empty = self.empty.get(start)
        if self.notes_readers:
            region.readers = np.zeros(len(data), np.int32)
        self.regions.append(region)
        return number << REGION_BITS

    def region(self, address: int, instruction) -> Region:
        number = address >> REGION_BITS
        if not 0 < number <= len(self.regions):
            message = f"{instruction}: global address {address:#x} is outside of every tensor"
            raise BoundsError(message, None, address)
        return self.regions[number - 1]

    def places(self, at: Addresses, size: int, instruction, unit: int = 0) -> Iterator[tuple[Region, Which, Places]]:
        """Yield each array that addresses are in, which of the addresses these are, and where in it the `size` bytes at
        each lie. Addresses must be multiples of `unit`, by default of `size`."""
        numbers = at >> REGION_BITS
        touched = sorted(set(numbers.tolist()))
        for number in touched:
            which = EVERY
            if len(touched) > 1:
                which = numbers == number
            addresses = at[which]
            region = self.region(addresses.item(0), instruction)
            yield region, which, region.places(addresses - (number << REGION_BITS), size, instruction, unit or size)

    def add_map(self, tensor_map: bytes) -> int:
        """Add a tensor map that the host passes to a kernel, and return its address."""
        address = MAPS + len(self.maps) * MAP_BYTES
        self.maps.append(tensor_map)
        return address


def swizzled(address: np.ndarray, mode: int) -> np.ndarray:
    """The swizzled address of a 16-byte unit: `mode` bits of it from bit 4 on, XORed with as many from bit 7 on (PTX
    ISA 8.7, 5.5.7 and 9.7.15.5.1)."""
    if not mode:
        return address
    row = address >> 7 & (1 << mode) - 1
    return address ^ row << 4
