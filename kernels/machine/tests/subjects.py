"""Small kernels, each with a mistake of one kind or none, and what they are given: subjects of test_check.py."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import re
import tempfile
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.machine import check
from kernels.machine.command import load

tma_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
tma_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
PAGE = (Path(__file__).parents[1] / "README.md").read_text()
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


@triton.autotune([triton.Config(dict(B=n), num_warps=1) for n in (32, 64, 1 << 21)], key=[])
@triton.jit
def copy_by_two(x, out, n, B: tl.constexpr):
    """Right in its first configuration alone; the third does not compile."""
    for start in range(0, n, 2 * B - 32):
        i = start + tl.arange(0, B)
        tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


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
def forget(out, turns):
    """Triton's loop keeps `before` at 0."""
    now = 0
    before = now
    for _ in range(turns):
        before = now
        now += 1
    tl.store(out, before)


@triton.jit
def last_is_zero(x, out, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.load(x + at, mask=at < N * N - 1, other=0))


@triton.jit
def store_both(first, second, BY: tl.constexpr):
    """All programs store to two places: the same, or each something else."""
    tl.store(first, tl.program_id(0) // BY)
    tl.store(second, tl.program_id(0) // BY)


@triton.jit
def store_again(x, n, N: tl.constexpr):
    """Threads load and store by an index that wraps."""
    at = tl.arange(0, N) % n
    tl.store(x + n + at, tl.load(x + at))


@triton.jit
def store_back(x):
    tl.store(x, tl.load(x))


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
def meet(arrived, programs):
    """A barrier of the whole grid."""
    tl.atomic_add(arrived, 1)
    while tl.atomic_add(arrived, 0) < programs:
        pass


@gluon.jit
def misspelt(x):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.initialise(bar, count=1)


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


def judge(kernel, grid, args, expected=None, options=None, **more):
    return check(kernel, grid, args, expected=expected, **(options or {}), **more)


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


def of_place(n: int, block: int) -> tuple:
    return raise_in_place, (1,), (torch.zeros(n), n, block), dict(x=torch.ones(n))


def of_table(n: int, dtype: torch.dtype = torch.int64) -> tuple:
    """The kernel is given the addresses of its tensors in another."""
    KEPT[:] = torch.arange(n).float(), torch.zeros(n)
    table = torch.tensor([tensor.data_ptr() for tensor in KEPT], dtype=dtype)
    return add_by_table, (1,), (table, N), {"table[1]": KEPT[0] + 1}


def of_inner_addresses(by: int) -> tuple:
    """Addresses of elements, the first of them `by` behind the first of a tensor."""
    KEPT[:] = torch.arange(2 * N).float(), torch.zeros(2 * N)
    table = torch.tensor([KEPT[0].data_ptr() + 4 * by, KEPT[1].data_ptr() + 4 * N], dtype=torch.uint64)
    wanted = torch.cat([torch.zeros(N), torch.arange(by, by + N).float() + 1])
    return add_by_table, (1,), (table, N), {"table[1]": wanted}


class Like:
    """Part of a tensor: what Triton asks of it, and no more."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: torch.dtype):
        self.shape, self.dtype, self.data_ptr = shape, dtype, lambda: address


def of_like(*strides: int) -> tuple:
    """`strides`: those that x tells."""
    KEPT[:] = torch.arange(2 * N).float(), torch.zeros(N)
    x = Like(KEPT[0].data_ptr() + 4 * N, (N,), torch.float32)
    if strides:
        x.stride = lambda: strides
    out = Like(KEPT[1].data_ptr(), (1, N), torch.float32)
    return shift, (1,), (x, out, -2, N), dict(out=torch.arange(N - 2, 2 * N - 2).float()[None])


KEPT: list[torch.Tensor] = []


def of_labels() -> tuple:
    labels = torch.tensor([*range(-1, N - 2), -100])
    args = (labels, torch.zeros_like(labels), -3, -100, N)
    return skip, (1,), args, dict(out=torch.where(labels == -100, 0, labels * -3))


LINE = store_both.fn.__code__.co_firstlineno + 3


def of_both(by: int = 9, **options) -> tuple:
    first, second = torch.zeros(2, 1, dtype=torch.int32)
    return store_both, (3,), (first, second, by), None, options


def of_configurations(configs: int | str) -> tuple:
    x = torch.arange(128.0)
    return copy_by_two, (1,), (x, torch.zeros(128), 128), dict(out=x), dict(configs=configs)


def of_square() -> tuple:
    x = torch.ones(16, 16)
    return last_is_zero, (1,), (x, torch.zeros(16, 16), 16), dict(out=x)
