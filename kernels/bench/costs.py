"""Where the memory of a training step goes, looked at while nothing is timed: what the allocator counts on a GPU, and
what the profiler counts on a CPU."""

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import tree_leaves

POINTS = 80
"""Points of a memory timeline that are kept for each phase."""


def of_call(step) -> dict:
    """Fields for the entry of a `Step`: its bytes, and its `memory_timeline`, {phase: bytes beyond those at its
    start}."""
    step()  # a first one allocates what the optimizer keeps
    trainer = step.trainer
    weights = list(trainer.model.parameters())
    fields: dict[str, Any] = {"weight_bytes": _bytes(weights)}
    fields["gradient_bytes"] = _bytes(weight.grad for weight in weights if weight.grad is not None)
    fields["optimizer_bytes"] = _bytes(tree_leaves([*trainer.optimizer.state.values()]))
    points = memory(step)
    fields["saved_bytes"] = points["forward"][-1]
    fields["peak_bytes"] = max(map(max, points.values()))
    fields["memory_timeline"] = {phase: _thin(of_phase) for phase, of_phase in points.items()}
    return fields


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
