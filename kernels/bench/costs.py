"""Where the time and the memory of a training step go: looked at while nothing is timed.

Time comes from torch's profiler, by kinds of kernels, on a CPU by kinds of operators. Memory is what the allocator
counts on a GPU. No allocator counts on a CPU: memory there is what each operator returns, and a compiled model has no
operators to look at.
"""

import re
import time
import weakref
from collections.abc import Callable, Iterable
from statistics import median

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
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
    fields |= {"saved_bytes": None, "peak_bytes": None, "memory_timeline": {}}
    if trainer.device == "cuda" or not step.is_compiled:
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
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
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


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that operators allocated while it was entered and that still live, after each of them."""

    def __init__(self):
        super().__init__()
        self.live = 0
        self.points = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in {storage._cdata: storage for storage in _storages(result)}.values():
            if storage._cdata not in given:
                self._add(storage.nbytes())
                weakref.finalize(storage, self._add, -storage.nbytes())
        self.mark()
        return result

    def mark(self) -> int:
        """Add a point for this moment. Returns the number of points."""
        self.points.append(self.live)
        return len(self.points)

    def _add(self, size: int) -> None:
        self.live += size


def _storages(tree) -> list:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def memory(step) -> dict[str, list[int]]:
    """{phase: bytes beyond those at the start of a call}, after each operator, or on a GPU after each allocation and
    release."""
    if step.trainer.device == "cpu":
        with LiveBytes() as meter:
            ends = {phase: meter.mark() for phase in step.phases()}
        points = meter.points
    else:
        torch.cuda.memory._record_memory_history("all", context=None)
        try:
            ends = {phase: len(points := _allocated()) for phase in step.phases()}
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
