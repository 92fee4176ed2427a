"""What is run of every kernel: small shapes that make it go through all of its ways, with whole numbers.

Operands lie inside larger arrays of NaN, so that what is read or written beside them shows. `out` must equal the
product to the bit, nothing beside it may have changed, nor x nor w, and counters must be zero again. How many programs
a persistent grid has is chosen for each case: fewer than tiles.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels import hopper, workspace
from kernels.contract import FP8, Kernel, Scales, empty_out, empty_scales, result_dtype
from kernels.fp8 import scale_rows, scales_of_rows
from kernels.machine.core.faults import FaultError, UnknownError
from kernels.machine.core.machine import Machine
from kernels.machine.launcher import enqueue
from kernels.recording import launches_of
from kernels.registry import CONTENDERS
from kernels.tiles import DTYPES, Config, table
from roofline.operations import contenders

MARGIN = 8  # elements before and after a row: a multiple of 16 bytes


@dataclass(frozen=True)
class Case:
    """`make(seed)` prepares one run: what enqueues it on a machine, and what says afterwards what is wrong."""

    kernel: str
    title: str
    make: Callable[[int], tuple[Callable[[Machine], None], Callable[[], str]]]
    slots: int | None = None
    thorough: bool = False
    """Left out of a short run."""
    gpu: bool = False
    """A GPU can run it too: `make(seed, "cuda")`, and None in place of the machine."""

    def __str__(self) -> str:
        return f"{self.kernel}  {self.title}"


@dataclass(frozen=True)
class Outcome:
    wrong: str
    """What the result lacks, or the fault; empty: exact."""
    instructions: int
    seconds: float


def run(case: Case, seed: int, budget: int = 20_000_000) -> Outcome:
    """Under the order of events that `seed` stands for."""
    begun = time.process_time()
    workspace.KEPT.clear()
    machine = Machine(seed, case.slots, budget)
    try:
        add, wrong = case.make(seed)
        add(machine)
        machine.run()
        fault = wrong()
    except (FaultError, UnknownError) as error:
        fault = f"{type(error).__name__.removesuffix('Error')}: {error}"
    fault = "; ".join(filter(None, dict.fromkeys([*machine.problems, fault])))
    return Outcome(fault, machine.executed, time.process_time() - begun)


def run_on_gpu(case: Case, seed: int) -> Outcome:
    """The same launch on the GPU of this process. What is exact there and on the machine is equal to the bit."""
    begun = time.perf_counter()
    start, wrong = case.make(seed, "cuda")
    start(None)
    return Outcome(wrong(), 0, time.perf_counter() - begun)


@contextmanager
def grids_of(programs: int) -> Iterator[None]:
    """Kernels that stay for several tiles are launched with so many programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hopper, "programs", lambda device: programs)
        yield


def padded(rows: int, columns: int, left: int = MARGIN, unit: int = MARGIN, **kind) -> Tensor:
    """[rows, columns] of NaN, a view: a row before and after, `left` columns before, some after; rows a multiple of
    `unit` elements long. `kind`: dtype, device."""
    width = -(-(left + columns + MARGIN) // unit) * unit
    return torch.full((rows + 2, width), math.nan, **kind)[1 : rows + 1, left : left + columns]


def whole_numbers(target: Tensor, seed: int) -> Tensor:
    """From -4 to 4: sums of some thousand products are exact in fp32."""
    random = torch.Generator().manual_seed(seed)
    return target.copy_(torch.randint(-4, 5, target.shape, generator=random))


def changed(tensor: Tensor) -> int:
    """Elements of the memory around `tensor` that are no longer NaN."""
    if (around := tensor._base) is None:
        return 0
    around = around.clone()
    around[1 : len(tensor) + 1, tensor.storage_offset() % around.shape[1] :][:, : tensor.shape[1]] = math.nan
    return int((~around.isnan()).sum())


def scales_of(x: Tensor, w: Tensor, seed: int, by_block: bool) -> Scales | None:
    """Return powers of two, by which sums stay exact, with NaN around them; of several rows of x the first one has an
    infinite one, which is nobody else's. None but of fp8."""
    if x.dtype != FP8:
        return None
    random = torch.Generator().manual_seed(seed)
    several = []
    for empty in empty_scales(x, w, by_block):
        count = empty.numel()
        around = torch.full((count + 2 * MARGIN,), math.nan, device=x.device)
        scales = around[MARGIN : MARGIN + count].as_strided(empty.shape, empty.stride())
        several.append(scales.copy_(2.0 ** torch.randint(-2, 3, empty.shape, generator=random)))
    if len(x) > 1:
        several[0][0, -1] = math.inf
    return several[0], several[1]


def differences(out: Tensor, x: Tensor, w: Tensor, before: Sequence[Tensor], scales: Scales | None = None) -> str:
    """Return what is wrong with `out` and what is around it."""
    exact_x, exact_w = x.double(), w.double()
    if scales:
        x_scales, w_scales = scales_of_rows(w, scales)
        scale_rows(exact_x, x_scales)
        scale_rows(exact_w, w_scales)
    is_wrong = out != (exact_x @ exact_w.T).to(out.dtype)
    if scales and scales[0].isinf().any():
        is_wrong[0] = out[0].isfinite()
    counts = {
        "elements of out are wrong": int(is_wrong.sum()),
        "elements beside out are written": changed(out),
        "elements of x and w are changed": sum(int((a != b).sum()) for a, b in zip((x, w), before, strict=True)),
        "counters are not zero again": sum(int((kept.counters != 0).sum()) for kept in workspace.KEPT.values()),
    }  # fmt: skip
    return ", ".join(f"{count} {problem}" for problem, count in counts.items() if count)


def matmul(
    kernel: Kernel,
    config: Config,
    dtype: str,
    shape: tuple[int, int, int],
    programs: int = 3,
    *,
    left: int = MARGIN,
    unit: int = MARGIN,
    **more,
) -> Case:
    m, n, k = shape

    def make(seed: int, device: str = "cpu"):
        kind = dict(dtype=DTYPES[dtype], device=device)
        as_long = 2 if dtype == "fp8" else 1
        around = as_long * left, as_long * unit
        x, w = (whole_numbers(padded(rows, k, *around, **kind), seed + i) for i, rows in enumerate((m, n)))
        out = padded(m, n, left, unit, dtype=result_dtype(x.dtype), device=device)
        before, scales = (x.clone(), w.clone()), scales_of(x, w, seed, kernel.by_block)
        with grids_of(programs):
            launch = kernel.prepare(x, w, out, config, scales)
        for kept in workspace.KEPT.values():
            kept.partials.fill_(math.nan)

        def start(machine: Machine | None):
            return enqueue(machine, launch) if machine else launch.run(x.device)

        return start, lambda: differences(out, x, w, before, scales)

    title = f"{config} {dtype} {m}x{n}x{k} in {programs} programs" + (f", rows from {left}" if left != MARGIN else "")
    return Case(kernel.name, title, make, gpu=True, **more)


def of_user(place: str, shape: tuple[int, int, int], dtype: str) -> Case:
    """Return the case of a user's matmul, `FILE::NAME`, whose launches run one after another. Its operands lie as in a
    benchmark, without gaps. Raises ValueError where it cannot be loaded."""
    function, (m, n, k) = contenders.load(contenders.parse(place)), shape

    def make(seed: int):
        x, w = (whole_numbers(torch.empty(rows, k, dtype=DTYPES[dtype]), seed + i) for i, rows in enumerate((m, n)))
        out, before = empty_out(x, w).fill_(math.nan), (x.clone(), w.clone())
        scales = scales_of(x, w, seed, by_block=dtype == "fp8_block")
        launches = launches_of(function, x, w, out, **({"scales": scales} if scales else {}))

        def start(machine: Machine) -> None:
            after: tuple[int, ...] = ()
            for launch in launches:
                after = (enqueue(machine, launch, after),)

        return start, lambda: differences(out, x, w, before, scales)

    return Case(place, f"{dtype} {m}x{n}x{k}", make)


def matmuls(kernel: Kernel, config: Config, dtype: str, m_max: int | None) -> Iterator[Case]:
    """The binary that `kernels.inspect` looks at, whose sizes are multiples of 16: two tiles in a program, M and N
    ragged, K longer than the ring; where K of whole steps is code of its own, also a K that is none. Then more tile
    rows than the raster has in one sweep, since later sweeps begin where others end. More: other sizes; K shorter than
    a step, one row; whole tiles, one program at a time; rows that no 16 bytes align."""
    bm, bn, bk = config.block_m, config.block_n, config.block_k
    few = m_max is not None and m_max <= bm  # rows: all in one tile
    rows = [max(bm - 3, 1), bm, 1, bm, bm] if few else [bm - 5, 2 * bm - 5, 1, bm, 3 * bm - 1]
    arguments = kernel.example(config, DTYPES[dtype]).args
    steps, even = config.num_stages + 2, "EVEN_K" in arguments
    config = config.changed(gang_m=min(config.gang_m, 2), gang_n=min(config.gang_n, 2))  # the same code
    for number, variant in enumerate(kernel.variants(config)):
        gang = variant.gang_m * variant.gang_n
        several = few or variant.shared_waves > 0  # programs, which share a tile
        for k in (steps * bk, steps * bk + 16)[0 if even else 1 :]:
            yield matmul(kernel, variant, dtype, (rows[0], 2 * bn - 16, k), 3 * gang if several else gang, unit=16)
        more = dict(thorough=True)
        if "GROUP" in arguments:
            two = variant.changed(group_m=2)
            sizes = (2 * variant.gang_m + 1) * bm - 1, variant.gang_n * bn + 16, 2 * bk
            yield matmul(kernel, two, dtype, sizes, 3 * gang, unit=16, thorough=number > 0 or dtype != "bf16")
        yield matmul(kernel, variant, dtype, (rows[1], 2 * bn - 8, (steps + 1) * bk - 3), 3 * gang, **more)
        split = getattr(variant, "split", 0)
        short = max(split - 1, 0) * bk + bk // 2 + 3
        yield matmul(kernel, variant, dtype, (rows[2], 24, short), gang, **more)
        if variant.shared_waves:  # five programs on one tile
            yield matmul(kernel, variant, dtype, (rows[2], 24, 5 * bk + 3), 5 * gang, **more)
        if split > 1:
            yield matmul(kernel, variant, dtype, (rows[2], 24, 20 * bk + 3), 5, **more)
        slots = 2 * gang if variant.shared_waves else gang  # an owner waits for the next gang, and a cluster is one
        across = variant.changed(raster="n", group_m=2)
        sizes = rows[3], (2 * variant.gang_n + 1) * bn, 3 * bk
        yield matmul(kernel, across, dtype, sizes, (2 if few else 3) * gang, slots=slots, **more)
        programs = (2 + 3 * (number % 2)) * gang
        columns = bn + (8 if "out_desc" in arguments else 1)  # TMA stores whole 16 bytes
        yield matmul(kernel, variant, dtype, (rows[4], columns, 3 * bk), programs, slots=2 * gang, **more)
        if "x_desc" not in arguments:  # TMA wants aligned rows
            yield matmul(kernel, variant, dtype, (rows[0], bn - 7, 2 * bk + 1), left=3, unit=1, **more)


def cases() -> list[Case]:
    """Of all that is registered and in the tables for Hopper, each once."""
    of_title = {}
    for entry in table("sm90").entries:
        if entry.kernel not in CONTENDERS:
            continue
        kernel = CONTENDERS[entry.kernel].load()
        for dtype in entry.dtypes:
            for case in matmuls(kernel, entry.config, dtype, entry.m_max):
                of_title[str(case)] = case
    return list(of_title.values())
