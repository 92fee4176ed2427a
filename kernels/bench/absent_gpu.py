"""A Hopper GPU that is not there: kernels are compiled for it in place of being run, on tensors without memory.

The GPU is the one that `kernels.machine` pretends, with another chip's figures. Operands are torch's `meta` tensors:
they have a shape, strides and an address. A read of one gives 0, and nobody looks at a result. The launcher that Triton
builds against the driver's library is not built here.
"""

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
import triton
from torch.overrides import TorchFunctionMode

from kernels.bench import checks
from kernels.contract import KernelLaunch
from kernels.machine.compile import compile_for
from kernels.machine.pretend import Event, patches
from kernels.tiles import table
from roofline.theory import chips

TARGET = 90
"""The compute capability that kernels are compiled for: Triton makes sm_90a of it."""

ADDRESS = 2**40
"""The address of every tensor's first element: a multiple of 512, as the allocator's are."""

READS = {"tolist", "item", "cpu", "__bool__", "__int__", "__float__", "__index__"}
"""Functions of a tensor that look at its elements."""


class NoMemory(TorchFunctionMode):
    """Makes tensors of `cuda` as tensors of `meta`, which say that they are of `cuda`."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = function.__name__
        tensor = args[0] if args else None
        is_absent = isinstance(tensor, torch.Tensor) and torch.Tensor.is_meta.__get__(tensor)
        if name == "__get__" and is_absent:
            stands_in = {"device": torch.device("cuda", 0), "is_cuda": True}
            return stands_in.get(function.__self__.__name__) or function(*args)
        if name == "data_ptr" and is_absent:
            return ADDRESS + tensor.storage_offset() * tensor.element_size()
        if name in READS and is_absent:
            return function(torch.zeros(tensor.shape, dtype=tensor.dtype), *args[1:])
        if kwargs.get("out") is not None:
            return kwargs["out"]
        if name == "equal":
            return True
        if name == "pin_memory":
            return tensor
        if name == "to":
            args = [tensor, *map(place, args[1:])]
        if "device" in kwargs:
            kwargs["device"] = place(kwargs["device"])
        if kwargs.get("device") == "meta":
            kwargs.pop("generator", None)  # it is the CPU's
        return function(*args, **kwargs)


def place(argument):
    """`meta` for the device `cuda`, and anything else as it is."""
    is_device = isinstance(argument, (str, torch.device))
    return "meta" if is_device and torch.device(argument).type == "cuda" else argument


@dataclass
class Launches:
    """How often each kernel was launched, and how many of its variants Triton compiled, or found in its cache."""

    launched: Counter = field(default_factory=Counter)
    compiled: Counter = field(default_factory=Counter)
    found: Counter = field(default_factory=Counter)

    def take(self, launch: KernelLaunch) -> SimpleNamespace:
        """Compile `launch`, unless the cache has it."""
        compile_for(TARGET, launch)
        self.launched[launch.kernel.__name__] += 1
        return SimpleNamespace(function=0)

    def note(self, *, src, cache_hit: bool, **about) -> None:
        """Count a variant: Triton calls this once it has compiled or found it."""
        kind = self.found if cache_hit else self.compiled
        kind[src.name] += 1


def install(chip: chips.Chip, launches: Launches) -> None:
    """Stand in for `chip`, on which nothing runs, in this process from now on. `launches` gets the launches that it
    would run."""
    for stand_in in patches(TARGET, table("sm90").shared_limit_bytes, chip.sms):
        stand_in.start()
    properties = torch.cuda.get_device_properties("cuda")
    properties.name = chip.device_names[0]
    properties.uuid = "GPU-0"
    properties.L2_cache_size = chip.cache_bytes
    properties.total_memory = chip.memory_bytes
    Event.elapsed_time = lambda event, other: 0.0
    for place, name, stand_in in (
        (KernelLaunch, "run", lambda launch, on: launches.take(launch)),
        (checks, "reference_sums", lambda *operands: 0),
        (checks, "error_of", lambda *results: 0.0),
        (checks, "error_of_last", lambda *results: 0.0),
    ):
        setattr(place, name, stand_in)
    triton.knobs.compilation.listener = launches.note
    no_memory = NoMemory()
    once = torch.autograd.function.once_differentiable

    def in_mode(backward):
        """A backward pass of a module that is imported from now on: torch has left the mode where it makes one."""

        def again(*arguments):
            with no_memory:
                return backward(*arguments)

        return once(again)

    torch.autograd.function.once_differentiable = in_mode
    no_memory.__enter__()
