"""Where the time and the memory of a training step go: looked at while nothing is timed.

Time is torch's profiler's, by kinds of kernels, on a CPU of operators. Memory is what the allocator counts on a GPU. On
a CPU none counts: there it is what each operator returns, and a compiled model has no operators to look at.
"""

import re
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from statistics import median

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from roofline.measure import launches
from roofline.measure.share import synchronize

KINDS = (
    ("loss", r"log_?softmax|nll_loss|cross_entropy"),
    ("attention", r"attention|fmha|flash|sdpa"),
    ("softmax", r"softmax"),
    ("optimizer", r"adam|multi_tensor"),
    ("matmul", r"gemm|gemv|nvjet|cutlass|xmma|splitk|aten::(addmm|b?mm|linear|matmul)|mkldnn"),
    ("elementwise", r"norm|gelu|gammabeta|triton_\w*(add|mul|sum|embedding)|compiled"),
    ("copies", r"memcpy|memset|copy|clone|fill|zero|catarray|aten::cat"),
    ("elementwise", r"elementwise|reduce|embedding|index|triton_|aten::(add|mul|sum|div|gather|scatter|arange)"),
)
"""Kind of a kernel or an operator, and what its name holds, in lower case; the first that fits. The compiler names its
kernels for the operators that are fused in them."""

NO_KERNEL = r"optimizer\.|## |torch-compiled|profilerstep"
"""How the profiler's spans over several kernels begin."""

CALLS, POINTS = 5, 80
"""Calls that are looked at together; points of a memory timeline that are kept of each phase."""


def of_call(step) -> dict:
    """Return fields of the entry of a `Step`: its shares of time, and {phase: bytes from point to point}."""
    shares = {f"{kind}_share": share for kind, share in time_shares(step, step.trainer.device).items()}
    return shares | {"memory_timeline": memory_timeline(step)}


def time_shares(call: Callable[[], object], device: str) -> dict[str, float]:
    """Return the share of each kind of kernels in the time of a call, which they sum to, with two more: `idle`, in
    which none ran, and `unattributed`, of kernels without a kind.

    On a GPU kernels take as long under the profiler as without it, and calls are timed without. On a CPU they are the
    profiled ones, and what lies outside of operators is idle.
    """
    is_gpu = device == "cuda"
    walls = [_wall_s(call, device) for _ in range(CALLS)]
    for _ in range(launches.ATTEMPTS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with profile(activities=[ProfilerActivity.CUDA if is_gpu else ProfilerActivity.CPU]) as profiler:
                profiled_s = sum(_wall_s(call, device) for _ in range(CALLS))
        if is_gpu:
            events = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
            spent = [(e.name, e.time_range.elapsed_us()) for e in events if not re.match(NO_KERNEL, e.name.lower())]
        else:
            spent = [(event.key, event.self_cpu_time_total) for event in profiler.key_averages()]
        if spent:
            break
    else:
        raise RuntimeError("the profiler saw no kernel")
    calls_s = CALLS * median(walls) if is_gpu else profiled_s
    shares = dict.fromkeys([*dict(KINDS), "unattributed"], 0.0)
    for name, microseconds in spent:
        if kind := kind_of(name, is_gpu):
            shares[kind] += microseconds * 1e-6 / calls_s
    return shares | {"idle": max(0.0, 1 - sum(shares.values()))}


def _wall_s(call: Callable[[], object], device: str) -> float:
    synchronize(device)
    began = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - began


def kind_of(name: str, is_gpu: bool) -> str | None:
    """Return the kind of a kernel or an operator; None of the bookkeeping of a CPU's operators."""
    kind = next((kind for kind, words in KINDS if re.search(words, name.lower())), None)
    return kind or ("unattributed" if is_gpu or name.startswith("aten::") else None)


def memory(step) -> dict[str, int | None]:
    """Return the bytes of weights, gradients and optimizer, those that the forward pass leaves for the backward one,
    and the most that lived at a time beside weights and optimizer; of a compiled model on a CPU the last two are None.
    """
    weights, states = list(step.trainer.model.parameters()), step.trainer.optimizer.state.values()
    meter = meter_of(step)
    with meter or nullcontext():
        at = {phase: meter and meter.now() for phase in step.phases()}
    return {
        "weight_bytes": _bytes(weights),
        "gradient_bytes": _bytes(weight.grad for weight in weights if weight.grad is not None),
        "optimizer_bytes": _bytes(value for state in states for value in state.values()),
        "saved_bytes": at["forward"] - at["start"] if meter else None,
        "peak_bytes": meter.peak() - at["start"] if meter else None,
    }


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def meter_of(step):
    """Return what counts bytes while it is entered; None where nothing can."""
    if step.trainer.device == "cuda":
        return AllocatedBytes()
    return None if step.is_compiled else LiveBytes()


class AllocatedBytes:
    """Bytes that torch's allocator has given out on the GPU."""

    def __enter__(self):
        torch.cuda.reset_peak_memory_stats()
        return self

    def __exit__(self, *error) -> None:
        pass

    def now(self) -> int:
        return torch.cuda.memory_allocated()

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated()


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that operators allocated while it was entered and that still live."""

    def __init__(self):
        super().__init__()
        self.live, self.points = 0, [0]

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        fresh = {storage._cdata: storage for storage in _storages(result) if storage._cdata not in given}
        for storage in fresh.values():
            self._add(storage.nbytes())
            weakref.finalize(storage, self._add, -storage.nbytes())
        self.points.append(self.live)
        return result

    def _add(self, size: int) -> None:
        self.live += size

    def now(self) -> int:
        return self.live

    def peak(self) -> int:
        return max(self.points)


def _storages(tree) -> list:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def memory_timeline(step) -> dict[str, list[int]]:
    """Return {phase: bytes beyond those at the start of the call}, in the order of allocations, or of operators on a
    CPU, thinned so that peaks stay; {} where nothing counts them."""
    if not (meter := meter_of(step)):
        return {}
    if step.trainer.device == "cuda":
        torch.cuda.memory._record_memory_history("all", context=None)
        try:
            ends = {phase: len(points := _allocated()) for phase in step.phases()}
        finally:
            torch.cuda.memory._record_memory_history(None)
    else:
        with meter:
            ends = {phase: len(meter.points) for phase in step.phases()}
        points = meter.points
    phases, base = {}, points[ends["start"] - 1] if ends["start"] else 0
    for before, (phase, end) in zip([0, *ends.values()], ends.items(), strict=False):
        phases[phase] = [point - base for point in _thin(points[before:end])]
    del phases["start"]
    return phases


def _allocated() -> list[int]:
    """Return the bytes after each allocation and each release since the history began."""
    points, live = [], 0
    for event in torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]:
        live += {"alloc": 1, "free_completed": -1}.get(event["action"], 0) * event["size"]
        points.append(live)
    return points


def _thin(points: list[int]) -> list[int]:
    """Return the most of each of `POINTS` parts."""
    step = -(-len(points) // POINTS)
    return [max(points[start : start + step]) for start in range(0, len(points), step)] if points else []
