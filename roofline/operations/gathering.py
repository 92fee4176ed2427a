"""The case, the sweep and the planner that all operations over a link have in common.

The exercise has P = 8 ranks and a bandwidth at which a chip needs 2750 FLOP for each byte that it receives: the
balance. The default sweep crosses it: tensor-parallel degrees (all-gather matmul) and tokens on a chip (weight
prefetch) run from one side to the other. A scaled model scales the balance, to 2750 / 16 for `xxl/16` and to half of
that for elements of 4 bytes, so that the ridge stays at the same degree.
"""

import math
import os
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, ClassVar

from roofline.host.container import cores
from roofline.operations import base
from roofline.operations.base import Counts, Names
from roofline.operations.contenders import DEVICES, Contender
from roofline.operations.matmul import Matmul
from roofline.store import typed
from roofline.theory.arms import ALL_CORES, BY_PERSISTENT, PEER, PERSISTENT, arms_of
from roofline.theory.models import parse as parse_model
from roofline.theory.wires import EXERCISE_BALANCE, HOW, OF_RANKS, PCIE, RANKS_TAKE, Wire
from roofline.theory.wires import parse as parse_wire
from roofline.theory.work import ITEMSIZE, Work

RANKS = (8, 4, 2)
"""Default rank counts. The first that divides d_model and d_ff is taken; if none does, nothing is gathered."""

LEAST_TOKENS = 1024
"""The all-gather matmul ignores smaller values of --ffn-tokens: so few rows cannot be cut into parts."""

BALANCE = "balance"
"""A link with the exercise's balance, scaled to model and dtype. `cases_of` replaces it."""

OFF_PACE = 0.05
"""A link may miss its requested bandwidth by this fraction. If it misses by more, the case is void."""


@dataclass(frozen=True)
class Sweep:
    """The values that a run combines."""

    rows: Counts = ()
    tp: Counts = ()
    tokens: Counts = ()
    """Tokens on a chip, for the weight prefetch."""
    prefetch_tp: Counts = (1,)
    """Tensor-parallel degrees of the weight prefetch."""
    ranks: Counts = ()
    wires: Names = ()
    parts: dict[str, tuple[dict[str, Any], ...]] = field(default_factory=dict)
    """Those of a default sweep, by operation: what each has in place of these values. Degrees may be the "middle" one,
    which has the least wire intensity above the exercise's balance, and the "greatest"."""


def make(options, given: dict) -> Sweep:
    """Make the sweep of a run by its `options`, of which some are `given`; nothing is where the layer `up` is left out.

    Default degrees and ranks are those that divide the model's sizes. A quick sweep keeps the middle one of the default
    degrees and tokens. Neither that nor a choice of degrees, ranks or links has parts.

    Raises ValueError for a link that these ranks lack, or where none gather over it.
    """
    wires = given.get("link_bandwidth", ())
    for wire in wires:
        _require_link(wire, options)
    sweep = replace(_default(options), **_chosen(options, given))
    if wires and not sweep.ranks:
        raise ValueError(f"--ffn-link-bandwidth: {nobody(options.model)}; choose --ffn-ranks")
    return sweep if "up" in options.layers else Sweep()


def _default(options) -> Sweep:
    sizes = parse_model(options.model)
    sweep = typed.read(Sweep, base.DEFAULTS["gathers"][options.device if options.timed else "test"])
    ranks = _divisors(math.gcd(sizes.d_model, sizes.d_ff), RANKS)[:1]
    sweep = replace(sweep, ranks=ranks, tp=_divisors(sizes.d_ff, sweep.tp) or (1,))
    if options.quick:
        return replace(sweep, tp=_middle(sweep.tp), tokens=_middle(sweep.tokens), parts={})
    return sweep


def _chosen(options, given: dict) -> dict:
    """What the user chose in place of default values."""
    chosen = {}
    if "ranks" in given:
        chosen["ranks"] = given["ranks"]
    if "tp" in given:
        chosen["tp"] = chosen["prefetch_tp"] = given["tp"]
    if "link_bandwidth" in given:
        chosen["wires"] = given["link_bandwidth"]
    if options.world > 1:
        chosen = {"wires": RANKS_TAKE[options.device]} | chosen | {"ranks": (options.world,)}
    if chosen:
        chosen["parts"] = {}
    if "tokens" in given:
        chosen["tokens"] = given["tokens"]
        chosen["rows"] = tuple(m for m in given["tokens"] if m >= LEAST_TOKENS or not options.timed)
    return chosen


def _require_link(wire: str, options) -> None:
    """Refuse a wire that the ranks which torchrun started lack, or a single process."""
    able = RANKS_TAKE[options.device]
    if options.world > 1 and wire not in able:
        problem = f"between the ranks that torchrun started the wire is real, as {' or '.join(able)}; leave it out"
    elif options.world == 1 and wire in OF_RANKS:
        problem = "it is between the ranks that torchrun started; start it so"
    elif options.device == "cpu" and parse_wire(wire).needs_gpu:
        problem = "it needs an NVIDIA GPU, which moves the bytes, and this run is on the CPU; leave it out"
    else:
        return
    raise ValueError(f"--ffn-link-bandwidth {wire!r}: {problem}")


def _divisors(size: int, counts: Counts) -> Counts:
    """Those of `counts` that divide `size`."""
    return tuple(count for count in counts if size % count == 0)


def _middle(values: tuple) -> tuple:
    middle = len(values) // 2
    return values[middle : middle + 1]


@dataclass(frozen=True)
class Gathering(Matmul):
    """A matmul with one operand that is gathered from `ranks` ranks over `wire` (a token of `theory.wires`).

    Each rank holds one shard and receives the others: `wire_bytes` counts those. A subclass names the two sizes of the
    operand in `gathered`, and the one of them that is `sharded`.
    """

    gathered: ClassVar[Names]
    sharded: ClassVar[str]
    ranks: int = 8
    wire: str = "ridge"
    layers = ("up",)
    """The layer that it is of."""
    dtypes = base.Case.dtypes
    form = "{model}-{layer}-p{ranks}-tp{tp}-m{m}-{dtype}-{wire}"

    def __post_init__(self):
        super().__post_init__()
        parse_wire(self.wire)
        if self.ranks < 2:
            raise ValueError(f"ranks={self.ranks}: a gather needs 2 or more")
        if (size := getattr(self, self.sharded)) % self.ranks:
            problem = f"ranks={self.ranks} does not divide {self.sharded}={size}, which {self.op} shards over them"
            raise ValueError(f"{problem}: choose another --ffn-ranks, or other sizes")

    @staticmethod
    def swept(sweep: Sweep) -> Sweep:
        """The sweep of it in a run: `sweep`, as far as it goes for this operation."""
        return sweep

    @property
    def gathered_bytes(self) -> int:
        """Bytes of the whole gathered operand, with the rank's own shard."""
        return math.prod(getattr(self, size) for size in self.gathered) * ITEMSIZE[self.dtype]

    @property
    def work(self) -> Work:
        return replace(super().work, wire_bytes=self.gathered_bytes * (self.ranks - 1) // self.ranks)


def cases_of(case: type[Gathering], options) -> list:
    """List the cases of all parts of the sweep. Rows change fastest, then degrees, wires and ranks. A part leaves out
    what does not divide the model's sizes; what the user chose is refused."""
    sweep = case.swept(options.gather)
    model = options.model
    sizes = parse_model(model)
    cases = []
    for dtype in base.dtypes_of(case, options) if sweep.ranks else ():
        degrees = {"middle": _middle_degree(sweep, model), "greatest": max(sweep.tp)}
        for changed in sweep.parts.get(case.op, [{}]):
            part: Any = replace(sweep, **changed)
            every = product(part.ranks, part.wires, part.tp, part.rows)
            for ranks, wire, degree, rows in every:
                tp = degrees.get(degree, degree)
                is_whole = sizes.d_ff % tp == 0 and math.gcd(sizes.d_model, sizes.d_ff) % ranks == 0
                if sweep.parts and not is_whole:
                    continue
                token = exercise_wire(model, dtype) if wire == BALANCE else wire
                cases.append(case(model, *case.layers, tp, rows, dtype, ranks, token))
    return list(dict.fromkeys(cases))  # the middle degree may be the greatest


def _middle_degree(sweep: Sweep, model: str) -> int:
    """Find the degree with the least wire intensity above the exercise's balance, or the least degree if none is above.
    Both are those of elements of two bytes."""
    ranks = sweep.ranks[0]  # where there are several, no part is of the middle degree
    flop_per_byte = parse_model(model).d_ff * ranks / max(1, ranks - 1)  # other sizes cancel
    balance = EXERCISE_BALANCE / _divisor(model)
    above = [tp for tp in sweep.tp if flop_per_byte / tp > balance]
    return max(above, default=min(sweep.tp))


def _divisor(model: str) -> int:
    return int(model.partition("/")[2] or 1)


def nobody(model: str) -> str:
    """Why nothing is gathered for `model`: none of `RANKS` divides its sizes."""
    sizes = parse_model(model)
    counts = ", ".join(map(str, RANKS))
    return f"none of {counts} ranks divides both d_model={sizes.d_model} and d_ff={sizes.d_ff} of {model}"


def exercise_wire(model: str, dtype: str) -> str:
    """Scale the exercise's balance to `model` and `dtype`. The result is a token of `theory.wires`.

    >>> exercise_wire("xxl", "bf16"), exercise_wire("xxl/16", "fp32")
    ('balance2750', 'balance86')
    """
    balance = EXERCISE_BALANCE / _divisor(model) * 2 / ITEMSIZE[dtype]
    return Wire("balance", round(balance) if balance >= 10 else balance).token


def scaling(model: str, dtype: str) -> str:
    """Explain in words how `exercise_wire` scales the balance.

    >>> scaling("xxl/16", "fp32")
    '2750 / 16, as the model is, / 2, since fp32 has twice the bytes of bf16'
    """
    divisor = model.partition("/")[2]
    by_model = f" / {divisor}, as the model is" if divisor else ""
    by_dtype = {2: "", 4: ", / 2, since fp32 has twice the bytes of bf16"}[ITEMSIZE[dtype]]
    return f"{EXERCISE_BALANCE}{by_model}{by_dtype}"


def notes(options, cases: list[str]) -> list[str]:
    """Tell the reader of a run whether its links are emulated, or why nothing is gathered."""
    if not cases:
        if "up" in options.layers and not options.gather.ranks:
            return [f"Nothing is gathered: {nobody(options.model)}."]
        return []
    if options.world > 1:
        links = "; ".join(map(HOW.__getitem__, options.gather.wires))
        return [f"Ranks are real: {options.world} processes, with {links}. A sample is the slowest rank's."]
    over_pcie = [case for case in cases if case.endswith(f"-{PCIE}")]
    texts = []
    if len(over_pcie) < len(cases):
        texts.append(
            "Wires are emulated: one process owns the shards of all ranks, and a link moves them to one of those at "
            "the pace that was asked for."
        )
    if over_pcie:
        texts.append(
            "Over pcie: real link, emulated ranks. The other ranks' shards lie in pinned host memory, the copy engine "
            "pulls them, and T_comm is what that takes."
        )
    if options.device == "cpu":
        texts.append(
            "Arms but serial_all_cores, and the matmuls they are compared with, leave one thread's core to the link."
        )
    return texts


def links_text(links: dict) -> str:
    """Tell what each link and a matmul beside it cost one another, and recommend the paced link that disturbs least."""
    texts = []
    slowdowns = {}
    for row in links["links"]:
        if "refusal" in row:
            texts.append(row["refusal"])
        elif matmul := row["matmul_slowdown"]:
            link = row["link_slowdown"]
            texts.append(f"{row['wire']} {matmul:.3f} and {link:.3f}")
            slowdowns[row["wire"]] = max(matmul, link)
    slowdowns.pop(PCIE, None)
    text = f"Links beside the matmul of {links['case']}, what it and then the link take of their time alone: "
    text += "; ".join(texts)
    if not slowdowns:
        return f"{text}."
    least = min(slowdowns, key=slowdowns.__getitem__)
    return f"{text}. {least} disturbs least: --ffn-link-bandwidth {least}."


class Planner(base.Planner):
    """Lists the arms of the operation `op`, and its peer, if it has one.

    By default the peer runs between the GPUs of real ranks, beside the link `peer_wire`, which is most like its own.
    """

    def __init__(self, op: str, peer_wire: str, options):
        names = arms_of(op, gpu=False)
        devices: dict[str, Names] = dict.fromkeys(names, DEVICES)
        for name in [name + PERSISTENT for name in BY_PERSISTENT if name in names] + arms_of(op, gpu=True):
            devices.setdefault(name, ("cuda",))
        threads = int(os.environ.get("OMP_NUM_THREADS") or cores())
        if options.world == 1 and threads > 1:
            devices[ALL_CORES] = ("cpu",)
        if peer_wire:
            devices[PEER] = ()  # `names` says where
        super().__init__(options, [Contender(name, "", devices=devices[name]) for name in devices])
        self._peer_wire = peer_wire

    def names(self, case) -> list[str]:
        options = self.options
        chosen = options.contenders or ()
        names = self.timed_names()
        is_like_peer = options.world > 1 and options.device == "cuda" and case.wire == self._peer_wire
        if options.timed and self._peer_wire and (is_like_peer or PEER in chosen):
            names.append(PEER)
        return [name for name in names if name in chosen] if chosen else names


def declare(case: type[Gathering], example: str, peer_wire: str = "") -> base.Operation:
    """Register an operation whose cases are `case`. `peer_wire` goes to its `Planner`."""
    return base.register(
        base.Operation(
            case=case,
            analysis="overlap",
            sweep=partial(cases_of, case),
            planner=partial(Planner, case.op, peer_wire),
            runner=f"collectives.bench.{case.op}:Runner",
            example=example,
            notes=notes,
            between_ranks=True,
        )
    )
