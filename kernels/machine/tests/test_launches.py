"""Whole functions on the machine: what they compute, what is said of each launch, and that Triton is left as it was."""

# ruff: noqa: N803 (kernel arguments: compile-time constants in capitals, as Triton code has them)

import threading
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from kernels.machine import launches
from kernels.machine.intercept import LIBRARIES
from kernels.machine.pretend import UncoveredError

HOOKED = []


def complete(configs, arguments, **options):
    """Triton's first configuration lacks STAGES; the second is too large for any GPU."""
    huge = triton.Config(dict(B=1 << 21, STAGES=1), num_warps=4)
    return [huge, *(triton.Config(config.kwargs | dict(STAGES=2), pre_hook=HOOKED.append) for config in configs)]


@triton.autotune(
    [triton.Config(dict(B=64)), triton.Config(dict(B=128))],
    key=["n"],
    prune_configs_by=dict(early_config_prune=complete),
    reset_to_zero=["total"],
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["B"] == 0})
@triton.jit
def add_up(x, total, n, STAGES: tl.constexpr, EVEN: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(total, tl.sum(tl.load(x + i) if EVEN else tl.load(x + i, mask=i < n, other=0)))


@gluon.jit
def double(x, out, N: gl.constexpr):
    i = gl.arange(0, N, gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(out + i, 2 * gl.load(x + i))


@triton.jit
def turn(flag, out, N: tl.constexpr):
    """Waits until the flag is 0, and leaves it at 1."""
    while tl.atomic_add(flag, 0) != 0:
        pass
    tl.store(out + tl.arange(0, N), 1.0)
    tl.atomic_xchg(flag, 1)


@triton.jit
def add_one(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(out + i, tl.load(x + i) + 1)


@triton.jit
def add_early(x, y, out, N: tl.constexpr, LETS_FIRST: tl.constexpr, WAITS: tl.constexpr):
    """Reads y before it waits, and x behind it."""
    i = tl.arange(0, N)
    if LETS_FIRST:
        tl.extra.cuda.gdc_launch_dependents()
    early = tl.load(y + i)
    if WAITS:
        tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(out + i, early + tl.load(x + i))


@triton.jit
def write_all(out, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), tl.program_id(0))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        double[(1,)](x, out, 128)
        return out

    @staticmethod
    def backward(ctx, grad):
        return Double.forward(ctx, grad.contiguous())


def outcome(record) -> list:
    return [[launch.kernel, launch.line, launch.verdict.kind] for launch in record.verdicts]


def of_everything() -> dict:
    """A function with an autotuned kernel, one of Gluon, and a backward pass."""
    HOOKED.clear()
    with launches(seeds=2) as record:
        x = torch.arange(128.0, device="cuda", requires_grad=True)
        total = torch.full((1,), 7, device="cuda", dtype=torch.int32)
        for _ in range(2):  # the first time, Triton tunes, and sets the total to zero
            add_up[lambda args: (triton.cdiv(args["n"], args["B"]),)](x.detach().int(), total, 100)
        doubles = Double.apply(x)
        doubles.sum().backward()
        out = torch.empty_like(doubles)
        made = double.warmup(doubles, out, 128, num_warps=4, grid=(1,))
        made._init_handles()
        made[(1, 1, 1)](doubles.detach(), out, 128)
        torch.accelerator.synchronize()
        asked = [made.n_regs > 4, made.n_spills, torch.accelerator.current_device_index(), torch.equal(out, 4 * x)]
        is_right = torch.equal(doubles, 2 * x) and torch.equal(x.grad, 2 * torch.ones_like(x))
    return dict(
        outcome=outcome(record), total=total.item(), right=is_right, hooks=len(HOOKED), left=len(add_up.cache),
        asked=asked, code=record.exit_code, says=str(record), files=[launch.file for launch in record.verdicts],
    )  # fmt: skip


def of_faults() -> dict:
    """What a block says that has a race, and a semaphore which is left for the next launch."""
    with launches(seeds=1, budget=20_000, raises=False) as record:
        out, flag = torch.zeros(32, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
        write_all[(2,)](out, 32, num_warps=1)
        for _ in range(2):
            turn[(1,)](flag, out, 32, num_warps=1)
    with launches(seeds=1, raises=False, empty="flag") as emptied:
        flag = torch.zeros(1, dtype=torch.int32, device=triton.runtime.driver.active.get_current_device())
        turn[(1,)](flag, out, 32, num_warps=1)
    return dict(outcome=outcome(record) + outcome(emptied), code=record.exit_code, says=str(record))


def state() -> list:
    names = ("is_available", "Event", "_lazy_init", "device")
    patched = [getattr(torch.cuda, name) for name in names] + [torch.Generator, triton.runtime.driver._active]
    return [*patched, JITFunction.run, Autotuner.run, Autotuner._bench, triton.knobs.compilation.always_compile]


def of_rows() -> list:
    """What is said of the last launch of each row: by programmatic dependent launch it may overlap those before it."""
    said = []

    def row(*launched, made=None, between=None, pdl=True, waits=True, lets_first=False) -> None:
        """`launched`: what the second launch, and perhaps a third, read in front of their wait and behind it."""
        with launches(seeds=3, raises=False) as record:
            x, weights = torch.ones(32, device="cuda"), torch.ones(32, device="cuda")
            names = dict(x=x, weights=weights, first=torch.empty_like(x), second=torch.empty_like(x))
            names["torch"] = made(x) if made else None
            outs = [names["second"], torch.empty_like(x)]
            if not made:
                add_one[(1,)](x, names["first"], 32, num_warps=1)
            if between:
                between(x)
            for (early, late), out in zip(launched, outs, strict=False):
                flags = dict(LETS_FIRST=lets_first, WAITS=waits)
                add_early[(1,)](names[late], names[early], out, 32, **flags, num_warps=1, launch_pdl=pdl)
        said.append([record.verdicts[-1].verdict.kind, str(record)])

    row(("first", "weights"))  # what the launch before it writes
    row(("weights", "first"))
    row(("weights", "first"), waits=False)
    row(("first", "weights"), pdl=False)
    row(("first", "weights"), between=torch.relu)  # that is the launch before it then
    row(("first", "weights"), between=lambda x: torch.cuda.synchronize())
    row(("first", "weights"), between=lambda x: x.view(4, 8).shape)
    row(("weights", "first"), ("weights", "second"))
    row(("weights", "first"), ("first", "second"))  # the second has waited before the third begins
    row(("weights", "first"), ("first", "second"), lets_first=True)  # it has not
    row(("torch", "weights"), made=torch.zeros_like)
    row(("weights", "torch"), made=torch.zeros_like)
    row(("torch", "weights"), made=lambda x: torch.zeros(32).cuda())  # that is a copy, which does not overlap
    return said


def of_leaving() -> dict:
    """Blocks that are nested, that end in an exception, and of two threads that overlap."""
    before, said, kinds = state(), [], {}
    for problem in ("exception", "race", "host", "graph"):
        try:
            with launches(seeds=1), launches(seeds=1):
                if problem == "exception":
                    raise KeyError("mine")
                if problem == "graph":
                    torch.cuda.CUDAGraph()
                write_all[(2,)](torch.zeros(32, device="cuda" if problem == "race" else "cpu"), 32, num_warps=1)
        except (KeyError, AssertionError, ValueError, UncoveredError) as error:
            said.append(f"{type(error).__name__}: {error}")
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        with launches(seeds=1, raises=False) as record:
            inside.set()
            done.wait(60)
            write_all[(1,)](torch.zeros(32, device="cuda"), 32, num_warps=1)
        kinds["other"] = outcome(record)

    with launches(seeds=1) as record:
        (thread := threading.Thread(target=other)).start()
        inside.wait(60)
    done.set()
    thread.join()
    kinds["outer"] = outcome(record)
    return dict(said=said, kinds=kinds, restored=[a is b for a, b in zip(before, state(), strict=True)])


def of_inductor() -> dict:
    """A function that torch compiles, twice in blocks, under a build of torch's with CUDA: whose driver is asked."""
    x, sizes = torch.randn(20, 40, requires_grad=True), []
    function = torch.compile(lambda x: torch.nn.functional.gelu(x).sum(-1))
    with_cuda = dict(_accelerator_getAccelerator=lambda: torch.device("cuda"))
    with_cuda["_accelerator_getDeviceIndex"] = lambda: torch.cuda._lazy_init()
    for _ in range(2):
        with patch.multiple(torch._C, **with_cuda), launches(seeds=1) as record:
            result = function(x)
            result.sum().backward()
        sizes.append(len(record.verdicts))
    close = torch.allclose(result, torch.nn.functional.gelu(x).sum(-1), atol=1e-5)
    return dict(outcome=outcome(record), sizes=sizes, right=close)


def test_a_function_goes_on_with_right_results(elsewhere):
    of = elsewhere(of_everything)
    kernels = ["add_up", "add_up", "double", "double", "double"]
    assert [(kernel, kind) for kernel, _, kind in of["outcome"]] == [(kernel, "exact") for kernel in kernels]
    assert of["total"] == 2 * sum(range(100))
    assert of["right"]
    assert of["asked"] == [True, 0, 0, True]
    assert of["hooks"] == 2
    assert of["left"] == of["code"] == 0
    assert {file.rpartition("/")[2] for file in of["files"]} == {"test_launches.py"}
    assert of["says"].endswith(", sm_90a: 5 launches, 2 kernels: 5 exact")


def test_each_launch_has_a_verdict_and_finds_what_the_one_before_it_left(elsewhere):
    of = elsewhere(of_faults)
    assert [(kernel, kind) for kernel, _, kind in of["outcome"]] == [
        ("write_all", "race"),
        ("turn", "exact"),
        ("turn", "hang"),
        ("turn", "uninitialised"),
    ]
    assert of["code"] == 1
    line = Path(__file__).read_text().splitlines()[of["outcome"][0][1] - 1]
    assert line.strip().startswith("write_all[(2,)]")
    assert "flag[0], which holds 1" in of["says"]


def test_a_package_whose_name_begins_like_a_librarys_is_the_users():
    packages = Path(torch.__file__).parents[1]
    assert str(packages / "torch" / "nn" / "x.py").startswith(LIBRARIES)
    assert not str(packages / "torchao" / "x.py").startswith(LIBRARIES)


def test_a_launch_may_overlap_those_before_it_until_it_waits(elsewhere):
    said = elsewhere(of_rows)
    kinds = [kind for kind, _ in said]
    assert kinds == [
        "race", "exact", "race", "exact", "exact", "exact", "race", "exact", "exact", "race", "race", "exact", "exact",
    ]  # fmt: skip
    for number in (0, 2, 6, 9):
        assert "tl.store(out + i, tl.load(x + i) + 1)" in said[number][1]
    assert "writes  a kernel of torch's" in said[10][1]


def test_blocks_leave_triton_and_torch_as_they_were(elsewhere):
    of = elsewhere(of_leaving)
    exception, race, host, graph = of["said"]
    assert exception == "KeyError: 'mine'"
    assert race.startswith("LaunchesError: write_all  test_launches.py:")
    assert "write_all is given out, which is on the host: out.cuda() is on the GPU" in host
    assert graph.startswith("UncoveredError: torch.cuda.CUDAGraph")
    assert [kind for *_, kind in of["kinds"]["other"]] == ["exact"]
    assert of["kinds"]["outer"] == []
    assert all(of["restored"])


@pytest.mark.slow
def test_inductor_launches_too(elsewhere):
    of = elsewhere(of_inductor)
    assert of["right"]
    assert of["sizes"] == [2, 2]
    assert {kind for *_, kind in of["outcome"]} == {"exact"}
