"""Every launch of a benchmark run on a Hopper GPU, compiled and never run: `python -m collectives.bench.dry_run`.

It fills Triton's cache ahead, for a machine on which a compiler's minutes are dear, and says what it still had to
compile. No GPU is needed. The runners are the project's own: they make operands, links and arms, and call each
contender as they do before they time it. Each `KernelLaunch` is compiled for sm_90a in place of being run. Operands are
torch's `meta` tensors: they have a shape, strides and an address, and no memory. What is read from one is 0, and no
result is looked at.

How an arm is cut depends on how long its matmul and its link take. So the run is gone through for several speeds, and
our persistent matmul, by which arms multiply, is called for any number of row blocks. Of attention our own contender
alone is called. What Triton's launcher builds for itself, with the driver's library, is not built here.
"""

import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
from torch.overrides import TorchFunctionMode

import kernels.attention
from collectives import device
from kernels.bench import attention, checks
from kernels.contract import KernelLaunch
from kernels.machine.compile import offline
from kernels.registry import CONTENDERS
from kernels.tiles import DTYPES
from roofline import operations
from roofline.arguments import Parser
from roofline.measure.prepared import FAILED
from roofline.options import Options, resolve
from roofline.store.run import REQUESTED
from roofline.theory import chips, wires
from roofline.theory.arms import BLOCKS

TARGET = 90
"""The compute capability that is compiled for: Triton makes sm_90a of it."""

HOPPER = ("H100 SXM", "H100 PCIe", "H200")
"""Chips of that capability: which tiles are taken depends on their SMs and the size of their cache."""

REACHED_SHARES = (0.5, 0.65, 0.8)
"""Of the datasheet's FLOP/s, what the matmul of an arm may reach: 0.6 to 0.75 on an H200 (results/reference)."""

WIRE_SHARE = 0.7
"""The same of the large matmul that wires are made for."""

ADDRESS = 2**40
"""Of every tensor's first element: a multiple of 512, as the allocator's are."""

READS = {"tolist", "item", "cpu", "__bool__", "__int__", "__float__", "__index__"}
"""Functions of a tensor that look at its elements."""

OURS = {"attention": ["flash"]}
"""Contenders by operation, where others are libraries' that cannot be called without a GPU."""


class NoMemory(TorchFunctionMode):
    """Makes tensors of `cuda` as tensors of `meta`, which say that they are of `cuda`."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), function.__name__
        tensor = args[0] if args else None
        is_absent = isinstance(tensor, torch.Tensor) and torch.Tensor.is_meta.__get__(tensor)
        if name == "__get__" and is_absent:
            stands_in = {"device": torch.device("cuda", 0), "is_cuda": True}
            attribute = function.__self__.__name__
            return stands_in[attribute] if attribute in stands_in else function(*args)
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


class OfCpu(torch.Generator):
    """Takes the place of a generator of any device."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls)


def place(argument):
    """Return `meta` for the device `cuda`, and anything else as it is."""
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
        with offline(TARGET):
            launch.kernel.warmup(grid=launch.grid, **launch.args)
        self.launched[launch.kernel.__name__] += 1
        return SimpleNamespace(function=0)

    def note(self, *, src, cache_hit: bool, **about) -> None:
        """Count a variant, of which Triton tells when it has it."""
        kind = self.found if cache_hit else self.compiled
        kind[src.name] += 1


def install(chip: chips.Chip, launches: Launches) -> None:
    """Stand in for a GPU in this process from now on: `chip`, on which nothing runs. `launches` gets what would."""
    major, minor = divmod(TARGET, 10)
    properties = SimpleNamespace(
        name=chip.device_names[0], major=major, minor=minor, multi_processor_count=chip.sms, uuid="GPU-0",
        L2_cache_size=chip.cache_bytes, total_memory=chip.memory_bytes,
    )  # fmt: skip
    stream = SimpleNamespace(cuda_stream=0, wait_stream=lambda other: None)
    of_cuda = dict(
        get_device_properties=lambda device: properties, get_device_capability=lambda device: (major, minor),
        device=nullcontext, stream=nullcontext, Stream=lambda priority: stream,
        current_stream=lambda device=None: stream, synchronize=lambda device=None: None,
        is_current_stream_capturing=lambda: False, reset_peak_memory_stats=lambda: None,
        memory_allocated=lambda: 0, max_memory_allocated=lambda: 0,
    )  # fmt: skip
    for name, stand_in in of_cuda.items():
        setattr(torch.cuda, name, stand_in)
    torch.Generator = OfCpu
    device.call_driver = lambda name, *arguments: None
    KernelLaunch.run = lambda launch, on: launches.take(launch)
    checks.reference_sums = lambda x, w: 0
    checks.error_of = attention.error_of = lambda *results: 0.0
    triton.knobs.compilation.listener = launches.note
    no_memory, backward = NoMemory(), kernels.attention.backward

    def backward_again(*arguments):
        with no_memory:  # which torch has left where it goes back through a graph
            return backward(*arguments)

    kernels.attention.backward = backward_again
    no_memory.__enter__()


def chosen(case, chip: chips.Chip, reached_share: float) -> dict:
    """Return what an earlier process would have chosen for a case over a wire, had it been on `chip`: see
    `roofline.measure.runner.Runner.earlier`."""
    datasheet, wire = chip.flops[case.dtype], wires.parse(case.wire)
    t_gemm_s = case.work.flop / (reached_share * datasheet)
    about = dict(chip_flops=WIRE_SHARE * datasheet, t_gemm_s=t_gemm_s, wire_bytes=case.work.wire_bytes)
    kind = wire.kind if wire.kind in wires.LINKS else "paced"
    facts = {"unsplit": "cublas", "t_gemm_planned_s": t_gemm_s, "gather": kind, REQUESTED: wire.bytes_per_s(**about)}
    return {"facts": facts, "medians_s": {}}


def launch_row_blocks(case) -> None:
    """Multiply rows of `case` by our persistent matmul: any number of the most blocks there may be, by its weights and
    by those of the other way, as a layer's second matmul has them."""
    persistent, blocks = CONTENDERS["persistent"].load(), max(BLOCKS)
    about = dict(dtype=DTYPES[case.dtype], device="cuda")
    for n, k in ((case.n, case.k), (case.k, case.n)):
        w = torch.empty((n, k), **about)
        for count in range(1, blocks + 1):
            persistent(torch.empty((case.m * count // blocks, k), **about), w)


def launch_all(options: Options, chip: chips.Chip, names: list[str]) -> list[str]:
    """Make every launch of the operations `names` by `options`. Returns who raised, in sentences: what they would have
    launched after that is not known."""
    failures = []
    for share in REACHED_SHARES:
        runners = operations.Runners(options)
        for name in names:
            operation = operations.find(name)
            runner, planner = runners.of(operation), runners.planner(operation)
            runner.instruments()()
            for case in operation.sweep(options):
                if operation.analysis == "overlap":
                    runner.earlier[case.id] = chosen(case, chip, share)
                    launch_row_blocks(case)
                prepared = runner.prepare(case, OURS.get(name) or planner.names(case))
                for entrant in prepared.entrants.values():
                    entrant.call()
                rejected = prepared.rejected.items()
                failures += [f"{case.id}: {reason}" for _, (outcome, reason) in rejected if outcome == FAILED]
    return failures


def main(arguments: list[str]) -> int:
    parser = Parser(prog="python -m collectives.bench.dry_run", description=__doc__.partition("\n")[0])
    parser.add_argument("--chip", choices=HOPPER, default=HOPPER[0], help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="exit with code 1 where anything had to be compiled")
    asked = parser.parse_args(arguments)
    options = resolve(lambda name: None, device="cuda", timed=True, root=Path())
    names = [name for name, operation in operations.OPERATIONS.items() if operation.default] + [*OURS]
    chip, launches = chips.find(asked.chip), Launches()
    install(chip, launches)
    failures = launch_all(options, chip, names)
    for failure in failures:
        print(failure)
    for name, times in launches.launched.items():
        compiled, found = launches.compiled[name], launches.found[name]
        print(f"{name:20} {times:6} launches of {compiled + found:3} variants, {compiled:3} of them compiled now")
    return 1 if failures or (asked.check and launches.compiled) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
