"""What is run of the kernels that wait for flags, each alone.

A thread of the host brings chunks or rows, and raises their flags while the kernel runs. A flag holds the number of the
run before until it is raised.
"""

import random
from collections.abc import Callable, Iterator
from functools import partial

import torch
from cases import DTYPES, Case, differences, grids_of, padded, whole_numbers

from collectives import all_gather_matmul as gathers
from kernels import flagged, flagged_spills, pieces, tables, tiles
from kernels.contract import KernelLaunch, Signals
from kernels.machine.core.machine import Machine
from kernels.machine.launcher import enqueue
from kernels.machine.tests.host import Host, raise_flag, write
from roofline.theory import schedule, simulator
from roofline.theory.schedule import Grid, Piece, Table

PROGRAMS, RANKS = 3, 3
NEVER_US = 10**6  # of the machine's time: more than any run takes
TABLES = ("whole", "cut", "row_blocks", "spill_once")


def config_of(entry: tuple[str, int], dtype: str) -> tiles.Config:
    """The configuration of an entry of a kernel's table: its name there, and a number among those in `dtype`."""
    name, number = entry
    return [each.config for each in tiles.table("sm90").of(name) if dtype in each.dtypes][number]


def entries(kernel: str) -> list[tuple[str, int]]:
    """All of a kernel beside a copier, and where none is on the SMs."""
    names = kernel, f"{kernel}_alone"
    return [(name, number) for name in names for number in range(len(tiles.table("sm90").of(name)))]


def matrices(dtype: str, rows: int, columns: int, depth: int) -> list[torch.Tensor]:
    """x, out and w, of NaN."""
    return [padded(*shape, dtype=DTYPES[dtype]) for shape in ((rows, depth), (rows, columns), (columns, depth))]


def operands(dtype: str, seed: int, rows: int, columns: int, depth: int, ranks: int, rank: int, blocks=1):
    """Of an all-gather matmul: whole numbers, but for the gathered x, which is NaN outside of its own chunk."""
    x, out, w = matrices(dtype, rows, columns, depth)
    shards = [whole_numbers(padded(rows, depth // ranks, dtype=x.dtype), seed + i) for i in range(ranks)]
    return gathers.Operands(shards, x, whole_numbers(w, seed + ranks), out, rank, blocks=blocks)


def wrong_with(mine) -> str:
    return differences(mine.out, mine.gathered, mine.w, (torch.cat(list(mine.shards), 1), mine.w))


def table(name: str, grid: Grid, ranks: int, steps: int) -> Table | list[list[Piece]]:
    """One of `schedule`, or of `kernels.tables`; or pieces of whole tiles, of tiles cut along K, or of both."""
    if name == "spill_once":
        return tables.spill_once(grid, PROGRAMS, simulator.arrivals(ranks, 1.0, 1)[0], 0.1)
    arrival_s = simulator.arrivals(ranks, 0.1, grid.row_tiles, 1 if name == "row_blocks" else grid.row_tiles)
    parts = 1 if name == "whole" else min(8, ranks * steps)
    pieces, _ = schedule.cut_last_waves(grid, PROGRAMS, arrival_s, 0.1, steps, parts)
    return pieces


GIVEN_UP_NS = 900_000
"""Of the machine's time: one that waits for rows, and whose patience is a microsecond, is over by then."""
Prepared = tuple[list[tuple[torch.Tensor, torch.Tensor]], Callable[[Signals], KernelLaunch], Callable[[], str]]


def behind_flags(kernel: str, title: str, prepare: Callable[[int], Prepared], flags_are: str, **more) -> Case:
    """A kernel that waits for flags. `prepare(seed)` gives what comes behind each, as a target and its source; the
    launch; and what says what is wrong with its results. `flags_are`: late, and the host raises them, in an order of
    the seed's; or up; or lost, which the second is."""
    lost = 2 * (flags_are == "lost")

    def make(seed: int):
        parts, launch, wrong_with_results = prepare(seed)
        wanted, numbers = 1 + seed % 5, range(len(parts))
        flags = torch.full((len(parts),), wanted - 1, dtype=torch.int32)
        signals = Signals(flags, wanted, flags.new_zeros(1), 1 if lost else NEVER_US)
        order = random.Random(seed).sample(numbers, len(numbers)) if seed % 2 else numbers
        for number in () if flags_are == "late" else {*numbers} - {lost - 1}:
            target, source = parts[number]
            target.copy_(source)
            flags[number] = wanted
        machines = []

        def bring(host: Host) -> Iterator[None]:
            for number in order:
                target, source = parts[number]
                for part in zip(target.chunk(2), source.chunk(2), strict=True):
                    write(host, *part)
                    yield
                raise_flag(host, flags[number:], wanted)
                yield

        def add(machine: Machine) -> None:
            machines.append(machine)
            with grids_of(PROGRAMS - 1):
                enqueue(machine, launch(signals))
            if flags_are == "late":
                Host(machine, bring)

        def wrong() -> str:
            if int(signals.lost) != lost:
                return f"lost is {int(signals.lost)}, {lost} is right"
            if lost and kernel.startswith("pieces") and machines[0].time_ns > GIVEN_UP_NS:
                return f"gave up at {machines[0].time_ns} ns, by {GIVEN_UP_NS} is right"
            return "" if lost else wrong_with_results()

        return add, wrong

    return Case(kernel, f"{title}, flags {flags_are}", make, **more)


def for_chunks(name: str, dtype: str, flags_are="late", entry=("flagged", 0), *, ranks=RANKS, steps=1, **more) -> Case:
    """A flagged kernel by the table `name`, and by an entry of its tables, which is its name there and a number."""
    kernel = "flagged_spills" if name == "spill_once" else entry[0]
    blocks = 1 + (name == "row_blocks")
    config = config_of((kernel, entry[1]), dtype)
    rows, columns = 2 * config.block_m - 5 * (blocks == 1), 2 * config.block_n - 8

    def prepare(seed: int) -> Prepared:
        mine = operands(dtype, seed, rows, columns, ranks * steps * config.block_k, ranks, seed % ranks)
        height, grid = -(-rows // blocks), Grid(2, 2)
        plan = tables.tile_schedule(table(name, grid, ranks, steps), grid, mine.order, height, config, "cpu")
        plan.spilled.fill_(torch.nan)
        parts = [(transfer.target, transfer.source) for transfer in mine.transfers(height)]
        module = flagged_spills if name == "spill_once" else flagged  # which may have a mistake, now
        launch = partial(module.prepare, mine.gathered, mine.w, mine.out, plan)
        return parts, launch, lambda: wrong_with(mine)

    return behind_flags(kernel, f"{name} {dtype}, {ranks} x {steps} steps of {config}", prepare, flags_are, **more)


def for_rows(dtype: str, entry=("pieces_flags", 0), flags_are="late", *, depth=328, **more) -> Case:
    """The kernel that waits for rows; or the one that tells of them, which nobody reads: all is here."""
    config, tells = config_of(entry, dtype), entry[0].startswith("pieces_counters")

    def prepare(seed: int) -> Prepared:
        rows, columns = RANKS * config.block_m, (1 + tells) * config.block_n - 8
        x, out, w = matrices(dtype, rows, columns, depth)
        source = whole_numbers(padded(rows, depth, dtype=x.dtype), seed)
        whole_numbers(w, seed + 1)
        order = random.Random(seed).sample(range(RANKS), RANKS)
        by_rank = pieces.Pieces.of_ranks(order, 1, config, "cpu")
        (own, its_source), *parts = [(x.chunk(RANKS)[rank], source.chunk(RANKS)[rank]) for rank in order]
        own.copy_(its_source)
        counters = torch.full((RANKS - 1,), seed, dtype=torch.int32), torch.zeros(RANKS - 1, dtype=torch.int64)

        def launch(signals: Signals) -> KernelLaunch:
            about = (None, counters) if tells else (signals, None)
            return pieces.prepare(x, w, out, by_rank, *about)

        def wrong() -> str:
            grown, tiles_told = (counters[0] - seed).tolist(), 2 * tells
            if grown != [tiles_told] * (RANKS - 1):
                return f"counters have grown by {grown}, {tiles_told} tiles each are right"
            return differences(out, x, w, (source, w))

        return parts, launch, wrong

    return behind_flags(entry[0], f"{dtype}, K={depth}, {config}", prepare, "up" if tells else flags_are, **more)


def cases() -> list[Case]:
    dtypes, more = ("bf16", "fp16"), dict(thorough=True)
    listed = [for_chunks(name, dtype) for name in TABLES for dtype in dtypes]
    listed += [for_chunks("row_blocks", "bf16", "lost"), for_rows("bf16", flags_are="lost")]
    listed.append(for_chunks("spill_once", "bf16", ranks=8, steps=8))  # as inspected, and so are these
    listed += [for_chunks("cut", "bf16", entry=entry, ranks=8, steps=8) for entry in entries("flagged")]
    listed += [for_rows("bf16", entry=entry, depth=336) for entry in entries("pieces_flags")]
    for entry in entries("pieces_counters"):
        listed += [for_rows(dtype, entry, depth=336, thorough=dtype == "fp16") for dtype in dtypes]
    for number, (name, dtype) in enumerate((name, dtype) for name in TABLES for dtype in dtypes):
        listed += [for_chunks(name, dtype, flags, **more) for flags in ("up", "lost")]
        listed.append(
            for_chunks(name, dtype, ranks=(2, 5)[number % 2], steps=(5, 2)[number % 2], slots=1 + number % 2, **more)
        )
    return [
        *listed,
        for_chunks("whole", "bf16", ranks=tables.MOST_RANKS, **more),
        for_rows("fp16", depth=72, **more),
    ]
