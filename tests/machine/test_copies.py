"""cp.async (PTX ISA 8.7, 9.7.9.25.3) and TMA (9.7.9.25.5 and 6, 5.5): who may know that something has arrived. Where it
does: test_tma_kernels.py."""

from types import SimpleNamespace

import numpy as np
import pytest
from small_ptx import BAR, INIT, LANDED, TMA, faults, holds, load, run, words

from kernels.machine.core.faults import BoundsError, FaultError, TmaError
from kernels.machine.isa.tensor_map import KINDS, SIZES, TensorMap, decode, encode

MINE = "mul.lo.u32 %r50, %t, 16; cvt.u64.u32 %d50, %r50; add.s64 %d51, %A, %d50; add.s64 %d52, %B, %d50;"
COPY, WAIT = "cp.async.cg.shared.global [%r50], [%d51], 16;", "cp.async.commit_group; cp.async.wait_group 0;"
READ = "ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r50]; st.global.v4.b32 [%d52], {%r1, %r2, %r3, %r4};"
GIVEN = np.arange(256, dtype=np.uint32)


@pytest.mark.parametrize(("way", "size"), [("ca", 4), ("cg", 16)])
def test_cp_async_fills_with_zeros(way, size):
    """9.7.9.25.3.1: src-size bytes, then zeros; with 0 of them the source may be anywhere."""
    sizes = [0, 1, 3, size // 2 + 2, size, size]
    body = "".join(f"cp.async.{way}.shared.global [{32 * i}], [%A+{16 * i if n else 2**40}], {size}, {n}; "
                   for i, n in enumerate(sizes)) + WAIT  # fmt: skip
    for at in (32 * i + j for i in range(6) for j in range(0, size, 4)):
        body += f"ld.shared.b32 %r1, [{at}]; st.global.b32 [%B+{at}], %r1;\n"
    given = np.arange(1, 129, dtype=np.uint8)
    _, out = run(body, given, np.zeros(6 * 32, np.uint8), shared=192)
    for i, n in enumerate(sizes):
        assert out[32 * i : 32 * i + 16].tolist() == [*given[16 * i : 16 * i + n], *[0] * (16 - n)]


@pytest.mark.parametrize("hint", ["", ".L2::cache_hint"])
def test_cp_async_ignores_its_source(hint):
    """Behind a predicate of the lane: then there are zeros, and the address does not matter."""
    body = f"""mov.b64 %d60, 0; setp.lt.u32 %p1, %l, 5; shl.b32 %r50, %t, 4;
    cvt.u64.u32 %d50, %r50; add.s64 %d51, %A, %d50; selp.b64 %d51, 99, %d51, %p1; add.s64 %d52, %B, %d50;
    cp.async.cg.shared::cta.global{hint}.L2::128B [%r50], [%d51], 16, %p1{", %d60" if hint else ""}; {WAIT} {READ}"""
    _, out = run(body, GIVEN, words(256), shared=1024)
    assert out.tolist() == [*[0] * 20, *range(20, 128), *[0] * 128]


# cp.async by each thread of two warps: the copy of the other one is 512 bytes away.
WAITED = """
ok: COPY WAIT READ | COPY cp.async.wait_all; READ
ok: COPY cp.async.commit_group; cp.async.commit_group; cp.async.wait_group 1; READ | COPY WAIT bar.sync 0; OTHER READ
reads shared memory that .* wrote, with no order: COPY READ WAIT
reads shared memory that .* wrote, with no order: COPY cp.async.commit_group; cp.async.wait_group 1; READ WAIT
reads shared memory that .* wrote, with no order: COPY cp.async.wait_group 0; READ WAIT
reads shared memory that (.* wrote, with no order|nobody wrote): COPY WAIT OTHER READ
overwrites shared memory that .* wrote, with no order: COPY st.shared.b32 [%r50], %t; | PUT COPY PUT
ends while its cp.async: COPY | COPY cp.async.commit_group;
17 bytes into 16: cp.async.cg.shared.global [%r50], [%d51], 16, 17;
no multiple of 8: cp.async.ca.shared.global [%r50], [%d51+4], 8, 4;
"""
COPIES = dict(
    PUT="st.shared.b32 [%r50], %t;",
    COPY=COPY,
    WAIT=WAIT,
    READ=READ,
    OTHER="xor.b32 %r50, %r50, 512; xor.b64 %d52, %d52, 512;",
)


@pytest.mark.parametrize("row", WAITED.strip().splitlines())
def test_cp_async_is_waited_for(row):
    """9.7.9.25.3.3: by the thread that issued it; others need a barrier behind that."""
    holds(row, COPIES, MINE, GIVEN, words(256), threads=64, shared=1024)


TENSOR = np.arange(20 * 80, dtype=np.uint16).reshape(20, 80)
STORE = f"@%first {TMA}.global.shared::cta.bulk_group [%M, {{{{{{}}, {{}}}}}}], [{{}}];"
COMMIT, GONE = "cp.async.bulk.commit_group;", "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"

PIECES = dict(
    LOAD=load(0, 0, 1024), MORE=load(0, 0, 1040), LESS=load(0, 0, 512), LOADED=LANDED, BAR="bar.sync 0;",
    FILL="st.shared.v4.b32 [%r50], {%t, %t, %t, %t};", DIRTY="st.shared.v4.b32 [%r50], {%k, %k, %k, %k};",
    STORE=STORE.format(0, 0, 0), GONE=GONE, COMMIT=COMMIT, READ="cp.async.bulk.wait_group.read 0;",
    OTHER="xor.b32 %r50, %r50, 512;", SEE="@%first ld.global.b32 %r1, [%A];", PUT="@%first st.global.b32 [%A], %t;",
    FENCE="fence.proxy.async.shared::cta;", GLOBAL="fence.proxy.async.global;", BOTH="fence.proxy.async;",
    GET="ld.shared.b32 %r1, [%r50];", ALL=STORE.format(0, 0, 0).replace("first", "p9"),
    EACH=STORE.format("%l", 0, 0).replace("first", "p9"),
)  # fmt: skip
# By two warps, each with its 512 bytes of the box; the first thread, or all of warp 0, loads or stores all of it.
ORDERS = """
ok: LOAD LOADED GET | LOAD LOADED GET BAR OTHER DIRTY BAR GET | FILL GET FENCE BAR LOAD LOADED GET
ok: FILL FENCE BAR STORE GONE BAR SEE DIRTY | FILL BOTH BAR STORE COMMIT READ BAR DIRTY | FILL BAR FENCE STORE GONE
ok: PUT BOTH LOAD LOADED GET | PUT GLOBAL LOAD LOADED GET | LOAD LOADED PUT | FILL PUT BOTH BAR STORE GONE
ok: SEE FILL FENCE BAR STORE GONE | FILL FENCE BAR ALL GONE BAR SEE DIRTY
reads shared memory that (.* wrote, with no order|nobody wrote): LOAD GET | FILL FENCE STORE
overwrites shared memory that .* wrote, with no order: LOAD FILL | FILL FENCE BAR LOAD FILL
overwrites shared memory that .* wrote: FILL BAR LOAD
shared memory (while reader|that .* wrote, with no order): FILL FENCE BAR GET LOAD
reads global memory that .* wrote, with no fence.proxy.async: PUT LOAD | PUT FENCE LOAD
overwrites global memory that .* reads: LOAD PUT
reads shared memory that .* wrote, with no fence.proxy.async: FILL BAR STORE | FENCE FILL BAR STORE
overwrites shared memory while reader: FILL FENCE BAR STORE COMMIT BAR DIRTY | FILL FENCE BAR STORE READ BAR DIRTY
reads global memory that .* wrote, with no order: FILL FENCE BAR STORE COMMIT READ SEE
overwrites global memory that .* wrote, with no order: FILL FENCE BAR STORE COMMIT READ PUT | FILL FENCE BAR EACH GONE
overwrites global memory that .* wrote, with no fence.proxy.async: FILL PUT FENCE BAR STORE GONE
ends while its bulk stores: FILL FENCE BAR STORE | FILL FENCE BAR STORE COMMIT
nobody can go on: MORE LOADED | LESS LOADED
"""


@pytest.mark.parametrize("row", ORDERS.strip().splitlines())
def test_tma_is_ordered(row):
    """9.7.9.25.6, 8.6: TMA goes by the async proxy. Who waited knows; what a generic access left takes a fence."""
    start = f"{INIT} shl.b32 %r50, %t, 4; setp.eq.u32 %p9, %w, 0;\n"
    holds(row, PIECES, start, TENSOR, threads=64, shared=BAR + 8, maps=[(0, (8, 64), 3)])


def test_a_cta_stays_until_its_loads_have_landed():
    with pytest.raises(FaultError, match="the CTA ends while a TMA load is on its way"):
        run(INIT + load(0, 0, 1024), TENSOR, seeds=range(20), maps=[(0, (8, 64), 3)], shared=BAR + 8)


LIMITS = dict(address=1 << 36, shape=(20, 80), strides=(80, 1), kind=KINDS.index("u16"), box=(8, 64), swizzle=3)
TOO_MUCH = [
    (dict(address=8), "begins at 0x8, a multiple of 16"), (dict(strides=(84, 1)), "strides of .168,. bytes"),
    (dict(box=(8, 12), swizzle=0), "rows of 24 bytes"), (dict(box=(257, 8), swizzle=0), "256 is the limit"),
    (dict(swizzle=2), "a swizzle of 64"), (dict(box=(0, 64)), "neither may be empty"), (dict(shape=(0, 80)), "neither"),
    (dict(nan=True), "NaN elements of type u16"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "why"), TOO_MUCH)
def test_limits_of_tensor_maps(change, why):
    """5.5.7, 5.5.8 and cuTensorMapEncodeTiled."""
    assert decode(encode(**LIMITS)).strides == (160, 2)
    with pytest.raises(TmaError, match=why):
        encode(**LIMITS | change)


def test_a_box_ends_with_its_tensors_bytes():
    """A byte further is a fault."""
    region = SimpleNamespace(data=np.zeros(16, np.uint8))
    assert TensorMap(0, (16,), (1,), (32,)).part(region, 0, [0]).offsets.tolist() == [*range(16)]
    with pytest.raises(BoundsError, match="has byte 16 of a tensor of 16"):
        TensorMap(0, (17,), (1,), (32,)).part(region, 0, [0])


@pytest.mark.parametrize(("to", "mode"), [(64, 0), (128, 3), (4096, 0)])
def test_where_boxes_lie(to, mode):
    """9.7.9.25.5.2: at a multiple of 128 bytes, of the swizzle's pattern, inside of the CTA's memory."""
    more = dict(maps=[(0, (8, 64), mode)], shared=BAR + 8)
    faults(f"shared memory at {to}", INIT + load(0, 0, 1024, to), TENSOR, **more)
    faults("no tensor map", INIT + load(0, 0, 8).replace("%M", "%A"), TENSOR, **more)


def moved(rank: int, to: str, from_: str, size: int) -> str:
    """TMA loads a box of M at the coordinates `from_`, and stores it by N at `to`."""
    tma = f"cp.async.bulk.tensor.{rank}d"
    return f"""{INIT}@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [{BAR}], {size};
    @%first {tma}.shared::cta.global.mbarrier::complete_tx::bytes [0], [%M, {{{from_}}}], [{BAR}];
    {LANDED} @%first {tma}.global.shared::cta.bulk_group [%N, {{{to}}}], [0]; {GONE}"""


# The tensor; the part of it that the map shows, as slices; the box, its swizzle; the type; where it is loaded from.
SHOWN = [
    ((40,), ":", (16,), 0, "u32", (3,)), ((40,), ":", (16,), 0, "s64", (-5,)),
    ((300,), "16:283", (32,), 1, "u8", (250,)),
    ((9, 48), ":, :", (4, 16), 1, "u16", (7, 39)), ((9, 48), ":, 16:46", (4, 32), 2, "bf16", (-2, 11)),
    ((12, 64), "1::3, :50", (8, 32), 3, "f32", (1, 20)), ((3, 6, 32), ":", (2, 4, 16), 2, "tf32", (2, 1, 21)),
    ((3, 6, 32), "::2, 1:4, :", (2, 4, 64), 2, "u8", (-1, -1, 7)),
    ((2, 3, 4, 16), ":", (1, 2, 4, 16), 0, "f16", (1, -1, 1, 9)),
    ((2, 2, 3, 4, 16), ":, :, 1:, ::2, :", (2, 1, 2, 2, 8), 0, "u16", (1, 1, 1, 1, 12)),
    ((2, 2, 2, 2, 64), ":", (1, 2, 1, 2, 64), 2, "u8", (0, -1, 5, 0, 0)),
]  # fmt: skip


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("case", SHOWN, ids=str)
def test_boxes_of_tensors(case, nan):
    """5.5.3: of 1 to 5 dimensions, of any type and any strides; outside there are zeros, or NaN."""
    (shape, shown, box, swizzle, kind, at), rank = case, len(case[2])
    dtype = np.dtype(f"u{SIZES[KINDS.index(kind)]}")
    numbers = np.random.default_rng(1).integers(0, 2**18, shape)
    low = 12 if kind == "tf32" else 0  # the bit that is half of what tf32 keeps
    given = (numbers << low).astype(dtype)
    part = eval(f"given[{shown}]")
    of_part = dict(start=part.ctypes.data - given.ctypes.data, shape=part.shape, kind=kind, nan=nan)
    of_part["strides"] = [stride // dtype.itemsize for stride in part.strides]
    body = moved(rank, ", ".join("0" * rank), ", ".join(map(str, at[::-1])), dtype.itemsize * np.prod(box))
    more = dict(maps=[(0, box, swizzle, of_part), (1, box, swizzle)], shared=BAR + 8)
    if nan and "f" not in kind:
        with pytest.raises(TmaError, match="fills with NaN"):
            run(body, given, np.zeros(box, dtype), **more)
        return
    _, out = run(body, given, np.zeros(box, dtype), **more)
    if low:
        part = eval(f"(2 * np.round(numbers / 2)).astype(dtype)[{shown}]") << low
    filler = 2 ** (8 * dtype.itemsize - 1) - 1 if nan else 0
    around = np.pad(part, 8 if rank > 3 else 99, constant_values=filler)
    first = 8 if rank > 3 else 99
    expected = around[tuple(slice(first + start, first + start + size) for start, size in zip(at, box, strict=True))]
    short = [(0, size - seen) for size, seen in zip(box, expected.shape, strict=True)]
    assert (out == np.pad(expected, short, constant_values=filler)).all()


NUMPY = dict(f16="f2", f32="f4", s32="i4", s64="i8", u32="u4", u64="u8")
# From what number, with 7 and 12 by two CTAs in any order, to what; and of which types.
REDUCED = {
    "add": (9, 28, "u32 s32 u64 f32 f16 bf16"), "min": (9, 7, "u32 s32 u64 s64 f16 bf16"),
    "max": (9, 12, "u32 s64 f16 bf16"), "and": (13, 4, "u32 s64"), "or": (9, 15, "s32 u64"), "xor": (9, 2, "u32 s64"),
    "inc": (5, 7, "u32"), "dec": (5, 3, "u32"),
}  # fmt: skip


@pytest.mark.parametrize("way", [".tensor.2d", ""])
@pytest.mark.parametrize(("operation", "kind"), [(name, kind) for name in REDUCED for kind in REDUCED[name][2].split()])
def test_reductions(operation, kind, way):
    """9.7.9.25.4.2 and 9.7.9.25.5.3: each element by one atomic operation, so two CTAs may meet."""
    bf16, dtype = kind == "bf16", np.dtype(NUMPY.get(kind, "u2"))
    words_of = (lambda x: (np.float32(x).view(np.uint32) >> 16).astype(np.uint16)) if bf16 else dtype.type
    start, expected, _ = REDUCED[operation]
    out = np.full((1, 64 // dtype.itemsize), words_of(start), dtype)
    given = np.repeat(np.array([words_of(7), words_of(12)]), out.size)
    target = "%M, {0, 0}" if way else "%B"
    reduced = f"cp.reduce.async.bulk{way}.global.shared::cta"
    more, size = (f".{operation}.bulk_group", "") if way else (f".bulk_group.{operation}.{kind}", ", 64")
    if kind.endswith("f16") and operation == "add" and not way:
        more = more.replace(".add", ".add.noftz")
    body = f"""{INIT} shl.b32 %r1, %c, 6; cvt.u64.u32 %d1, %r1; add.s64 %d1, %A, %d1;
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [{BAR}], 64;
    @%first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [0], [%d1], 64, [{BAR}];
    {LANDED} @%first {reduced}{more} [{target}], [0]{size}; {GONE}"""
    maps = [(1, out.shape, 0, dict(kind=kind))] if way else []
    _, out = run(body, given, out, grid=(2,), maps=maps, shared=BAR + 8)
    assert (out == words_of(expected)).all()


@pytest.mark.parametrize(("operation", "kind"), [("add", "s64"), ("min", "f32"), ("xor", "f16"), ("inc", "s32")])
def test_reductions_that_there_are_not(operation, kind):
    body = f"""{INIT} st.shared.b32 [0], %t; fence.proxy.async; bar.sync 0;
    @%first cp.reduce.async.bulk.tensor.1d.global.shared::cta.{operation}.bulk_group [%M, {{0}}], [0]; {GONE}"""
    given = np.zeros(16, np.dtype(NUMPY[kind]))
    faults(f"{operation} of elements of type {kind}", body, given, maps=[(0, (8,), 0, dict(kind=kind))], shared=BAR + 8)


# cp.async by each thread of two warps, and arrivals behind it at an mbarrier that expects so many.
ARRIVED = """
ok: EXPECT64 COPY NOINC LANDED READ | EXPECT64 COPY NOINC LANDED OTHER READ | EXPECT1 COPY ARRIVE BAR GO LANDED READ
ok: EXPECT64 NOINC LANDED COPY WAIT READ | EXPECT64 COPY WAIT NOINC LANDED OTHER READ
reads shared memory that .* wrote, with no order: EXPECT64 COPY NOINC READ LANDED | EXPECT64 NOINC COPY LANDED READ WAIT
reads shared memory that .* wrote, with no order|nobody wrote: EXPECT1 GO LANDED COPY ARRIVE READ
ends while its cp.async: EXPECT64 NOINC COPY LANDED
nobody can go on: EXPECT96 COPY NOINC LANDED
"""
ARRIVAL = f"cp.async.mbarrier.arrive{{}}.shared::cta.b64 [{BAR}];"
TRACKED = COPIES | dict(
    NOINC=ARRIVAL.format(".noinc"), ARRIVE=ARRIVAL.format(""), LANDED=LANDED, BAR="bar.sync 0;",
    GO=f"@%first mbarrier.arrive.shared::cta.b64 _, [{BAR}];",
    **{f"EXPECT{n}": f"@%first mbarrier.init.shared::cta.b64 [{BAR}], {n}; bar.sync 0;" for n in (1, 64, 96)},
)  # fmt: skip


@pytest.mark.parametrize("row", ARRIVED.strip().splitlines())
def test_an_mbarrier_tracks_cp_async(row):
    """9.7.9.25.3 and 9.7.13.15.15: an arrival comes once the copies before it have landed."""
    holds(row, TRACKED, MINE, GIVEN, words(256), threads=64, shared=BAR + 8)


def test_a_copy_that_an_mbarrier_tracks_and_nobody_awaits_may_outlast_its_cta():
    body = MINE + "\n".join(TRACKED[word] for word in ("EXPECT64", "COPY", "NOINC"))
    with pytest.raises(FaultError, match=r"the CTA ends while a cp\.async is on its way"):
        run(body, GIVEN, words(256), threads=64, shared=BAR + 8, seeds=range(20))


FIELD = "@%first tensormap.replace.tile.{}.shared::cta.b1024.b{} [1024], {};"
MAKE = "".join(f"st.shared.b32 [%r3+{at}], 0;" for at in (1024,)) + " bar.warp.sync -1;" + "".join(
    FIELD.format(name, 64 if name in ("global_address", "global_stride") else 32, value)
    for name, value in [("global_address", "%A"), ("rank", 1), ("box_dim", "0, 64"), ("box_dim", "1, 8"),
                        ("global_dim", "0, 80"), ("global_dim", "1, 20"), ("global_stride", "0, %d9"),
                        ("element_stride", "0, 1"), ("element_stride", "1, 1"), ("elemtype", 1),
                        ("interleave_layout", 0), ("swizzle_mode", 3), ("fill_mode", 0)])  # fmt: skip
COPIED = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%B], [1024], 128;"
MADE = dict(
    MAKE=MAKE, COPY=COPIED, FENCE="fence.proxy.tensormap::generic.acquire.gpu [%B], 128;", BAR="bar.sync 0;",
    LOAD=load(0, 0, 1024).replace("%first", "%one").replace("%M", "%B"), LOADED=LANDED,
    LATER="@%first tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [1024], 0;",
    ZERO="st.shared.b32 [%r3+1024], 0;", PUT="@%first st.global.b32 [%B], 0;",
)  # fmt: skip
# Warp 0 makes a map at B; one of two warps uses it.
MAPS = """
ok: MAKE COPY FENCE LOAD LOADED / | MAKE COPY FENCE BAR / BAR LOAD LOADED | MAKE COPY BAR / BAR FENCE LOAD LOADED
no fence.proxy.tensormap behind: MAKE COPY LOAD / | MAKE COPY BAR / BAR LOAD | MAKE COPY BAR FENCE / BAR LOAD
no fence.proxy.tensormap behind: MAKE COPY FENCE LATER COPY LOAD / | MAKE FENCE COPY LOAD /
no fence.proxy.tensormap behind: MAKE COPY FENCE PUT LOAD /
reads global memory that .* wrote|no tensor map: MAKE COPY / FENCE LOAD
overwrites global memory that .* reads: MAKE COPY FENCE LOAD LATER COPY /
ok: MAKE COPY FENCE LOAD LOADED LATER COPY FENCE /
overwrites shared memory|reads shared memory: MAKE BAR COPY / BAR ZERO
no tensor map: FENCE LOAD /
"""


@pytest.mark.parametrize("row", MAPS.strip().splitlines())
def test_maps_that_a_kernel_makes(row):
    """9.7.9.26, 9.7.13.16 and 9.7.13.4."""
    start = f"{INIT} shl.b32 %r3, %l, 2; mov.b64 %d9, 160;\n"
    holds(row, MADE, start, TENSOR, np.full(32, 2**32 - 1, np.uint32), shared=BAR + 8)
