"""The gradients of a backward pass, summed over real ranks while it goes on: in buckets of which size?

A bucket that is larger costs fewer collectives, and leaves more to be sent once the backward pass is over. The layers
are small, so that a collective for each costs more than its bytes.
"""

from dataclasses import dataclass

from roofline.operations.base import Case, Operation, Planner, register
from roofline.operations.matmul import NO_WIRE
from roofline.theory.models import parse as parse_model
from roofline.theory.work import ITEMSIZE, Work

LAYERS, PART = 128, 8
"""Of the sweep: so many layers, whose sides are this part of d_model. On a CPU by default 8 MiB, 64 KiB a layer."""


@dataclass(frozen=True)
class GradientAllReduce(Case):
    """The backward pass of `layers` linear layers of d x d, d = d_model / 8, for `m` tokens on each of `ranks` ranks,
    and the sum of the gradients of the weights over the ranks.

    >>> case = GradientAllReduce("xxl/16", layers=128, m=512, dtype="fp32", ranks=2)
    >>> case.id, case.gradient_bytes == 8 * 2**20, case.work.wire_bytes == case.gradient_bytes
    ('gradient_all_reduce-xxl/16-l128-m512-fp32-p2', True, True)
    >>> list(case.buckets)[::5], case.buckets["bucketed_1MiB"]
    (['bucketed_128KiB', 'bucketed_4MiB'], 1048576)

    Raises ValueError for an unknown model or dtype, sizes below 1, or fewer than two ranks.
    """

    model: str
    layers: int
    m: int
    dtype: str
    ranks: int
    op, form, wire = "gradient_all_reduce", "{model}-l{layers}-m{m}-{dtype}-p{ranks}", "gloo"

    def __post_init__(self):
        super().__post_init__()
        for name, least in (("layers", 1), ("m", 1), ("d", 1), ("ranks", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: {self.op} needs {least} or more")

    @property
    def d(self) -> int:
        """Return the sides of a layer."""
        return parse_model(self.model).d_model // PART

    @property
    def gradient_bytes(self) -> int:
        return self.layers * self.d**2 * ITEMSIZE[self.dtype]

    @property
    def buckets(self) -> dict[str, int]:
        """Return {arm: bytes from which on a bucket is sent}: all gradients halved, and halved again, down to two
        layers'."""
        sizes = (self.gradient_bytes >> power for power in range(6, 0, -1))
        sent = [size for size in sizes if size * self.layers >= 2 * self.gradient_bytes]
        return {f"bucketed_{_size_text(size)}": size for size in sent}

    @property
    def arms(self) -> list[str]:
        """Return all, in the order of their turns."""
        return ["flat", "per_parameter", "overlapped", *self.buckets, "ddp"]

    @property
    def facts(self) -> dict:
        return {"d": self.d, "gradient_bytes": self.gradient_bytes}

    @property
    def work(self) -> Work:
        """Return the work of two matmuls for each layer but the first, whose input needs no gradient. An all-reduce is
        taken to receive as few bytes as can be, 2 (P - 1) / P of the gradients."""
        matmuls, each = 2 * self.layers - 1, (2 * self.m + self.d) * self.d
        received = 2 * self.gradient_bytes * (self.ranks - 1) // self.ranks
        return Work(matmuls * 2 * self.m * self.d**2, matmuls * each * ITEMSIZE[self.dtype], received)


def _size_text(size_bytes: int) -> str:
    units = {"MiB": 2**20, "KiB": 2**10, "B": 1}
    return next(f"{size_bytes // unit}{name}" for name, unit in units.items() if size_bytes % unit == 0)


def why_not(options) -> str:
    """Return why nothing is measured; empty if it is."""
    if options.shapes:
        return NO_WIRE
    if options.world == 1:
        return "gradients are summed over real ranks: start torchrun --nproc-per-node N -m pytest ..."
    return "" if options.device == "cpu" else "gradients are summed over gloo, on a CPU: add --ffn-device cpu"


def sweep(options) -> list[GradientAllReduce]:
    """Return one case for each dtype, of the most tokens that a weight prefetch would take."""
    if why_not(options) or not options.gather.tokens:
        return []
    m = max(options.gather.tokens)
    return [GradientAllReduce(options.model, LAYERS, m, dtype, options.world) for dtype in options.dtypes]


class Arms(Planner):
    """Lists the arms: some in a fixed way, torch's own, and one for each size of buckets."""

    def choices(self) -> list[str]:
        return list(dict.fromkeys(name for case in sweep(self.options) for name in case.arms))

    def names(self, case) -> list[str]:
        return [name for name in case.arms if name in (self.options.contenders or case.arms)]


OPERATION = register(
    Operation(
        case=GradientAllReduce,
        analysis="gradients",
        sweep=sweep,
        planner=Arms,
        runner="collectives.bench.gradient_all_reduce:Runner",
        example="gradient_all_reduce-xxl/16-l128-m512-fp32-p2-bucketed_1MiB",
        why_not=why_not,
    )
)
