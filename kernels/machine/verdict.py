"""A verdict on any Triton or Gluon kernel: it is compiled, run under several orders of events, and judged.

`check` is what a test calls. It raises ValueError, in one line, where the call is not right. The verdict says what the
kernel does wrong.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import triton
from torch import Tensor

from . import report
from .arguments import Tensors, lines, resolve, several, tensors_of, whole_numbers
from .compile import Arguments
from .core.faults import UnknownError
from .core.order import ACCEPTED
from .launcher import old_objects_frozen, whole
from .ptx_kernel import PtxKernel
from .trial import Outcome, Terms, Trial

BUDGET = 20_000_000
LONGEST_ROW = 4  # the most launches that programmatic dependent launch lets overlap
CONSEQUENCES = ("wrong", "order", "hang")
"""Kinds of verdicts that may be consequences of a race, which another order of events may show."""
HANGS = 2
"""The number of hangs after which no other order is tried: where many programs spin, each takes long."""

CONSEQUENCE = "it may be a consequence of that"


@dataclass(frozen=True)
class Verdict:
    """True where the kernel is exact under every order of events that was tried."""

    kind: str
    """exact, wrong, order, race, lanes, hang, uninitialised, bounds, barrier, tma, misuse, assert, or unknown: the
    machine lacks something that the kernel needs."""
    text: str
    """The finding, in words to act on."""
    seed: int | None
    """The order of events that shows the fault, if it takes one."""
    instructions: int
    """Instructions that all warps executed under the order of events that shows the fault, or under the last."""
    seconds: float
    accepted: Mapping[str, int] = field(default_factory=dict)
    """How many races were accepted at each line of `accept`, under all orders of events together."""

    def __bool__(self) -> bool:
        return self.kind == "exact"

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"

    def under(self, title: str) -> str:
        text = str(self).replace("\n", "\n    ")
        return f"{title}  {self.instructions} instructions  {self.seconds:.1f} s\n    {text}"


def check(
    kernel: Any,
    grid: Sequence[int] | Callable[[dict], Sequence[int]],
    args: Arguments | Sequence[Any],
    *,
    configs: int | str = 1,
    expected: Tensors | Tensor | Sequence[Tensor] | None = None,
    empty: Sequence[str] = (),
    seeds: int = 8,
    seed: int = 0,
    arch: str = "sm_90a",
    tolerance: float | Mapping[str, float] | None = None,
    strict: bool = False,
    accept: Sequence[str] = (),
    all_programs: bool = False,
    slots: int | None = None,
    budget: int = BUDGET,
    processes: int = 1,
    row: "list[Trial | Tensor] | None" = None,
) -> Verdict:
    """Run `kernel[grid](**args)` under `seeds` orders of events, from `seed` on, and return a verdict.

    `args`: arguments by name or in their order. Tensors lie on the CPU. Each run begins with them as they are;
    afterwards they hold the results of the last run.

    `configs`: which of an autotuned kernel's configurations that are not pruned, the first being 1; or "all", each on
    the tensors as they are: up to the first that is not exact.

    `expected`: what tensors must hold then, by the names of arguments, or in the order of those that the kernel writes.
    Without it all results must be the same under every order.

    `empty`: names of tensors that the host leaves as torch.empty makes them. A read of what nobody wrote there is a
    fault.

    `tolerance`: relative and absolute, for all tensors or by name; 0 is to the bit. By default whole numbers are
    compared to the bit, and others up to what rounding may do: 0.01 where floats of 16 bits or fewer, or tf32, take
    part, else 0.0001.

    `strict`: stores of equal bytes to one place, which nothing orders, are a race. By default they are a note.

    `accept`: lines whose races are known, as "sort.py:214"; in plain PTX as "PTX line 23". Such a race is counted, the
    access has the value of this order of events, and the two accesses are taken as ordered from then on.

    `all_programs`: run all of them in each order. By default two of those that are alike in the first order, and that
    cannot meet, stand for the others in the other orders.

    `slots`: CTAs that the GPU holds at a time; None: as many as fit by their threads, registers and shared memory.

    `budget`: instructions after which a run is given up.

    `processes`: forked processes that share the orders of events. Tensors then hold the results of the first order.

    `row`: launches right before this one that programmatic dependent launch lets it overlap. A kernel of torch's stands
    there as the tensor that it wrote. If this launch is exact it is added to them, else they are dropped.

    Raises ValueError, in one line, where the call is not right or the kernel does not compile.
    """
    if configs == "all":
        return check_each(dict(locals()))
    begun = time.perf_counter()
    for name, number in dict(configs=configs, seeds=seeds, slots=slots, budget=budget, processes=processes).items():
        if number is not None and number < 1:
            raise ValueError(f"{name}={number}: it is a whole number from 1 on")
    if isinstance(expected, Tensor):
        expected = [expected]
    terms = Terms(slots, budget, tolerance, several(empty), strict, lines(accept), all_programs)
    trial = Trial(resolve(kernel, grid, args, configs), arch, expected, row or [], terms)
    orders = range(seed, seed + seeds)
    with old_objects_frozen():
        outcomes = [*tried(trial.outcomes(orders, processes), budget)]
    trial.remember()
    verdict = concluded(trial, outcomes, orders, begun)
    if row is not None:
        row[:] = [*trial.row[1 - LONGEST_ROW :], trial] if verdict else []
    return verdict


def concluded(trial: Trial, outcomes: Sequence[Outcome], orders: range, begun: float) -> Verdict:
    """The verdict on a launch by the outcomes of its orders of events."""
    faults = [outcome for outcome in outcomes if outcome.kind != "exact"]
    if faults:
        last = min(faults, key=lambda outcome: outcome.kind in CONSEQUENCES)
        title, rows = last.text, on_fault(trial, last, orders)
    else:
        last = outcomes[0 if trial.stand_ins else -1]
        title, rows = on_exact(trial, outcomes, orders)
    races: Counter[tuple[str, str]] = Counter()
    for outcome in outcomes:
        races.update(outcome.told)
    if trial.launch.config:
        rows = [("config", trial.launch.config), *rows]
    text = report.page(title, *report.told(races), *rows)
    seed = last.seed if faults else None
    return Verdict(last.kind, text, seed, last.instructions, time.perf_counter() - begun, accepted(races))


def accepted(races: Mapping[tuple[str, str], int]) -> dict[str, int]:
    return {place: count for (why, place), count in races.items() if why == ACCEPTED}


def check_each(options: dict[str, Any]) -> Verdict:
    """Check each configuration by the options of `check`, up to the first that is not exact."""
    launch = resolve(options["kernel"], options["grid"], options["args"])
    storages = [whole(tensor) for _, tensor in tensors_of(launch.args)]
    before = [array.copy() for array in storages]
    for number in range(1, launch.configs + 1):
        for array, contents in zip(storages, before, strict=True):
            array[:] = contents
        verdict = check(**options | dict(configs=number))
        if not verdict:
            break
    return verdict


def on_fault(trial: Trial, fault: Outcome, orders: range) -> list[report.Row]:
    rows = []
    if accepted(fault.told):
        rows.append(("behind", f"an accepted race at {', '.join(accepted(fault.told))}: {CONSEQUENCE}"))
    rows += report.remarks(trial.begun_late)
    if fault.seed is not None:
        compiler = "" if isinstance(trial.launch.kernel, PtxKernel) else f"triton {triton.__version__}, "
        first = orders.start if trial.stand_ins else fault.seed  # which says who stands for others
        rows.append(("again", f"seed={first}, seeds={fault.seed - first + 1}: {compiler}{trial.arch}"))
    return rows


def on_exact(trial: Trial, outcomes: Sequence[Outcome], orders: range) -> tuple[str, list[report.Row]]:
    text = "as expected" if trial.is_given else "no fault, and the same results (nothing was expected of them)"
    text += f" under {len(orders)} order{'s' * (len(orders) > 1)} of events"
    if trial.stand_ins:
        text += f"; in all but the first {trial.stand_ins}"
    rows = trial.doubts
    if not trial.is_given:  # where results are as expected, it does not matter
        rows = rows + trial.lost
    rounded = [outcome.text for outcome in outcomes if outcome.text]
    return text, rows + report.remarks(trial.early + rounded[-1:])


def tried(outcomes: Iterable[Outcome], budget: int) -> Iterator[Outcome]:
    """Yield outcomes up to the one that settles the verdict."""
    hangs = 0
    for outcome in outcomes:
        yield outcome
        hangs += outcome.kind == "hang"
        if outcome.kind not in ("exact", *CONSEQUENCES) or hangs == HANGS or outcome.instructions > budget:
            return


def check_ptx(
    text: str,
    entry: str | None,
    grid: Sequence[int],
    block: Sequence[int],
    args: Arguments | Sequence[Any],
    shared: int = 0,
    *,
    cluster: int = 1,
    arch: str | None = None,
    **options: Any,
) -> Verdict:
    """Run an entry of plain PTX (None: the only one) as `check` runs a kernel of Triton's, with its `options`.

    `grid` and `block`: CTAs, and threads of each, in one to three dimensions. `shared`: bytes of dynamic shared memory.

    `args`: arguments in the order of the parameters. A mapping gives them names for `expected` and the verdict; else
    they have those of the PTX. A pointer is a tensor on the CPU, and a number is Python's. A structure is bytes, or a
    tuple of a format of the module struct and its values, as ("Pif", x, 3, 0.5). A tensor map is a TensorDescriptor.

    `cluster`: CTAs of a cluster along x, where the launch says it and not the PTX. `arch`: None for the PTX's own
    .target.

    Raises ValueError, in one line, where the call is not right.
    """
    begun = time.perf_counter()
    try:
        kernel = PtxKernel(text, entry, whole_numbers("block", block), shared, cluster)
    except UnknownError as error:
        return Verdict("unknown", report.lacking(error), None, 0, time.perf_counter() - begun)
    return check(kernel, grid, kernel.named(args), arch=arch or kernel.target, **options)
