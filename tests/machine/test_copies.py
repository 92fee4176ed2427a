"""cp.async (PTX ISA 8.7, 9.7.9.25.3) and TMA (9.7.9.25.5 and 6, 5.5): who may know that something has arrived. Where it
does: test_small_kernels.py."""

import numpy as np
import pytest
from small_ptx import BAR, INIT, LANDED, TMA, faults, holds, load, run, words

from kernels.machine.memory import GlobalMemory, TensorMap
from kernels.machine.order import FaultError, Ledger

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
    GET="ld.shared.b32 %r1, [%r50];",
)  # fmt: skip
# By two warps, each with its 512 bytes of the box; the first thread loads or stores all of it.
ORDERS = """
ok: LOAD LOADED GET | LOAD LOADED GET BAR OTHER DIRTY BAR GET | FILL GET FENCE BAR LOAD LOADED GET
ok: FILL FENCE BAR STORE GONE BAR SEE DIRTY | FILL BOTH BAR STORE COMMIT READ BAR DIRTY | FILL BAR FENCE STORE GONE
ok: PUT BOTH LOAD LOADED GET | PUT GLOBAL LOAD LOADED GET | LOAD LOADED PUT | FILL PUT BOTH BAR STORE GONE
ok: SEE FILL FENCE BAR STORE GONE
reads shared memory that (.* wrote, with no order|nobody wrote): LOAD GET | FILL FENCE STORE
overwrites shared memory that .* wrote, with no order: LOAD FILL | FILL FENCE BAR LOAD FILL
overwrites shared memory that .* wrote: FILL BAR LOAD
shared memory (while reader|that .* wrote, with no order): FILL FENCE BAR GET LOAD
reads global memory that .* wrote, with no fence.proxy.async: PUT LOAD | PUT FENCE LOAD
overwrites global memory that .* reads: LOAD PUT
reads shared memory that .* wrote, with no fence.proxy.async: FILL BAR STORE | FENCE FILL BAR STORE
overwrites shared memory while reader: FILL FENCE BAR STORE COMMIT BAR DIRTY | FILL FENCE BAR STORE READ BAR DIRTY
reads global memory that .* wrote, with no order: FILL FENCE BAR STORE COMMIT READ SEE
overwrites global memory that .* wrote, with no order: FILL FENCE BAR STORE COMMIT READ PUT
overwrites global memory that .* wrote, with no fence.proxy.async: FILL PUT FENCE BAR STORE GONE
ends while its bulk stores: FILL FENCE BAR STORE | FILL FENCE BAR STORE COMMIT
nobody can go on: MORE LOADED | LESS LOADED
"""


@pytest.mark.parametrize("row", ORDERS.strip().splitlines())
def test_tma_is_ordered(row):
    """9.7.9.25.6, 8.6: TMA goes by the async proxy. Who waited knows; what a generic access left takes a fence."""
    start = f"{INIT} shl.b32 %r50, %t, 4;\n"
    holds(row, PIECES, start, TENSOR, threads=64, shared=BAR + 8, maps=[(0, (8, 64), 3)])


def test_a_cta_stays_until_its_loads_have_landed():
    with pytest.raises(FaultError, match="the CTA ends while a TMA load is on its way"):
        run(INIT + load(0, 0, 1024), TENSOR, seeds=range(20), maps=[(0, (8, 64), 3)], shared=BAR + 8)


@pytest.mark.parametrize(
    ("change", "why"),
    [(dict(start=8), "multiples of 16"), (dict(pitch=168), "multiples of 16"), (dict(box=(8, 12)), "rows of 24 bytes"),
     (dict(box=(257, 8)), "256 is the limit"), (dict(swizzle=2), "a swizzle of 64")],
)  # fmt: skip
def test_limits_of_tensor_maps(change, why):
    """5.5.7, 5.5.8 and cuTensorMapEncodeTiled."""
    memory = GlobalMemory(Ledger())
    region = memory.region(memory.add(TENSOR.view(np.uint8).reshape(-1)), "")
    with pytest.raises(FaultError, match=why):
        TensorMap(**dict(region=region, start=0, shape=(20, 80), pitch=160, size=2, box=(8, 64), swizzle=3) | change)


@pytest.mark.parametrize(("to", "mode"), [(64, 0), (128, 3), (4096, 0)])
def test_where_boxes_lie(to, mode):
    """9.7.9.25.5.2: at a multiple of 128 bytes, of the swizzle's pattern, inside of the CTA's memory."""
    more = dict(maps=[(0, (8, 64), mode)], shared=BAR + 8)
    faults(f"shared memory at {to}", INIT + load(0, 0, 1024, to), TENSOR, **more)
    faults("no tensor map", INIT + load(0, 0, 8).replace("%M", "%A"), TENSOR, **more)
