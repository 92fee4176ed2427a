"""What the operations that gather over a wire share: a case of theirs, the sweep, and the arms.

With P = 8 ranks and the bandwidth that puts the exercise's balance under the chip, tensor-parallel degrees (for the
all-gather matmul) and tokens on a chip (for the weight prefetch) run from one side of the balance to the other. Where
the model is scaled down, so is the balance: 2750 / 16 for `xxl/16`, and half of it for elements of 4 bytes, which puts
the ridge at the same degree.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import NamedTuple

from roofline.operations import base
from roofline.operations.matmul import NO_FP8, NO_WIRE, Matmul
from roofline.theory.arms import ALL_CORES, BY_PERSISTENT, PEER, PERSISTENT, of_operation
from roofline.theory.container import cores
from roofline.theory.models import parse as parse_model
from roofline.theory.wires import EXERCISE_BALANCE, HOW, INFINIBAND_BYTES_PER_S, NVLINK_BYTES_PER_S, PCIE, Wire
from roofline.theory.wires import parse as parse_wire
from roofline.theory.work import ITEMSIZE, Work

RANKS = (8, 4, 2)
"""The first that divides d_model and d_ff gathers by default; where none does, nobody."""

LEAST_TOKENS = 1024
"""Of --ffn-tokens, the all-gather matmul takes those from here on: fewer rows have nothing to be cut in."""

BALANCE = "balance"
"""Stands for the exercise's balance, scaled to model and dtype."""

CHOSEN_BY = {"m": "--ffn-tokens", "n": "--ffn-tp", "k": "--ffn-model"}
"""Option by which each size of a matmul comes about."""

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
    dtypes = base.Case.dtypes
    form = "{model}-{layer}-p{ranks}-tp{tp}-m{m}-{dtype}-{wire}"

    def __post_init__(self):
        super().__post_init__()
        parse_wire(self.wire)
        if self.layer != self.of_layer:
            raise ValueError(f"layer {self.layer!r}: {self.op} is of the layer {self.of_layer}")
        if self.ranks < 2:
            raise ValueError(f"ranks={self.ranks}: a gather needs 2 or more")
        if (size := getattr(self, self.sharded)) % self.ranks:
            raise ValueError(
                f"ranks={self.ranks} does not divide the {size} that {self.op} shards over them: choose another "
                f"{CHOSEN_BY[self.sharded]}, or --ffn-ranks"
            )

    @property
    def gathered_bytes(self) -> int:
        """Return the bytes of the gathered operand, with the share that is here."""
        return math.prod(getattr(self, size) for size in self.gathered) * ITEMSIZE[self.dtype]

    @property
    def work(self) -> Work:
        work = super().work
        return Work(work.flop, work.device_bytes, self.gathered_bytes * (self.ranks - 1) // self.ranks)


@dataclass(frozen=True)
class Sweep:
    """Rows, degrees, ranks and wires, resolved.

    `more_wires` and `more_ranks` are measured at one degree only, `widest_wires` at the greatest. Of `own_ranks`, each
    is measured at the same degree. `pcie_tp` are the degrees that are measured over PCIe.
    """

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
    pcie_tp: tuple[int, ...] = ()


NETWORKS = tuple(Wire("fixed", speed).token for speed in (NVLINK_BYTES_PER_S, INFINIBAND_BYTES_PER_S))

DEFAULTS = {
    "cuda": Sweep(
        rows=(8192,), tp=(4, 8, 16, 26, 32, 64), tokens=(1024, 2048, EXERCISE_BALANCE, 4096, 8192), prefetch_tp=(1,),
        wires=(BALANCE,), more_wires=("ridge", "ridge1.4", *NETWORKS), more_ranks=(4,), pcie_tp=(2, 4, 8),
    ),
    "cpu": Sweep(
        rows=(4096,), tp=(8, 16, 26, 64), tokens=(64, 128, 172, 256, 512), prefetch_tp=(1,),
        wires=(BALANCE,), more_wires=("ridge", "ridge1.4"), widest_wires=("memory0.18",),
    ),
    "test": Sweep(rows=(200,), tp=(8,), tokens=(100,), prefetch_tp=(1,), wires=("1GBps",)),
}  # fmt: skip
"""By device; `test` is what plain pytest checks. memory0.18: an H100's wire of the exercise's balance takes some 0.15
to 0.2 of its memory bandwidth. At the greatest tp a CPU's T_gemm and T_comm are nearest to each other over it. Over
PCIe, some 55 GB/s, an H100 has its ridge near tp 5."""


def make(
    mode: str,
    model: str,
    ranks: tuple[int, ...] = (),
    wires: tuple[str, ...] = (),
    *,
    tokens: tuple[int, ...] = (),
    tp: tuple[int, ...] = (),
    quick: bool = False,
) -> Sweep:
    """Return the sweep of `mode` (`cuda`, `cpu`, or with `test-` before it), with what the user chose in its place.

    Of a `quick` sweep, one degree and one number of tokens are left, in the middle of what was not chosen.
    """
    sweep, sizes = DEFAULTS["test" if mode.startswith("test") else mode], parse_model(model)

    def fits(count: int) -> bool:
        return sizes.d_model % count == sizes.d_ff % count == 0

    fitting = tuple(filter(fits, RANKS))[:1]
    degrees = tp or tuple(degree for degree in sweep.tp if sizes.d_ff % degree == 0) or (1,)
    as_many = tuple(degree for degree in degrees if degree in EMULATED_RANKS and fits(degree) and degree not in fitting)
    is_plain = not (tp or quick)  # further wires and ranks stand beside the default ones alone
    sweep = Sweep(
        rows=tuple(m for m in tokens if m >= LEAST_TOKENS or mode.startswith("test")) if tokens else sweep.rows,
        tp=degrees,
        tokens=tokens or sweep.tokens,
        prefetch_tp=tp or sweep.prefetch_tp,
        ranks=ranks or fitting,
        wires=wires or sweep.wires,
        more_wires=sweep.more_wires if is_plain and not wires else (),
        widest_wires=sweep.widest_wires if is_plain and not wires else (),
        more_ranks=sweep.more_ranks if is_plain and not ranks and fitting == (8,) else (),
        own_ranks=as_many if is_plain and not ranks and not wires else (),
        pcie_tp=tuple(degree for degree in sweep.pcie_tp if sizes.d_ff % degree == 0) if is_plain and not wires else (),
    )
    if not quick:
        return sweep
    return replace(sweep, tp=tp or _middle(sweep.tp), tokens=tokens or _middle(sweep.tokens))


def _middle(values: tuple) -> tuple:
    return values[len(values) // 2 :][:1]


MIDDLE, GREATEST = "middle", "greatest"
"""Stand for a degree: the one whose wire intensity is the least above the exercise's balance, and the greatest."""


class Part(NamedTuple):
    """A part of a sweep: one case for every choice of these."""

    rows: tuple[int, ...]
    degrees: tuple[int | str, ...]
    ranks: tuple[int, ...]
    wires: tuple[str, ...]


def cases_of(case: type[Gathering], parts: Callable[[Sweep], list[Part]], options) -> list:
    """Return a `case` for each choice in the `parts` of the options' sweep, rows innermost."""
    sweep, cases = options.gather, []
    for dtype in base.dtypes_of(case, options) if sweep.ranks else ():
        balance = exercise(options.model, dtype)
        degree_of = {MIDDLE: _above(balance, sweep, options.model, dtype), GREATEST: max(sweep.tp)}
        for rows, degrees, ranks, wires in parts(sweep):
            degrees = dict.fromkeys(degree_of.get(degree, degree) for degree in degrees)
            cases += [
                case(options.model, case.of_layer, tp, m, dtype, count, balance if wire == BALANCE else wire)
                for count, wire, tp, m in product(ranks, wires, degrees, rows)
            ]
    return cases


def _above(balance: str, sweep: Sweep, model: str, dtype: str) -> int:
    """Return the degree of the least wire intensity above `balance`, else of the greatest. The other sizes cancel."""
    flop_per_byte = 2 * parse_model(model).d_ff / ITEMSIZE[dtype]
    others = {count: max(1, count - 1) for count in sweep.ranks}  # a single rank is refused later
    degrees = {flop_per_byte / tp * count / others[count]: tp for count, tp in product(sweep.ranks, sweep.tp)}
    above = [intensity for intensity in degrees if intensity > float(balance.removeprefix(BALANCE))]
    return degrees[min(above, default=max(degrees))]


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
    if not cases:
        is_wanted = "up" in options.layers and not options.gather.ranks
        return [f"Nothing is gathered: {nobody(options.model)}."] * is_wanted
    if options.world > 1:
        links = "; ".join(HOW[wire] for wire in options.gather.wires)
        return [f"Ranks are real: {options.world} processes, with {links}. A sample is the slowest rank's."]
    on_cpu = "Arms but serial_all_cores, and the matmuls they are compared with, leave one thread's core to the link."
    over_pcie = (
        "Over pcie: real link, emulated ranks. The other ranks' shards lie in pinned host memory, the copy engine "
        "pulls them, and T_comm is what that takes."
    )
    paced = (
        "Wires are emulated: one process owns the shards of all ranks, and a link moves them to one of those at the "
        "pace that was asked for."
    )
    is_real = {case.endswith(f"-{PCIE}") for case in cases}
    return [paced] * (False in is_real) + [over_pcie] * (True in is_real) + [on_cpu] * (options.device == "cpu")


def links_text(found: dict) -> str:
    """Return what the probe of links found: the wire at the asked pace that disturbs least is recommended."""
    rows = [row for row in found["links"] if row.get("matmul_slowdown")]
    each = [f"{row['wire']} {row['matmul_slowdown']:.3f} and {row['link_slowdown']:.3f}" for row in rows]
    each += [row["refusal"] for row in found["links"] if "refusal" in row]
    text = f"Links beside the matmul of {found['case']}, what it and then the link take of their time alone: "
    text += "; ".join(each)
    paced = [row for row in rows if row["wire"] != PCIE]
    if not paced:
        return f"{text}."
    least = min(paced, key=lambda row: max(row["matmul_slowdown"], row["link_slowdown"]))
    return f"{text}. {least['wire']} disturbs least: --ffn-link-bandwidth {least['wire']}."


class Planner(base.Planner):
    """Lists the arms of the operation `op`, and its peer, if it has one.

    By default the peer is there between the GPUs of ranks, at `peer_wire`, which is most like its own.
    """

    def __init__(self, op: str, peer_wire: str, options):
        super().__init__(options)
        self._op, self._peer_wire = op, peer_wire

    def arms(self, device: str) -> list[str]:
        """Return the arms that `device` runs."""
        names, on_gpu = of_operation(self._op, gpu=False), of_operation(self._op, gpu=True)
        if device == "cpu":
            threads = int(os.environ.get("OMP_NUM_THREADS") or cores())
            return [*names, *[ALL_CORES] * (self.options.world == 1 and threads > 1)]
        waiting = [name for name in on_gpu if name not in names]
        return [*names, *(name + PERSISTENT for name in BY_PERSISTENT if name in names), *waiting]

    def choices(self) -> list[str]:
        return list(dict.fromkeys([*self.arms("cuda"), *self.arms("cpu"), *[PEER] * bool(self._peer_wire)]))

    def timed_names(self) -> list[str]:
        return [*self.arms(self.options.device), *self._peer_over()]

    def names(self, case) -> list[str]:
        arms = self.arms(self.options.device)
        return [name for name in arms if name in (self.options.contenders or arms)] + self._peer_over(case.wire)

    def _peer_over(self, wire: str | None = None) -> list[str]:
        """Return the peer, where it is asked for, or there by default, over `wire` or any."""
        options = self.options
        is_there = options.world > 1 and options.device == "cuda" and wire in (None, self._peer_wire)
        if options.contenders:
            is_there = PEER in options.contenders
        return [PEER] * bool(self._peer_wire and options.timed and is_there)


def declare(
    case: type[Gathering], parts: Callable[[Sweep], list[Part]], example: str, peer_wire: str = ""
) -> base.Operation:
    """Register the operation whose cases are `case`, in `parts` of a sweep. `peer_wire` is as its `Planner` has it."""
    return base.register(
        base.Operation(
            case=case,
            analysis="overlap",
            sweep=partial(cases_of, case, parts),
            planner=partial(Planner, case.op, peer_wire),
            runner=f"collectives.bench.{case.op}:Runner",
            example=example,
            notes=notes,
            why_not=lambda options: NO_WIRE if options.shapes else NO_FP8 * (not base.dtypes_of(case, options)),
            between_ranks=True,
        )
    )
