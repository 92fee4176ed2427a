"""Verdicts on small kernels, each with a mistake of one kind; what bad calls are told; traces."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import contextlib
import gc
import io
import json
import os
import re
import resource
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.machine import check, processes
from kernels.machine.command import load, main
from kernels.machine.trial import Outcome, Trial

tma_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
tma_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
FOLDER = Path(__file__).parents[2] / "kernels" / "machine"
PAGE = (FOLDER / "README.md").read_text()
*_, DOUBLED, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
N = 128


@triton.autotune([triton.Config(dict(B=32), num_warps=1), triton.Config(dict(B=1))], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["B"] == 0})
@triton.jit
def add(pair, out, n, scale, B: tl.constexpr, EVEN: tl.constexpr, bias=0.5):
    i = tl.program_id(0) * B + tl.arange(0, B)
    x, y = pair
    if EVEN:
        tl.store(out + i, tl.load(x + i) + tl.load(y + i) * scale + bias)
    else:
        tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n) * scale + bias, mask=i < n)


@triton.jit
def shift(x, out, by, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i + by))


@triton.jit
def raise_in_place(x, n, B: tl.constexpr):
    """Of fewer elements than threads: a scalar, or a tensor that layouts replicate over warps."""
    i = 0 if B == 1 else tl.arange(0, B)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


@triton.jit
def add_by_table(table, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(table).to(tl.pointer_type(tl.float32))
    out = tl.load(table + 1).to(tl.pointer_type(tl.float32))
    tl.store(out + i, tl.load(x + i) + 1)


@triton.jit
def skip(y, out, scale, ignored, N: tl.constexpr):
    """`ignored` is a parameter of 32 bits that is compared with 64."""
    i = tl.arange(0, N)
    label = tl.load(y + i)
    tl.store(out + i, tl.where(label == ignored, 0, label * scale))


@triton.jit
def choose(x, y, out):
    """LLVM makes it one load, from the address of either parameter."""
    value = tl.load(x) if tl.program_id(0) % 2 == 0 else tl.load(y)
    tl.store(out + tl.program_id(0), value)


@triton.jit
def forget(out, turns):
    """Triton's loop keeps `before` at 0."""
    now = 0
    before = now
    for _ in range(turns):
        before = now
        now += 1
    tl.store(out, before)


@triton.jit
def last_is_zero(x, out, row, column, N: tl.constexpr):
    m, n = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + m * row + n * column, tl.load(x + m * N + n, mask=m + n < 2 * N - 2, other=0))


@triton.jit
def tickets(counter, out):
    tl.store(out + tl.program_id(0), tl.atomic_add(counter, 1))


@triton.jit
def hand_over(x, box, flag, out, SEM: tl.constexpr, SCOPE: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if tl.program_id(0) == 0:
        tl.store(box + i, tl.load(x + i) + 1)
        tl.debug_barrier()
        tl.atomic_xchg(flag, 1, sem=SEM, scope=SCOPE)
    else:
        while tl.atomic_add(flag, 0, sem="acquire", scope=SCOPE) == 0:
            pass
        tl.store(out + i, tl.load(box + i))


@triton.jit
def turns(counter, last):
    """Each CTA waits for the one before it."""
    while tl.atomic_add(counter, 0) != tl.program_id(0):
        pass
    if tl.program_id(0) != last:
        tl.atomic_add(counter, 1)


@triton.jit
def spin():
    tl.inline_asm_elementwise("LOOP: bra LOOP;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def lowest(x, out, N: tl.constexpr):
    tl.store(
        out,
        tl.min(tl.load(x + tl.arange(0, N))),
    )


STORE = lowest.fn.__code__.co_firstlineno + 2


@triton.jit
def asserts(x, N: tl.constexpr):
    tl.device_assert(tl.load(x + tl.arange(0, N)) < 1, "x is below one")


@triton.jit
def odd_instruction(x, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.inline_asm_elementwise(
        "vset4.u32.u32.eq $0, $1, $1, $1;", "=r,r", [tl.load(x + i)], dtype=tl.int32, is_pure=False, pack=1
    )
    tl.store(x + i, value)


@triton.jit
def shift_row(x, out, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) + 1)


@triton.jit
def add_up(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(out + i, tl.load(x + tl.program_id(0) * N + i), sem="relaxed")


@triton.jit
def clip(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    asm: tl.constexpr = "{ .reg .pred p; setp.gt.f32 p, $1, 15.; selp.f32 $0, 0f41700000, $1, p; }"
    clipped = tl.inline_asm_elementwise(asm, "=r,r", [tl.load(x + i)], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out + i, clipped)


@triton.jit
def meet(arrived, programs):
    """A barrier of the whole grid."""
    tl.atomic_add(arrived, 1)
    while tl.atomic_add(arrived, 0) < programs:
        pass


@gluon.jit
def mailbox(x, out, ARRIVALS: gl.constexpr, COUNT: gl.constexpr, FILLS: gl.constexpr, N: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    i = gl.arange(0, N, layout)
    buffer = gl.allocate_shared_memory(gl.float32, [N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=COUNT)
    if FILLS:
        buffer.store(gl.load(x + i))
    mbarrier.arrive(ready, count=ARRIVALS) if ARRIVALS != 1 else mbarrier.arrive(ready)
    mbarrier.wait(ready, 0)
    gl.store(out + i, buffer.load(layout))


@gluon.jit
def box_by_tma(x_desc, out_desc, WAITS: gl.constexpr, ENDS: gl.constexpr):
    buffer = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_type.shape, x_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, x_desc.block_type.nbytes)
    tma_load(x_desc, [0, 0], ready, buffer)
    if WAITS:
        mbarrier.wait(ready, 0)
        tma_store(out_desc, [0, 0], buffer)
        if ENDS:
            tma.store_wait(0)


def of_ring(line: str, steps: int = 3) -> tuple:
    """The page's kernel without a line, and its arguments."""
    path = Path(tempfile.mkdtemp()) / "doubled.py"
    assert line in DOUBLED
    path.write_text(DOUBLED.replace(line, f"pass  # {line}"))
    x = torch.arange(steps * N).float()
    args = dict(x=x, out=torch.zeros_like(x), steps=steps, N=N)
    return load(path).doubled, (1,), args, dict(out=2 * x)


def of_box(**flags) -> tuple:
    x, out = torch.arange(64 * 64).reshape(64, 64).half(), torch.zeros(64, 64).half()
    layout = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)
    boxes = [TensorDescriptor.from_tensor(tensor, [64, 64], layout) for tensor in (x, out)]
    return box_by_tma, (1,), dict(x_desc=boxes[0], out_desc=boxes[1], **flags), dict(out_desc=x)


def of_mailbox(**flags) -> tuple:
    x = torch.arange(N).float()
    given = dict(ARRIVALS=1, COUNT=1, FILLS=True) | flags
    return mailbox, (1,), dict(x=x, out=torch.zeros(N), N=N, **given), dict(out=x)


def of_hand_over(sem: str, scope: str) -> tuple:
    x, flag = torch.arange(N).float(), torch.zeros(1, dtype=torch.int32)
    args = dict(x=x, box=torch.zeros(N), flag=flag, out=torch.zeros(N), SEM=sem, SCOPE=scope, N=N)
    return hand_over, (2,), args, dict(out=x + 1)


def of_turns(last: int) -> tuple:
    args = dict(counter=torch.zeros(1, dtype=torch.int32), last=last, num_warps=1)
    return turns, (3,), args, None, dict(seeds=1)


def of_add(n: int, **more) -> tuple:
    x, y = torch.arange(n).float(), torch.ones(n)
    grid = lambda args: (triton.cdiv(args["n"], args["B"]),)  # noqa: E731
    return add, grid, dict(pair=(x, y), out=torch.zeros(n), n=n, scale=2.0, **more), dict(out=x + 2.5)


def of_shift(by: int, arch: str = "sm_90a") -> tuple:
    x = torch.arange(2 * N).float()
    return shift, (1,), (x, torch.zeros(N), by, N), dict(out=x[by % N :][:N]) if 0 <= by <= N else None, dict(arch=arch)


def of_copy(error: float, dtype: torch.dtype = torch.float32, *, whole: bool = False, **options) -> tuple:
    """A copy of which so much more is expected, by the order of what is written."""
    x = (torch.arange(N) + (0 if whole else 0.25)).to(dtype)
    return shift, (1,), (x, torch.zeros(N, dtype=dtype), 0, N), [x.float() + error], options


def of_view(step: int, *, covered: bool) -> tuple:
    """`out` has every so many elements of a storage, of which `x` may be all."""
    base = torch.arange(2 * N).float()
    x = base if covered else base.clone()
    return shift, (1,), (x, base[: N * step : step][:N], N, N)


def of_meeting(slots: int | None) -> tuple:
    args = dict(arrived=torch.zeros(1, dtype=torch.int32), programs=6)
    return meet, (6,), args, None, dict(slots=slots, seeds=8 if slots else 1)


def of_sum(seed: int = 0) -> tuple:
    torch.manual_seed(seed)
    return add_up, (6,), dict(x=torch.randn(6, 32), out=torch.zeros(32), N=32, num_warps=1)


def of_empty(name: str, by: int = 0) -> tuple:
    """A copy of the second half of a storage, or of what is beside it; one tensor is as torch.empty makes it."""
    args = dict(x=torch.zeros(2 * N)[N:], out=torch.zeros(N), by=by, N=N)
    return shift, (1,), args, dict(out=torch.zeros(N)), dict(empty=name)


def of_empty_box() -> tuple:
    return *of_box(WAITS=True, ENDS=True), dict(empty=["x_desc"])


def in_place() -> tuple:
    """What a check before has left."""
    x = torch.arange(N).float()
    case = shift_row, (1,), dict(x=x, out=x, N=N), dict(out=x + 1)
    assert judge(*case)
    return case


def of_pruned(keep: int) -> tuple:
    """Every configuration lacks N, which the pruning adds to those that it keeps."""

    def complete(configs: list, args: dict, **more) -> list:
        return [triton.Config(dict(N=args["x"].numel()), num_warps=more["out"].numel() // 32) for _ in configs[:keep]]

    tune = triton.autotune([triton.Config({})], key=[], prune_configs_by=dict(early_config_prune=complete))
    x = torch.arange(N).float()
    return tune(shift_row), (1,), dict(x=x, out=torch.zeros(N)), dict(out=x + 1)


def of_clip() -> tuple:
    x = torch.arange(N).float()
    return clip, (1,), (x, torch.ones(N), N), dict(out=x.clamp(max=15))


def of_place(n: int, block: int) -> tuple:
    return raise_in_place, (1,), (torch.zeros(n), n, block), dict(x=torch.ones(n))


def of_table(n: int) -> tuple:
    """The kernel is given the addresses of its tensors in another."""
    KEPT[:] = torch.arange(n).float(), torch.zeros(n)
    table = torch.tensor([tensor.data_ptr() for tensor in KEPT])
    return add_by_table, (1,), (table, N), {"table[1]": KEPT[0] + 1}


KEPT: list[torch.Tensor] = []


def of_labels() -> tuple:
    labels = torch.tensor([*range(-1, N - 2), -100])
    args = (labels, torch.zeros_like(labels), -3, -100, N)
    return skip, (1,), args, dict(out=torch.where(labels == -100, 0, labels * -3))


def of_square(stored: str) -> tuple:
    x, out = torch.ones(16, 16), torch.zeros(16, 16)
    out = out.T if stored == "turned" else out
    return last_is_zero, (1,), (x, out, *out.stride(), 16), dict(out=x)


SUBJECTS = {
    "exact, of whole blocks": (lambda: of_add(64), "exact: as expected under 8 orders of events$"),
    "exact, of ragged ones": (lambda: of_add(50, bias=1), "wrong: .*differ, by up to 0.5"),
    "exact for Ampere": (lambda: of_shift(3, "sm_80"), "exact"),
    "exact, TMA": (lambda: of_box(WAITS=True, ENDS=True), "exact"),
    "exact, nothing expected": (
        lambda: (shift, (0,), (torch.ones(N), torch.ones(N), 0, N)), "exact: no fault, and the same results",
    ),
    "exact, of either parameter": (
        lambda: (choose, (2,), (torch.ones(1), torch.zeros(1), torch.zeros(2)), dict(out=torch.tensor([1.0, 0.0]))),
        "exact",
    ),
    "exact, of negative numbers": (of_labels, "exact"),
    "wrong": (
        lambda: of_square("as is"),
        r"wrong: out\[15, 15\] is 0, expected 1; 1 of 256 elements differ.*"
        r"written test_check.py:\d+  tl.store\(out \+ m \* row.*CTA 0, warp 3, lane 31 \(thread 127\)",
    ),
    "exact, rounded": (lambda: of_copy(5e-5), "exact: "),
    "exact, rounded to 16 bits": (lambda: of_copy(0.01, torch.float16), "exact: "),
    "exact, copies of 64": (lambda: of_place(64, 64), "exact: "),
    "exact, copies of 10": (lambda: of_place(10, 16), "exact: "),
    "exact, copies of 1": (lambda: of_place(1, 32), "exact: "),
    "race of a scalar": (lambda: of_place(1, 1), r"race: x\[0\] is written and read"),
    "exact, by addresses": (lambda: of_table(N), "exact: "),
    "above, by addresses": (lambda: of_table(N - 1), r"bounds: the element 1 behind the last of table\[0\] \(127,\)"),
    "exact, of 8 bits": (lambda: of_copy(0, torch.float8_e4m3fn), "exact: "),
    "exact, by its tolerance": (lambda: of_copy(0.5, tolerance=0.5), "exact: "),
    "wrong, by its tolerance": (lambda: of_copy(3e-5, tolerance=0), "wrong: "),
    "wrong, more than rounding": (lambda: of_copy(0.05), r"wrong: out\[0\] is 0.25, expected 0.3"),
    "wrong, whole numbers": (lambda: of_copy(1, torch.float16, whole=True, tolerance=None), r"wrong: out\[0\] is 0, "),
    "wrong, not carried": (
        lambda: (forget, (1,), (torch.zeros(1, dtype=torch.int32), 5), dict(out=torch.full((1,), 4))),
        r"wrong: out\[0\] is 0, expected 4; .*perhaps the loop at test_check.py:\d+ does not carry before",
    ),
    "wrong, turned": (lambda: of_square("turned"), r"wrong: out\[15, 15\] is 0, .*warp"),
    "by order": (
        lambda: (tickets, (4,), (torch.zeros(1, dtype=torch.int32), torch.zeros(4, dtype=torch.int32))),
        r"order: out\[\d\] is .*depend on the order of events",
    ),
    "race of partitions": (
        lambda: of_ring("mbarrier.wait(empty, step & 1 ^ 1)"),
        r"race: byte \d+ of the shared memory of CTA 0 .* is written and read.*"
        r"(?=.*writes  doubled.py:12  buffer.store\([^\n]*\n *CTA 0, warp [0-3] \(thread \d+-)"
        r"(?=.*reads   doubled.py:21  doubles = ).*missing a barrier of the CTA.* an mbarrier",
    ),
    "race of CTAs": (
        lambda: of_hand_over("relaxed", "gpu"),
        r"race: box\[\d+\] is .*writes  test_check.py:\d+  tl.store\(box.*CTA 0, warp \d, lane 0 \(thread \d+\).*"
        r"reads   test_check.py:\d+  .*tl.load\(box.*CTA 1.*missing a release by CTA 0 .* acquire by CTA 1.*"
        r"or the other way round, if CTA 1 is to come first",
    ),
    "scope": (lambda: of_hand_over("release", "cta"), r"race: flag\[0\] is .*missing a scope that reaches both: \.gpu"),
    "race, async": (
        lambda: of_box(WAITS=False, ENDS=True), "tma: .*ends while a TMA load is on its way",
    ),
    "hang": (
        lambda: of_ring("mbarrier.arrive(empty)"),
        r"hang: nobody can go on.*waits   doubled.py:11 .*CTA 0, warp 0-3\n.*for the mbarrier at \d+: phase 0, "
        r"1 of 1 arrivals pending\n *the mbarrier is that of doubled.py:32\n.*doubled.py:20 .*CTA 0, warp 4-7\n",
    ),
    "hang, spinning": (
        lambda: of_turns(last=0),
        r"hang: all that can go on repeat themselves.*spins   test_check.py:\d+  while .*CTA 1, CTA 2, warp 0.*"
        r"looks at counter\[0\], which holds 0",
    ),
    "hang, of one instruction": (
        lambda: (spin, (1,), (), None, dict(seeds=1)), "hang: all that can go on repeat themselves",
    ),
    "wrong, by a statement of several lines": (
        lambda: (lowest, (1,), (torch.ones(N), torch.zeros(1), N), dict(out=torch.zeros(1))),
        rf"wrong: .*written test_check.py:{STORE}  tl.store\(out, tl.min\(tl.load\(x \+ tl.arange\(0, N\)\)\)\)\n",
    ),
    "exact, spinning": (
        lambda: of_turns(last=3), "exact",
    ),
    "uninitialised": (
        lambda: of_mailbox(FILLS=False),
        r"uninitialised: byte 0 of the shared memory of CTA 0.*reads   test_check.py:.*missing a write: there is none",
    ),
    "uninitialised, too early": (
        lambda: of_ring("mbarrier.wait(full, step & 1)", steps=1),
        r"(uninitialised|race): (?=.*reads   doubled.py:21 ).*writes  doubled.py:12",
    ),
    "uninitialised, as torch.empty": (
        lambda: of_empty("x"),
        r"uninitialised: x\[\d+\] is read, and nobody has written it\n  reads   test_check.py:\d+  tl.store.*"
        r"missing a write: there is none in the whole run",
    ),
    "uninitialised, by TMA": (of_empty_box, r"uninitialised: x_desc\[\d+, \d+\] is read"),
    "uninitialised, by an atomic": (
        lambda: (*of_sum(), None, dict(empty=["out"])),
        r"uninitialised: out\[\d+\] is read.*reads .*tl.atomic_add\(out.*missing a write before it",
    ),
    "exact, all of torch.empty written": (lambda: of_empty("out"), "exact"),
    "exact, beside what is empty": (lambda: of_empty("x", -N), "exact"),
    "wrong, as a check before left it": (
        in_place, r"wrong: .*\n  note    about this check, not your kernel:\n .*out began as an earlier check left it:",
    ),
    "exact, as pruning completes it": (lambda: of_pruned(1), "exact"),
    "above": (
        lambda: of_shift(N + 1),
        r"bounds: the element 1 behind the last of x \(256,\).*reads   test_check.py:.*warp 3, lane 31 \(thread 127\)",
    ),
    "below": (lambda: of_shift(-2), r"bounds: the element 2 before the first of x \(256,\).*lane 0 \(thread 0\)"),
    "above, of a part": (
        lambda: (shift, (1,), (torch.ones(2 * N)[N:], torch.zeros(N), 1, N)),
        r"bounds: the element 1 behind the last of x \(128,\)",
    ),
    "beside": (
        lambda: of_view(2, covered=False),
        r"bounds: byte 4 of the memory of out \(128,\), beside its elements: it is written, and no argument covers it\n"
        r"  writes  test_check.py:\d+  tl.store\(out \+ i.*lane 1 \(thread 1\)",
    ),
    "exact, beside, of another argument": (lambda: of_view(2, covered=True), "exact"),
    "exact, a halo": (
        lambda: (shift, (1,), (torch.ones(4 * N)[N : 2 * N : 2], torch.zeros(N), -3, N), torch.ones(N)),
        "exact: as expected",
    ),
    "exact, a decimal literal": (of_clip, "exact"),
    "exact, up to rounding": (of_sum, r"exact: .*note    about this check, not your kernel:\n *sums in out are r"),
    "exact, a barrier of the grid": (lambda: of_meeting(None), "exact"),
    "hang, a crowded GPU": (
        lambda: of_meeting(4),
        r"hang: all that[^\n]*\n  spins [^\n]*(\n {10}[^\n]*)*\n  perhaps 2 of 6 CTAs have not begun: the GPU holds 4",
    ),
    "barrier": (
        lambda: of_mailbox(ARRIVALS=2),
        r"barrier: 2 arrivals at .*at      test_check.py.*lane 0 .*the mbarrier is that of test_c",
    ),
    "misuse": (lambda: of_box(WAITS=True, ENDS=False), r"misuse: ends while its bulk stores are not waited for"),
    "assert": (lambda: (asserts, (1,), dict(x=torch.ones(N), N=N, debug=True)), r"assert: .*x is below one"),
    "unknown": (
        lambda: (odd_instruction, (1,), (torch.ones(N, dtype=torch.int32), N)),
        r"unknown: PTX line \d+ \(test_check.py:\d+\): vset4.*--coverage$",
    ),
}  # fmt: skip


def crowd() -> tuple[float, int]:
    """Return the seconds and the MiB that 2048 programs of one line take."""
    x, begun = torch.arange(2048.0 * N), time.process_time()
    assert check(shift_row, (2048,), dict(x=x, out=torch.zeros_like(x), N=N), expected=dict(out=x + 1), seeds=1)
    return time.process_time() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


@pytest.mark.slow
def test_many_programs_that_stand_at_once_take_little_each(printed_elsewhere):
    """2.5 seconds on a crowded machine; 29 seconds and 8 GB by clocks of all agents."""
    seconds, mebibytes = printed_elsewhere("import json, test_check as t; print(json.dumps(t.crowd()))")
    assert seconds < 4
    assert mebibytes < 1024


def frozen_in_and_after_a_check() -> list[bool]:
    frozen = []

    def run(trial: Trial, seed: int, trace: None) -> Outcome:
        frozen.append(gc.get_freeze_count() > 0)
        return Outcome("exact", "", seed, 0)

    with patch.object(Trial, "run", run):
        check(shift_row, (1,), dict(x=torch.arange(N).float(), out=torch.zeros(N), N=N), seeds=1)
    return [*frozen, gc.get_freeze_count() > 0]


def test_collector_leaves_alone_what_was_there_before_a_check(printed_elsewhere):
    code = "import json, test_check as t; print(json.dumps(t.frozen_in_and_after_a_check()))"
    assert printed_elsewhere(code) == [True, False]


def orders_of_a_hang() -> int:
    with patch.object(Trial, "run", autospec=True, side_effect=Trial.run) as run:
        check(*of_turns(last=0)[:3], seeds=8)
    return run.call_count


def test_a_hang_is_told_after_two_orders(printed_elsewhere):
    assert printed_elsewhere("import json, test_check as t; print(json.dumps(t.orders_of_a_hang()))") == 2


def judge(kernel, grid, args, expected=None, options=None, **more):
    return check(kernel, grid, args, expected=expected, **(options or {}), **more)


def verdicts() -> dict[str, str]:
    return {name: str(judge(*make())) for name, (make, _) in SUBJECTS.items()}


@pytest.fixture(scope="module")
def judged(printed_elsewhere):
    return printed_elsewhere("import json, test_check as t; print(json.dumps(t.verdicts()))")


@pytest.mark.parametrize("name", SUBJECTS)
def test_verdict_says_what_to_act_on(judged, name):
    assert re.search(SUBJECTS[name][1], judged[name], re.DOTALL), judged[name]


BAD_CALLS = {
    "arch": (dict(arch="sm_70"), "arch 'sm_70': it is one of sm_80, sm_86, sm_89, sm_90, sm_90a"),
    "seeds": (dict(seeds=0), "seeds=0: it is a whole number from 1 on"),
    "grid is a number": (dict(grid=4), r"grid 4 is not one to three whole numbers from 0 on, as \(4,\) or \(4, 2\)"),
    "grid below 0": (dict(grid=lambda args: (args["N"], -1)), r"grid \(128, -1\) is not one to three"),
    "too many": (dict(args=(1, 2, 3, 4, 5)), "shift has 4 arguments, 5 are given; options go by name"),
    "missing": (dict(args=dict(x=torch.ones(N), N=N)), "shift needs out, by too; give it in args"),
    "unknown": (dict(args=dict(num_wraps=4)), "shift has no argument num_wraps; did you mean num_warps"),
    "no kernel": (dict(kernel=print), "print> is no kernel: it is a function under @triton.jit or @gluon.jit"),
    "device": (dict(args=(torch.ones(N, device="meta"), 0, 0, N)), r"x is a .* tensor on meta; .*: x.cpu\(\)"),
    "numpy": (dict(args=(torch.ones(N).numpy(), 0, 0, N)), r"x is of NumPy; torch.from_numpy\(x\)"),
    "expected of no tensor": (dict(expected=dict(y=1)), "expected has y, which is no tensor of args; those are x, out"),
    "expected of two": (
        dict(expected=[torch.ones(N)] * 2),
        r"2 tensors are expected, but the kernel writes (none|out); give them by",
    ),
    "expected shape": (
        dict(expected=dict(out=torch.ones(3))),
        r"expected\['out'\] is \(3,\), the argument is \(128,\)",
    ),
    "empty of no tensor": (dict(empty=["y"]), "empty has y, which is no tensor of args; those are x, out"),
    "pruned": (
        dict(kernel=of_pruned(0)[0], args=(torch.ones(N), torch.ones(N))),
        "shift_row: early_config_prune leaves none of its 1 configurations",
    ),
    "compiler": (dict(args=(torch.ones(N), torch.ones(N), 0, 3)), "shift does not compile for sm_90a: .*power of 2"),
}


def answers() -> dict[str, str]:
    said = {}
    for name, (call, _) in BAD_CALLS.items():
        try:
            check(**dict(kernel=shift, grid=(1,), args=(torch.ones(N), torch.ones(N), 0, N)) | call)
        except ValueError as error:
            said[name] = str(error)
    return said


@pytest.fixture(scope="module")
def answered(printed_elsewhere):
    return printed_elsewhere("import json, test_check as t; print(json.dumps(t.answers()))")


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_bad_call_is_told_in_one_line(answered, name):
    assert re.fullmatch(f".*{BAD_CALLS[name][1]}.*", answered[name]), answered[name]


def test_interpreted_kernels_are_refused():
    if triton.knobs.runtime.interpret:
        with pytest.raises(ValueError, match="TRITON_INTERPRET is set"):
            check(shift, (1,), (torch.ones(N), torch.ones(N), 0, N))


def traced() -> list[dict]:
    """Events of a run that hangs, and of one with TMA."""
    traces = []
    for subject in (of_ring("mbarrier.arrive(empty)"), of_box(WAITS=True, ENDS=True)):
        with tempfile.NamedTemporaryFile() as file:
            judge(*subject, seeds=2, trace=file.name)
            traces.append(json.loads(Path(file.name).read_text()))
    return traces


def test_a_trace_has_what_perfetto_reads(printed_elsewhere):
    """By the Trace Event Format, whose phases are: X complete, i instant, b and e asynchronous, M metadata."""
    hung, moved = printed_elsewhere("import json, test_check as t; print(json.dumps(t.traced()))")
    needed = {"X": {"ts", "dur"}, "i": {"ts", "s"}, "b": {"ts", "id"}, "e": {"ts", "id"}, "M": set()}
    for event in [*hung["traceEvents"], *moved["traceEvents"]]:
        assert {"name", "pid", "tid", *needed[event["ph"]]} <= event.keys()
    tracks = {event["args"]["name"] for event in hung["traceEvents"] if event["ph"] == "M"}
    assert tracks == {"CTA 0", *(f"warp {number}" for number in range(8))}
    *_, fault = hung["traceEvents"]
    assert fault["s"] == "g"
    assert fault["name"].startswith("nobody can go on")
    waits = [event for event in hung["traceEvents"] if event["name"].startswith("waits: mbarrier.try_wait")]
    assert {"doubled.py:11", "doubled.py:20"} <= {event["args"]["source"] for event in waits}
    began, ended = ([e for e in moved["traceEvents"] if e["ph"] == phase] for phase in "be")
    assert {event["cat"] for event in began} == {"TMA load", "TMA store"}
    assert sorted(e["id"] for e in began) == sorted(e["id"] for e in ended)
    assert all(e["ts"] > b["ts"] for b in began for e in ended if e["id"] == b["id"])


def refused() -> list[str]:
    """Return what the command says to words that are wrong."""
    texts = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "doubled.py").write_text(DOUBLED)
        (Path(folder) / "broken.py").write_text("import nothing_at_all")
        for words in (
            "nowhere.py::f",
            "broken.py::f",
            "doubled.py::cases",
            "doubled.py::doubled --gpu",
            "doubled.py",
            "--triton 3.x",
            "--triton 3.4",
        ):
            with contextlib.redirect_stderr(io.StringIO()) as out, contextlib.suppress(SystemExit):
                main([f"{folder}/{word}" if ".py" in word else word for word in words.split()])
            texts.append(out.getvalue())
    return texts


def test_the_command_says_in_one_line_what_is_wrong(printed_elsewhere):
    texts = printed_elsewhere("import json, test_check as t; print(json.dumps(t.refused()))")
    ends = "there is no file .*nowhere.py", "broken.py failed: .*nothing_at_all'", "no kernel cases; it has .*doubled"
    for text, end in zip(
        texts,
        [*ends, "what is --gpu.", "doubled.py: which .*", "--triton 3.x is no version.*", "the machine takes 3.5 .*"],
        strict=True,
    ):
        assert re.fullmatch(f"python -m kernels.machine: .*{end}\\n", text), text


CRASHES = """
import torch, triton, triton.language as tl

@triton.jit
def kernel(x, ASM: tl.constexpr):
    value = tl.inline_asm_elementwise(ASM, "=r,r", [tl.load(x)], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(x + 1, value)

def cases():
    for asm in ("mov.u32 $0, $7;", "nonsense $0, $1;", "mov.u32 $0, $1;"):
        yield (1,), dict(x=torch.zeros(2, dtype=torch.int32), ASM=asm)
"""


def crashed() -> str:
    """What the command says where the compiler ends its process, and raises; the third case is well, but that it reads
    what nobody wrote."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
        (Path(folder) / "crashes.py").write_text(CRASHES)
        main([f"{folder}/crashes.py::kernel", "--seeds", "1", "--empty", "x"])
    return out.getvalue()


def test_a_compilers_crash_is_one_line_and_other_cases_go_on(printed_elsewhere):
    text = printed_elsewhere("import json, test_check as t; print(json.dumps(t.crashed()))")
    assert re.search(r"case 1\n    kernel is not judged: the compiler of triton .* LLVM ERROR: Invalid .*\n", text)
    assert re.search(r"case 2\n    kernel is not judged: the compiler of triton .* error +: .*\nkernel  case 3", text)
    assert re.search(r"case 3 .*\n    uninitialised: x\[0\]", text)
    assert text.endswith("3 cases under 1 order of events, 3 bad\n")


def abandoned() -> list[list]:
    """What comes of orders in forked processes, of which one dies and one sleeps."""

    def run(trial: Trial, seed: int):
        if seed in (1, 2):
            os._exit(9) if seed == 1 else time.sleep(600)
        return Outcome("exact", "", seed, 0)

    with patch.object(Trial, "run", run), patch.object(processes, "IDLE_S", 0.2):
        outcomes = Trial._forked(Trial.__new__(Trial), range(4), 2)
        return [[outcome.kind, outcome.text] for outcome in outcomes]


def test_a_process_that_dies_or_sleeps_is_told_and_others_go_on(printed_elsewhere):
    first, dead, asleep, last = printed_elsewhere("import json, test_check as t; print(json.dumps(t.abandoned()))")
    assert first == last == ["exact", ""]
    assert dead == ["unknown", "the process that ran this order of events died with exit code 9; others went on"]
    assert asleep[1].endswith(" did nothing for 0.2 s; others went on")
