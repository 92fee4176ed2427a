"""How the last waves of a grid of tiles are cut along K, so that every SM multiplies until the end: stream-K by gangs.

Programs form gangs of `gang_m` x `gang_n` on neighbouring tiles, a super-tile, which walk along K together: a block of
x is read for `gang_n` of them at about the same time, and one of w for `gang_m`. Gangs take super-tiles in whole waves,
as programs take tiles. The rest, with one whole wave more if so asked, is one run of steps along K, super-tile after
super-tile, which is cut evenly: the steps of two gangs differ by one at most. A gang's part of the run begins inside a
super-tile at most once, and ends inside one at most once.

    132 programs in gangs of 8x1: 16 gangs. up, tp 8, M = 1024 has 26 super-tiles of 1024 x 256: one for each gang, and
    10 x 256 steps in the run, 160 for each gang. That is 416 steps, where two waves of whole tiles take 512.

The program that has the first step of a tile owns it. Another program leaves its sums of the tile in a slot of its own,
and raises the slot's flag (`Slots.leave`). It does that before it begins anything else of the run, and for the owner
the tile is the last piece: so the owner finds it done or soon done. The owner's producer waits for the flags, and loads
the sums into the ring behind the tile's own steps (`Work.fetch`). Its consumers add them to theirs in the order of
gangs (`Slots.add`): the same bits every time. The owner waits for later programs alone, and these for later ones still.
So no program has to run beside all others: two gangs at a time get to the end.

Gangs are what makes it pay. Programs at different places along K read the same rows of w at different times, and L2
cannot serve them together. On an H100, up, tp 8, M = 1024 had 0.57 of cuBLAS's speed by gangs of 2x1, 0.78 by 4x1 and
1.06 by 8x1 (results/reference/nvidia-h100-80gb-hbm3-2026-11-26/stream_k_trial.txt).

Source: M. Osama et al., Stream-K (PPoPP 2023), whose "data-parallel + two-tile" has whole waves first, too. Gangs are
ours; results/reference has what they are worth.
"""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import globaltimer

from kernels.persistent import begin_of, program_of, tile_corner
from kernels.ring import aggregate, as_block, tma_load
from kernels.signals import fence_proxy
from kernels.wgmma import CONSUMERS, parts_of, wgmma_layout

PATIENCE_NS = gl.constexpr(60_000_000_000)
"""What a wait for another program's sums takes at most: more than any launch, or a link's patience with a chunk."""

LOOK = gl.constexpr("""{
    .reg .pred up; .reg .b64 now, end;
    mov.u64 end, %globaltimer; add.s64 end, end, $2;
    LOOK: ld.acquire.gpu.global.b32 $0, [$1]; setp.ne.u32 up, $0, 0; @up bra HERE;
    mov.u64 now, %globaltimer; setp.gt.s64 up, now, end; @up trap; bra LOOK;
    HERE: }""")
"""A wait of each thread by itself for the flag at $1, for $2 ns at most. It returns the flag."""


@aggregate
class Dealt:
    """The work of each of so many gangs, as `deal` has it."""

    gangs: gl.tensor
    whole: gl.tensor
    even: gl.tensor
    more: gl.tensor
    SHARED: gl.constexpr  # whether there is a run

    @gluon.jit
    def gang_of(self, step):
        """The gang that has a step of the run."""
        return program_of(step, self.even, self.more)

    @gluon.jit
    def run(self, gang):
        """A gang's part of the run: its first step, and the step behind its last."""
        return begin_of(gang, self.even, self.more), begin_of(gang + 1, self.even, self.more)

    @gluon.jit
    def pieces(self, gang, steps):
        """The number of pieces of a gang, whole super-tiles among them; all are whole where nothing is SHARED."""
        if not self.SHARED:
            return self.whole + gl.where(gang < self.more, 1, 0)
        begin, end = self.run(gang)
        return self.whole + gl.where(begin < end, (end - 1) // steps - begin // steps + 1, 0)

    @gluon.jit
    def piece(self, number, gang, steps):
        """Piece `number` of a gang: the super-tile, its first step, and the step behind its last."""
        if not self.SHARED:
            return gang + number * self.gangs, 0, steps
        begin, end = self.run(gang)
        shared = begin // steps + number - self.whole
        is_whole = number < self.whole
        super_tile = gl.where(is_whole, gang + number * self.gangs, self.whole * self.gangs + shared)
        first = gl.where(is_whole, 0, gl.maximum(begin - shared * steps, 0))
        last = gl.where(is_whole, steps, gl.minimum(end - shared * steps, steps))
        return super_tile, first, last

    @gluon.jit
    def last_gang(self, super_tile, steps):
        """The gang that has the last step of a super-tile of the run."""
        return self.gang_of((super_tile - self.whole * self.gangs + 1) * steps - 1)


@aggregate
class Slots:
    """Where sums of a tile pass from program to program: a slot has room for those of one, consumer after consumer."""

    sums: object  # descriptor of [slots * rows of a tile, columns of a tile] fp32; None where nothing is shared
    rest: object  # that of an odd tile's last part; None where there is none
    sums_ptr: object
    flags_ptr: object  # int32 [slots * CONSUMERS * CTAs of a program]
    block_n: gl.constexpr

    @gluon.jit
    def leave(self, acc, slot, WHO: gl.constexpr, COLUMNS: gl.constexpr):
        """Write a consumer's sums to a slot, in parts of COLUMNS, since the addresses of all columns at once would fill
        the registers; then raise the slot's flag."""
        rows: gl.constexpr = acc[0].shape[0]
        place = (slot * CONSUMERS + WHO).to(gl.int64)
        place_ptr = self.sums_ptr + place * (rows * self.block_n)
        parts = acc
        if self.rest is None:
            parts = parts_of(acc[0], COLUMNS)
        for part in gl.static_range(len(parts)):
            self.write(parts[part], place_ptr, part * COLUMNS)
        gl.barrier()  # the flag, raised by one thread, stands for the stores of all
        gl.atomic_add(self.flag(place), 1, sem="release", scope="gpu")

    @gluon.jit
    def write(self, acc, place_ptr, n0):
        """Write a part of a consumer's sums, from column n0 on, to its place."""
        layout: gl.constexpr = wgmma_layout(acc.shape[1], self.sums.layout.cga_layout)
        m = gl.arange(0, acc.shape[0], gl.SliceLayout(1, layout))
        n = n0 + gl.arange(0, acc.shape[1], gl.SliceLayout(0, layout))
        gl.store(place_ptr + m[:, None] * self.block_n + n[None, :], gl.convert_layout(acc, layout))

    @gluon.jit
    def fetch(self, first, stride, peers, smem, ring):
        """Load the sums of `peers` slots, every `stride`th from the `first` on, into the ring, where a stage has room
        for w, once their flags are up. Returns the place behind them."""
        for peer in range(peers):
            for who in gl.static_range(CONSUMERS):
                self.take_down((first + peer * stride) * CONSUMERS + who)
        fence_proxy()  # TMA reads the sums that others have stored
        width: gl.constexpr = self.sums.block_type.shape[1]
        for part in gl.static_range(self.block_n // width):
            ring = self.fetch_part(self.sums, part * width, first, stride, peers, smem, ring)
        if self.rest is not None:  # UNTIMED (odd widths)
            ring = self.fetch_part(self.rest, self.block_n // width * width, first, stride, peers, smem, ring)
        return ring

    @gluon.jit
    def fetch_part(self, desc, n0, first, stride, peers, smem, ring):
        """Load the columns from n0 on, as many as `desc` has."""
        rows: gl.constexpr = desc.block_type.shape[0]
        for peer in range(peers):
            for who in gl.static_range(CONSUMERS):
                full = smem.full.index(ring.stage)
                mbarrier.wait(smem.empty.index(ring.stage), ring.phase ^ 1)
                mbarrier.expect(full, desc.block_type.nbytes // gl.num_ctas())
                row = ((first + peer * stride) * CONSUMERS + who) * rows
                tma_load(desc, [row, n0], full, as_block(smem.w.index(ring.stage), desc))
                ring = ring.next()
        return ring

    @gluon.jit
    def add(self, acc, desc, peers, smem, ring, WHO: gl.constexpr):
        """A consumer's sums of a part of the columns plus those of `peers`, in their order, from the ring; and the
        place behind them. `desc` is that by which they were fetched."""
        layout: gl.constexpr = wgmma_layout(acc.shape[1], desc.layout.cga_layout)
        acc = gl.convert_layout(acc, layout)
        for _ in range(peers):
            for who in gl.static_range(CONSUMERS):
                mbarrier.wait(smem.full.index(ring.stage), ring.phase)
                if who == WHO:
                    acc += as_block(smem.w.index(ring.stage), desc).load(layout)
                mbarrier.arrive(smem.empty.index(ring.stage))
                ring = ring.next()
        return acc, ring

    @gluon.jit
    def flag(self, place):
        """The address of the flag of a consumer's place: in a cluster one for each CTA, which has its own rows of the
        sums."""
        if gl.num_ctas() == 1:
            return self.flags_ptr + place
        else:  # UNTIMED (clusters)
            return self.flags_ptr + place * 2 + gl.arange(0, 2, one_each(gl.num_warps()))

    @gluon.jit
    def take_down(self, place):
        """Wait until the flag of a consumer's place is up: whoever finds it up finds the sums. Put it down for the next
        launch. A flag that does not come within PATIENCE_NS ends the launch, as an assertion on the device does."""
        flag = self.flag(place)
        if gl.num_ctas() == 1:
            began = globaltimer()
            up = 0
            while up == 0:
                up = gl.atomic_add(flag, 0, sem="acquire", scope="gpu")
                gl.inline_asm_elementwise(
                    "{ .reg .pred late; setp.gt.s64 late, $1, $2; @late trap; mov.u32 $0, 0; }",
                    "=r,l,l", [globaltimer() - began, PATIENCE_NS], gl.int32, is_pure=False, pack=1,
                )  # fmt: skip
        else:  # UNTIMED (clusters): each CTA looks for itself. Triton 3.8 would hand a number round, which is a race
            gl.inline_asm_elementwise(LOOK, "=r,l,l", [flag, PATIENCE_NS], gl.int32, is_pure=False, pack=1)
        gl.store(flag, 0)


@aggregate
class Work:
    """The tiles of `kernels.warpgroup`, and where their sums pass from program to program. All is counted in programs,
    of which a cluster is one, and in tiles of a program."""

    dealt: Dealt
    K: gl.tensor
    supers_m: gl.tensor
    supers_n: gl.tensor
    gang_m: gl.tensor
    gang_n: gl.tensor
    slots: Slots  # one for each program
    block_m: gl.constexpr
    block_n: gl.constexpr
    block_k: gl.constexpr
    GROUP: gl.constexpr
    ALONG_N: gl.constexpr

    @gluon.jit
    def place(self):
        """The gang of this program, and its number in it."""
        members = self.gang_m * self.gang_n
        return gl.program_id(0) // members, gl.program_id(0) % members

    @gluon.jit
    def corner(self, super_tile, member):
        """The first row and column of a member's tile of a super-tile. Members are counted along M first."""
        m, n = tile_corner(super_tile, self.supers_m, self.supers_n, 1, 1, self.GROUP, self.ALONG_N)  # in super-tiles
        m = m * self.gang_m + member % self.gang_m
        n = n * self.gang_n + member // self.gang_m
        return m * self.block_m, n * self.block_n

    @gluon.jit
    def column(self, super_tile, step, is_first):
        """The first column of a step along K, whose loads may begin; the first of a piece or another."""
        return step * self.block_k

    @gluon.jit
    def owns(self, first, last, steps):
        """Whether a piece is that of a tile's owner, who adds what others have of it."""
        return (first == 0) & (last < steps)

    @gluon.jit
    def leaves(self, first, last, steps):
        """Whether the tile of a piece is another's."""
        return first > 0

    @gluon.jit
    def peers(self, super_tile, steps):
        """The number of others who have steps of a super-tile of this gang."""
        gang, _member = self.place()
        return self.dealt.last_gang(super_tile, steps) - gang

    @gluon.jit
    def leave(self, super_tile, acc, WHO: gl.constexpr, COLUMNS: gl.constexpr):
        """Leave a consumer's sums to the owner of their tile."""
        self.slots.leave(acc, gl.program_id(0), WHO, COLUMNS)

    @gluon.jit
    def fetch(self, super_tile, steps, smem, ring):
        """Load the sums that later gangs have of this program's tile into the ring. Returns the place behind them."""
        gang, member = self.place()
        members = self.gang_m * self.gang_n
        return self.slots.fetch((gang + 1) * members + member, members, self.peers(super_tile, steps), smem, ring)


@gluon.constexpr_function
def one_each(warps):
    """The layout of two elements, of which each CTA of a cluster has one."""
    return gl.BlockedLayout([1], [32], [warps], [0], [[1]])


def deal(supers: int, steps: int, gangs: int, shared_waves: int) -> dict[str, int]:
    """Deal out `supers` super-tiles of so many steps along K, as arguments of a kernel for its `Dealt`: `whole` ones
    for each gang, and `even` steps of the run, one more for the first `more` gangs. The rest of whole waves becomes the
    run; with a `shared_waves` of 2 the last whole wave belongs to it.

    There is no run where `shared_waves` is 0, where nothing is left, and where it would have no step for every gang.
    Then the first `more` gangs get one more whole super-tile, and no gang is without one. The host counts, in its
    integers: the products of 64 bits that this takes would spill registers in a kernel.

    >>> deal(supers=26, steps=256, gangs=16, shared_waves=2)
    {'gangs': 16, 'whole': 0, 'even': 416, 'more': 0, 'SHARED': True}
    """
    waves, left = divmod(supers, gangs)
    whole = waves - 1 if waves and shared_waves > 1 else waves
    even, more = divmod((supers - whole * gangs) * steps, gangs)
    if shared_waves and left and even:
        return dict(gangs=gangs, whole=whole, even=even, more=more, SHARED=True)
    return dict(gangs=min(gangs, supers), whole=waves, even=0, more=left, SHARED=False)
