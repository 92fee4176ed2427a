"""Tensors, calls and quick timings for the cases that gather over a wire."""

import functools
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from weakref import WeakValueDictionary

import torch

from collectives.ranks import shared
from kernels.bench.roof import beyond_cache_bytes
from kernels.registry import CONTENDERS, Contender
from kernels.tiles import DTYPES
from roofline.theory.wires import BY_ENGINE, PCIE
from roofline.worker import clocks
from roofline.worker.clocks import Call

CALIBRATIONS = 5
WARM_TURNS = 2


@contextmanager
def computing(device: str, *, all_cores: bool = False):
    """On a CPU, leave one core to the link, or with `all_cores` none."""
    threads = torch.get_num_threads()
    if device == "cpu" and threads > 1 and not all_cores:
        torch.set_num_threads(threads - 1)
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@dataclass
class Turns:
    """An arm, or what it is compared with, on each set of operands by turns: `last` is the number of the last one."""

    runs: Sequence[Callable]
    last: int = 0

    def __call__(self):
        self.last = (self.last + 1) % len(self.runs)
        return self.runs[self.last]()


def by_turns(runs: Sequence[Callable], device: str, link=None, *, all_cores: bool = False) -> Call:
    """A call of milliseconds, of `runs` by turns. What goes over a link notes its timeline."""
    notes = None
    if link and link.kind != "preset":  # which on a GPU knows only when the host enqueued
        notes = functools.partial(timeline_of, link)
    is_remade = all_cores and torch.get_num_threads() > 2  # the others' pool is one thread short
    runs = [computing(device, all_cores=all_cores)(run) for run in runs]
    return Call(Turns(runs), notes=notes, is_long=not is_remade)


def timeline_of(link) -> dict:
    """The notes of the last run of a link."""
    timeline = link.timeline()
    notes = {"last_arrival_s": max(timeline.arrivals_s)}
    if timeline.waits:
        notes["first_wait_s"] = timeline.waits[0][1]
    notes["timeline"] = timeline.as_dict()
    return notes


def seconds_by_turns(calls: list[Call], device: str) -> list[float]:
    """About how many seconds each of `calls` takes, by turns of the device's clock: to choose a matmul, a bandwidth and
    a plan by, and never a result."""
    seconds = []
    for call, times in zip(calls, zip(*turns_of(calls, device, CALIBRATIONS), strict=True), strict=True):
        kept = [time_s for time_s in times if time_s is not None]
        seconds.append(median(kept or [clocks.for_device(device).burst(call, 1)]))
    return seconds


def turns_of(calls: list[Call], device: str, count: int) -> list[list[float | None]]:
    """The seconds of each of `calls` in each of `count` turns of the device's clock, after `WARM_TURNS`."""
    clock = clocks.for_device(device)
    return [clock.turn(calls) for _ in range(WARM_TURNS + count)][WARM_TURNS:]


OURS, OURS_ALONE = ("persistent", "warpgroup_beside_copier"), ("persistent", "warpgroup")
"""Our unsplit matmuls: those that leave a copier, or NCCL, its registers on every SM; and where none is there."""


def unsplit(options, x, w, link: str) -> dict[str, Contender]:
    """The contenders whose matmul may be T_gemm over a kind of link: the vendor's, and on a GPU ours."""
    return vendor_or_ours(options.device, x, w, OURS_ALONE if link in BY_ENGINE else OURS)


def vendor_or_ours(device: str, x, w, ours: tuple[str, ...] = OURS) -> dict[str, Contender]:
    able = {}
    for name, contender in CONTENDERS.items():
        is_candidate = contender.kind == "vendor" or name in ours
        if is_candidate and device in contender.devices and not contender.why_not(x, w):
            able[name] = contender
    return able


def workers(device: str) -> int:
    """SMs of a GPU; a CPU is one."""
    return torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 1


@functools.lru_cache(maxsize=4)
def chip_flops(device: str, dtype: str, m: int, n: int, k: int) -> float:
    """FLOP/s of the fastest unsplit matmul on a large shape, on the cores that compute beside a link."""
    x = normal((m, k), dtype, device, 0, 1.0)
    w = normal((n, k), dtype, device, 1, 1.0)
    out = x.new_empty(m, n)
    calls = []
    for contender in vendor_or_ours(device, x, w).values():
        calls.append(by_turns([functools.partial(contender.load(), x, w, out)], device))
    return 2 * m * n * k / min(seconds_by_turns(calls, device))


@functools.cache
def copy_bytes_per_s(device: str) -> float:
    """Bytes/s that a copy on all cores reads and writes together, far beyond the cache."""
    source = torch.ones(beyond_cache_bytes(device), dtype=torch.int8, device=device)
    target = torch.zeros_like(source)
    (copy_s,) = seconds_by_turns([by_turns([lambda: target.copy_(source)], device, all_cores=True)], device)
    return 2 * source.nbytes / copy_s


def while_used(make: Callable) -> Callable:
    """Cases that are prepared at the same time share what `make` returns for the same arguments. It goes with the last
    case that has it, since the next shape may need all the memory."""
    in_use: WeakValueDictionary[tuple, object] = WeakValueDictionary()

    @functools.wraps(make)
    def find(*arguments):
        result = in_use.get(arguments)
        if result is None:
            result = in_use[arguments] = make(*arguments)
        return result

    return find


@while_used
def normal(shape: tuple[int, ...], dtype: str, device: str, seed: int, scale: float) -> torch.Tensor:
    """Zero-mean normal values."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=DTYPES[dtype]).mul_(scale)


class Shards(list):
    """A list that a dictionary can hold weakly."""


@while_used
def shards_of(tensor: torch.Tensor, count: int, axis: int) -> Shards:
    """Contiguous shards of a tensor that cases share."""
    return Shards(part.contiguous() for part in tensor.chunk(count, axis))


@while_used
def on_host(tensor: torch.Tensor, count: int, axis: int, own: int) -> Shards:
    """The same shards, all but the `own` one in pinned host memory."""
    from collectives.engines import in_host_memory

    shards = enumerate(shards_of(tensor, count, axis))
    return Shards(shard if number == own else in_host_memory(shard) for number, shard in shards)


def shards_for(ranks, wire: str, tensor: torch.Tensor, count: int, axis: int) -> list[torch.Tensor]:
    """Contiguous shards of a tensor that cases share. For the link symmetric the own one of `ranks` is a copy in
    symmetric memory, which each case makes anew: all ranks have to call this in the same order. For PCIe the others'
    are in host memory."""
    if wire == PCIE:
        return on_host(tensor, count, axis, ranks.rank)
    shards = shards_of(tensor, count, axis)
    if wire != "symmetric":
        return shards
    own = shared(shards[ranks.rank], ranks)
    return [*shards[: ranks.rank], own, *shards[ranks.rank + 1 :]]


@while_used
def buffer(op: str, shape: tuple[int, int], dtype: str, device: str, number: int) -> torch.Tensor:
    """Memory of one operation: others leave something else there."""
    return torch.empty(shape, dtype=DTYPES[dtype], device=device)
