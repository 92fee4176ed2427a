"""How long an arm of a GPU takes whose matmul and link slow one another: what `simulator` leaves out.

Both have a clock of their own. The matmul's runs slower while the link moves something, the link's while programs
compute; by how much is measured, on the same shape, by a matmul beside a link that do not wait for one another. What
the matmul of a vendor cannot have beside a copier are the copier's SMs; what chunks of K cost it are sums that pass
through memory. `PIECE_S`, `SUMS_SHOW_S` and how wide a vendor's tiles are were chosen by the H200's gathers
(results/reference/nvidia-h200-2026-11-26-2); nothing else is fitted.
"""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from roofline.theory import arms, schedule, simulator
from roofline.theory.arms import OverlapPlan

PIECE_S = 0.5e-6
"""What a piece that the copier brings costs each program of a kernel that waits on the device, beyond what the same
traffic in whole chunks does. An H100's gathers, on which it was not fitted, want 0.55e-6."""

SUMS_SHOW_S = 20e-6
"""The sums of tiles that take so long each pass through memory while nothing is multiplied, since all SMs come to them
at once. Longer tiles drift apart, and hide the more of one another's sums, by the root of their time."""


class Slowdowns(NamedTuple):
    """While a matmul and a link both run, the time of each over that alone."""

    matmul: float
    link: float


def slowdowns(alone_s: tuple[float, float], beside_s: tuple[float, float]) -> Slowdowns:
    """The slowdowns of a matmul and a link that began together, from what each took: the one that was done last had the
    rest of the time for itself.

    >>> slowdowns(alone_s=(3.0, 1.0), beside_s=(4.0, 2.0))
    Slowdowns(matmul=2.0, link=2.0)
    """
    both_s = min(beside_s)
    of_each = []
    for alone, beside in zip(alone_s, beside_s, strict=True):
        done = alone - (beside - both_s)
        of_each.append(max(1.0, both_s / done) if done > 0 else 1.0)
    return Slowdowns(*of_each)


@dataclass
class Race:
    """A matmul and a link in turns of what happens next."""

    arrivals_s: Sequence[float]
    """When each transfer is here, with nothing beside the link."""
    slowdowns: Slowdowns
    piece_s: float = 0.0
    now_s: float = 0.0
    arrived: int = 0
    running: list[tuple[float, int]] = field(default_factory=list)
    """(when it ends by the matmul's clock, its name) of each, as a heap."""
    _matmul_s: float = 0.0
    _link_s: float = 0.0

    @property
    def moving(self) -> bool:
        return self.arrived < len(self.arrivals_s)

    def begin(self, name: int, work_s: float) -> None:
        """Begin to compute for so long, with nothing beside it."""
        heapq.heappush(self.running, (self._matmul_s + work_s, name))

    def go_on(self, busy_fraction: float) -> int | None:
        """Go on to what happens next, while such a share of the chip computes. Returns the name of what is computed;
        None where a transfer has arrived."""
        matmul_slower = self.slowdowns.matmul if self.moving else 1.0
        link_slower = 1 + (self.slowdowns.link - 1) * busy_fraction
        matmul_left_s = (self.running[0][0] - self._matmul_s) * matmul_slower if self.running else math.inf
        link_left_s = (self.arrivals_s[self.arrived] - self._link_s) * link_slower if self.moving else math.inf
        passed_s = min(matmul_left_s, link_left_s)
        self.now_s += passed_s
        self._matmul_s += passed_s / matmul_slower
        if self.moving:
            self._link_s += passed_s / link_slower
        if link_left_s <= matmul_left_s:
            self.arrived += 1
            self._matmul_s -= self.piece_s
            return None
        return heapq.heappop(self.running)[1]


def _programs(table: schedule.Table, plan: OverlapPlan) -> tuple[list[list[tuple[int, int]]], list[int]]:
    """The tiles of each program, the last one first, by (the transfers before those of its rows, chunks done); and how
    many programs have the same: these are at one place all the time."""
    pieces = plan.ranks - 1
    rows = plan.grid.row_tiles // plan.row_blocks
    programs: Counter[tuple[tuple[int, int], ...]] = Counter()
    for tiles in table:
        programs[tuple((tile.m // rows * pieces, 0) for tile in reversed(tiles))] += 1
    return list(map(list, programs)), list(programs.values())


def table_end_s(table: schedule.Table, plan: OverlapPlan, chunk_s: float, race: Race) -> float:
    """When the last program of `table` ends, each of which takes the chunks of a tile that are here when it looks."""
    left, counts = _programs(table, plan)
    waiting = defaultdict(list)
    may_go_on = [*range(len(left))]
    while True:
        for program in may_go_on:
            if not left[program]:
                continue
            before, chunk = left[program].pop()
            here = min(max(1, 1 + race.arrived - before), plan.ranks)
            if here > chunk:
                race.begin(program, (here - chunk) * chunk_s)
            else:
                waiting[before + chunk].append(program)
            if here < plan.ranks:
                left[program].append((before, max(here, chunk)))
        if not (race.running or waiting):
            return race.now_s
        busy = sum(counts[program] for _, program in race.running)
        ended = race.go_on(busy / len(table))
        may_go_on = waiting.pop(race.arrived, []) if ended is None else [ended]


class Launch(NamedTuple):
    """So many tiles, which begin when `transfers` are here and the launch before is done."""

    transfers: int
    tiles: int
    tile_s: float


def launches_end_s(launches: list[Launch], sms: int, copier_sms: int, race: Race) -> float:
    """When the last of `launches` ends. Each tile goes to an SM that is free; those of the copier are while nothing
    moves."""
    for launch in launches:
        while race.arrived < launch.transfers:
            race.go_on(0.0)
        left = launch.tiles
        free = sms - copier_sms if race.moving else sms
        while left or race.running:
            if begun := min(left, free):
                race.begin(begun, launch.tile_s)
                left -= begun
                free -= begun
            was_moving = race.moving
            free += race.go_on(1.0) or 0
            if was_moving and not race.moving:
                free += copier_sms
    return race.now_s


@dataclass(frozen=True)
class Measured:
    """What a run measured beside an arm, on the same shape."""

    own_s: float
    """Its matmul with all data here and nothing beside it."""
    link_s: float
    slowdowns: Slowdowns
    planned_s: tuple[float, float]
    """What it was cut by: about T_gemm and T_comm."""
    copier_sms: int = 0
    """Those that its matmul stays off while the copier runs."""
    piece_s: float = 0.0
    sums_s: float | None = None
    """What sums in fp32 of the whole result take to be written; None where nobody measured the memory."""

    def race(self, transfers: int, piece_s: float = 0.0) -> Race:
        arrivals_s = [self.link_s * number / transfers for number in range(1, transfers + 1)]
        return Race(arrivals_s, self.slowdowns, piece_s)


def _row_block(plan: OverlapPlan, measured: Measured) -> float:
    planned_s, comm_s = measured.planned_s
    arrival_s = simulator.arrivals(plan.ranks, comm_s, plan.grid.row_tiles, plan.row_blocks)
    planned_chunk_s = simulator.product_s(plan.grid, plan.workers, plan.ranks, planned_s)
    table = schedule.row_block(plan.grid, plan.workers, arrival_s, planned_chunk_s)
    chunk_s = simulator.product_s(plan.grid, plan.workers, plan.ranks, measured.own_s)
    race = measured.race((plan.ranks - 1) * plan.row_blocks, measured.piece_s)
    return table_end_s(table, plan, chunk_s, race)


def _row_block_launches(plan: OverlapPlan, measured: Measured) -> float:
    """A vendor's tiles are taken to be half as wide as ours, and all are in a launch that fills no half of the chip."""
    of_block = plan.grid.row_tiles // plan.row_blocks * plan.grid.column_tiles
    launches = []
    before = 0
    for done, _ in arms.row_block_launches(plan, *measured.planned_s):
        tiles = (done - before) * of_block
        halves = 2 if measured.copier_sms else 1
        halves *= 2 if 2 * halves * tiles <= plan.workers else 1
        waves = -(-plan.grid.row_tiles * plan.grid.column_tiles * halves // plan.workers)
        launches.append(Launch(done * (plan.ranks - 1), tiles * halves, measured.own_s / waves))
        before = done
    race = measured.race((plan.ranks - 1) * plan.row_blocks)
    return launches_end_s(launches, plan.workers, measured.copier_sms, race)


def _chunk_launches(plan: OverlapPlan, measured: Measured) -> float | None:
    """Each launch but the first reads the sums and all write them; the last one makes the result of them, half as many
    bytes."""
    if measured.sums_s is None:
        return None
    tiles = plan.grid.row_tiles * plan.grid.column_tiles
    waves = plan.grid.waves(plan.workers)
    launches = []
    before = 0
    for done, _ in arms.chunk_launches(plan, *measured.planned_s):
        tile_s = measured.own_s / waves * (done - before) / plan.ranks
        shown = min(1.0, math.sqrt(SUMS_SHOW_S / tile_s))
        passes = 2 if before else 1
        launches.append(Launch(done - 1, tiles, tile_s + shown * passes * measured.sums_s / waves))
        before = done
    launches.append(Launch(0, tiles, 1.5 * measured.sums_s / waves))
    return launches_end_s(launches, plan.workers, measured.copier_sms, measured.race(plan.ranks - 1))


EXPECTED = {
    "row_block": _row_block,
    "row_block_launches": _row_block_launches,
    "chunk_launches": _chunk_launches,
}
"""Arm -> function of its plan and of what was measured: when it ends after the link's start; None if nobody knows."""
