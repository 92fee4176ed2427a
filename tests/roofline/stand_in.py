"""A stand-in for CUDA, with which the benchmark's GPU run goes from its first shape to its report without a GPU.

It is no simulator of a GPU: that, and in which orders what waits may run, is the machine's (`kernels.machine`). A
stream is a queue that goes on when the host waits for it or looks at a result; what a kernel computes, torch computes
when its turn has come; time is made up, by a chip some fifty thousand times slower than its namesake. Nothing that
comes of it is a measurement, and its chip says so by its name.

What is timed is computed, too: its results are looked at.

What is launched for the first time is loaded, and the host waits meanwhile until the device has done all that was
enqueued, as a driver's does. Where something waits for ever for what the host would launch next, that is a hang:
`BlockedError` in place of it.
"""

import ctypes
import math
import os
import sys
import time
import types
from collections import deque
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch.overrides import TorchFunctionMode

NAMED, FAULT = "REHEARSAL", "REHEARSAL_FAULT"
"""Environment variables: one of `CARDS`; what strikes, as in `decode_kernel FILE`: at the first timed launch of that
kernel the device is lost, unless FILE is there."""

CARDS = {"H100": (9, 0), "A100": (8, 0)}
"""Their compute capability."""

SMS, CACHE_BYTES, MEMORY_BYTES = 4, 2**16, 2**34
FLOPS, BYTES_PER_S, LAUNCH_S, GAP_S, SM_HZ = 2e10, 2e9, 3e-6, 1e-4, 1.755e9
LARGE_BYTES = 2**22
"""Larger memory is never filled, and never computed with: the probes of the ceilings have such."""

NUMBERS = {
    *("dim", "size", "stride", "numel", "data_ptr", "element_size", "untyped_storage", "storage_offset"),
    *("is_contiguous", "__len__", "__hash__"),
}
VIEWS = {"view", "chunk", "split", "unflatten", "unbind", "new_empty", "empty_like"}
"""Functions of a tensor's place and shape alone: they wait for nothing."""
SCALED = "_scaled_mm", "_scaled_mm_v2.out"
"""By row, and by block."""


class BlockedError(RuntimeError):
    """The host would wait for ever: the message names what it loads."""


class Stream:
    """Work in its order, each with the host's time when it was enqueued. At `ends[n]` the first n of it are done."""

    def __init__(self, device: "Device"):
        self.device, self.ends, self.queue = device, [0.0], deque()
        self.enqueued = 0
        self.cuda_stream = len(device.streams)
        device.streams.append(self)

    @property
    def done(self) -> int:
        return len(self.ends) - 1

    @property
    def at(self) -> float:
        """When all that has run is done."""
        return self.ends[-1]

    def enqueue(self, work) -> None:
        """`work(began)` returns when it ends, or None while it cannot begin."""
        self.queue.append((self.device.host, work))
        self.enqueued += 1
        self.device.busy[self] = True

    def wait_stream(self, other: "Stream") -> None:
        upto = other.enqueued
        self.enqueue(lambda began: max(began, other.ends[upto]) if other.done >= upto else None)

    def query(self) -> bool:
        self.device.run()
        return not self.queue

    def go_on(self) -> bool:
        """Return whether something has run."""
        before = self.done
        while self.queue:
            host, work = self.queue[0]
            if (end := work(max(self.at, host))) is None:
                break
            self.queue.popleft()
            self.ends.append(end)
        return self.done > before


class Event:
    def __init__(self, device: "Device"):
        self.device, self.at = device, math.inf

    def record(self) -> None:
        self.device.stream.enqueue(self.happen)

    def happen(self, began: float) -> float:
        self.at = began
        return began

    def query(self) -> bool:
        self.device.run()
        return self.at <= self.device.host

    def elapsed_time(self, stop: "Event") -> float:
        return (stop.at - self.at) * 1e3


class Graph:
    """Work that is enqueued on it, as on a stream of its own, while it is captured; each replay has it done."""

    cuda_stream = -1

    def __init__(self):
        self.works = []
        self.enqueue = self.works.append

    def replay(self) -> None:
        for work in self.works:
            DEVICE.stream.enqueue(work)


class Device:
    """The card, its streams, and the host's time. A launch costs the host none, so that it is never late."""

    def __init__(self):
        self.host = 1.0
        self.streams, self.launched, self.calls = [], [], []
        self.busy = {}
        """Streams that may have work: most of a long test's are done with."""
        self.stream = Stream(self)
        self.gate = lambda: True
        """Whether what is enqueued now is not timed."""
        self.raised_at = {}
        """When a flag was raised last, by its address."""
        self.held = None
        """The flag, and what it is to be, for which a kernel waits on every SM."""
        self.copies_take_sms = set()
        """Functions of the driver whose copies wait for an SM."""
        self.loaded = set()
        """Names and variants of what was launched before."""
        self.fault, self.is_lost = os.environ.get(FAULT, "").split(), False

    def is_capturing(self) -> bool:
        return isinstance(self.stream, Graph)

    @property
    def is_full(self) -> bool:
        return self.held is not None and bool((self.held[0] < self.held[1]).any())

    def strike(self) -> None:
        if not os.path.exists(self.fault[1]):
            open(self.fault[1], "w").close()
            self.is_lost = True

    def answer(self) -> None:
        if self.is_lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def run(self) -> None:
        """Let streams go on until none does."""
        self.answer()
        with host_alone():
            while any([stream.go_on() for stream in self.busy]):
                pass
        self.busy = {stream: True for stream in self.busy if stream.queue}

    def synchronize(self, device=None) -> None:
        self.run()
        if any(stream.queue for stream in self.streams):
            raise RuntimeError("what was enqueued waits for ever")
        self.host = max(self.host, *(stream.at for stream in self.streams), 0.0)

    def load(self, name: str, variant: object = None) -> None:
        """Load the kernel `name`, or what else the device must be idle for, unless this variant was loaded before.
        Raises BlockedError."""
        if (name, variant) in self.loaded:
            return
        self.run()
        if waiting := [stream.cuda_stream for stream in self.streams if stream.queue]:
            raise BlockedError(f"{name} is loaded for the first time while the streams {waiting} wait: the host hangs")
        self.loaded.add((name, variant))

    def forget(self) -> None:
        """Be as in a new process: nothing is loaded, and nothing waits."""
        self.loaded.clear()
        for stream in self.streams:
            stream.enqueued -= len(stream.queue)
            stream.queue.clear()

    def take(self, seconds: float, work=lambda: None) -> None:
        """Have the current stream be busy for so long, and `work` done in its place."""
        self.answer()

        def timed(began):
            work()
            return began + seconds

        self.stream.enqueue(timed)

    def compute(self, name: str, variant: object, seconds: float, work) -> None:
        """The same of a launch by its name."""
        self.load(name, variant)
        self.launched.append(name)
        self.take(LAUNCH_S + seconds, work)

    def _sleep(self, cycles: int) -> None:
        self.take(cycles / SM_HZ)

    def Event(self, enable_timing=False) -> Event:  # noqa: N802
        return Event(self)

    def Stream(self, priority=0) -> Stream:  # noqa: N802
        return Stream(self)

    def current_stream(self, device=None) -> Stream:
        return self.stream

    @contextmanager
    def on(self, stream: Stream):
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before


def perf_counter() -> float:
    """The host's time: a microsecond a look, and what it waits for the device. pytest-benchmark wants a function."""
    DEVICE.host += 1e-6
    return DEVICE.host


class Profile:
    """torch's profiler: what was launched inside."""

    def __init__(self, activities):
        self.since = len(DEVICE.launched)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.launched = DEVICE.launched[self.since :]

    def events(self):
        of_kernels = {"device_type": torch.autograd.DeviceType.CUDA}
        for index, name in enumerate(self.launched):
            yield types.SimpleNamespace(name=name, time_range=types.SimpleNamespace(start=index), **of_kernels)


def tensors_of(*values):

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_of(*value)


def is_large(tensor) -> bool:
    return tensor.untyped_storage().nbytes() > LARGE_BYTES


def matmul_s(m, n, k):
    return max(2 * m * n * k / FLOPS, 2 * (m * k + n * k + m * n) / BYTES_PER_S)


def multiplied(name, factors, out):
    """Return torch.mm, torch.addmm, or torch._scaled_mm by row or block, as cuBLAS rounds it, once."""

    if name in SCALED:
        x, w, x_scales, w_scales = tensors_of(*factors)
        return scaled(x, w.T, (x_scales, w_scales if name == "_scaled_mm" else w_scales.T), out)
    product = getattr(torch, name)(*(tensor.float() for tensor in factors))
    return product.to(factors[-1].dtype) if out is None else out.copy_(product)


def scaled(x, w, scales, out):
    from kernels.fp8 import scale_rows, scales_of_rows

    of_x, of_w = scales_of_rows(w, scales)
    return out.copy_(scale_rows(x.float(), of_x) @ scale_rows(w.float(), of_w).T)


CUDA = torch.device("cuda", 0)

host_alone = torch._C.DisableTorchFunction
"""What is inside sees the host's tensors."""


class Place(TorchFunctionMode):
    """Tensors of `cuda` are tensors of the host with a mark. What writes into one is enqueued; of what lies in
    more than LARGE_BYTES only the time is taken."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), func.__name__
        if name in NUMBERS:
            return func(*args, **kwargs)
        if name == "__get__" and (attribute := func.__self__.__name__) != "T":
            marked = attribute in ("device", "is_cuda") and getattr(args[0], "is_marked", False)
            return (CUDA if attribute == "device" else True) if marked else func(*args)
        marked = any(getattr(tensor, "is_marked", False) for tensor in tensors_of(args, *kwargs.values()))
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
        for like in tensors_of(*wanted):
            wanted = [*wanted, "cuda" if getattr(like, "is_marked", False) else "cpu", like.dtype]
        place = next((argument for argument in wanted if isinstance(argument, (str, torch.device))), None)
        dtype = next((argument for argument in wanted if isinstance(argument, torch.dtype)), tensor.dtype)
        there = torch.device(place).type == "cuda" if place else marked
        if (there, dtype) == (marked, tensor.dtype):
            return tensor
        DEVICE.run()
        large = is_large(tensor)
        copied = torch.empty(tensor.shape, dtype=dtype) if large else tensor.to(dtype, copy=True)
        return self.mark(copied) if there else copied

    def run(self, func, name, args, kwargs):
        inputs, out = list(tensors_of(args)), kwargs.get("out")
        if not inputs:
            size = math.prod(args[0] if isinstance(args[0], tuple) else args) if name == "randn" else 0
            return torch.empty(*args) if 4 * size > LARGE_BYTES else func(*args, **kwargs)
        if name in ("__get__", *VIEWS) or (name == "__getitem__" and not list(tensors_of(args[1]))):
            return func(*args, **kwargs)
        is_matmul, large = name in ("mm", "addmm", *SCALED), any(map(is_large, inputs))
        if is_matmul:
            x, w = inputs[:2] if name in SCALED else inputs[-2:]
            named, seconds = "cuBLAS", matmul_s(len(x), w.shape[1], len(w))
        else:
            named, seconds = name, sum(tensor.nbytes for tensor in inputs) / BYTES_PER_S
        work = partial(multiplied, name, args, out) if is_matmul else partial(func, *args, **kwargs)
        variant = tuple((tensor.shape, tensor.dtype) for tensor in inputs)
        if out is not None or name == "__setitem__" or name.rstrip("_") + "_" == name:
            DEVICE.compute(named, variant, seconds, int if large else work)
            return args[0] if out is None else out
        if large:
            DEVICE.compute(named, variant, seconds, int)
            like = func(*(value.to("meta") if isinstance(value, torch.Tensor) else value for value in args))
            return torch.empty(like.shape, dtype=like.dtype)
        DEVICE.load(named, variant)
        DEVICE.run()
        return work()


def variant_of(launch) -> str | None:
    """Return what tells the binary of `launch` from others of its kernel. The interpreter has none."""
    from triton import knobs
    from triton.runtime import JITFunction

    from kernels.machine.compile import offline

    if not isinstance(launch.kernel, JITFunction):
        return None
    keys = []

    def note(**about) -> bool:
        keys.append(about["key"])
        return True  # which leaves the compiler out

    major, minor = CARDS[os.environ[NAMED]]
    with host_alone(), offline(10 * major + minor), knobs.runtime.scope():
        knobs.runtime.jit_cache_hook = note
        launch.kernel.warmup(grid=launch.grid, **launch.args)
    return keys[0]


def run(launch, device):
    """Stands for `KernelLaunch.run`. Returns what stands for the compiled kernel."""
    name, args = launch.kernel.__name__, launch.args
    if name in DEVICE.fault and not DEVICE.gate():
        DEVICE.strike()
    DEVICE.load(name, variant := variant_of(launch))
    args = {key: getattr(value, "base", value) for key, value in args.items()}  # a descriptor's tensor
    if name not in KERNELS:
        DEVICE.compute(name, variant, seconds_of(args), partial(PRODUCTS.get(name, product), args))
    else:
        if name not in ("gate_kernel", "clock_kernel"):  # which are the clock's
            DEVICE.launched.append(name)
        if name == "gate_kernel":
            DEVICE.gate = partial(is_open, args)
        with host_alone():
            if name == "wait_kernel" and launch.grid[0] > 1:
                DEVICE.held = args["flag_ptr"], args["wanted"]
                DEVICE.stream.enqueue(partial(wait, args))
            else:
                work = KERNELS[name]
                DEVICE.stream.enqueue(lambda began: None if DEVICE.is_full else work(args, began))
    return types.SimpleNamespace(function=name)


def operands(args: dict) -> list:
    """x, w and out of a launch, by a descriptor or a pointer."""
    return [args.get(f"{name}_desc", args.get(f"{name}_ptr")) for name in ("x", "w", "out")]


def seconds_of(args: dict) -> float:
    x, w, _ = operands(args)
    return matmul_s(len(x), *w.shape)


def product(args: dict) -> None:
    x, w, out = operands(args)
    if args.get("x_scales_ptr") is None:
        multiplied("mm", (x, w.T), out)
    else:
        scaled(x, w, (args["x_scales_ptr"], args["w_scales_ptr"]), out)


def gated_product(args: dict) -> None:
    """Of weights whose rows are gate's and up's by turns."""

    x, w, out = operands(args)
    both = torch.empty(len(x), len(w))
    product(args | {"out_desc": both})
    gate, up = both[:, ::2], both[:, 1::2]
    out.copy_(torch.nn.functional.silu(gate) * up)


PRODUCTS = {"gated_kernel": gated_product}
"""What a kernel computes that is no plain product."""


def raise_flag(flag, by: int, at: float) -> None:
    flag += by
    DEVICE.raised_at[flag.data_ptr()] = at


def up(flags, wanted: int) -> float | None:
    """Return when the last of `flags` was raised; None where one is not up."""
    if (flags < wanted).any():
        return None
    return max(DEVICE.raised_at.get(flag.data_ptr(), 0.0) for flag in flags)


def is_open(args) -> bool:
    with host_alone():  # which is asked of each launch
        return int(args["flag_ptr"][0]) >= args["wanted"]


# What a launch does when its turn comes: `work(began)` of `Stream.enqueue`.


def gate(args, began):
    return max(began, DEVICE.host) + GAP_S if is_open(args) else None


def clock(args, began):
    args["readings_ptr"].numpy()[args["slot"]] = args["span_ns"] * SM_HZ * 1e-9, args["span_ns"]
    return began + args["span_ns"] * 1e-9


def stamp(args, began):
    args["time_ptr"][0] = round(began * 1e9)
    return began + 1e-6


def copy_rows(source, source_pitch, target, target_pitch, width, rows):
    for row in range(rows):
        ctypes.memmove(target + row * target_pitch, source + row * source_pitch, width)


def copy(args, began):
    """Flags are raised when the pace has it, and all rows are copied at once."""
    programs, free_s = args["arrivals_ptr"].shape[1], 1e-9 * max(int(args["free_ptr"][0]), int(args["ready_ptr"][0]))
    raise_flag(args["started_ptr"], programs, began)
    arrived_s = began
    for index in range(args["transfers"]):
        source, target, rows, words, source_row, target_row = args["transfers_ptr"][index].tolist()
        copy_rows(source, 4 * source_row, target, 4 * target_row, 4 * words, rows)
        free_s += rows * words * args["ns_per_word"] * 1e-9
        arrived_s = max(free_s, began)
        args["free_ptr"][index + 1], args["arrivals_ptr"][index] = round(free_s * 1e9), round(arrived_s * 1e9)
        raise_flag(args["flags_ptr"][index], programs, arrived_s)
    return arrived_s


def wait(args, began):
    if (at := up(args["flag_ptr"][:1], args["wanted"])) is None:
        return None
    end = max(began + LAUNCH_S, at)
    args["times_ptr"][:2] = args["times_ptr"].new_tensor([began * 1e9, end * 1e9])
    return end


def pace(args, began):
    """Slices are let go by their time; those of what is not computed yet, at another look."""
    if "begun" not in args:
        args["begun"] = True
        raise_flag(args["started_ptr"], 1, began)
    due_s, wanted = 1e-9 * int(args["free_ptr"][0]), args["wanted"]
    for number, (index, before, behind) in enumerate(args["slices_ptr"][: args["slices"]].tolist()):
        if index >= args["at_once"] and args["counters_ptr"][index] < args["raised"]:
            return None
        if not before:
            begin_s = max(due_s, 1e-9 * int(args["ready_ptr"][index]))
        due_s = begin_s + 1e-9 * behind * args["ns_per_byte"]
        go_s = due_s - 1e-9 * (behind - before) * args["ns_per_byte"]
        for counter, at_s in zip(args["let_go_ptr"][number].split(1), (go_s, due_s), strict=True):
            if counter < wanted:
                raise_flag(counter, 1, max(at_s, began))
    for index in range(args["transfers"]):
        if (at := up(args["flags_ptr"][index : index + 1], wanted)) is None:
            return None
        args["arrivals_ptr"][index] = round(at * 1e9)
    return max(began, due_s)


def raise_counters(args, began):
    for number in range(args["first"], args["end"]):
        args["times_ptr"][number] = round(began * 1e9)
        raise_flag(args["counters_ptr"][number], args["by"], began)
    return began + LAUNCH_S


def behind_flags(args, began):
    """A matmul of what arrives: its last piece is computed when that is here."""
    seconds, pieces = seconds_of(args), args.get("RANKS") or len(args["order_ptr"])
    if (last := up(args["flags_ptr"], args["wanted"])) is None:
        return None
    product(args)
    return max(began + LAUNCH_S + seconds, last + seconds / pieces)


def pieces(args, began):
    """Of what goes, pieces are whole one after another."""
    if args["counters_ptr"] is None:
        return behind_flags(args | {"flags_ptr": args["flags_ptr"][: len(args["order_ptr"]) - 1]}, began)
    product(args)
    seconds = seconds_of(args)
    for index in range(args["counted"]):
        at = began + seconds * (index + 1) / len(args["order_ptr"])
        args["times_ptr"][index] = round(at * 1e9)
        raise_flag(args["counters_ptr"][index], args["row_tiles"] * args["column_tiles"], at)
    return began + LAUNCH_S + seconds


def add(args, began):
    sums = args["arrived_ptr"][:-1].float().sum(0) + args["local_ptr"].float()
    args["out_ptr"].copy_(sums + args["arrived_ptr"][-1].float())
    return began + LAUNCH_S + (args["arrived_ptr"].nbytes + args["out_ptr"].nbytes) / BYTES_PER_S


KERNELS = {
    "gate_kernel": gate, "clock_kernel": clock, "stamp_kernel": stamp, "copy_kernel": copy, "wait_kernel": wait,
    "pace_kernel": pace, "raise_kernel": raise_counters, "flagged_kernel": behind_flags,
    "flagged_spills_kernel": behind_flags, "pieces_kernel": pieces,
    "add_kernel": add,
}  # fmt: skip
"""Those that are more than a matmul of x and w."""


COPIED = {"cuMemcpy2DAsync_v2": (4, 6, 11, 13, 14, 15), "cuMemcpy3DBatchAsync_v2": (1, 2, 6, 7, 10, 11)}
"""Where a copy's numbers stand: addresses and pitches of source and target, bytes of a row, rows."""


def call_driver(name: str, *about) -> None:
    """What the current stream does without a launch: it waits for a number, writes one, or copies rows."""
    DEVICE.answer()
    DEVICE.calls.append((name, *about))
    if name == "cuDeviceGetPCIBusId":
        return
    if name == "cuMemcpy3DBatchAsync_v2" and not DEVICE.stream.cuda_stream:
        raise RuntimeError(f"CUDA error 1: {name} was refused")  # on the default stream
    if name in COPIED:
        matrix = next(each for each in about if isinstance(each, ctypes.Array))
        *rows, width, height = (matrix[place] for place in COPIED[name])

        def work(began):
            if name in DEVICE.copies_take_sms and DEVICE.is_full:
                return None
            copy_rows(*rows, width, height)
            return began + width * height / BYTES_PER_S

    else:
        _, place, value, _ = about
        number = ctypes.c_int32.from_address(place.value)

        def work(began):
            if name == "cuStreamWriteValue32_v2":
                number.value, DEVICE.raised_at[place.value] = value.value, began
            elif number.value < value.value:
                return None
            return max(began, DEVICE.raised_at.get(place.value, 0.0))

    DEVICE.stream.enqueue(work)


def make_nvml():
    error = type("NVMLError", (Exception,), {})

    def refuse(*about):
        raise error("Not Supported")  # as of a card that cannot be divided

    return types.SimpleNamespace(
        refuse=refuse, NVMLError=error, NVML_CLOCK_SM=1, NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 1, nvmlSystemGetDriverVersion=lambda: "made up",
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetCudaComputeCapability=lambda handle: CARDS[os.environ[NAMED]],
        nvmlDeviceGetClockInfo=lambda handle, kind: SM_HZ / 1e6,
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: 1980,
        nvmlDeviceGetPowerUsage=lambda handle: 650_000, nvmlDeviceGetTemperature=lambda handle, kind: 60,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [],
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: DEVICE.host * 650_000,
    )  # fmt: skip


def properties_of(card: str):
    """What torch says of it."""
    major, minor = CARDS[card]
    return types.SimpleNamespace(
        name=f"rehearsal of {card}", major=major, minor=minor, multi_processor_count=SMS,
        L2_cache_size=CACHE_BYTES, total_memory=MEMORY_BYTES, uuid="GPU-0", max_threads_per_multi_processor=2048,
    )  # fmt: skip


DEVICE = Device()


def install():
    """In this process, before `kernels` and `collectives` are imported; for an H100 unless the environment says."""
    os.environ.setdefault(NAMED, "H100")

    from collectives import device
    from kernels.contract import KernelLaunch

    torch.set_num_threads(1)
    generator = torch.Generator.__new__
    card = os.environ[NAMED]
    properties = properties_of(card)
    stand_ins = dict(
        is_available=lambda: True, device_count=lambda: 1, current_device=lambda: 0, device=lambda index: nullcontext(),
        get_device_properties=lambda device: properties, get_device_capability=lambda device=None: CARDS[card],
        mem_get_info=lambda: (MEMORY_BYTES, MEMORY_BYTES), Stream=DEVICE.Stream, Event=DEVICE.Event, stream=DEVICE.on,
        current_stream=DEVICE.current_stream, is_current_stream_capturing=DEVICE.is_capturing, _sleep=DEVICE._sleep,
        synchronize=DEVICE.synchronize, CUDAGraph=Graph, graph=DEVICE.on,
    )  # fmt: skip
    for name, value in stand_ins.items():
        setattr(torch.cuda, name, value)
    torch.cuda.profiler.profile, torch.profiler.profile = nullcontext, Profile
    torch.version.cuda = "made up"
    torch.Generator = type("Generator", (torch.Generator,), {"__new__": lambda kind, device="cpu": generator(kind)})
    time.perf_counter, sys.modules["pynvml"] = perf_counter, make_nvml()
    KernelLaunch.run = run
    device.leave_shared_memory = lambda function: None  # a call of the driver
    device.call_driver, device.driver_has = call_driver, lambda name: True
    Place().__enter__()
