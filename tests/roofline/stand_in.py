"""A stand-in for CUDA, with which the benchmark's GPU run goes from its first shape to its report without a GPU.

It is no simulator of a GPU. A stream is a queue that is run once the host waits for it or looks at a result; kernels
run in Triton's interpreter; time is made up, by a chip some fifty thousand times slower than its namesake. Nothing that
comes of it is a measurement, and its chip says so by its name. `install` puts it in the place of what is named in
`CALLS`, `KERNELS` and `OTHERS`, and of nothing else.
"""

import ctypes
import math
import os
import random
import signal
import sys
import time
import types
from collections import deque
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

NAMED, FAULT = "REHEARSAL", "REHEARSAL_FAULT"
"""Environment variables: one of `CARDS`; what strikes, as in `kill decode_kernel FILE`: at the first timed launch of
that kernel the process is killed, or (`lose`) the device is lost, unless FILE is there."""

CARDS = {"H100": (9, 0), "A100": (8, 0), "B200": (10, 0)}
"""Their compute capability."""

CALLS = {
    "torch.cuda": "device, streams, events, properties, memory, synchronize, _sleep, the switch of profilers",
    "torch.Tensor": "device and is_cuda of tensors that were made on `cuda`, which lie in the host's memory",
    "torch's functions": "those that write into a tensor are queued; of tensors beyond LARGE only their time is taken",
    "torch.profiler.profile": "the names of what was launched",
    "Triton's launcher": "the interpreter's, which `kernels` take for the compiler's",
    "time.perf_counter": "the host's time: a microsecond a look, and what it waits for the device",
    "pynvml": "driver, handle, clock, power, temperature, mode, processes, energy",
}
KERNELS = {
    "gate_kernel": "waits for the host, which comes later here: the stream's time goes on by a gap",
    "clock_kernel": "reads two timers by PTX: a steady clock",
    "stamp_kernel": "reads a timer by PTX: the stream's time",
    "copy_kernel": "keeps its pace by PTX, and takes a second in the interpreter: rows are copied when they are due",
    "wait_kernel": "reads a timer by PTX: its stream goes on when the flag is raised",
    "flagged_kernel": "interpreted without its timer and its fence, which are PTX",
    "raise_kernel": "reads a timer by PTX: counters grow, and the copier that waits for them goes on",
    "pieces_kernel": "interpreted without its timer, fence and wait for stores, which are PTX; pieces go evenly",
    "add_kernel": "interpreted; its time is that of its bytes",
    "warpgroup_kernel": "Gluon has no interpreter: torch's matmul",
}
OTHERS = {
    "cuBLAS": "torch's matmul on the CPU, in fp32",
    "tl.dot": "in fp32 by torch, which rounds no more: NumPy's of fp16 takes fifty times as long",
    "_patch_lang": "the interpreter prepares `triton.language` at each call of each function: once, half of its time",
    "sanitize_overflow": "the interpreter looks for overflow in each sum of integers, a third of its time: off",
    "leave_shared_memory": "a call of the driver by ctypes",
    "telemetry.IDLE_S": "a wait for nothing, with the host's own time: none",
}
"""What does not run as on a GPU, and why. Nor does a launch behind a closed gate, as each timed one is: that takes its
time alone. The same was run when it was checked, and is again afterwards."""

SMS, CACHE_BYTES, MEMORY_BYTES = 4, 2**16, 2**34
FLOPS, BYTES_PER_S, LAUNCH_S, GAP_S, SM_HZ = 2e10, 2e9, 3e-6, 1e-4, 1.755e9
SPEED = {"cuBLAS": 1.0, "persistent_kernel": 0.97, "warpgroup_kernel": 1.03, "tiled_kernel": 0.8}
LARGE = 2**22
"""Elements of a tensor that is never filled, and never computed with: the probes of the ceilings have such."""
LOOKS = 1000
"""At a flag, in the interpreter, before it counts as lost."""

ABOUT = {
    *("__get__", "dim", "size", "stride", "numel", "data_ptr", "element_size", "untyped_storage", "storage_offset"),
    *("is_contiguous", "__len__", "__hash__", "view", "chunk", "split", "new_empty", "empty_like"),
}
"""Functions of a tensor's place and shape alone: they wait for nothing."""


class Stream:
    """Work in its order. At `at` all of it will be done."""

    def __init__(self, priority=0):
        self.at, self.queue, self.cuda_stream = 0.0, deque(), len(DEVICE.streams)
        DEVICE.streams.append(self)

    def wait_stream(self, other):
        other.flush()
        self.at = max(self.at, other.at)

    def flush(self):
        with host_alone():
            while self.queue:
                self.queue.popleft()()


class Event:
    def __init__(self, enable_timing=False):
        self.at = math.inf

    def record(self):
        self.at = max(DEVICE.stream.at, DEVICE.host)

    def query(self):
        return self.at <= DEVICE.host

    def elapsed_time(self, stop):
        return (stop.at - self.at) * 1e3


class Device:
    """The card, its streams, and the host's time. A launch costs the host none, so that it is never late."""

    def __init__(self):
        self.host, self.streams, self.launched, self.noise = 1.0, [], [], random.Random(0)
        self.is_open = lambda: True
        self.raised_at = {}
        """When a flag was raised last, by its address."""
        self.copying = {}
        """By the address of the counters that it waits for."""
        self.fault = os.environ.get(FAULT, "").split()
        self.is_lost = False

    def strike(self):
        if os.path.exists(self.fault[2]):
            return
        open(self.fault[2], "w").close()
        if self.fault[0] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        self.is_lost = True

    def answer(self):
        if self.is_lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def take(self, seconds):
        """The current stream is busy for so long; returns from when on."""
        self.answer()
        began = max(self.stream.at, self.host)
        self.stream.at = began + seconds
        return began

    def queue(self, work):
        """Have the current stream do `work`, unless it is timed."""
        if self.is_open():
            self.stream.queue.append(work)

    def enqueue(self, name, seconds, work):
        self.take(LAUNCH_S + seconds / SPEED.get(name, 0.9) * (1 + abs(self.noise.gauss(0, 0.003))))
        self.launched.append(name)
        self.queue(work)


DEVICE = Device()


@contextmanager
def host_alone():
    """What is inside sees the host's tensors."""
    import torch

    with torch._C.DisableTorchFunction():
        yield


@contextmanager
def on(stream):
    before, DEVICE.stream = DEVICE.stream, stream
    try:
        yield
    finally:
        DEVICE.stream = before


def synchronize(device=None):
    DEVICE.answer()
    for stream in DEVICE.streams:
        stream.flush()
        DEVICE.host = max(DEVICE.host, stream.at)


def perf_counter():
    DEVICE.host += 1e-6
    return DEVICE.host


class Profile:
    """torch's profiler: what was launched inside."""

    def __init__(self, activities):
        self.since = len(DEVICE.launched)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        import torch

        kind, named = torch.autograd.DeviceType.CUDA, enumerate(DEVICE.launched[self.since :])
        about = [(name, types.SimpleNamespace(start=index)) for index, name in named]
        self.seen = [types.SimpleNamespace(name=name, device_type=kind, time_range=when) for name, when in about]

    def events(self):
        return self.seen


def tensors_of(*values):
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_of(*value)


def values_of(tensor):
    """Those in the host's memory, to be read and written at once."""
    with host_alone():
        return tensor.numpy()


def matmul_s(m, n, k):
    return max(2 * m * n * k / FLOPS, 2 * (m * k + n * k + m * n) / BYTES_PER_S)


def multiplied(name, factors, out):
    """Return torch.mm or torch.addmm as cuBLAS rounds it, once."""
    import torch

    product = getattr(torch, name)(*(tensor.float() for tensor in factors))
    return product.to(factors[-1].dtype) if out is None else out.copy_(product)


def make_place():
    import torch
    from torch.overrides import TorchFunctionMode

    cuda = torch.device("cuda", 0)

    class Place(TorchFunctionMode):
        """Tensors of `cuda` are tensors of the host with a mark."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs, name = dict(kwargs or {}), func.__name__
            marked = any(getattr(tensor, "is_marked", False) for tensor in tensors_of(args, *kwargs.values()))
            if name == "__get__" and (attribute := func.__self__.__name__) in ("device", "is_cuda"):
                return (cuda if attribute == "device" else True) if marked else func(*args)
            if name == "pin_memory":
                return args[0]
            if name in ("to", "cpu"):
                return self.moved(args[0], ["cpu"] if name == "cpu" else [*args[1:], *kwargs.values()], marked)
            if "device" in kwargs:
                marked = torch.device(kwargs.pop("device") or "cpu").type == "cuda"
            if not marked:
                return func(*args, **kwargs)
            DEVICE.answer()
            return self.mark(self.run(func, name, args, kwargs))

        def mark(self, result):
            for tensor in tensors_of(result):
                tensor.is_marked = True
            return result

        def moved(self, tensor, wanted, marked):
            place = next((argument for argument in wanted if isinstance(argument, (str, torch.device))), None)
            dtype = next((argument for argument in wanted if isinstance(argument, torch.dtype)), tensor.dtype)
            there = torch.device(place).type == "cuda" if place else marked
            if (there, dtype) == (marked, tensor.dtype):
                return tensor
            DEVICE.stream.flush()
            large = tensor.numel() > LARGE
            copied = torch.empty(tensor.shape, dtype=dtype) if large else tensor.to(dtype, copy=True)
            return self.mark(copied) if there else copied

        def run(self, func, name, args, kwargs):
            inputs, out = list(tensors_of(args)), kwargs.get("out")
            if not inputs:
                size = math.prod(args[0] if isinstance(args[0], tuple) else args) if name == "randn" else 0
                return torch.empty(*args) if size > LARGE else func(*args, **kwargs)
            if name in ABOUT or (name == "__getitem__" and not list(tensors_of(args[1]))):
                return func(*args, **kwargs)
            is_matmul, large = name in ("mm", "addmm"), any(tensor.numel() > LARGE for tensor in inputs)
            if is_matmul:
                named, seconds = "cuBLAS", matmul_s(len(inputs[-2]), inputs[-1].shape[1], len(inputs[-1]))
            else:
                named, seconds = name, sum(tensor.nbytes for tensor in inputs) / BYTES_PER_S
            work = partial(multiplied, name, args, out) if is_matmul else partial(func, *args, **kwargs)
            if out is not None or name == "__setitem__" or name.rstrip("_") + "_" == name:
                DEVICE.enqueue(named, seconds, int if large else work)
                return args[0] if out is None else out
            if large:
                DEVICE.enqueue(named, seconds, int)
                shape = func(*(value.to("meta") if isinstance(value, torch.Tensor) else value for value in args)).shape
                return torch.empty(shape, dtype=inputs[0].dtype)
            DEVICE.stream.flush()
            return work()

    return Place()


def launch(real, name, args):
    """Launch the kernel `name`, which `real(**args)` interprets. Returns what stands for the compiled one."""
    if name in DEVICE.fault and not DEVICE.is_open():
        DEVICE.strike()
    if name in KERNELS:
        globals()[f"launch_{name}"](real, args)
    else:
        DEVICE.enqueue(name, seconds_of(args), partial(real, **args))
    return types.SimpleNamespace(function=name)


def seconds_of(args):
    x, w = (args[f"{name}_desc"].base if f"{name}_desc" in args else args[f"{name}_ptr"] for name in "xw")
    return matmul_s(len(x), *w.shape)


def launch_gate_kernel(real, args):
    flag = values_of(args["flag_ptr"])
    DEVICE.is_open = lambda: flag[0] >= args["wanted"]
    DEVICE.take(GAP_S)


def launch_clock_kernel(real, args):
    values_of(args["readings_ptr"])[args["slot"]] = args["span_ns"] * SM_HZ * 1e-9, args["span_ns"]
    DEVICE.take(args["span_ns"] * 1e-9)


def launch_stamp_kernel(real, args):
    values_of(args["time_ptr"])[0] = DEVICE.take(1e-6) * 1e9


def launch_copy_kernel(real, args):
    began = DEVICE.take(LAUNCH_S)
    table, started = values_of(args["transfers_ptr"]), args["started_ptr"]
    DEVICE.raised_at[started.data_ptr()] = began
    for flag in (args["flags_ptr"], started):
        values_of(flag)[:] += args["arrivals_ptr"].shape[1]
    copying = Copying(args, table, DEVICE.stream, values_of(args["t0_ptr"])[0] * 1e-9)
    if args.get("counters_ptr") is None:
        for index in range(len(table)):
            copying.bring(index, 0.0)
        DEVICE.queue(partial(copy, table.tolist()))
    else:  # when each may go is not known yet
        DEVICE.copying[args["counters_ptr"].data_ptr()] = copying


@dataclass
class Copying:
    """A launch of the copier, on its stream; the wire has moved all before at `free_s`."""

    args: dict
    table: Any
    stream: Any
    free_s: float

    def bring(self, index, ready_s):
        """Transfer `index` may go at `ready_s`."""
        words = int(self.table[index, 2] * self.table[index, 3])
        self.free_s = max(self.free_s, ready_s) + words * self.args["ns_per_word"] * 1e-9
        values_of(self.args["arrivals_ptr"])[index] = round(self.free_s * 1e9)
        DEVICE.raised_at[self.args["flags_ptr"].data_ptr() + 4 * index] = self.free_s
        self.stream.at = max(self.stream.at, self.free_s)


def raise_counters(args, first, end, ready_s):
    """Of the copier that waits for them; `ready_s(index)` is when. What it copies is there once this stream has come to
    here."""
    before = args["counters_ptr"].storage_offset()  # those are of others
    copying = DEVICE.copying.get(args["counters_ptr"].untyped_storage().data_ptr())
    if not copying:  # where an arm is warmed, there is none
        return
    for index in range(first, end):
        values_of(args["times_ptr"])[index] = round(ready_s(index) * 1e9)
        copying.bring(before + index, ready_s(index))
    DEVICE.queue(partial(copy, copying.table[before + first : before + end].tolist()))


def launch_raise_kernel(real, args):
    at = DEVICE.take(LAUNCH_S)
    if args["by"]:
        raise_counters(args, args["first"], args["end"], lambda index: at)
    values_of(args["times_ptr"])[args["first"] : args["end"]] = round(at * 1e9)
    values_of(args["counters_ptr"])[args["first"] : args["end"]] += args["by"]


def launch_pieces_kernel(real, args):
    if args["counters_ptr"] is None:
        count = args["FLAGGED"]
        return interpret_after_flags(real, args, args["flags_ptr"][: count - 1], count)
    seconds = seconds_of(args) / 0.95
    began = DEVICE.take(LAUNCH_S + seconds)
    DEVICE.queue(partial(real, **args))
    raise_counters(args, 0, args["counted"], lambda index: began + seconds * (index + 1) / args["pieces"])


def launch_add_kernel(real, args):
    nbytes = args["arrived_ptr"].nbytes + args["out_ptr"].nbytes
    DEVICE.enqueue("add_kernel", nbytes / BYTES_PER_S, partial(real, **args))


def copy(table):
    """The transfers of a table as `collectives.copier.copy_kernel` has it."""
    for source, target, rows, words, source_row, target_row in table:
        for row in range(rows):
            ctypes.memmove(target + 4 * row * target_row, source + 4 * row * source_row, 4 * words)


def launch_wait_kernel(real, args):
    began = DEVICE.take(LAUNCH_S)
    DEVICE.stream.at = max(DEVICE.stream.at, DEVICE.raised_at[args["flag_ptr"].data_ptr()])
    values_of(args["times_ptr"])[:2] = began * 1e9, DEVICE.stream.at * 1e9
    after_others(lambda: None)


def launch_flagged_kernel(real, args):
    interpret_after_flags(real, args, args["flags_ptr"], args["RANKS"])


def interpret_after_flags(real, args, flags, ranks):
    seconds = seconds_of(args)
    began = DEVICE.take(LAUNCH_S + seconds / 0.95)
    if args["wanted"]:  # else all is here
        last = max(DEVICE.raised_at[flags.data_ptr() + 4 * index] for index in range(len(flags)))
        DEVICE.stream.at = max(DEVICE.stream.at, last + seconds / ranks)
    interpret_after_others(real, args, began)


def interpret_after_others(real, args, began):
    """A kernel that waits."""

    def work():
        DEVICE.now_ns = round(began * 1e9)
        real(**args | {"patience": LOOKS})

    after_others(work)


def after_others(work):
    """What waits is done once all other streams have done their work."""
    others = [stream for stream in DEVICE.streams if stream is not DEVICE.stream]

    def last():
        for stream in others:
            stream.flush()
        work()

    DEVICE.queue(last)


def globaltimer():
    """In the interpreter: a microsecond a look."""
    import triton.language as tl

    DEVICE.now_ns += 1000
    return tl.full((), DEVICE.now_ns, dtype=tl.int64)


def launch_warpgroup_kernel(real, args):
    x, w, out = (args[f"{name}_desc"].base for name in ("x", "w", "out"))
    DEVICE.enqueue("warpgroup_kernel", seconds_of(args), lambda: multiplied("mm", (x, w.T), out))


def make_nvml():
    error = type("NVMLError", (Exception,), {})

    def refuse(handle):
        raise error("Not Supported")  # as of a card that cannot be divided

    return types.SimpleNamespace(
        NVMLError=error, NVML_CLOCK_SM=1, NVML_TEMPERATURE_GPU=0, NVML_COMPUTEMODE_DEFAULT=0, nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1, nvmlSystemGetDriverVersion=lambda: "made up", nvmlDeviceGetMigMode=refuse,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid, nvmlDeviceGetClockInfo=lambda handle, kind: SM_HZ / 1e6,
        nvmlDeviceGetPowerUsage=lambda handle: 650_000, nvmlDeviceGetTemperature=lambda handle, kind: 60,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0, nvmlDeviceGetComputeMode=lambda handle: 0,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [],
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: DEVICE.host * 650_000,
    )  # fmt: skip


def install():
    """In this process, before anything imports Triton or `kernels`."""
    import torch
    import torch.profiler

    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    from triton.runtime import interpreter, jit

    triton.knobs.runtime.__dict__["interpret"] = True
    del os.environ["TRITON_INTERPRET"]  # with which no run is timed
    torch.set_num_threads(1)
    card = os.environ[NAMED]
    properties = types.SimpleNamespace(
        name=f"rehearsal of {card}", major=CARDS[card][0], minor=CARDS[card][1], multi_processor_count=SMS,
        L2_cache_size=CACHE_BYTES, total_memory=MEMORY_BYTES, uuid="GPU-0",
    )  # fmt: skip
    DEVICE.stream = Stream()
    stand_ins = dict(
        is_available=lambda: True, device_count=lambda: 1, current_device=lambda: 0, device=lambda index: nullcontext(),
        get_device_properties=lambda device: properties, get_device_capability=lambda device: CARDS[card],
        mem_get_info=lambda: (MEMORY_BYTES, MEMORY_BYTES), Stream=Stream, Event=Event, stream=on,
        current_stream=lambda: DEVICE.stream, is_current_stream_capturing=lambda: False, synchronize=synchronize,
        _sleep=lambda cycles: DEVICE.take(cycles / SM_HZ),
    )  # fmt: skip
    for name, value in stand_ins.items():
        setattr(torch.cuda, name, value)
    torch.cuda.profiler.profile, torch.profiler.profile = nullcontext, Profile
    torch.version.cuda = "made up"
    torch.Generator = lambda device, make=torch.Generator: make()
    time.perf_counter, sys.modules["pynvml"] = perf_counter, make_nvml()
    real = interpreter.GridExecutor.__call__
    interpreter.GridExecutor.__call__ = lambda self, **args: launch(partial(real, self), self.fn.__name__, args)
    jit.JITFunction.run = lambda self, *, grid, warmup, **args: launch(None, self.__name__, args)
    triton.runtime.JITFunction = (interpreter.InterpretedFunction, jit.JITFunction)
    make_place().__enter__()
    stand_in_for_others(interpreter)


def stand_in_for_others(interpreter):
    import torch
    import triton.language as tl

    from collectives import device
    from kernels import flagged
    from roofline.measure import telemetry

    def dot(a, b, sums, *about):
        x, w = (torch.from_numpy(handle.data.copy()).float() for handle in (a, b))
        return interpreter.TensorHandle((x @ w).numpy() + sums.data, sums.dtype.scalar)

    builder = interpreter.interpreter_builder
    builder.create_dot = dot
    builder.options = replace(builder.options, sanitize_overflow=False)
    for function in (flagged.flagged_kernel, tl.cdiv):  # one sees `triton.language`, the other its core
        interpreter._patch_lang(function.fn)
    interpreter._patch_lang = lambda function: interpreter._LangPatchScope()
    device.leave_shared_memory = lambda function: None
    flagged.globaltimer = globaltimer
    telemetry.IDLE_S = 0.0
