"""What is run of whole arms over the paced link, and of the link's small kernels alone.

The copier, on a stream or a device of its own, brings chunks and raises their flags while the kernels run. Arms and
link are those of `collectives`, with their own host code: what it launches on torch's streams goes to the machine.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from unittest.mock import patch

import torch
from cases import DTYPES, Case, changed, grids_of, padded, whole_numbers
from torch import Tensor
from waiting import NEVER_US, PROGRAMS, RANKS, operands, wrong_with

from collectives import all_gather_matmul as gathers
from collectives import device as device_links
from collectives import engines, ffn, on_device
from collectives import transfers as protocol
from kernels import hopper, persistent, tiles, workspace
from kernels.bench import instruments
from kernels.contract import KernelLaunch, Signals
from kernels.machine.core.machine import Machine
from kernels.machine.launcher import address, enqueue
from kernels.machine.tests.host import Host, raise_flag
from roofline.theory import arms
from roofline.theory.arms import arms_of

LAYERS = {name: (ffn.ARMS | on_device.ARMS)[name] for name in arms_of("ffn", gpu=True)}
GATHERING = {name: (gathers.ARMS | on_device.ARMS)[name] for name in arms_of("all_gather_matmul", gpu=True)}
ARMS = {name: run for name, run in GATHERING.items() if not arms.ARMS[name].by_torch}
"""All but those that multiply by torch, which knows nothing of the machine."""


NO_PACE = 1e15
"""Bytes/s of the copier where it stands for a copy engine."""


class Stream:
    """Its next launch comes after those in `after`."""

    cuda_stream = 0

    def __init__(self, machine: Machine, device: int):
        self.machine, self.device, self.after = machine, device, ()

    def wait_stream(self, other: "Stream") -> None:
        self.after += other.after


def wait_value(counter: Tensor, wanted: int) -> None:
    """A stream's wait, by the kernel that waits: it looks with acquire, and what comes behind it comes after."""
    lost, times = torch.zeros(1, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)
    device_links.wait_launch(Signals(counter, wanted, lost, NEVER_US), 1, times).run(counter.device)


def write_value(flag: Tensor, value: int) -> None:
    """A stream's write, by the kernel that raises: who waits for it finds what came before."""
    args = dict(counters_ptr=flag, times_ptr=torch.zeros(1, dtype=torch.int64), first=0, end=1, by=1, num_warps=1)
    KernelLaunch(device_links.copier.raise_kernel, (1,), args).run(flag.device)


def copy(source: Tensor, target: Tensor) -> None:
    """A copy engine, by a program of the copier that has no pace."""
    mover = Wire(NO_PACE, programs=1)
    mover.launch(device_links.copy_launch(mover.prepared([protocol.Transfer(0, 0, source, target)]), 0, 1, NO_PACE))


class Event:
    """A stamp."""

    def __init__(self, enable_timing: bool):
        self.time = torch.zeros(1, dtype=torch.int64)

    def record(self) -> None:
        device_links.stamp_launch(self.time).run(self.time.device)

    def elapsed_time(self, end: "Event") -> float:
        return 1e-6 * (int(end.time) - int(self.time))


ENGINES = dict(
    engine=lambda: "machine",
    COPIES={"machine": copy},
    copy_matrix=copy,
    host_memory=lambda nbytes: torch.empty(nbytes, dtype=torch.uint8),
)
"""What takes the place of those of `collectives.engines`. All memory of the machine is one, so that what is gathered
over PCIe goes out and comes back, as what is computed."""


@contextmanager
def on(machine: Machine, device: int = 0, links_device: int = 0) -> Iterator[None]:
    """What is launched goes to a stream of `device` of the machine, or to the links' streams on `links_device`."""
    streams = [Stream(machine, device)]

    @contextmanager
    def inside(stream: Stream) -> Iterator[None]:
        streams.append(stream)
        yield
        streams.pop()

    def run(launch: KernelLaunch, _: torch.device) -> None:
        streams[-1].after = (enqueue(machine, launch, streams[-1].after, streams[-1].device),)

    with ExitStack() as patches:
        cuda = dict(synchronize=lambda: None, current_stream=lambda: streams[-1], stream=inside)
        cuda |= dict(Stream=lambda priority: Stream(machine, links_device), Event=Event)
        patches.enter_context(patch.multiple(torch.cuda, **cuda))
        patches.enter_context(patch.object(KernelLaunch, "run", run))
        patches.enter_context(patch.multiple(device_links, wait_value=wait_value, write_value=write_value))
        patches.enter_context(patch.multiple(engines, **ENGINES))
        patches.enter_context(patch.object(tiles, "arch_of", lambda device: "sm90"))
        patches.enter_context(patch.object(hopper, "require_hopper"))
        patches.enter_context(patch.dict(workspace.KEPT, clear=True))  # a device has its own
        yield


class OnMachine:
    """A link whose tables have the machine's addresses, and which says what was wrong with its last run."""

    device = "cpu"

    def launch(self, launch: KernelLaunch) -> None:
        launch.run(torch.device("cpu"))

    def prepared(self, transfers):
        route = super().prepared(transfers)
        for row, transfer in zip(route.table, transfers, strict=True):
            row[:2] = torch.tensor([address(self._stream.machine, end) for end in (transfer.source, transfer.target)])
        return route

    def wrong(self) -> str:
        """What was lost in the last run, or came before it was due."""
        try:
            with on(self._stream.machine):
                timeline = self.timeline()
        except protocol.LinkError as error:
            return str(error)
        if self.bytes_per_s is None:
            return ""
        early, due_s = [], 0.0
        ready_s = timeline.ready_s or [0.0] * len(timeline.transfers)
        for transfer, ready, arrival in zip(timeline.transfers, ready_s, timeline.arrivals_s, strict=True):
            due_s = max(due_s, ready) + transfer.nbytes / self.bytes_per_s
            early += [(arrival, due_s)] * (arrival < 0.999 * due_s - 2e-9)
        return f"seconds of arrivals before they were due: {early}" if early else ""


class Wire(OnMachine, device_links.PacedCopier):
    """The paced link."""


class Engine(OnMachine, engines.PacedEngine):
    """The same by copy engines."""


class Pulled(OnMachine, engines.Pcie):
    """PCIe, which nobody asks for a bandwidth."""

    def __init__(self, bytes_per_s: float):
        super().__init__()


def wire_of(bytes_per_s: float, programs: int | None) -> OnMachine:
    """By so many of the copier's programs; by a copy engine where there is none; over PCIe where they are None."""
    if programs is None:
        return Pulled(bytes_per_s)
    return Wire(bytes_per_s, programs=programs) if programs else Engine(bytes_per_s)


def moved_by(programs: int | None) -> str:
    if programs is None:
        return "over PCIe, whatever is asked for:"
    return f"{programs} programs copy" if programs else "a copy engine brings"


def arm(name: str, dtype: str, programs=2, bytes_per_s=1e9, *, devices=1, times=1, **more) -> Case:
    """An arm so many times in a row, behind a gate; on two devices at once, each with its copier on the other."""

    def make(seed: int):
        rows = 256 if "row" in name else 251
        ranks = [operands(dtype, seed, rows, 272, RANKS * 64, RANKS, rank, blocks=2) for rank in range(devices)]
        wires, gate = [], torch.zeros(1, dtype=torch.int32)

        def opens(host: Host) -> Iterator[None]:
            yield
            raise_flag(host, gate, 1)

        def add(machine: Machine) -> None:
            Host(machine, opens)
            for rank, mine in enumerate(ranks):
                mine.matmul = persistent.matmul
                with on(machine, rank, devices - 1 - rank), grids_of(PROGRAMS):
                    wires.append(wire_of(bytes_per_s, programs))
                    instruments.gate_launch(gate, 1, gap=1).run(gate.device)
                    for _ in range(times):
                        ARMS[name](mine, wires[rank])

        def wrong() -> str:
            return next(filter(None, [wire.wrong() for wire in wires] + [wrong_with(mine) for mine in ranks]), "")

        return add, wrong

    title = f"{name} {dtype}, {moved_by(programs)} {bytes_per_s:g} bytes/s, {devices} devices, {times} x"
    return Case("arms", title, make, **more)


def layer(name: str, dtype: str, *, devices=1, bytes_per_s=1e12, width=144, programs=1, **more) -> Case:
    """An arm of the whole layer, of numbers so few that no sum is rounded; with two devices, the link's kernels are on
    the other."""
    rows, hidden = RANKS * 128, 80

    def make(seed: int):
        def few(shape: tuple[int, int], number: int) -> Tensor:
            kept = torch.rand(shape, generator=torch.Generator().manual_seed(seed + number)) < 0.1
            return whole_numbers(padded(*shape, dtype=DTYPES[dtype]), seed + number).sign_().mul_(kept)

        x, up, down = few((rows, width), 1), few((hidden, width), 2), few((width, hidden), 3)
        out, rank, wires = padded(rows // RANKS, width, dtype=x.dtype).contiguous(), seed % RANKS, []
        mine = ffn.Operands(x, up, down, out, RANKS, rank, matmul=persistent.matmul)
        for tensor in (mine.gathered, mine.hidden, mine.scatter.products, mine.scatter.arrived, mine.whole):
            tensor.fill_(torch.nan)
        mine.scatter.block(mine.gathered, rank).copy_(mine.scatter.block(x, rank))
        on_device.added_by_kernel(mine)

        def add(machine: Machine) -> None:
            with on(machine, 0, devices - 1), grids_of(PROGRAMS):
                wires.append(wire_of(bytes_per_s, programs))
                LAYERS[name](mine, wires[0])

        def wrong() -> str:
            total = sum((x.double() @ up.double().T @ down.double().T).chunk(RANKS)).to(x.dtype)
            bad = int((mine.out != total).sum())
            return wires[0].wrong() or (f"{bad} elements of the sums are wrong" if bad else "")

        return add, wrong

    title = f"{name} {dtype}, {bytes_per_s:g} bytes/s, {devices} devices{'' if programs else ', ' + moved_by(programs)}"
    return Case("layers", title, make, **more)


def copier(dtype: str, programs: int, bytes_per_s: float, *shapes: tuple[int, int], **more) -> Case:
    """Matrices with so many rows and columns over a link; then over one that has begun before, on another device, and
    waits there for each; then over one more."""

    def make(seed: int):
        hops = [[padded(*shape, left, dtype=DTYPES[dtype]) for shape in shapes] for left in (8, 16, 8, 16)]
        sources = [whole_numbers(source, seed + i) for i, source in enumerate(hops[0])]
        wires = []

        def add(machine: Machine) -> None:
            with on(machine):
                for number, pair in enumerate(pairwise(hops)):
                    wires.append(wire_of(bytes_per_s, programs))
                    transfers = [protocol.Transfer(i, 0, *ends) for i, ends in enumerate(zip(*pair, strict=True))]
                    waits = number == 1
                    wires[-1]._stream.device = int(waits)
                    wires[-1].start(transfers, ready=0 if waits else None)
                    for count in range(1, 1 + len(shapes) * waits):
                        wires[0].wait(count)
                        wires[1].ready(count)
                    if number:
                        wires[-1].wait(len(shapes))
                for wire in wires:
                    wire.finish()

        def wrong() -> str:
            pairs = [pair for hop in hops[1:] for pair in zip(sources, hop, strict=True)]
            bad = sum(int((source != target).sum()) + changed(target) for source, target in pairs)
            return f"{bad} elements are wrong" if bad else next(filter(None, (wire.wrong() for wire in wires)), "")

        return add, wrong

    return Case("copier", f"{dtype} {shapes}, {moved_by(programs)} {bytes_per_s:g} bytes/s", make, **more)


def alone(kernel: str, title: str, steps: int | None = None, patience_us=NEVER_US, gap_us=0, before=0) -> Case:
    """A small kernel between two stamps. The flag that gate and wait are for is raised by the host after so many of
    its steps; None: never. `before`: another flag that is lost already."""

    def make(seed: int):
        flag, lost = (torch.tensor([value], dtype=torch.int32) for value in (seed % 5, before))
        times, readings = torch.zeros(4, dtype=torch.int64), torch.zeros((8, 2), dtype=torch.int64)
        signals = Signals(flag, 1 + seed % 5, lost, patience_us)
        times[3] = -1  # until the flag is up, which it may be before anything has run
        launch = {
            "stamp": lambda: device_links.stamp_launch(times[1:]),
            "clock": lambda: instruments.clock_launch(readings, 5),
            "gate": lambda: instruments.gate_launch(flag, signals.wanted, gap_us, patience_us),
            "wait": lambda: device_links.wait_launch(signals, 1, readings),
        }[kernel]()

        def raises(host: Host) -> Iterator[None]:
            yield from [None] * steps
            raise_flag(host, flag, signals.wanted)
            times[3] = host.machine.time_ns

        def add(machine: Machine) -> None:
            with on(machine):
                for step in (device_links.stamp_launch(times), launch, device_links.stamp_launch(times[2:])):
                    step.run(flag.device)
            if steps is not None:
                Host(machine, raises)

        def wrong() -> str:
            (start, inside, end, up), (cycles, ns) = times.tolist(), readings[5].tolist()
            held_us, left = (end - start) / 1000, int(lost)
            held = patience_us <= held_us < patience_us + 20 if steps is None else 0 <= up <= end
            right = {
                "stamp": 0 < start < inside < end,
                "clock": ns >= instruments.SPAN_NS and 1.6 < cycles / ns < 1.8 and int((readings != 0).sum()) == 2,
                "gate": held and held_us >= gap_us,
                "wait": (held or before) and left == (before or steps is None),
            }[kernel]
            summary = f"stamps {start}, {inside}, {end} ns, flag up at {up}, lost {left}, {cycles} cycles in {ns} ns"
            return "" if right else summary

        return add, wrong

    return Case(kernel, title, make)


def cases() -> list[Case]:
    more = dict(thorough=True)
    listed = [arm("row_block", "bf16"), arm("chunk_outer", "bf16", devices=2), arm("row_block", "bf16", 0, times=2)]
    for number, name in enumerate(ARMS):
        listed.append(arm(name, "fp16", 3, (1e9, 1e12)[number % 2], times=2, **more))
        listed.append(arm(name, "bf16", devices=2, slots=2, **more))
        listed += [arm(name, "fp16", engine, times=2, **more) for engine in (0, None)]
    listed += [layer("layer_signalled", "bf16", devices=2, width=272)]
    listed += [layer("layer_signalled", "bf16", bytes_per_s=1e9, programs=0)]
    listed += [layer("layer_launches", "bf16", programs=None)]
    for programs in (1, 0, None):
        listed += [layer(name, "fp16", programs=programs, **more) for name in LAYERS if name != "all_reduce"]
    listed += [copier("bf16", 2, 5e7, (9, 1032), (37, 72)), copier("bf16", 3, 1e9, (37, 72), (9, 1032))]
    listed += [copier("bf16", 0, 5e7, (9, 1032), (37, 72)), copier("fp16", 0, 1e9, (37, 72), (130, 264), **more)]
    listed += [copier("fp16", 1, 1e12, (37, 72), (130, 264), **more)]
    listed += [copier("fp16", 32, 1e9, (3, 8), (1, 4096), **more)]
    return [
        *listed,
        alone("gate", "opens at once", 0, gap_us=5),
        alone("gate", "opens late", 3, gap_us=3),
        alone("gate", "does not open", None, 30),
        alone("wait", "the flag is raised late", 3),
        alone("wait", "the flag is lost", None, 30),
        alone("wait", "the flag is lost, as another was before", before=5),
        alone("clock", "one reading"),
        alone("stamp", "three in a row"),
    ]
