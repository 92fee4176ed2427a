"""Plain PTX: what NVRTC makes of CUDA C++, and forms that Triton has none of. Kernels in the table are PTX by hand: `a`
is the thread, `o` where its element of the first array is, which gets `b`."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernels.machine import check_ptx
from kernels.machine.stand_ins import StandIns

NVRTC = (Path(__file__).parent / "nvrtc.ptx").read_text()
"""By NVRTC 13.0, for sm_90a. In CUDA C++:

    __constant__ float c[4] = {1.f, 2.f, 3.f, 4.f};
    __device__ int counter = 7;

    extern "C" __global__ void __launch_bounds__(256) sum2d(const float* x, float* out, int n, float scale) {
      __shared__ float tile[8][33];
      extern __shared__ float dyn[];
      int t = threadIdx.y * blockDim.x + threadIdx.x;
      tile[threadIdx.y][threadIdx.x] = t < n ? x[t] * scale : c[t & 3];
      dyn[t] = t;
      __syncthreads();
      float s = tile[threadIdx.y][31 - threadIdx.x] + dyn[(t + 1) % 256];
      s += __shfl_xor_sync(0xffffffff, s, 1);
      out[t] = s + counter;
    }

    struct P { float* x; int n; double s; };
    __device__ __noinline__ float f(float a, int b) { return a * b + 1; }

    extern "C" __global__ void st(P p, short h, char k, long long q) {
      p.x[threadIdx.x] = f(p.s, p.n) + h + k + q;
      if (threadIdx.x == 3) printf("hi %d\\n", p.n);
    }
"""
X = torch.arange(256.0)
HERE = torch.arange(64, dtype=torch.int32)


def sum2d(text=NVRTC, block=(32, 8), shared=1024, **more):
    args = dict(x=X, out=torch.zeros(256), n=200, scale=2.0)
    return check_ptx(text, "sum2d", (1,), block, args, shared, seeds=3, **more)


def test_cuda_by_nvrtc():
    """Blocks of two dimensions, static and dynamic shared memory, .const, .global, shfl."""
    tile = torch.where(X < 200, 2 * X, X % 4 + 1).view(8, 32).flip(1).reshape(-1)
    values = tile + (X + 1) % 256
    out = values + values.view(-1, 2).flip(1).reshape(-1) + 7
    verdict = sum2d(expected=dict(out=out))
    assert verdict, verdict
    raced = str(sum2d(NVRTC.replace("bar.sync", "// bar.sync")))
    assert re.match(r"(race|uninitialised): byte \d+ of the shared memory of CTA 0 \(2080 bytes\)", raced), raced
    assert "          PTX line 95: ld.shared.f32 %f7, [%rd21]" in raced


def test_structures_and_functions_by_nvrtc():
    out = torch.zeros(40)
    args = dict(p=("Pid", out, 3, 1.5), h=-2, k=5, q=7)
    verdict = check_ptx(NVRTC, "st", (1,), (40,), args, seeds=3, expected={"p[1]": torch.full((40,), 15.5)})
    assert verdict, verdict


ENTRY = """.version 8.0
.target sm_90a
.address_size 64
{module}
.visible .entry k({parameters}) {more}
{{
.reg .pred p, q; .reg .b32 a, b, c, %r<9>; .reg .b64 o, t, %d<9>; .reg .f32 %f<9>;
ld.param.u64 o, [out]; cvta.to.global.u64 o, o; mov.u32 a, %tid.x; mul.wide.u32 t, a, 4; add.u64 o, o, t; mov.u32 b, 0;
{body}
st.global.u32 [o], b;
ret;
}}
"""
OUT = ".param .u64 .ptr .global .align 4 out"


def judged(body, module="", more="", parameters=OUT, block=(64,), grid=(1,), others=(), shared=0, **options):
    text = ENTRY.format(body=body, module=module, more=more, parameters=parameters)
    out = torch.full((64,), -1, dtype=torch.int32)
    verdict = check_ptx(text, "k", grid, block, [out, *others], shared, seeds=3, **options)
    return verdict, out


TILE = ".shared .align 16 .f32 tile[4][16]; .shared .b64 more;"
SLOT = (
    "mov.u32 c, tile; mad.lo.u32 c, a, 4, c; st.shared.u32 [c], a; bar.sync 0; xor.b32 c, c, 128; ld.shared.u32 b, [c];"
)
TABLES = """.const .align 4 .f32 some[4] = {1.0, 0f40000000, 3e2, 4.}; .global .b16 grid[2][2] = {{1, 2}, {3, -1}};"""
FUNCTION = """.func (.param .u32 r) f (.param .u32 x) { .reg .u32 a, c; .reg .pred p; ld.param.u32 a, [x];
setp.lt.u32 p, a, 5; @p bra END; add.u32 a, a, 100; END: st.param.u32 [r], a; ret; }"""
AGAIN = FUNCTION.replace("add.u32 a", "{ .param .u32 y; .param .u32 z; call (z), f, (y); } add.u32 a")
CALL = "{ .param .u32 y; .param .u32 z; st.param.u32 [y], a; call (z), f, (y); ld.param.u32 b, [z]; }"
MATRIX = """.shared .align 128 .b8 s[512]; mov.u32 c, s; mad.lo.u32 c, a, 16, c; st.shared.v4.u32 [c], {a, a, a, a};
bar.warp.sync -1; ldmatrix.sync.aligned.x2.m8n8.shared.b16 {%r1, %r2}, [c];
ldmatrix.sync.aligned.trans.x1.m8n8.shared::cta.b16 {%r3}, [c];
mov.u32 b, %r1;"""
PLACE = "mov.u32 b, %tid.y; mov.u32 c, %tid.z; mad.lo.u32 b, c, 10, b; mad.lo.u32 b, a, 100, b; mov.u32 c, %ntid.x;"
PLACE += "mov.u32 %r1, %ntid.y; mov.u32 %r2, %tid.z; mad.lo.u32 %r2, %r2, %r1, 0; mov.u32 %r1, %tid.y;"
PLACE += "add.u32 %r2, %r2, %r1; mul.lo.u32 %r2, %r2, c; mul.wide.u32 t, %r2, 4; add.u64 o, o, t;"
MASKS = "mov.u32 b, %lanemask_lt; mov.u32 c, %lanemask_ge; add.u32 b, b, c; mov.u32 c, %warpid; add.u32 b, b, c;"
NEIGHBOUR = """mov.u32 %r1, %cluster_ctarank; mad.lo.u32 c, %r1, 128, 0;
cvt.u64.u32 t, c; add.u64 o, o, t; mov.u32 c, tile; mad.lo.u32 c, a, 4, c; cvt.u64.u32 t, c; cvta.shared.u64 t, t;
cvta.to.shared::cluster.u64 t, t; cvt.u32.u64 c, t; mad.lo.u32 b, %r1, 100, a; st.shared.u32 [c], b;
barrier.cluster.arrive; barrier.cluster.wait; xor.b32 %r1, %r1, 1; mapa.shared::cluster.u32 c, c, %r1;
ld.shared::cluster.u32 b, [c]; barrier.cluster.arrive; barrier.cluster.wait;"""
PIECES = ".param .u64 out, .param .u8 x, .param .s16 y, .param .f32 z, .param .align 8 .b8 s[24]"
SUM = """ld.param.s8 b, [x]; ld.param.s16 c, [y]; add.u32 b, b, c; ld.param.f32 %f1, [z]; cvt.rzi.s32.f32 c, %f1;
add.u32 b, b, c; mov.u64 %d1, s; cvta.param.u64 %d1, %d1; ld.u32 c, [%d1+8]; add.u32 b, b, c; ld.param.u32 c, [s+16];
add.u32 b, b, c;"""
EARLY = ".shared .u32 s[64]; mov.u32 c, s; mad.lo.u32 c, a, 4, c; ld.shared.u32 b, [c];"
EXACT = {
    "labels without a dollar, bra by a predicate": ("LOOP: add.u32 b, b, 1; setp.lt.u32 p, b, a; @p bra LOOP;",
        dict(), HERE.clamp(min=1)),
    "comments over lines": ("/* b; is {\n a */ mov.u32 b, a; // a", dict(), HERE),
    "arrays of two dimensions": (TILE + SLOT, dict(), HERE ^ 32),
    "symbols with an offset": (TILE + "mov.u32 b, more+4;", dict(), HERE * 0 + 260),
    "initialised variables": ("ld.const.f32 %f1, [some+8]; cvt.rzi.s32.f32 b, %f1; ld.global.s16 c, [grid+6]; "
        "add.s32 b, b, c;", dict(module=TABLES), HERE * 0 + 299),
    "dynamic shared memory": ("mov.u32 c, tile; mad.lo.u32 c, a, 4, c; st.shared.u32 [c], a; ld.shared.u32 b, [c];",
        dict(module=".extern .shared .align 16 .b8 tile[];", shared=256), HERE),
    "vectors over lines": ("mov.b64 %d1, {a,\n b}; mov.b64 {\n b,\n c}, %d1;", dict(), HERE),
    "functions": (CALL, dict(module=FUNCTION), torch.where(HERE < 5, HERE, HERE + 100)),
    "qualifiers in another order": (MATRIX, dict(block=(32,)), torch.where(HERE < 32, HERE // 4, -1)),
    "a block of three dimensions": (PLACE, dict(block=(4, 2, 8)),
        torch.tensor([100 * x + y + 10 * z for z in range(8) for y in range(2) for x in range(4)])),
    "a block of no whole warps": ("bar.sync 0; mov.u32 b, a;", dict(block=(40,)), torch.where(HERE < 40, HERE, -1)),
    "masks of lanes": (MASKS, dict(), HERE // 32 - 1),
    "parameters of all sizes": (SUM, dict(parameters=PIECES, others=[-3, 500, 7.5, ("qiiq", 0, 20, 0, 3)]),
        HERE * 0 + 527),
    "a structure that is a pointer": ("mov.u32 b, a;", dict(parameters=".param .align 8 .b8 out[8]"), HERE),
    "clusters of the launch": (TILE + NEIGHBOUR, dict(cluster=2, grid=(2,), block=(32,)),
        torch.where(HERE < 32, HERE + 100, HERE - 32)),
    "who has ended is not waited for": ("setp.gt.u32 p, a, 20; @p bra END; bar.sync 0; mov.u32 b, 1; END:",
        dict(), torch.where(HERE > 20, 0, 1)),
    "a barrier of some": ("setp.lt.u32 p, a, 32; @p bra SOME; bar.arrive 3, 64; bra END; SOME: bar.sync 3, 64; END:",
        dict(), HERE * 0),
    "registers without a space": ("{.reg.b16  h1, h2; mov.b32 {h1,h2}, a; cvt.u32.u16 b, h1;}", dict(), HERE),
    "multiprocessors": ("mov.u32 b, %smid; mov.u32 c, %nsmid; setp.lt.u32 p, b, c; selp.u32 b, a, 0, p;", dict(), HERE),
    "a value that nobody uses": (f"{EARLY} xor.b32 b, b, b; add.u32 b, b, a;", dict(), HERE),
    "setmaxnreg without a count": ("setmaxnreg.dec.sync.aligned.u32 40; setmaxnreg.inc.sync.aligned.u32 232;",
        dict(more=".maxntid 384, 1, 1"), HERE * 0),
}  # fmt: skip
INIT = """.shared .b64 bar; mov.u32 c, bar; and.b32 b, a, 31; setp.eq.u32 p, a, 0; @p mbarrier.init.shared.b64 [c], {};
bar.sync 0; setp.eq.u32 p, b, 0; LOOP: mbarrier.try_wait.parity.shared.b64 q, [c], 1; @!q bra LOOP;"""
ARRIVE = "mbarrier.arrive.shared.b64 _, [c];"
OWN_PART = "mov.u32 c, %ctaid.x; mul.wide.u32 t, c, 32; add.u64 o, o, t;"
POLLS = f""".shared .b64 bar; mov.u32 c, bar; setp.eq.u32 p, a, 0; @p mbarrier.init.shared.b64 [c], 32; bar.sync 0;
setp.lt.u32 p, a, 32; @p bra WAIT; mbarrier.arrive.shared.b64 _, [c]; exit;
WAIT: mbarrier.try_wait.parity.shared.b64 q, [c], 0; @!q bra WAIT; setp.ge.u32 p, a, 8; @p exit; {OWN_PART}"""
EIGHT = dict(grid=(8,), block=(8,))
WARPS = """.shared .u32 s[64]; mov.u32 c, s; mad.lo.u32 c, a, 4, c; setp.lt.u32 p, a, 32; not.pred q, p;
st.shared.u32 [c], 0; bar.sync 0;"""


def first(one: str, other: str) -> str:
    """Warp 0 does one thing, then warp 1 another, with no order between."""
    return f"""{WARPS} @q bra SPIN; {one} st.volatile.shared.u32 [s+252], 9; bra END;
SPIN: ld.volatile.shared.u32 c, [s+252]; setp.ne.u32 p, c, 9; @p bra SPIN; {other} END:"""


KINDS = {
    "a barrier that one warp leaves out": ("setp.lt.u32 p, a, 32; @!p bra END; bar.sync 3, 64; END:", {},
        r"hang: .*\n  waits   CTA 0, warp 0\n          PTX line 9: bar.sync 3, 64"),
    "no barrier": (TILE + SLOT.replace("bar.sync 0;", ""), {},
        r"(race|uninitialised): .*\n.*\n *PTX line 9: ld.shared"),
    "a race of a variable": ("mov.u32 b, %ctaid.x; st.global.u32 [n], b;",
        dict(module=".global .u32 n;", grid=(2,), block=(1,)),
        r"race: byte 0 of the variable n \(4 bytes\) is written twice"),
    "equal values": (f"{WARPS} @p st.shared.u32 [s], 7; @q st.shared.u32 [s], 7;", {},
        r"exact: .*\n  note    race of equal values at PTX line 10: 3 races"),
    "equal values, behind an atomic": (first("red.global.or.b32 [n], 7;", "st.global.u32 [n], 7;"),
        dict(module=".global .u32 n;"), "race: byte 0 of the variable n"),
    "equal values, behind a load": (first("ld.global.u32 c, [n];", "st.global.u32 [n], 0;"),
        dict(module=".global .u32 n;"), "race: byte 0 of the variable n"),
    "equal values of lanes, behind an atomic": (f"{WARPS} setp.eq.u32 p, a, 0; setp.eq.u32 q, a, 1; "
        "@p red.shared.or.b32 [s], 7; @q st.shared.u32 [s], 7;", dict(block=(32,)), "race: byte 0"),
    "accepted races": (f"{WARPS} @p st.shared.u32 [s], 7;\n@q ld.shared.u32 c, [s];", dict(accept="PTX line 11"),
        r"exact: .*\n  accept  PTX line 11: 3 races that count"),
    "accepted races of lanes": (f"{WARPS} st.shared.u32 [c], a; xor.b32 c, c, 4;\nld.shared.u32 b, [c];\n"
        "ld.shared.u32 b, [c];", dict(accept="PTX line 11", block=(32,)), r"exact: .*\n  accept  PTX line 11: 3 races"),
    "a value that is stored": (EARLY, {}, "uninitialised: byte 0 "),
    "a condition": (f"{EARLY} setp.gt.s32 p, b, 0; selp.u32 b, 1, 2, p;", {}, "uninitialised: byte 0 "),
    "a loop": (f"{EARLY} setp.gt.s32 p, b, 0; @p bra END; add.u32 c, c, 1; END: mov.u32 b, 0;", {}, "uninitialised: "),
    "whether a value is none": (f"{EARLY} setp.ne.u32 p, b, 0; selp.u32 b, 1, 2, p;", {}, "uninitialised: byte 0 "),
    "the more of two": (f"{EARLY} max.f32 b, b, 0f42000000;", {}, "uninitialised: byte 0 "),
    "the less of two": (f"{EARLY} min.f32 b, b, 0fC2000000;", {}, "uninitialised: byte 0 "),
    "an address": (f"{EARLY} and.b32 b, b, 252; ld.shared.u32 c, [b]; mov.u32 b, c;", {}, "uninitialised: byte 0 "),
    "a race behind a value that nobody uses": (f"{EARLY} mov.u32 b, a; st.global.u32 [n], a;",
        dict(module=".global .u32 n;"), "race: byte 0 of the variable n "),
    "each lane arrives for itself": (INIT.format(64) + ARRIVE, {}, "exact: [^\n]*$"),
    "a lane arrives for its warp": (f"{INIT.format(2)} setp.eq.u32 p, b, 0; @p {ARRIVE}", {}, "exact: .*\n  perhaps"),
    "stand-ins": (f"{OWN_PART} mov.u32 b, c;", EIGHT, "exact: .* events; in all but the first 2 of 8 programs stand"),
    "no stand-ins": (f"{OWN_PART} mov.u32 b, c;", EIGHT | dict(all_programs=True), "exact: .* 3 orders of events$"),
    "stand-ins of two ways": (f"{OWN_PART} setp.eq.u32 p, c, 3; @p bra END; add.u32 b, c, 7; END:", EIGHT,
        "exact: .*; in all but the first 3 of 8 programs"),
    "programs with flags": (f"{OWN_PART} ld.global.relaxed.gpu.u32 b, [o];", EIGHT, "exact: .* 3 orders of events$"),
    "programs with atomics": (f"{OWN_PART} atom.global.add.u32 b, [o], 1;", EIGHT, "exact: .* 3 orders of events$"),
    "a program that overwrites what others have read": (f"{OWN_PART} ld.global.u32 b, [n]; setp.eq.u32 p, c, 7;"
        "@p st.global.u32 [n], 1;", EIGHT | dict(module=".global .u32 n;", slots=1), "exact: .* 3 orders of events$"),
    "stand-ins that poll": (POLLS, dict(grid=(8,), block=(64,)), "exact: .*; in all but the first 2 of 8 programs"),
    "programs that store the same": ("mov.u32 b, a;", EIGHT, "exact: .* 3 orders of events\n"),
    "a fault of stand-ins": (f"{OWN_PART} mov.u32 b, %clock;", EIGHT, r"order: (.|\n)*again   seed=0, seeds=2: sm_90a"),
    "a breakpoint": ("brkpt;", {}, "assert: the kernel traps"),
    "no dynamic shared memory": ("st.shared.u32 [d], a;", dict(module=".extern .shared .b32 d[];"),
        r"bounds: byte 0 of the shared memory of CTA 0 \(0 bytes\)"),
    "too many threads": ("", dict(block=(65,)), "bounds: the element 1 behind the last of out"),
    "setmaxnreg upwards": ("setmaxnreg.inc.sync.aligned.u32 40;", dict(more=".maxnreg 168"), "misuse: .* from 168"),
    "recursion": (CALL, dict(module=AGAIN), "unknown: PTX line 5: call .*: f calls itself"),
    "no such label": ("bra ON;", {}, "unknown: PTX line 9: bra ON: there is no such label"),
    "Blackwell's": ("tcgen05.wait::ld.sync.aligned;", {},
        r"unknown: PTX line 9: tcgen05.wait::ld.* no instruction that"),
    "no register": ("mov.u32 b, zz;", {}, "unknown: PTX line 9: mov.u32 b, zz: operand zz is unknown"),
    "a call by address": ("mov.u64 %d1, f;", dict(module=FUNCTION), "unknown: PTX line 10: mov.u64 %d1, f: operand f"),
    "a texture": ("", dict(module=".global .texref t;"), "unknown: the variable .global .texref t has no form"),
    "an address as a value": ("", dict(module=".global .u64 g = k;"), "unknown: g is initialised by something else"),
    "no end": ("{", {}, "unknown: a brace that does not close"),
}  # fmt: skip
BAD = {
    "the entry": (dict(entry="j"), "entry j: the PTX has sum2d, st"),
    "their number": (
        dict(args=[X]),
        r"sum2d takes 4 arguments: sum2d_param_0 \(u64\), .* \(f32\); given are \[tensor.*",
    ),
    "no arguments": (dict(args=None), "sum2d takes 4 arguments: .*; given are None"),
    "a kind": (dict(args=[X, X, 2, X]), "sum2d_param_3 is Tensor tensor.*; sum2d_param_3 takes f32: .*"),
    "a word": (dict(args=[X, "x", 2, 1.0]), "sum2d_param_1 is str 'x'; sum2d_param_1 takes u64: .*"),
    "a fraction": (dict(args=[X, X, 2.5, 1.0]), "sum2d_param_2 is float 2.5; sum2d_param_2 takes u32: .*"),
    "a size": (dict(args=[X, X, 2**32, 1.0]), "sum2d_param_2 is int 4294967296; sum2d_param_2 takes u32: .*"),
    "a structure": (
        dict(entry="st", args=[5, 1, 2, 3]),
        "st_param_0 is int 5; st_param_0 takes 24 bytes: give bytes, .*",
    ),
    "a block for its bounds": (dict(block=(257,)), r"the block \(257, 1, 1\): sum2d .* .maxntid \[256, 1, 1\]"),
    "a block": (dict(block=(2048,)), "the block .*: a CTA has 1 to 1024 threads, .*"),
    "no block": (dict(block=128), "block 128 is not one to three whole numbers.*"),
    "a grid": (dict(grid=2), "grid 2 is not one to three whole numbers.*"),
    "bytes": (dict(shared=300_000), "sum2d needs 301056 bytes of shared memory, sm_90a has .*"),
    "an architecture": (dict(arch="sm_100a"), "arch 'sm_100a': it is one of sm_80, .*"),
}


@pytest.mark.parametrize("name", EXACT)
def test_forms_that_are_exact(name):
    body, more, expected = EXACT[name]
    verdict, out = judged(body, **more)
    assert verdict, verdict
    assert out.tolist() == expected.tolist()


@pytest.mark.parametrize("name", KINDS)
def test_what_is_wrong_is_told(name):
    body, more, text = KINDS[name]
    verdict, _ = judged(body, **more)
    assert re.match(text, str(verdict)), verdict


@pytest.mark.parametrize("processes", [1, 2])
def test_stand_ins_leave_what_all_would_have_left(processes):
    expected = HERE // 8 * 10 + HERE % 8
    body = f"{OWN_PART} mad.lo.u32 b, c, 10, a;"
    verdict, out = judged(body, processes=processes, expected=[expected.int()], **EIGHT)
    assert "2 of 8" in verdict.text, verdict
    assert out.tolist() == expected.tolist()


def test_other_programs_stand_for_the_others_in_each_order():
    launch = SimpleNamespace(first=4, program=SimpleNamespace(cluster=2))
    stand_ins = StandIns(launch, [[5, 6, 7, 8], [9]], {}, {})
    assert {tuple(stand_ins.ctas(stand_ins.chosen(seed))) for seed in range(99)} == {
        (2 * a, 2 * a + 1, 2 * b, 2 * b + 1, 10, 11) for a in range(1, 5) for b in range(a + 1, 5)
    }


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_is_told_in_one_line(name):
    more, message = BAD[name]
    call = dict(entry="sum2d", grid=(1,), block=(32,), args=[X, X, 2, 1.0], shared=0) | more
    with pytest.raises(ValueError, match=f"^{message}$") as error:
        check_ptx(NVRTC, call.pop("entry"), call.pop("grid"), call.pop("block"), call.pop("args"), **call)
    assert "\n" not in str(error.value)
