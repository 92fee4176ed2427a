"""What lanes of a warp tell each other (PTX ISA 8.7, 9.7.9.6, 9.7.13.2, 9.7.13.9 to 9.7.13.14)."""

from functools import reduce
from operator import and_, or_, xor

import pytest

from .small_ptx import holds, run, words

LANE = range(32)
HALF = "setp.lt.u32 %p4, %l, 16; selp.b32 %r4, 0xffff, 0xffff0000, %p4;"  # the member mask of each half of a warp
MINE = "mul.wide.u32 %d50, %l, 4; add.s64 %d51, %A, %d50; add.s64 %d52, %B, %d50;\n"
KEEP = "st.global.b32 [%d51], %r2; selp.b32 %r3, 1, 0, %p2; st.global.b32 [%d52], %r3;"


def outcome(body: str, seed: int = 0) -> tuple[list[int], list[int]]:
    """Of each lane: what it has in %r2 and %p2."""
    numbers, flags = run(f"{MINE} {HALF} {body}\n{KEEP}", words(32), words(32), seeds=[seed])
    return numbers.tolist(), flags.tolist()


def source(mode: str, lane: int, by: int, bounds: int) -> int | None:
    """Return the lane that is read, None if that is out of range: the section's own text."""
    by, clamp, segment = by & 31, bounds & 31, bounds >> 8 & 31
    highest, lowest = lane & segment | clamp & ~segment, lane & segment
    if mode == "up":
        return lane - by if lane - by >= highest else None
    j = {"down": lane + by, "bfly": lane ^ by, "idx": lowest | by & ~segment}[mode]
    return j if j <= highest else None


@pytest.mark.parametrize("bounds", [0, 31, 17, 0x1000, 0x100F, 0x1C03, 0x181F, 0x0C10])
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shfl(mode, bounds):
    for by, value in (("%l", lambda lane: lane), ("5", lambda _: 5), ("37", lambda _: 37)):
        body = f"add.u32 %r1, %l, 100; shfl.sync.{mode}.b32 %r2|%p2, %r1, {by}, {bounds}, -1;"
        sources = [source(mode, lane, value(lane), bounds) for lane in LANE]
        expected = [100 + (lane if j is None else j) for lane, j in enumerate(sources)]
        assert outcome(body) == (expected, [j is not None for j in sources])
        assert outcome(body.replace("|%p2", "") + "setp.eq.u32 %p2, 1, 1;") == (expected, [1] * 32)


SAME = "shr.u32 %r1, %l, 2; setp.ge.u32 %p1, %l, 3;"  # four lanes have one number; of all lanes but three it holds
# Among all lanes, and among those of each half: what every lane gets, of %r1 or of %p1.
EXCHANGES = {
    "vote.sync.ballot.b32 %r2, %p1": lambda half: sum(1 << lane for lane in half if lane >= 3),
    "vote.sync.ballot.b32 %r2, !%p1": lambda half: sum(1 << lane for lane in half if lane < 3),
    "vote.sync.all.pred %p2, %p1": lambda half: min(half) >= 3,
    "vote.sync.any.pred %p2, !%p1": lambda half: min(half) < 3,
    "vote.sync.uni.pred %p2, %p1": lambda half: min(half) >= 3,
    "vote.sync.uni.pred %p2, !%p1": lambda half: min(half) >= 3,
    "redux.sync.add.u32 %r2, %r1": lambda half: sum(lane // 4 for lane in half),
    "redux.sync.add.s32 %r2, -3": lambda half: -3 * len(half) % 2**32,
    "redux.sync.min.u32 %r2, %r1": lambda half: min(half) // 4,
    "redux.sync.max.u32 %r2, %r1": lambda half: max(half) // 4,
    "sub.u32 %r1, %r1, 5; redux.sync.min.s32 %r2, %r1": lambda half: (min(half) // 4 - 5) % 2**32,
    "sub.u32 %r1, %r1, 5; redux.sync.max.s32 %r2, %r1": lambda half: (max(half) // 4 - 5) % 2**32,
    "add.u32 %r1, %r1, 6; redux.sync.and.b32 %r2, %r1": lambda half: reduce(and_, (lane // 4 + 6 for lane in half)),
    "redux.sync.or.b32 %r2, %r1": lambda half: reduce(or_, (lane // 4 for lane in half)),
    "shr.u32 %r1, %l, 0; redux.sync.xor.b32 %r2, %r1": lambda half: reduce(xor, half),
    "match.all.sync.b32 %r2|%p2, 7": lambda half: sum(1 << lane for lane in half),
    "match.all.sync.b32 %r2|%p2, %r1": lambda half: 0,
    "cvt.u64.u32 %d1, %r1; shl.b64 %d1, %d1, 40; match.all.sync.b64 %r2|_, %d1": lambda half: 0,
}


@pytest.mark.parametrize("instruction", EXCHANGES)
@pytest.mark.parametrize(("members", "groups"), [("-1", [LANE]), ("%r4", [range(16), range(16, 32)])])
def test_what_a_group_agrees_on(instruction, members, groups):
    """Each lane gives a member mask of its own, and is with those that give the same one."""
    numbers, flags = outcome(f"{SAME} {instruction}, {members};")
    expected = [int(EXCHANGES[instruction](group)) for group in groups for _ in group]
    if "%r2" in instruction:
        assert numbers == expected
    if "%p2" in instruction:
        assert flags == [number != 0 for number in expected]


@pytest.mark.parametrize("kind", ["b32", "b64"])
@pytest.mark.parametrize("members", ["-1", "%r4"])
def test_match_any(kind, members):
    """Lanes 14, 15, 16 and 17 have one number, of both halves."""
    value = "add.u32 %r1, %l, 2; shr.u32 %r1, %r1, 2; cvt.u64.u32 %d1, %r1; shl.b64 %d1, %d1, 36;"
    numbers, _ = outcome(f"{value} match.any.sync.{kind} %r2, {'%r1' if kind == 'b32' else '%d1'}, {members};")
    for lane in LANE:
        same = [j for j in LANE if (j + 2) // 4 == (lane + 2) // 4 and (members == "-1" or j // 16 == lane // 16)]
        assert numbers[lane] == sum(1 << j for j in same)


@pytest.mark.parametrize(("members", "groups"), [("-1", [LANE]), ("%r4", [range(16), range(16, 32)])])
def test_elect_picks_one_lane_the_same_each_time(members, groups):
    """Any one; all lanes get to know which."""
    leaders = set()
    for seed in range(20):
        numbers, flags = outcome(f"elect.sync %r2|%p2, {members}; elect.sync %r1|_, {members};", seed)
        assert outcome(f"elect.sync _|%p2, {members}; elect.sync %r2|%p1, {members};", seed) == (numbers, flags)
        for group in groups:
            (leader,) = {numbers[lane] for lane in group}
            assert [flags[lane] for lane in group] == [lane == leader for lane in group]
            leaders.add(leader)
    assert len(leaders) > 5


def test_activemask():
    """Those that are here, and whose guard holds."""
    body = "mov.b32 %r2, 1; @%p1 bra END; setp.lt.u32 %p2, %l, 20; @%p2 activemask.b32 %r2;\nEND:"
    assert outcome(f"setp.lt.u32 %p1, %l, 9; {body}")[0] == [2**20 - 2**9 if 9 <= lane < 20 else 1 for lane in LANE]


PIECES = dict(
    ALL="redux.sync.add.u32 %r2, %r1, -1;", MINE="redux.sync.add.u32 %r2, %r1, %r4;", FEW="bar.warp.sync 0x1;",
    LOW="@%p4 redux.sync.add.u32 %r2, %r1, 0xffff;", HALF="@%p4 redux.sync.add.u32 %r2, %r1, -1;",
    SHIFT="shfl.sync.idx.b32 %r2, %r1, 16, 31, %r4;", PART="@%p4 bra OVER;", OVER="\nOVER:", WARP="bar.warp.sync -1;",
    AGAIN="shfl.sync.idx.b32 %r2, %r2, 31, 31, -1;", ELECT="elect.sync _|%p2, %r4;", JUMP="bra.uni END;", END="\nEND:",
    AWAIT="SPIN: ld.volatile.global.b32 %r8, [%A]; setp.ne.u32 %p8, %r8, 16; @%p8 bra SPIN;",
    RAISE="st.volatile.global.b32 [%A], %r2;", EXIT="@%p4 exit;",
    SLOW="mov.b32 %r9, 0;\nLOOP: add.u32 %r9, %r9, 1; setp.lt.u32 %p9, %r9, 9; @%p9 bra LOOP;",
    KEEP="@%one st.global.b32 [%A], %r2;", LAST="setp.eq.u32 %p5, %l, 31; @%p5 st.global.b32 [%A], %r2;",
)  # fmt: skip
# %r1 is 1 in each lane. Lanes wait for all that their masks name, in whatever branch those are, if they will come.
TOGETHER = """
32: ALL KEEP | PART SLOW OVER ALL KEEP | PART JUMP OVER SLOW END ALL KEEP
32: PART ELECT OVER ALL AGAIN KEEP | PART JUMP OVER ELECT SLOW ELECT END ALL AGAIN KEEP
16: MINE KEEP | LOW KEEP | PART MINE JUMP OVER MINE END WARP KEEP | PART MINE SLOW JUMP OVER MINE END LAST
16: PART AWAIT JUMP OVER MINE RAISE END | EXIT ALL LAST | PART ALL JUMP OVER EXIT END LAST
lanes 0xffff(0000)? come with member mask 0xffffffff: HALF | PART ALL JUMP OVER ALL END | PART WARP JUMP OVER ALL END
lanes 0xffff0000 come with member mask 0xffffffff: PART ALL OVER WARP | PART WARP JUMP OVER ELECT WARP END
lanes 0xffffffff come with member mask 0x1: FEW
reads from another that takes no part: SHIFT
"""


@pytest.mark.parametrize("row", TOGETHER.strip().splitlines())
def test_who_waits_for_whom(row):
    holds(row, PIECES, f"{HALF} mov.b32 %r1, 1; mov.b32 %r2, 0;", words(1), seeds=range(8))


WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [256], 0; @!%p1 bra W;"
ACCESSES = dict(
    PUT="st.shared.b32 [%r9], %l;", GET="ld.shared.b32 %r1, [%r8];", OWN="ld.shared.b32 %r1, [%r9];",
    FAR="ld.shared.b32 %r1, [%r7];", FIRST="ld.shared.b32 %r1, [global_smem];", BYTE="st.shared.b8 [%r6], %l;",
    NEAR="ld.shared.b8 %r1, [%r5];", SEVEN="@%one st.shared.b32 [global_smem], 7;",
    SEVEN4="@%one st.shared.b32 [global_smem+252], 7;", ALL="st.shared.b32 [global_smem], 7;",
    GPUT="st.global.b32 [%d51], %l;", GGET="ld.global.b32 %r1, [%d53];", SCALAR="ld.global.b32 %r1, [%A];",
    ONE="@%one st.global.b32 [%A], 7;",
    LAST="setp.eq.u32 %p5, %l, 31; @%p5 st.global.b32 [%A], 7;", ELSEWHERE="st.global.b32 [%d52], %l;",
    VOLATILE="st.volatile.shared.b32 [%r9], %l;",
    LOOK="ld.volatile.shared.b32 %r1, [%r8];", MATRIX="ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [global_smem];",
    MEET="bar.warp.sync -1;", BAR="bar.sync 0;", HALVES=f"{HALF} bar.warp.sync %r4;",
    SHUFFLE="shfl.sync.idx.b32 %r2, %l, 0, 31, -1;", VOTE="vote.sync.ballot.b32 %r2, %p1, -1;",
    INIT="@%one mbarrier.init.shared.b64 [256], 1; bar.sync 0;",
    EACH="@%one mbarrier.init.shared.b64 [256], 32; bar.sync 0;",
    ARRIVE="@%one mbarrier.arrive.shared.b64 _, [256];", COME="mbarrier.arrive.shared.b64 _, [256];", WAIT=WAIT,
    RAISE="@%one st.release.gpu.global.b32 [%B+128], 1;",
    HEAR="AGAIN: ld.acquire.gpu.global.b32 %r3, [%B+128]; setp.eq.u32 %p1, %r3, 0; @%p1 bra AGAIN;",
)  # fmt: skip
PLACES = f"""{MINE} mov.u32 %r9, global_smem; mad.lo.u32 %r9, %l, 4, %r9; xor.b32 %r8, %r9, 4; xor.b32 %r7, %r9, 64;
mov.u32 %r6, global_smem; add.u32 %r6, %r6, %l; xor.b32 %r5, %r6, 1; xor.b32 %r10, %l, 1; mul.wide.u32 %d50, %r10, 4;
add.s64 %d53, %A, %d50;\n"""
# What lanes of one warp do, or of two.
AMONG = """
ok: PUT MEET GET | PUT BAR GET | PUT OWN | GPUT MEET GGET | PUT HALVES GET | VOLATILE LOOK | ALL FIRST | PUT MEET MATRIX
ok: PUT MEET GET MEET PUT | BYTE MEET NEAR | SCALAR ONE | SCALAR LAST | EACH PUT COME WAIT GET | PUT MEET SHUFFLE GET
another lane of the warp wrote, with no order between$: PUT GET | GPUT GGET | BYTE NEAR | PUT HALVES FAR | PUT MATRIX
another lane of the warp wrote, with no order between$: VOLATILE GET | SEVEN FIRST | PUT MEET SHUFFLE PUT GET
global memory that another lane of the warp wrote, with no order between$: PUT SHUFFLE GET GPUT GGET
another lane of the warp read, with no order between$: PUT MEET GET PUT | PUT MEET MATRIX PUT
no order between but a shuffle or a vote: PUT SHUFFLE GET | PUT VOTE GET | PUT MEET GET SHUFFLE PUT
ok: INIT PUT MEET ARRIVE / BAR WAIT GET | INIT ELSEWHERE SEVEN ARRIVE / BAR WAIT FIRST | PUT MEET RAISE / HEAR GET
ok: INIT PUT MEET ELSEWHERE SEVEN ARRIVE MEET SEVEN4 / BAR WAIT FIRST
wrote, with no order between|nobody wrote: INIT PUT ARRIVE / BAR WAIT GET | PUT RAISE / HEAR GET
"""


@pytest.mark.parametrize("row", AMONG.strip().splitlines())
def test_lanes_of_a_warp_have_no_order_of_their_own(row):
    """8.7 to 8.9: by bar.warp.sync, barriers and mbarriers; a lane's release covers what it knows of the others."""
    holds(row, ACCESSES, PLACES, words(32), words(33), shared=512)
