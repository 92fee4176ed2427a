"""How the last waves of a grid of tiles are cut along K, so that every SM multiplies until the end: stream-K by gangs.

Programs form gangs of `gang_m` x `gang_n` on neighbouring tiles, a super-tile, which walk along K together: a block of
x is read for `gang_n` of them at about the same time, and one of w for `gang_m`. Gangs take super-tiles in whole waves,
as programs take tiles. The rest, with one whole wave more if so asked, is one run of steps along K, super-tile after
super-tile, which is cut evenly: the steps of two gangs differ by one at most. A gang's part of the run begins inside a
super-tile at most once, and ends inside one at most once.

    132 programs in gangs of 8x1: 16 gangs. up, tp 8, M = 1024 has 26 super-tiles of 1024 x 256: one for each gang, and
    10 x 256 steps in the run, 160 for each gang. That is 416 steps, where two waves of whole tiles take 512.

The program that has the first step of a tile owns it. Another program leaves its sums of the tile in a slot of its own,
and raises the slot's flag. It does that before it begins anything else of the run, and for the owner the tile is the
last piece: so the owner finds it done or soon done. The owner adds the slots in the order of gangs: the same bits every
time. It waits for later programs alone, and these wait for later ones still. So no program has to run beside all
others: two gangs at a time get to the end.

Gangs are what makes it pay. Programs at different places along K read the same rows of w at different times, and L2
cannot serve them together. On an H100, up, tp 8, M = 1024 had 0.57 of cuBLAS's speed by gangs of 2x1, 0.78 by 4x1 and
1.06 by 8x1 (results/reference/nvidia-h100-80gb-hbm3-2026-11-26/stream_k_trial.txt).

Source: M. Osama et al., Stream-K (PPoPP 2023), whose "data-parallel + two-tile" has whole waves first, too. Gangs are
ours; results/reference has what they are worth.
"""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.persistent import tile_corner


@triton.jit
def begin_of(gang, even, more):
    """The first step of a gang's part of the run: the first `more` gangs have one step more than `even`."""
    return gang * even + tl.minimum(gang, more)


@triton.jit
def gang_of(step, even, more):
    """The gang that has a step of the run."""
    longer = more * (even + 1)
    return tl.where(step < longer, step // (even + 1), more + (step - longer) // tl.maximum(even, 1))


@triton.jit
def pieces_of(gang, dealt, steps, SHARED: tl.constexpr):
    """The number of pieces of a gang, whole super-tiles among them; all are whole where nothing is SHARED."""
    whole, even, more = dealt
    if not SHARED:
        return whole + tl.where(gang < more, 1, 0)
    begin, end = begin_of(gang, even, more), begin_of(gang + 1, even, more)
    return whole + tl.where(begin < end, (end - 1) // steps - begin // steps + 1, 0)


@triton.jit
def piece_of(number, gang, gangs, dealt, steps, SHARED: tl.constexpr):
    """Piece `number` of a gang: the super-tile, its first step, and the step behind its last."""
    whole, even, more = dealt
    if not SHARED:
        return gang + number * gangs, 0, steps
    begin, end = begin_of(gang, even, more), begin_of(gang + 1, even, more)
    shared = begin // steps + number - whole
    is_whole = number < whole
    super_tile = tl.where(is_whole, gang + number * gangs, whole * gangs + shared)
    first = tl.where(is_whole, 0, tl.maximum(begin - shared * steps, 0))
    last = tl.where(is_whole, steps, tl.minimum(end - shared * steps, steps))
    return super_tile, first, last


@triton.jit
def last_gang_of(super_tile, gangs, dealt, steps):
    """The gang that has the last step of a super-tile of the run."""
    whole, even, more = dealt
    return gang_of((super_tile - whole * gangs + 1) * steps - 1, even, more)


@triton.jit
def corner_of(
    super_tile, member, supers_m, supers_n, gang_m, gang_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    GROUP: tl.constexpr, ALONG_N: tl.constexpr,
):  # fmt: skip
    """The first row and column of a member's tile of a super-tile. Members are counted along M first."""
    m, n = tile_corner(super_tile, supers_m, supers_n, 1, 1, GROUP, ALONG_N)  # counted in super-tiles
    return (m * gang_m + member % gang_m) * BLOCK_M, (n * gang_n + member // gang_m) * BLOCK_N


class Deal(NamedTuple):
    """The work of each gang: `whole` super-tiles, and `even` steps of the run, one more for the first `more` gangs.
    Where there is no run, `even` is 0, and the first `more` gangs get one more whole super-tile. Kernels hand the three
    on as `dealt`.

    The host counts them, in its integers: the products of 64 bits that this takes would spill registers in a kernel.
    """

    whole: int
    even: int
    more: int


def deal(supers: int, steps: int, gangs: int, shared_waves: int) -> Deal:
    """Deal out `supers` super-tiles of so many steps along K. The rest of whole waves becomes the run; with a
    `shared_waves` of 2 the last whole wave belongs to it. There is no run where `shared_waves` is 0, where nothing is
    left, and where it would have no step for every gang.

    >>> deal(supers=26, steps=256, gangs=16, shared_waves=2)
    Deal(whole=0, even=416, more=0)
    """
    waves, left = divmod(supers, gangs)
    unshared = Deal(waves, 0, left)
    if not shared_waves or not left:
        return unshared
    if waves and shared_waves > 1:
        waves, left = waves - 1, left + gangs
    even, more = divmod(left * steps, gangs)
    return Deal(waves, even, more) if even else unshared
