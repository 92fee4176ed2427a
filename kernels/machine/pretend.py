"""A Hopper GPU that is not there: code for `cuda` runs with its tensors on the CPU.

A tensor that would be the host's bears a mark; all others say that they are on `cuda`. What has no meaning on the CPU,
such as a CUDA graph, raises `UncoveredError` by name. The patches hold in the whole process. The mode holds in one
thread: another thread cannot make tensors of `cuda`.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import product
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from .compile import FRAME, REGISTERS, WARP_SIZE, driver_for, in_binary
from .gpus import REGISTERS as ALL_REGISTERS

NAME = "NVIDIA H100"
TOTAL_BYTES = 80 << 30
HOST = "_machine_host"
"""The mark of the host's tensors, which is an attribute."""

QUIET_NAMES = """
    __get__ __set__ __len__ __hash__ size stride dim ndimension numel nelement data_ptr element_size storage_offset
    untyped_storage is_contiguous is_floating_point requires_grad_ empty empty_like empty_strided new_empty
    new_empty_strided get_device contiguous to cuda
"""
QUIET = set(QUIET_NAMES.split())
"""Functions that begin nothing on a GPU, the last three where they return what they are given."""
COPIES = {"tensor", "as_tensor", "asarray"}
"""Functions that copy from the host what is no tensor."""


class UncoveredError(Exception):
    """The code asks for something that the pretended GPU lacks."""


class OnCpu(TorchFunctionMode):
    """Makes tensors of `cuda` on the CPU, and copies where a tensor would change its place."""

    others = 0
    """How often torch has begun, or may have begun, something of its own on the GPU."""
    written: ClassVar[list[Tensor]] = []
    """The tensor that the last of these writes, if it is a kernel that writes one."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.device or torch.compiler.is_compiling():
            return function(*args, **(kwargs or {}))
        args = list(args)
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        tensor = args[0] if args and isinstance(args[0], Tensor) else None
        if tensor is not None and name in ("__get__", "__set__", "get_device", "pin_memory", "record_stream"):
            return of_tensor(function, name, *args)
        place = name if name in ("cuda", "cpu") else kwargs.get("device")
        for number, value in enumerate(args):
            if isinstance(value, Tensor) and name == "to" and number:
                place = "cpu" if is_hosts(value) else "cuda"
                args[number] = value.dtype
            elif isinstance(value, torch.device) or (name == "to" and isinstance(value, (str, int)) and number == 1):
                place = value
                args[number] = "cpu"
        if place is None and function in _device._device_constructors():
            place = kwargs["device"] = _device.CURRENT_DEVICE  # the one that torch.set_default_device has set
        sources = [value for value in flat([*args, *kwargs.values()]) if isinstance(value, Tensor)]
        to_host = all(map(is_hosts, sources)) if place is None else type_of(place) == "cpu"
        if kwargs.get("device") is not None and type_of(place) != "meta":
            kwargs["device"] = "cpu"
        if name in ("cuda", "cpu"):
            function = Tensor.to
            args = [tensor, "cpu"]
            kwargs = {}
        if function is Tensor.to and place is not None and is_hosts(tensor) != to_host:
            kwargs["copy"] = True
        result = function(*args, **kwargs)
        if not is_quiet(name, sources, result):
            is_copy = name in COPIES or any(map(is_hosts, sources))
            begin(result) if isinstance(result, Tensor) and not (to_host or is_copy) else begin()
        for value in flat([result]):
            if isinstance(value, Tensor) and all(value is not source for source in sources):
                mark(value, to_host)
        return result


def begin(*written: Tensor) -> None:
    """Note that torch begins something of its own."""
    OnCpu.others += 1
    OnCpu.written = [tensor for tensor in written if tensor.is_contiguous()]


def is_quiet(name: str, sources: list[Tensor], result: Any) -> bool:
    """Whether a function has only looked at a tensor, made a view of it, or made an empty tensor."""
    is_new = isinstance(result, Tensor) and all(result is not source for source in sources)
    if not is_new or name.startswith(("empty", "new_empty")):
        return name in QUIET
    return result.untyped_storage().data_ptr() in [source.untyped_storage().data_ptr() for source in sources]


def of_tensor(function: Any, name: str, tensor: Tensor, *others: Any) -> Any:
    attribute = getattr(function.__self__, "__name__", "") if name.startswith("__") else name
    if attribute == "get_device":
        return -1 if is_hosts(tensor) else 0
    if attribute in ("pin_memory", "record_stream"):
        return tensor
    if name == "__get__" and attribute == "device" and tensor.device.type == "cpu":
        return torch.device("cpu") if is_hosts(tensor) else torch.device("cuda", 0)
    if name == "__get__" and attribute == "is_cuda":
        return not is_hosts(tensor)
    result = function(tensor, *others)
    if attribute == "data":
        if name == "__get__":
            mark(result, is_hosts(tensor))
        else:
            mark(tensor, is_hosts(others[0]))
    return result


def is_hosts(tensor: Tensor) -> bool:
    return vars(tensor).get(HOST, False)


def mark(tensor: Tensor, to_host: bool) -> None:
    if is_hosts(tensor) != to_host:
        vars(tensor)[HOST] = to_host


def flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from flat(value)
        else:
            yield value


def type_of(device: Any) -> str:
    return "cuda" if isinstance(device, int) else torch.device(device).type


FROM_NUMPY = torch.from_numpy


def from_numpy(array: Any) -> Tensor:
    """torch.from_numpy, whose tensors are on the host."""
    tensor = FROM_NUMPY(array)
    mark(tensor, True)
    return tensor


class HostsGenerator(torch.Generator):
    def __new__(cls, device: Any = None):
        return super().__new__(cls, "cpu")


class Event:
    """An event of a stream that is always done. It has no time."""

    def __init__(self, *arguments, **options):
        pass

    def record(self, stream: Any = None) -> None:
        begin()

    wait = synchronize = record

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        raise UncoveredError("torch.cuda.Event.elapsed_time: the machine has no time")


class Stream(Event):
    cuda_stream = 0
    device = torch.device("cuda", 0)

    wait_stream = wait_event = record_event = Event.record


class Launcher:
    """Launches a compiled kernel, which is judged as any launch of its function."""

    def __init__(self, source: Any, metadata: Any):
        self.kernel = source.fn
        self.options = {name: getattr(metadata, name) for name in ("num_warps", "num_ctas", "num_stages")}

    def __call__(self, x: int, y: int, z: int, stream, function, packed, metadata, enter, leave, *args: Any) -> None:
        self.kernel[x, y, z](*args, **self.options)


def load_binary(name: str, cubin: bytes, shared_bytes: int, device: int) -> tuple:
    """A module, a function, its registers, words that spill, and the most threads."""
    return name, name, in_binary(cubin, REGISTERS), in_binary(cubin, FRAME) // 4, 1024


class Driver(SimpleNamespace):
    """A driver with what Triton and its users ask for, and nothing else."""

    def __init__(self, capability: int, shared_bytes: int, sms: int):
        properties = dict(
            max_shared_mem=shared_bytes,
            multiprocessor_count=sms,
            max_num_regs=ALL_REGISTERS,
            warpSize=WARP_SIZE,
            sm_clock_rate=1,
            mem_clock_rate=1,
            mem_bus_width=1,
        )
        super().__init__(
            **vars(driver_for(capability)),
            utils=SimpleNamespace(get_device_properties=lambda device=0: properties, load_binary=load_binary),
            launcher_cls=Launcher,
            get_active_torch_device=lambda: torch.device("cuda", 0),
            get_device_interface=lambda: torch.cuda,
            is_active=lambda: True,
        )

    def __getattr__(self, name: str) -> Any:
        raise UncoveredError(f"triton.runtime.driver.active.{name}: there is no driver")


def has_accelerator() -> bool:
    """torch's compiler is told that there is none: it would ask that for its stream."""
    return "_dynamo" not in sys._getframe(1).f_code.co_filename


def no_driver(*arguments, **options) -> Any:
    """A stand-in for `_lazy_init`, with which functions of torch.cuda begin."""
    raise UncoveredError(f"{sys._getframe(1).f_code.co_name}: there is no driver")


def uncovered(name: str) -> Any:
    def refuse(*arguments, **options):
        raise UncoveredError(f"{name}: the machine has none")

    return refuse


def patches(capability: int, shared_bytes: int, sms: int) -> Iterator[Any]:
    """Yield the patches that put stand-ins in the place of attributes of torch and Triton."""
    major, minor = divmod(capability, 10)
    properties = SimpleNamespace(
        name=NAME,
        major=major,
        minor=minor,
        multi_processor_count=sms,
        total_memory=TOTAL_BYTES,
        gcnArchName="",
        warp_size=WARP_SIZE,
        shared_memory_per_block_optin=shared_bytes,
        max_threads_per_multi_processor=2048,
        L2_cache_size=50 << 20,
        regs_per_multiprocessor=ALL_REGISTERS,
    )
    constants = dict(
        is_available=True,
        is_initialized=True,
        device_count=1,
        current_device=0,
        get_device_name=NAME,
        get_device_capability=(major, minor),
        get_device_properties=properties,
        is_bf16_supported=True,
        empty_cache=None,
        set_device=None,
        memory_allocated=0,
        max_memory_allocated=0,
        reset_peak_memory_stats=None,
        mem_get_info=(TOTAL_BYTES, TOTAL_BYTES),
        current_stream=Stream(),
        default_stream=Stream(),
        is_current_stream_capturing=False,
    )
    constants |= dict(current_accelerator=torch.device("cuda"), current_device_index=0)
    constants |= dict(set_device_index=None, set_stream=None)
    for module, (name, value) in product((torch.cuda, torch.accelerator), constants.items()):
        if hasattr(module, name):
            yield patch.object(module, name, lambda *arguments, value=value, **options: value)
    yield patch.multiple(
        torch.accelerator,
        is_available=has_accelerator,
        synchronize=lambda device=None: begin(),
        device_index=lambda index: nullcontext(),
    )
    yield patch.multiple(
        torch.cuda,
        synchronize=lambda device=None: begin(),
        stream=lambda stream: nullcontext(begin()),
        device=lambda *arguments: nullcontext(),
        device_of=lambda *arguments: nullcontext(),
        get_rng_state=lambda device=None: torch.get_rng_state(),
        set_rng_state=lambda state, device=None: torch.set_rng_state(state),
        Event=Event,
        Stream=Stream,
        _lazy_init=no_driver,
        CUDAGraph=uncovered("torch.cuda.CUDAGraph"),
        graph=uncovered("torch.cuda.graph"),
    )
    yield patch.multiple(torch, Generator=HostsGenerator, from_numpy=from_numpy)
    yield patch.object(torch.version, "cuda", "12.8")
    yield patch.object(triton.runtime.driver, "_active", Driver(capability, shared_bytes, sms))
