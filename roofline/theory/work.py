"""What a case must do: its FLOP and its bytes, declared once. Times and rates are not known here.

A multiply-add counts as two FLOP. Device bytes count each input read once and each output written once, the least that
any kernel has to move. Wire bytes are what one rank receives over the interconnect.
"""

import math
from dataclasses import dataclass

from roofline.theory.models import parse as parse_model
from roofline.theory.wires import parse as parse_wire

ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes of one element, by the name that options and case ids use."""

LAYERS = ("up", "down")
"""`up`: D -> F, column-parallel (N = F/tp). `down`: F -> D, row-parallel (K = F/tp)."""


@dataclass(frozen=True)
class Work:
    """FLOP and bytes of one call."""

    flop: int
    device_bytes: int
    wire_bytes: int = 0
    spilled_bytes: int = 0
    """Of accumulators that are written to device memory and read back: a schedule's, beyond what the case must move."""

    @property
    def device_intensity(self) -> float:
        """FLOP per byte of device memory, with what is spilled; infinite where no byte moves."""
        moved = self.device_bytes + self.spilled_bytes
        return self.flop / moved if moved else math.inf

    @property
    def wire_intensity(self) -> float:
        """FLOP per byte that one rank receives; infinite where none comes over the wire."""
        return self.flop / self.wire_bytes if self.wire_bytes else math.inf


@dataclass(frozen=True)
class Matmul:
    """One rank's share of an FFN layer: out[m, n] = x[m, k] @ w[n, k].T, for `m` tokens, `tp` ranks in tensor parallel.

    >>> case = Matmul("xxl", "up", tp=8, m=4096, dtype="bf16")
    >>> case.id, case.n, case.k
    ('matmul-xxl-up-tp8-m4096-bf16', 6656, 16384)
    >>> case.work.flop == 2 * 4096 * 6656 * 16384
    True

    Raises ValueError for an unknown model, layer or dtype, a negative `m`, or a `tp` that does not divide d_ff.
    """

    model: str
    layer: str
    tp: int
    m: int
    dtype: str
    op = "matmul"

    def __post_init__(self):
        d_ff = parse_model(self.model).d_ff
        if self.layer not in LAYERS:
            raise ValueError(f"unknown layer {self.layer!r}: it is one of {', '.join(LAYERS)}")
        if self.dtype not in ITEMSIZE:
            raise ValueError(f"unknown dtype {self.dtype!r}: it is one of {', '.join(ITEMSIZE)}")
        if self.m < 0:
            raise ValueError(f"tokens m={self.m}: it must be 0 or more")
        if self.tp < 1 or d_ff % self.tp:
            raise ValueError(f"tp={self.tp} does not divide d_ff={d_ff} of {self.model}: choose a divisor of it")

    @property
    def n(self) -> int:
        model = parse_model(self.model)
        return model.d_ff // self.tp if self.layer == "up" else model.d_model

    @property
    def k(self) -> int:
        model = parse_model(self.model)
        return model.d_model if self.layer == "up" else model.d_ff // self.tp

    @property
    def work(self) -> Work:
        m, n, k = self.m, self.n, self.k
        return Work(flop=2 * m * n * k, device_bytes=(m * k + n * k + m * n) * ITEMSIZE[self.dtype])

    @property
    def id(self) -> str:
        return f"{self.op}-{self.model}-{self.layer}-tp{self.tp}-m{self.m}-{self.dtype}"


@dataclass(frozen=True)
class Tuning(Matmul):
    """The same matmul, by the configurations that `kernel` might take for it.

    >>> Tuning("xxl", "up", tp=8, m=2048, dtype="bf16", kernel="persistent").id
    'tune_persistent-xxl-up-tp8-m2048-bf16'
    """

    kernel: str = ""

    @property
    def op(self) -> str:
        return f"tune_{self.kernel}"

    @property
    def matmul(self) -> Matmul:
        """The case that is tuned for."""
        return Matmul(self.model, self.layer, self.tp, self.m, self.dtype)


@dataclass(frozen=True)
class Gathering(Matmul):
    """A matmul one of whose operands is gathered from `ranks` ranks over the wire `wire` (a token of `theory.wires`).

    The rank's own share of it is at home: `wire_bytes` is what it receives. A subclass says which two sizes the operand
    has, `gathered`, and which of them is `sharded`.
    """

    ranks: int = 8
    wire: str = "ridge"

    def __post_init__(self):
        super().__post_init__()
        parse_wire(self.wire)
        if self.layer != "up":
            raise ValueError(f"layer {self.layer!r}: {self.op} gathers for the layer up")
        if self.ranks < 2:
            raise ValueError(f"ranks={self.ranks}: a gather needs 2 or more")
        if (size := getattr(self, self.sharded)) % self.ranks:
            raise ValueError(f"ranks={self.ranks} does not divide the {size} that {self.op} shards over them")

    @property
    def gathered_bytes(self) -> int:
        """Bytes of the gathered operand, the own share too."""
        return math.prod(getattr(self, size) for size in self.gathered) * ITEMSIZE[self.dtype]

    @property
    def work(self) -> Work:
        work = super().work
        return Work(work.flop, work.device_bytes, self.gathered_bytes * (self.ranks - 1) // self.ranks)

    @property
    def id(self) -> str:
        return f"{self.op}-{self.model}-{self.layer}-p{self.ranks}-tp{self.tp}-m{self.m}-{self.dtype}-{self.wire}"


@dataclass(frozen=True)
class AllGatherMatmul(Gathering):
    """x[m, k] is sharded over its columns, the summed dimension: every tile of `out` needs every rank's chunk.

    >>> case = AllGatherMatmul("xxl", "up", tp=8, m=8192, dtype="bf16", ranks=8, wire="balance2750")
    >>> case.id
    'all_gather_matmul-xxl-up-p8-tp8-m8192-bf16-balance2750'
    >>> case.work.wire_intensity == case.n * 8 / 7  # m and k cancel
    True
    """

    op, gathered, sharded = "all_gather_matmul", ("m", "k"), "k"


@dataclass(frozen=True)
class WeightPrefetch(Gathering):
    """FSDP: the next layer's w[n, k], sharded over its rows, is gathered while this layer's multiplies m tokens.

    >>> case = WeightPrefetch("xxl", "up", tp=1, m=2750, dtype="bf16", ranks=8, wire="balance2750")
    >>> case.work.wire_intensity == 2750 * 8 / 7
    True
    """

    op, gathered, sharded = "weight_prefetch", ("n", "k"), "n"
