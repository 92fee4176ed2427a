"""What `gluon_machine` moves: mbarriers, shared memory, values in registers, matrices behind descriptors."""

from types import SimpleNamespace

ELEMENT_BYTES = 2


class StuckError(AssertionError):
    """Nobody can go on, and nothing is on its way."""


class BrokenError(AssertionError):
    """Something was done that the hardware leaves undefined."""


class Barrier:
    """An mbarrier: a phase ends when all arrivals and all expected bytes are there."""

    def __init__(self):
        self.count, self.phase = None, 0

    def init(self, count):
        self.count = self.pending = count
        self.bytes = 0

    def arrive(self, count):
        if self.pending < count:
            raise BrokenError(f"{count} arrivals, {self.pending} of {self.count} are left in this phase")
        self.pending -= count
        self._end_of_phase()

    def move_bytes(self, expected):
        self.bytes += expected
        self._end_of_phase()

    def _end_of_phase(self):
        if not self.pending and not self.bytes:
            self.phase += 1
            self.pending = self.count

    def has_completed(self, parity):
        return self.phase & 1 != parity


class Memory:
    """A view of shared memory, as TMA and wgmma see it."""

    def __init__(self, machine, array):
        self.machine, self.array, self.shape = machine, array, array.shape

    def index(self, i):
        if i < 0:  # which NumPy would count from the end
            raise BrokenError(f"slot {i} of shared memory")
        found = self.array[i]
        return found[0] if isinstance(found[0], Barrier) else Memory(self.machine, found)

    def slice(self, start, length):
        return Memory(self.machine, self.array[start : start + length])

    def permute(self, order):
        return Memory(self.machine, self.array.transpose(order))

    def store(self, value):
        partition = self.machine.step()
        partition.unfenced.append((self.array, value.read().copy()))


class Values:
    """A tensor in registers: the sums that wgmma adds to, and what is made of them."""

    def __init__(self, array, groups=()):
        self.array, self.shape, self.groups = array, array.shape, groups

    def read(self):
        if self.groups:
            raise BrokenError("sums are read while a wgmma still adds to them")
        return self.array

    def to(self, dtype):
        return Values(self.read())

    def reshape(self, shape):
        return Values(self.read().reshape(shape))

    def permute(self, order):
        return Values(self.read().transpose(order))

    def split(self):
        return Values(self.read()[..., 0]), Values(self.read()[..., 1])


class Descriptor:
    """A matrix and the block that TMA moves of it; zeros are read outside, and nothing is written there."""

    def __init__(self, matrix, block):
        rows, columns = block
        self.matrix, self.dtype, self.layout = matrix, None, None
        self.block_type = SimpleNamespace(shape=[rows, columns], nbytes=rows * columns * ELEMENT_BYTES)

    def _both(self, corner, block):
        (i, j), (rows, columns) = corner, block.shape
        inside = self.matrix[i : i + rows, j : j + columns]
        return inside, block[: inside.shape[0], : inside.shape[1]]

    def read_into(self, corner, block):
        block[...] = 0
        inside, part = self._both(corner, block)
        part[...] = inside

    def write_from(self, corner, block):
        inside, part = self._both(corner, block)
        inside[...] = part
