"""What the operations that gather over a wire share: a case of theirs, and the sweep, by default and as chosen.

With P = 8 ranks and the bandwidth that puts the exercise's balance under the chip, tensor-parallel degrees (for the
all-gather matmul) and tokens on a chip (for the weight prefetch) run from one side of the balance to the other. Where
the model is scaled down, so is the balance: 2750 / 16 for `xxl/16`, and half of it for elements of 4 bytes, which puts
the ridge at the same degree.
"""

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from roofline.operations.base import Operation, register
from roofline.operations.matmul import Matmul
from roofline.theory.arms import ALL_CORES, BY_PERSISTENT, PERSISTENT, of_operation
from roofline.theory.models import parse as parse_model
from roofline.theory.wires import EXERCISE_BALANCE, HOW, INFINIBAND_BYTES_PER_S, NVLINK_BYTES_PER_S, Wire
from roofline.theory.wires import parse as parse_wire
from roofline.theory.work import ITEMSIZE, Work

PATTERN = re.compile(
    r"(?P<model>.+)-(?P<layer>\w+)-p(?P<ranks>\d+)-tp(?P<tp>\d+)-m(?P<m>\d+)-(?P<dtype>\w+?)-(?P<wire>[\w.+]+)"
    r"(?:-(?P<contender>\w+))?"
)

RANKS = (8, 4, 2)
"""The first that divides d_model and d_ff gathers by default; where none does, nobody."""

LEAST_TOKENS = 1024
"""Of --ffn-tokens, the all-gather matmul takes those from here on: fewer rows have nothing to be cut in."""

BALANCE = "balance"
"""Stands for the exercise's balance, scaled to model and dtype."""

MODES = {
    # mode: (rows, tp, tokens of the prefetch, further wires at one tp, at the greatest tp, further ranks at one tp)
    "cuda": (
        (8192,),
        (4, 8, 16, 26, 32, 64),
        (1024, 2048, EXERCISE_BALANCE, 4096, 8192),
        ("ridge", "ridge1.4", Wire("fixed", NVLINK_BYTES_PER_S).token, Wire("fixed", INFINIBAND_BYTES_PER_S).token),
        (),
        (4,),
    ),
    "cpu": ((4096,), (8, 16, 26, 64), (64, 128, 172, 256, 512), ("ridge", "ridge1.4"), ("memory0.18",), ()),
    "test-cuda": ((200,), (8,), (100,), (), (), ()),
    "test-cpu": ((200,), (8,), (100,), (), (), ()),
}
"""memory0.18: an H100's wire of the exercise's balance takes some 0.15 to 0.2 of its memory bandwidth. At the greatest
tp a CPU's T_gemm and T_comm are nearest to each other over it."""

OFF_PACE = 0.05
"""A link that misses the bandwidth it is asked for by more than this voids the case: it gets no share of anything."""

EMULATED_RANKS = range(2, 17)
"""Where a tensor-parallel degree is one of these, as many ranks gather, too, as they would in a model."""


@dataclass(frozen=True)
class Gathering(Matmul):
    """A matmul one of whose operands is gathered from `ranks` ranks over the wire `wire` (a token of `theory.wires`).

    The rank's own share of it is at home: `wire_bytes` is what it receives. A subclass says which two sizes the operand
    has, `gathered`, and which of them is `sharded`.
    """

    ranks: int = 8
    wire: str = "ridge"
    of_layer = "up"

    def __post_init__(self):
        super().__post_init__()
        parse_wire(self.wire)
        if self.layer != self.of_layer:
            raise ValueError(f"layer {self.layer!r}: {self.op} is of the layer {self.of_layer}")
        if self.ranks < 2:
            raise ValueError(f"ranks={self.ranks}: a gather needs 2 or more")
        if (size := getattr(self, self.sharded)) % self.ranks:
            raise ValueError(f"ranks={self.ranks} does not divide the {size} that {self.op} shards over them")

    @property
    def gathered_bytes(self) -> int:
        """Return the bytes of the gathered operand, with the share that is here."""
        return math.prod(getattr(self, size) for size in self.gathered) * ITEMSIZE[self.dtype]

    @property
    def work(self) -> Work:
        work = super().work
        return Work(work.flop, work.device_bytes, self.gathered_bytes * (self.ranks - 1) // self.ranks)

    @property
    def id(self) -> str:
        return f"{self.op}-{self.model}-{self.layer}-p{self.ranks}-tp{self.tp}-m{self.m}-{self.dtype}-{self.wire}"


@dataclass(frozen=True)
class Sweep:
    """Rows, degrees, ranks and wires, resolved. `more_wires` and `more_ranks` are measured at one degree only,
    `widest_wires` at the greatest. Of `own_ranks`, each is measured at the same degree."""

    rows: tuple[int, ...] = ()
    tp: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    """Of the weight prefetch, as is `prefetch_tp`."""
    prefetch_tp: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    wires: tuple[str, ...] = ()
    more_wires: tuple[str, ...] = ()
    widest_wires: tuple[str, ...] = ()
    more_ranks: tuple[int, ...] = ()
    own_ranks: tuple[int, ...] = ()


def cases(case: type, model: str, dtype: str, rows, degrees, ranks, wires) -> list:
    """Return a `case` for each choice of these, tokens innermost."""
    return [
        case(model, case.of_layer, tp, m, dtype, p, exercise(model, dtype) if wire == BALANCE else wire)
        for p, wire, tp, m in product(ranks, wires, degrees, rows)
    ]


def middle(cases: list[Gathering], balance: str) -> list[int]:
    """Return the degree whose wire intensity is the least above the exercise's `balance`; else that of the greatest."""
    by_intensity = sorted(cases, key=lambda case: case.work.wire_intensity)
    above = [case for case in by_intensity if case.work.wire_intensity > float(balance.removeprefix("balance"))]
    return [case.tp for case in (above or by_intensity[-1:])[:1]]


def make(
    mode: str,
    model: str,
    ranks: tuple[int, ...] = (),
    wires: tuple[str, ...] = (),
    *,
    tokens: tuple[int, ...] = (),
    tp: tuple[int, ...] = (),
) -> Sweep:
    """Return the sweep of `mode` (`cuda`, `cpu`, or with `test-` before it), with what the user chose in the place of
    it."""
    rows, degrees, prefetched, more_wires, widest_wires, more_ranks = MODES[mode]
    d_model, d_ff = parse_model(model).d_model, parse_model(model).d_ff
    dividing = [count for count in RANKS if d_model % count == d_ff % count == 0]
    fitting = [tp for tp in degrees if tp in EMULATED_RANKS and d_model % tp == d_ff % tp == 0]
    return Sweep(
        rows=tuple(m for m in tokens if m >= LEAST_TOKENS or mode.startswith("test")) if tokens else rows,
        tp=tp or tuple(degree for degree in degrees if d_ff % degree == 0) or (1,),
        tokens=tokens or prefetched,
        prefetch_tp=tp or (1,),
        ranks=ranks or tuple(dividing[:1]),
        wires=wires or ((BALANCE,) if "test" not in mode else ("1GBps",)),
        more_wires=() if wires or tp else more_wires,
        widest_wires=() if wires or tp else widest_wires,
        more_ranks=() if ranks or tp or dividing[:1] != [8] else more_ranks,
        own_ranks=() if ranks or tp or wires else tuple(p for p in fitting if p not in dividing[:1]),
    )


def few(sweep: Sweep, *, tokens: tuple[int, ...] = (), tp: tuple[int, ...] = ()) -> Sweep:
    """Return one all-gather and one prefetch of `sweep`, in the middle of what was not chosen."""
    middle = {
        "tp": tp or sweep.tp[len(sweep.tp) // 2 :][:1],
        "tokens": tokens or sweep.tokens[len(sweep.tokens) // 2 :][:1],
    }
    return replace(sweep, **middle, more_wires=(), widest_wires=(), more_ranks=(), own_ranks=())


def nobody(model: str) -> str:
    """Return why no ranks gather for `model`, where none of `RANKS` fits it."""
    sizes = parse_model(model)
    counts = ", ".join(map(str, RANKS))
    return f"none of {counts} ranks divides both d_model={sizes.d_model} and d_ff={sizes.d_ff} of {model}"


def exercise(model: str, dtype: str) -> str:
    """Return the exercise's balance, scaled to `model` and `dtype`: a token of `theory.wires`.

    >>> exercise("xxl", "bf16"), exercise("xxl/16", "fp32")
    ('balance2750', 'balance86')
    """
    divisor = int(model.partition("/")[2] or 1)
    balance = EXERCISE_BALANCE / divisor * 2 / ITEMSIZE[dtype]
    return Wire("balance", round(balance) if balance >= 10 else balance).token


def scaling(model: str, dtype: str) -> str:
    """Return how `exercise` comes of the exercise's balance, in words.

    >>> scaling("xxl/16", "fp32")
    '2750 / 16, as the model is, / 2, since fp32 has twice the bytes of bf16'
    """
    divisor, more = model.partition("/")[2], {2: "", 4: ", / 2, since fp32 has twice the bytes of bf16"}
    return f"{EXERCISE_BALANCE}{f' / {divisor}, as the model is' if divisor else ''}{more[ITEMSIZE[dtype]]}"


def notes(options, cases: list[str]) -> list[str]:
    """Return what a run says of these operations: whether wires are emulated and how, or why nothing is gathered."""
    if cases and options.world > 1:
        between = "; ".join(HOW[wire] for wire in options.gather.wires)
        return [f"Ranks are real: {options.world} processes, with {between}. A sample is the slowest rank's."]
    if cases:
        emulated = (
            "Wires are emulated: one process owns the shards of all ranks, and a link moves them to one of those "
            "at the pace that was asked for."
        )
        of_cpu = (
            "Arms but serial_all_cores, and the matmuls they are compared with, leave one thread's core to the link."
        )
        return [emulated, of_cpu] if options.device == "cpu" else [emulated]
    if not options.gather.ranks and "up" in options.layers:
        return [f"Nothing is gathered: {nobody(options.model)}."]
    return []


PEERS = {
    # operation: {peer: (device, wire)}. By default it is there on that device, at the wire most like its own.
    "all_gather_matmul": {"symm_mem": ("cuda", "symmetric")},
    "matmul_reduce_scatter": {"symm_mem": ("cuda", "nccl"), "gloo_reduce_scatter": ("cpu", "gloo")},
}


class Arms:
    """Lists the arms of the operation `op` by name, and its peers, as `measure.runner.Runner` lists contenders."""

    op: str
    options: Any

    def of_device(self, device: str) -> list[str]:
        """Return the arms that `device` runs."""
        names, on_gpu = of_operation(self.op, gpu=False), of_operation(self.op, gpu=True)
        if device == "cpu":
            cores = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
            return [*names, *[ALL_CORES] * (self.options.world == 1 and cores > 1)]
        waiting = [name for name in on_gpu if name not in names]
        return [*names, *(name + PERSISTENT for name in BY_PERSISTENT if name in names), *waiting]

    def known(self) -> list[str]:
        return list(dict.fromkeys([*self.of_device("cuda"), *self.of_device("cpu"), *PEERS.get(self.op, {})]))

    def here(self) -> list[str]:
        peers = [name for name, (_, wire) in PEERS.get(self.op, {}).items() if self._is_taken(name, wire)]
        return [*self.of_device(self.options.device), *peers]

    def names(self, case) -> list[str]:
        arms = self.of_device(self.options.device)
        peers = [name for name in PEERS.get(self.op, {}) if self._is_taken(name, case.wire)]
        return [name for name in arms if name in (self.options.contenders or arms)] + peers

    def _is_taken(self, peer: str, wire: str) -> bool:
        options = self.options
        is_there = options.world > 1 and (options.device, wire) == PEERS[self.op][peer]
        return options.timed and (peer in options.contenders if options.contenders else is_there)


class Planner(Arms):
    """Lists them before anything imports torch."""

    def __init__(self, options, *, op: str):
        self.options, self.op = options, op


def declare(case: type, sweep: Callable, example: str) -> Operation:
    """Return the operation whose cases are `case`, a `Gathering`; `sweep` and `example` as in `Operation`."""
    runner = f"collectives.bench.{case.op}:Runner"
    planner = partial(Planner, op=case.op)
    return register(Operation(case.op, case, "overlap", sweep, runner, PATTERN, example, notes, contenders=planner))
