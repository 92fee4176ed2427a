"""A stand-in for CUDA, so that the benchmark's GPU run goes from its first shape to its report where there is no GPU.

It is no simulator of a GPU: streams are queues that are run when the host waits or looks, kernels run in Triton's
interpreter, and time is made up, by a chip that is a hundred thousand times slower than its namesake. Nothing that
comes of it is a measurement, and its chip says so in its name. `install` puts it in the place of what `CALLS` and
`STAND_INS` list; a process does so by a `sitecustomize` of the test's.
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
from functools import partial
from pathlib import Path

NAMED = "REHEARSAL"
"""Environment variable with the name of the card that is stood in for; one of `CARDS`."""

TABLES = "REHEARSAL_TABLES"
"""The folder of the tables of tiles, a copy."""

FAULT = "REHEARSAL_FAULT"
"""Environment variable: `kill` or `lose`, and a kernel. At its first timed launch the process is killed, or the device
is lost; but in a process that goes on after that."""

CARDS = {"H100": (9, 0), "A100": (8, 0), "B200": (10, 0)}
"""Compute capability by name."""

CALLS = {
    "torch.cuda": "device, streams, events, properties, memory, synchronize, _sleep, the profiler's switch",
    "torch.Tensor": "device and is_cuda of tensors made on `cuda`, which lie in the host's memory",
    "torch functions": "run when their stream is; of tensors beyond LARGE only their time is taken",
    "torch.profiler.profile": "names of what was launched",
    "Triton's launcher": "kernels run in the interpreter, which `kernels` believe to be the compiler",
    "time.perf_counter": "the host's time: it passes while the host waits for the device, and a microsecond a look",
    "pynvml": "the driver, a handle, clocks, power, temperature, modes, processes",
}
STAND_INS = {
    "gate_kernel": "it waits for the host, which here comes later: the stream's time goes on by the gap",
    "clock_kernel": "reads two timers by PTX: a steady clock",
    "stamp_kernel": "reads a timer by PTX: the stream's time",
    "copy_kernel": "keeps its pace by PTX, and takes a second in the interpreter: rows are copied, as they are due",
    "wait_kernel": "interpreted without its timer: its stream goes on when the flag was raised",
    "flagged_kernel": "interpreted without its timer and its fence, which are PTX; time stamps are made up",
    "warpgroup_kernel": "Gluon has no interpreter: torch's matmul",
    "cublas": "torch's matmul on the CPU, in fp32",
    "tl.dot": "of fp16 by torch, in fp32, which rounds no more: NumPy takes fifty times as long",
    "_patch_lang": "the interpreter prepares `triton.language` for each call of each function: once",
    "_leave_shared_memory": "a call of the driver, by ctypes",
    "tuning.unsound": "compiles for minutes; tests/kernels/test_tuning.py has it",
    "configs.FOLDER": "a copy: a tuning writes there",
}
"""What is not run as it is on a GPU, and why. A launch behind a closed gate, that is a timed one, takes its time only:
the same launch was run when it was checked, and is once more afterwards."""

SMS, CACHE_BYTES, MEMORY_BYTES = 4, 2**16, 2**34
FLOPS, BYTES_PER_S, LAUNCH_S, GAP_S = 2e10, 2e9, 3e-6, 1e-4
SPEED = {"cublas": 1.0, "persistent_kernel": 0.97, "warpgroup_kernel": 1.03, "tiled_kernel": 0.8}
LARGE = 2**22
"""Elements of a tensor that is never filled, and never computed with: the probes of the ceilings are made of such."""
SPIN_HZ = 1.98e9
LOOKS = 1000
"""At a flag, in the interpreter, before it counts as lost."""

HOST_READS = {"item", "tolist", "equal", "cpu", "numpy", "__bool__", "__float__", "__int__", "__repr__", "__format__"}
ABOUT = {
    *("__get__", "dim", "size", "stride", "numel", "data_ptr", "element_size", "untyped_storage", "storage_offset"),
    *("is_contiguous", "__len__", "__hash__", "is_floating_point", "has_names", "nelement", "type", "get_device"),
    *("view", "chunk", "split", "expand", "detach", "new_empty", "empty_like", "pin_memory", "is_pinned", "narrow"),
}
"""Functions that compute nothing: of a tensor's place and shape, and new ones that are not filled."""


class Stream:
    """Work in its order: `at` is when all of it will be done."""

    def __init__(self, *args, **about):
        self.at, self.queue, self.cuda_stream = 0.0, deque(), id(self)
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

    def record(self, stream=None):
        self.at = (stream or DEVICE.stream).begin()

    def query(self):
        return self.at <= DEVICE.host

    def synchronize(self):
        synchronize()

    def elapsed_time(self, stop):
        return (stop.at - self.at) * 1e3


class Device:
    """The one card, its streams, and the host's time. A launch costs the host none."""

    def __init__(self):
        self.host, self.streams, self.noise, self.launched = 1.0, [], random.Random(0), []
        self.gate = lambda: True
        self.fault = os.environ.get(FAULT, "").split() if "ROOFLINE_FRESH" not in os.environ else []
        self.is_lost = False
        self.raised = {}
        """When a flag was raised last, by its address."""

    def begin(self):
        self.stream = Stream()

    def strike(self):
        if self.fault[0] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        self.is_lost = True

    def answer(self):
        if self.is_lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def take(self, seconds):
        """The current stream is busy for so long; returns from when on."""
        self.answer()
        began = self.stream.begin()
        self.stream.at = began + seconds
        return began

    def enqueue(self, name, seconds, work, always=False):
        """Have the current stream do `work`, unless it is a timed one."""
        began = self.take(LAUNCH_S + seconds / SPEED.get(name, 0.9) * (1 + abs(self.noise.gauss(0, 0.003))))
        self.launched.append(name)
        if always or self.gate():
            self.stream.queue.append(work)
        return began


Stream.begin = lambda self: max(self.at, DEVICE.host)
DEVICE = Device()


@contextmanager
def host_alone():
    """What is inside sees plain tensors of the host."""
    import torch

    with torch._C.DisableTorchFunction():
        yield


def synchronize(device=None):
    DEVICE.answer()
    for stream in DEVICE.streams:
        stream.flush()
        DEVICE.host = max(DEVICE.host, stream.at)


@contextmanager
def on(stream):
    before, DEVICE.stream = DEVICE.stream, stream
    try:
        yield
    finally:
        DEVICE.stream = before


def perf_counter():
    DEVICE.host += 1e-6
    return DEVICE.host


def sleep(cycles):
    DEVICE.take(cycles / SPIN_HZ)


def tensors_of(values):
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_of(value)


def is_on_device(tensor):
    return getattr(tensor, "on_device", False)


def seconds_of(name, tensors, out):
    every = [*tensors, out] if out is not None else tensors
    times = [sum(tensor.nbytes for tensor in every) / BYTES_PER_S]
    if name in ("mm", "addmm"):
        x, w = tensors[-2:] if name == "addmm" or len(tensors) == 2 else tensors[:2]
        times.append(2 * x.shape[0] * x.shape[1] * w.shape[1] / FLOPS)
    return max(times)


def multiplied(name, args, out):
    """torch.mm and torch.addmm as cuBLAS rounds them: once."""
    import torch

    found = getattr(torch, name)(*(tensor.float() for tensor in args))
    return out.copy_(found) if out is not None else found.to(args[-1].dtype)


def make_mode():
    import torch
    from torch.overrides import TorchFunctionMode

    cuda = torch.device("cuda", 0)

    class Place(TorchFunctionMode):
        """Tensors of `cuda` are marked tensors of the host."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs, name = dict(kwargs or {}), func.__name__
            inputs = list(tensors_of([*args, *kwargs.values()]))
            marked = any(map(is_on_device, inputs))
            if name == "__get__" and (what := func.__self__.__name__) in ("device", "is_cuda"):
                return (cuda if what == "device" else True) if marked else func(*args)
            if name in ("to", "cpu", "cuda", "pin_memory"):
                return self.move(name, args, kwargs, marked)
            if "device" in kwargs:
                marked = torch.device(kwargs.pop("device") or "cpu").type == "cuda"
            if not marked:
                return func(*args, **kwargs)
            return self.mark(self.run(func, name, args, kwargs, inputs))

        def mark(self, result):
            for tensor in tensors_of([result]):
                tensor.on_device = True
            return result

        def move(self, name, args, kwargs, marked):
            tensor, *rest = args
            if name == "pin_memory":
                return tensor
            rest = ["cpu" if name == "cpu" else name] if name in ("cpu", "cuda") else [*rest, *kwargs.values()]
            place = next((one for one in rest if isinstance(one, (str, torch.device))), None)
            dtype = next((one for one in rest if isinstance(one, torch.dtype)), tensor.dtype)
            there = torch.device(place).type == "cuda" if place else marked
            if there == marked and dtype == tensor.dtype:
                return tensor
            if tensor.numel() > LARGE:
                found = torch.empty(tensor.shape, dtype=dtype)
            else:
                DEVICE.stream.flush()
                found = tensor.to(dtype, copy=True)
            return self.mark(found) if there else found

        def run(self, func, name, args, kwargs, inputs):
            large = any(tensor.numel() > LARGE for tensor in inputs)
            out = kwargs.get("out")
            if name in ABOUT or (name == "__getitem__" and not list(tensors_of([args[1]]))):
                return func(*args, **kwargs)
            if not inputs:  # a new tensor
                DEVICE.answer()
                size = math.prod(n for n in (args[0] if isinstance(args[0], (tuple, list)) else args)
                                 if isinstance(n, int))  # fmt: skip
                return torch.empty(*args, dtype=kwargs.get("dtype")) if size > LARGE else func(*args, **kwargs)
            known = "cublas" if name in ("mm", "addmm") else name
            seconds = seconds_of(name, [tensor for tensor in tensors_of(args)], out)
            if out is not None or (name.endswith("_") and not name.endswith("__")) or name == "__setitem__":
                work = partial(multiplied, name, args, out) if known == "cublas" else partial(func, *args, **kwargs)
                DEVICE.enqueue(known, seconds, (lambda: None) if large else work)
                return args[0] if out is None else out
            if large:
                metas = [one.to("meta") if isinstance(one, torch.Tensor) else one for one in args]
                found = func(*metas, **kwargs)
                DEVICE.enqueue(known, seconds, lambda: None)
                return torch.empty(found.shape, dtype=found.dtype)
            DEVICE.stream.flush()
            if known == "cublas":
                return multiplied(name, args, None)
            return func(*args, **kwargs)

    return Place()


def launch(real, name, args):
    """A launch of the kernel `name` by its `args`, on the current stream; returns what stands for the compiled one."""
    if name in DEVICE.fault and not DEVICE.gate():
        DEVICE.strike()
    special = globals().get(f"launch_{name}")
    if special:
        special(real, args)
    else:
        DEVICE.enqueue(name, matmul_s(args), partial(real, **args))
    return types.SimpleNamespace(function=name)


def matmul_s(args):
    if "x_desc" in args:
        x, w = args["x_desc"].base, args["w_desc"].base
    else:
        x, w = args["x_ptr"], args["w_ptr"]
    m, n, k = x.shape[0], w.shape[0], x.shape[1]
    return max(2 * m * n * k / FLOPS, (m * k + n * k + m * n) * 2 / BYTES_PER_S)


def host_values(tensor):
    with host_alone():
        return tensor.numpy()


def launch_gate_kernel(real, args):
    flag, wanted = host_values(args["flag_ptr"]), args["wanted"]
    DEVICE.gate = lambda: flag[0] >= wanted
    DEVICE.take(GAP_S)


def launch_clock_kernel(real, args):
    host_values(args["readings_ptr"])[args["slot"]] = 1755 * args["span_ns"] // 1000, args["span_ns"]
    DEVICE.take(args["span_ns"] * 1e-9)


def launch_stamp_kernel(real, args):
    host_values(args["time_ptr"])[0] = round(DEVICE.take(1e-6) * 1e9)


def launch_copy_kernel(real, args):
    began = DEVICE.take(LAUNCH_S)
    table, flags = host_values(args["transfers_ptr"]), args["flags_ptr"]
    arrivals, started = host_values(args["arrivals_ptr"]), args["started_ptr"]
    due_ns = host_values(args["t0_ptr"])[0] + (table[:, 2] * table[:, 3]).cumsum() * args["ns_per_word"]
    arrivals[:] = due_ns.round()[:, None]
    DEVICE.raised[started.data_ptr()] = began
    DEVICE.raised |= {flags.data_ptr() + 4 * i: due * 1e-9 for i, due in enumerate(due_ns)}
    DEVICE.stream.at = max(DEVICE.stream.at, due_ns[-1] * 1e-9)
    for flag in (flags, started):
        host_values(flag)[:] += arrivals.shape[1]
    if DEVICE.gate():
        DEVICE.stream.queue.append(partial(copy, table))


def copy(table):
    """The transfers of `table`, as `collectives.copier.copy_kernel` has it."""
    for source, target, rows, words, source_row, target_row in table.tolist():
        for row in range(rows):
            ctypes.memmove(target + 4 * row * target_row, source + 4 * row * source_row, 4 * words)


def others_first(work):
    """`work`, which waits for what the other streams do."""
    mine = DEVICE.stream

    def run():
        for stream in DEVICE.streams:
            if stream is not mine:
                stream.flush()
        work()

    return run


def launch_wait_kernel(real, args):
    began = DEVICE.take(LAUNCH_S)
    DEVICE.stream.at = max(DEVICE.stream.at, DEVICE.raised[args["flag_ptr"].data_ptr()])
    host_values(args["times_ptr"])[:2] = round(began * 1e9), round(DEVICE.stream.at * 1e9)
    if DEVICE.gate():
        work = partial(real, **args | {"TIMED": False, "patience": LOOKS})
        DEVICE.stream.queue.append(others_first(work))


def launch_flagged_kernel(real, args):
    seconds, flags = matmul_s(args), args["flags_ptr"]
    began = DEVICE.take(LAUNCH_S + seconds / 0.95)
    if args["wanted"]:
        last = max(DEVICE.raised[flags.data_ptr() + 4 * i] for i in range(len(flags)))
        DEVICE.stream.at = max(DEVICE.stream.at, last + seconds / args["RANKS"])
    if not DEVICE.gate():
        return

    def work():
        DEVICE.device_ns = round(began * 1e9)
        real(**args | {"TIMED": False, "patience": LOOKS})

    DEVICE.stream.queue.append(others_first(work))


def globaltimer():
    """In the interpreter: of a launch, a microsecond a look."""
    import triton.language as tl

    DEVICE.device_ns += 1000
    return tl.full((), DEVICE.device_ns, dtype=tl.int64)


def launch_warpgroup_kernel(real, args):
    x, w, out = (args[name].base for name in ("x_desc", "w_desc", "out_desc"))
    DEVICE.enqueue("warpgroup_kernel", matmul_s(args), lambda: multiplied("mm", (x, w.T), out))


class Profile:
    """Of torch.profiler: what was launched inside."""

    def __init__(self, **about):
        pass

    def __enter__(self):
        self.since = len(DEVICE.launched)
        return self

    def __exit__(self, *error):
        self.names = DEVICE.launched[self.since :]

    def events(self):
        import torch

        return [
            types.SimpleNamespace(
                name=name, device_type=torch.autograd.DeviceType.CUDA, time_range=types.SimpleNamespace(start=index)
            )
            for index, name in enumerate(self.names)
        ]


def make_nvml():
    class NVMLError(Exception):
        pass

    def refuse(*arguments):
        raise NVMLError("Not Supported")

    return types.SimpleNamespace(
        NVMLError=NVMLError, NVML_CLOCK_SM=1, NVML_TEMPERATURE_GPU=0, NVML_DEVICE_MIG_ENABLE=1,
        NVML_COMPUTEMODE_DEFAULT=0, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 1,
        nvmlSystemGetDriverVersion=lambda: "580.0", nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetClockInfo=lambda handle, kind: 1755, nvmlDeviceGetPowerUsage=lambda handle: 650_000,
        nvmlDeviceGetTemperature=lambda handle, kind: 60, nvmlDeviceGetMigMode=refuse,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0, nvmlDeviceGetComputeMode=lambda handle: 0,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [],
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: round(DEVICE.host * 650_000),
    )  # fmt: skip


def install(card):
    """Stand in for a `card` of `CARDS` in this process. Before anything imports Triton, or `kernels`."""
    import torch

    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    from triton.runtime import interpreter, jit

    triton.knobs.runtime.__dict__["interpret"] = True
    del os.environ["TRITON_INTERPRET"]
    major, minor = CARDS[card]
    properties = types.SimpleNamespace(
        name=f"rehearsal of {card}", major=major, minor=minor, multi_processor_count=SMS, L2_cache_size=CACHE_BYTES,
        total_memory=MEMORY_BYTES, uuid="GPU-0",
    )  # fmt: skip
    torch.set_num_threads(1)
    DEVICE.begin()
    sys.modules["pynvml"] = make_nvml()
    time.perf_counter = perf_counter
    for name, value in dict(
        is_available=lambda: True, device_count=lambda: 1, current_device=lambda: 0, device=lambda index: nullcontext(),
        get_device_properties=lambda device=0: properties, get_device_capability=lambda device=0: (major, minor),
        mem_get_info=lambda: (MEMORY_BYTES, MEMORY_BYTES), synchronize=synchronize, _sleep=sleep, Stream=Stream,
        Event=Event, stream=on, current_stream=lambda: DEVICE.stream, is_current_stream_capturing=lambda: False,
    ).items():  # fmt: skip
        setattr(torch.cuda, name, value)
    torch.version.cuda = "13.0"
    torch.cuda.profiler.profile = nullcontext
    generator = torch.Generator
    torch.Generator = lambda device="cpu": generator()
    import torch.profiler

    torch.profiler.profile = Profile
    real = interpreter.GridExecutor.__call__
    interpreter.GridExecutor.__call__ = lambda self, **args: launch(partial(real, self), self.fn.__name__, args)
    jit.JITFunction.run = lambda self, *, grid, warmup, **args: launch(None, self.__name__, args)
    triton.runtime.JITFunction = (interpreter.InterpretedFunction, jit.JITFunction)
    make_mode().__enter__()
    stand_in_for_kernels()


def stand_in_for_kernels():
    """Once the project's modules are imported, in the place of what PTX, the driver and the compiler do there."""
    import torch
    import triton.language as tl
    from triton.runtime import interpreter

    from collectives import device_links
    from kernels import configs, flagged, tuning

    def dot(self, a, b, sums, *about):
        x, w = (torch.from_numpy(one.data.copy()).float() for one in (a, b))
        return interpreter.TensorHandle((x @ w).numpy() + sums.data, sums.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = dot
    for function in (flagged.flagged_kernel, tl.cdiv):
        interpreter._patch_lang(function.fn)
    interpreter._patch_lang = lambda function: interpreter._LangPatchScope()
    device_links._leave_shared_memory = lambda function: None
    flagged.globaltimer = globaltimer
    tuning.unsound = lambda *args: {}
    configs.FOLDER = Path(os.environ[TABLES])
