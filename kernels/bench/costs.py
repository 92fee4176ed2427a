"""Where the time and the memory of a training step go: looked at while nothing is timed.

Time comes from torch's profiler, by kinds of kernels, on a CPU by kinds of operators. Memory is what the allocator
counts on a GPU, and what the profiler counts on a CPU.
"""

import re
import time
from collections.abc import Callable, Iterable
from itertools import accumulate
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import tree_leaves

from roofline.worker import launches
from roofline.worker.machine import synchronize

KINDS = (
    ("loss", r"log_?softmax|nll_loss|cross_entropy"),
    ("attention", r"attention|fmha|flash|sdpa"),
    ("softmax", r"softmax"),
    ("optimizer", r"adam|multi_tensor"),
    ("matmul", r"gemm|gemv|nvjet|cutlass|xmma|splitk|aten::(addmm|b?mm|linear|matmul)|mkldnn"),
    ("elementwise", r"norm|gelu|gammabeta|triton_\w*(add|mul|sum|embedding)|compiled"),
    ("copies", r"memcpy|memset|copy|clone|fill|zero|catarray|aten::cat"),
    ("elementwise", r"elementwise|reduce|embedding|index|triton_|aten::(add|mul|sum|div|gather|scatter|arange)"),
    ("unattributed", r""),
)
"""(kind of a kernel or an operator, pattern of its name in lower case): the first that fits. The compiler names its
kernels for the operators that are fused in them."""

SPANS = r"Optimizer\.|## |Torch-Compiled"
"""Beginnings of the names of events that span several kernels."""

CALLS, POINTS = 5, 80
"""Calls that are looked at together; points of a memory timeline that are kept for each phase."""


def of_call(step) -> dict:
    """Fields for the entry of a `Step`: the fractions of its time, its bytes, and its `memory_timeline`, {phase: bytes
    beyond those at its start}."""
    trainer = step.trainer
    fields = {f"{kind}_share": share for kind, share in time_shares(step, trainer.device).items()}
    weights = list(trainer.model.parameters())
    fields["weight_bytes"] = _bytes(weights)
    fields["gradient_bytes"] = _bytes(weight.grad for weight in weights if weight.grad is not None)
    fields["optimizer_bytes"] = _bytes(tree_leaves([*trainer.optimizer.state.values()]))
    points = memory(step)
    fields["saved_bytes"] = points["forward"][-1]
    fields["peak_bytes"] = max(map(max, points.values()))
    fields["memory_timeline"] = {phase: _thin(of_phase) for phase, of_phase in points.items()}
    return fields


def time_shares(call: Callable[[], object], device: str) -> dict[str, float]:
    """The fraction of each kind of kernels in the time of a call, and `idle`, in which none ran: 1 in all.

    On a GPU kernels take as long under the profiler as without it, and calls are timed without it. On a CPU the calls
    that are timed are the profiled ones, and time outside of operators is idle.
    """

    seconds: list[float] = []

    def walls() -> list[float]:
        seconds.extend(_wall_s(call, device) for _ in range(CALLS))

    if device == "cuda":
        walls()
        calls_s = CALLS * median(seconds)
        kernels = [event for event in launches.traced(walls) if not re.match(SPANS, event.name)]
        spent = [(event.name, event.time_range.elapsed_us()) for event in kernels]
    else:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            walls()
        calls_s = sum(seconds)
        events = [event for event in profiler.key_averages() if re.search("aten::|mkldnn|Compiled", event.key)]
        spent = [(event.key, event.self_cpu_time_total) for event in events]
    shares = {kind: 0.0 for kind, _ in KINDS}
    for name, microseconds in spent:
        shares[kind_of(name)] += microseconds * 1e-6 / calls_s
    shares["idle"] = max(0.0, 1 - sum(shares.values()))
    return shares


def _wall_s(call: Callable[[], object], device: str) -> float:
    synchronize(device)
    began = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - began


def kind_of(name: str) -> str:
    return next(kind for kind, words in KINDS if re.search(words, name.lower()))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def profiled(call: Callable[[], Any]) -> tuple[Any, list[str], list[int]]:
    """What `call` returns; the names of the events of torch's profiler on a CPU while it ran; and the bytes after each
    of them, beyond those at its start."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    return result, [event.name() for event in events], list(accumulate(event.nbytes() for event in events))


def memory(step) -> dict[str, list[int]]:
    """{phase: bytes beyond those at the start of a call}, after each event of the profiler, or on a GPU after each
    allocation and release."""
    if step.trainer.device == "cpu":

        def marked() -> list[str]:
            phases = []
            for phase in step.phases():
                with record_function(phase):
                    phases.append(phase)
            return phases

        phases, events, points = profiled(marked)
        ends = {phase: events.index(phase) for phase in phases}
    else:
        ends = {}
        torch.cuda.memory._record_memory_history("all", context=None)
        try:
            for phase in step.phases():
                points = _allocated()
                ends[phase] = len(points)
        finally:
            torch.cuda.memory._record_memory_history(None)
    begin = ends.pop("start")
    base = points[begin - 1] if begin else 0
    timeline = {}
    for phase, end in ends.items():
        timeline[phase] = [point - base for point in points[begin:end]]
        begin = end
    return timeline


def _allocated() -> list[int]:
    """The bytes after each allocation and each release since the history began."""
    points = []
    live = 0
    for event in torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]:
        live += {"alloc": 1, "free_completed": -1}.get(event["action"], 0) * event["size"]
        points.append(live)
    return points


def _thin(points: list[int]) -> list[int]:
    """The largest point of each of at most `POINTS` parts."""
    step = -(-len(points) // POINTS)
    return [max(points[start : start + step]) for start in range(0, len(points), step)]
