"""Links of a GPU whose bytes copy engines move, which takes no SM: `pcie`, and `paced_engine`, an emulation.

The host enqueues one copy after another, and behind those of a transfer its flag, which the stream writes. Targets may
be columns of a buffer, so a copy is one of rows with a pitch.
"""

import ctypes
import functools
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from collectives import device
from collectives.device import DeviceLink, Route, current_stream, stamp_launch, wait_launch
from collectives.transfers import SLICE_BYTES, Transfer, Transfers
from kernels import copier
from kernels.contract import KernelLaunch, Signals
from roofline.theory.wires import ENGINE, PACED_ENGINE, PCIE

UNIFIED = 4
"""CU_MEMORYTYPE_UNIFIED (cuda.h)."""

POINTER, IN_ORDER, BESIDE_COMPUTE = 1, 1, 1
"""CU_MEMCPY_OPERAND_TYPE_POINTER, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE."""

ENGINE_SLICE_BYTES = 2 * SLICE_BYTES
"""One call copies no more. A call takes the host microseconds, and a stream holds about a thousand of them."""

HELD_S, LONGEST_COPY_S = 1.0, 0.01
"""So long a kernel holds every SM at most, and a copy of microseconds has to go by."""

PROGRAM_THREADS, PROGRAM_REGISTERS = 1024, 32
"""Threads of a program that holds an SM, and registers of each: as many programs as fit take all that there are."""


def copy_matrix(source: Tensor, target: Tensor) -> None:
    """Have the current stream copy rows that are contiguous. By its address CUDA knows whose memory it is: this GPU's,
    another's, or the host's."""
    ends = [(0, 0, UNIFIED, 0, end.data_ptr(), 0, pitch(end)) for end in (source, target)]
    copy = (ctypes.c_uint64 * 16)(*ends[0], *ends[1], row_bytes(source), len(source))  # a CUDA_MEMCPY2D
    device.call_driver("cuMemcpy2DAsync_v2", copy, current_stream())


def copy_beside(source: Tensor, target: Tensor) -> None:
    """The same, with a hint to the driver that something computes meanwhile: a batch of this copy alone, since those of
    one batch have no order."""
    ends = [(POINTER, end.data_ptr(), pitch(end), 0, 0) for end in (source, target)]
    matrix = row_bytes(source), len(source), 1
    copy = (ctypes.c_uint64 * 14)(*ends[0], *ends[1], *matrix, IN_ORDER | BESIDE_COMPUTE << 32)
    # a CUDA_MEMCPY3D_BATCH_OP; flags of the whole batch are none
    device.call_driver("cuMemcpy3DBatchAsync_v2", ctypes.c_size_t(1), copy, ctypes.c_ulonglong(0), current_stream())


def pitch(matrix: Tensor) -> int:
    return matrix.stride(0) * matrix.element_size()


def row_bytes(matrix: Tensor) -> int:
    return matrix.shape[1] * matrix.element_size()


class Enqueued(DeviceLink):
    """Transfers whose arrivals are events. A subclass says how one is enqueued (`bring`)."""

    def prepared(self, transfers: Transfers) -> Route:
        route = super().prepared(transfers)
        route.events = [torch.cuda.Event(enable_timing=True) for _ in route.free]
        return route

    def before(self) -> None:
        super().before()
        self._route.events[0].record()

    def move(self, route: Route, first: int, end: int) -> None:
        for index in range(first, end):
            self.bring(route, index, first, end)
            device.write_value(route.flags[index:], route.runs)
            route.events[index + 1].record()

    def bring(self, route: Route, index: int, first: int, end: int) -> None:
        """Enqueue transfer `index`, one of those from `first` to before `end` that go together."""
        raise NotImplementedError

    def arrivals_s(self, t0: int) -> list[float]:
        begun, *events = self._route.events
        return [begun.elapsed_time(event) * 1e-3 for event in events]


class Pcie(Enqueued):
    """Pulls from pinned host memory, where the shards of the other ranks lie: a real link, and nothing paces it.

    What is computed on this GPU, to be sent, goes out to host memory and comes back from there: a part goes out while
    the one before comes in, as a rank sends and receives at once.
    """

    kind = PCIE

    def __init__(self, rank: int = 0):
        super().__init__(rank)
        self._pulling = torch.cuda.Stream(priority=-1)

    def prepared(self, transfers: Transfers) -> Route:
        route = super().prepared(transfers)
        room = host_memory(sum(transfer.nbytes for transfer in transfers if is_here(transfer)))
        for transfer in transfers:
            source, places = transfer.source, [transfer.source, transfer.target]
            if is_here(transfer):
                part, room = room[: transfer.nbytes], room[transfer.nbytes :]
                places.insert(1, part.view(source.dtype).view(source.shape))
            route.copies.append([*pairwise(places)])
        return route

    def move(self, route: Route, first: int, end: int) -> None:
        for index in range(first, end):
            sent = route.copies[index][:-1]
            for out in sent:
                copy_matrix(*out)
            if sent or index == first:
                self._pulling.wait_stream(self._stream)
            with torch.cuda.stream(self._pulling):
                super().move(route, index, index + 1)

    def bring(self, route: Route, index: int, first: int, end: int) -> None:
        copy_matrix(*route.copies[index][-1])

    def after(self) -> None:
        torch.cuda.current_stream().wait_stream(self._pulling)


def is_here(transfer: Transfer) -> bool:
    """Whether what is moved lies on the GPU that it is moved to."""
    return transfer.source.device == transfer.target.device


def in_host_memory(tensor: Tensor) -> Tensor:
    """A copy in pinned host memory. torch keeps pages that were pinned once, for whoever needs some next."""
    return tensor.cpu().pin_memory()


kept: list[Tensor] = []
"""The memory that `host_memory` gave last."""


def host_memory(nbytes: int) -> Tensor:
    """At least so many bytes of pinned host memory: the same for all links, of which one runs at a time."""
    if not kept or len(kept[0]) < nbytes:
        kept[:] = [torch.empty(nbytes, dtype=torch.uint8).pin_memory()]
    return kept[0]


class PacedEngine(DeviceLink):
    """Copies within the GPU at `bytes_per_s`, by its copy engine, which a pacer of one warp lets go slice by slice.

    A slice is let go when the one before is due: an engine that is faster than the wire has it here in time. The stream
    waits until a transfer is due before it writes its flag; the pacer notes when it sees that. Raises ValueError where
    SMs copy, whatever is called.
    """

    kind = PACED_ENGINE
    bytes_per_s: float

    def __init__(self, bytes_per_s: float, rank: int = 0):
        name = engine()
        if not name:
            raise ValueError(
                f"{PACED_ENGINE}: on this GPU a copy within its memory waits for SMs, by whatever function "
                f"({', '.join(COPIES)}), so no engine moves it; leave {ENGINE} out of --ffn-link-bandwidth"
            )
        super().__init__(rank)
        self.bytes_per_s, self.copy = bytes_per_s, COPIES[name]
        self._pacing = torch.cuda.Stream(priority=-1)

    def prepared(self, transfers: Transfers) -> Route:
        route = super().prepared(transfers)
        rows = []
        for index, transfer in enumerate(transfers):
            slices = transfer.slices(ENGINE_SLICE_BYTES)
            route.copies.append(slices)
            moved = 0
            for source, _ in slices:
                end = moved + source.nbytes
                rows.append((index, moved, end))
                moved = end
        route.slices = torch.tensor(rows, dtype=torch.int64, device=self.device)
        route.let_go = torch.zeros(len(rows), 2, dtype=torch.int32, device=self.device)
        return route

    def load(self, route: Route) -> None:
        super().load(route)
        route.launched += 1  # it counts itself in, and has nothing to pace
        launch = self.pace_launch(route, 0)
        self.launch(replace(launch, args=launch.args | dict(slices=0, transfers=0)))

    def pace_launch(self, route: Route, at_once: int) -> KernelLaunch:
        args = dict(
            slices_ptr=route.slices, slices=len(route.slices), let_go_ptr=route.let_go, started_ptr=route.started,
            counters_ptr=route.counters, ready_ptr=route.computed_ns, free_ptr=route.free, flags_ptr=route.flags,
            arrivals_ptr=route.arrivals, transfers=len(route.transfers), at_once=at_once, raised=route.wanted,
            wanted=route.runs, ns_per_byte=1e9 / self.bytes_per_s, patience=int(self.patience_s * 1e6), num_warps=1,
        )  # fmt: skip
        return KernelLaunch(copier.pace_kernel, (1,), args)

    def before(self) -> None:
        """The consumer goes on when the pacer runs: a matmul that fills every SM could keep that out."""
        super().before()
        route = self._route
        route.launched += 1
        self._pacing.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._pacing):
            self.launch(self.pace_launch(route, self._at_once))
        self.wait_for_begin()

    def move(self, route: Route, first: int, end: int) -> None:
        number = sum(map(len, route.copies[:first]))
        for index in range(first, end):
            for ends in route.copies[index]:
                device.wait_value(route.let_go[number, :1], route.runs)
                self.copy(*ends)
                number += 1
            device.wait_value(route.let_go[number - 1, 1:], route.runs)
            device.write_value(route.flags[index:], route.runs)


COPIES: dict[str, Callable[[Tensor, Tensor], None]] = {
    "cuMemcpy3DBatchAsync_v2": copy_beside,
    "cuMemcpy2DAsync_v2": copy_matrix,
}
"""{function of the driver: copy by it}, the better one first. A driver before 580 (CUDA 13) lacks it."""


@functools.cache
def engine() -> str | None:
    """The driver's function by which a copy engine copies within this GPU; None where SMs do, whatever is called."""
    return next((name for name, copy in COPIES.items() if device.driver_has(name) and takes_no_sm(copy)), None)


def takes_no_sm(copy: Callable[[Tensor, Tensor], None]) -> bool:
    """Whether the driver takes `copy`, and that ends beside a kernel that holds every SM, while another kernel
    waits."""
    source = torch.ones(64, 4096, dtype=torch.int8, device=DeviceLink.device)
    target, times = torch.zeros_like(source), torch.zeros(2, dtype=torch.int64, device=source.device)
    flag, lost = (torch.zeros(1, dtype=torch.int32, device=source.device) for _ in range(2))
    up, held = (hold_launch(Signals(flag, wanted, lost, int(1e6 * HELD_S)), times) for wanted in (0, 1))

    def ends(holding: KernelLaunch) -> list[bool]:
        """Whether it ends soon, and a copy behind it, and a kernel behind that, each on a stream of its own."""
        steps = lambda: holding.run(source.device), lambda: copy(source, target), lambda: stamp.run(source.device)
        return [is_soon(step) for step in steps]

    stamp = stamp_launch(times)
    try:
        ends(up)  # all that the steps take is loaded here
    except RuntimeError:  # the driver refuses the copy
        return False
    torch.cuda.synchronize()
    ended = ends(held)
    is_soon(lambda: device.write_value(flag, 1))
    torch.cuda.synchronize()
    return ended == [False, True, False]


def hold_launch(signals: Signals, times: Tensor) -> KernelLaunch:
    """A kernel that waits for the flag of `signals` with as many programs as take every SM."""
    properties, launch = torch.cuda.get_device_properties(0), wait_launch(signals, 1, times)
    each = properties.max_threads_per_multi_processor // PROGRAM_THREADS
    args = launch.args | dict(num_warps=PROGRAM_THREADS // 32, maxnreg=PROGRAM_REGISTERS)
    return replace(launch, grid=(properties.multi_processor_count * each,), args=args)


def is_soon(step: Callable) -> bool:
    """Whether the work that `step` enqueues is done within the time that a copy may take. It gets a stream of its own,
    where a batch is not refused."""
    event = torch.cuda.Event()
    with torch.cuda.stream(torch.cuda.Stream()):
        step()
        event.record()
    until = time.perf_counter() + LONGEST_COPY_S
    while not event.query():
        if time.perf_counter() > until:
            return False
    return True
