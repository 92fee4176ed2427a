"""The matmuls of a transformer's linear layers, or of a file: out[m, n] = x[m, k] @ w[n, k].T, on one rank."""

import math
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from roofline.operations.base import Case, Names, Operation, register
from roofline.theory.models import parse as parse_model
from roofline.theory.work import ITEMSIZE, SCALE_BLOCK, SCALE_BYTES, Work

LAYERS = ("up", "down")
"""`up`: D -> F, column-parallel (N = F/tp). `down`: F -> D, row-parallel (K = F/tp)."""

ALL_LAYERS = (*LAYERS, "gate_up", "qkv", "o")
"""`gate_up`, D -> 2F, and `qkv`, D -> heads, are column-parallel; `o`, heads -> D, is row-parallel."""

SHAPE = "shape"
"""The layer of a file's shape, whose model `LABEL@KxN` or `KxN` has the sizes."""

SIZED_AS = {SHAPE: "up", "up_down": "down"}
"""Layers with the sizes of another."""

ROW_PARALLEL = ("down", "o", "up_down")
"""Layers whose K is split over the ranks, as N of the others is."""

BY_HEADS = ("qkv", "o")
"""Layers whose ranks have whole heads."""


def sides(model: str, layer: str) -> tuple[int, int]:
    """(d_in, d_out) of a layer's weights on all ranks. Raises ValueError for a layer that `model` lacks."""
    layers = parse_model(model).layers
    layer = SIZED_AS.get(layer, layer)
    if layer not in layers:
        problem = f"{model} has no layer {layer}, but {', '.join(layers)}"
        raise ValueError(f"{problem} (heads stay whole): choose another model, or other layers")
    return layers[layer]


@dataclass(frozen=True)
class Matmul(Case):
    """One rank's part of a linear layer: out[m, n] = x[m, k] @ w[n, k].T, for `m` tokens, `tp` tensor-parallel ranks.

    >>> case = Matmul("xxl", "up", tp=8, m=4096, dtype="bf16")
    >>> case.id, case.n, case.k
    ('matmul-xxl-up-tp8-m4096-bf16', 6656, 16384)
    >>> case.work.flop == 2 * 4096 * 6656 * 16384
    True

    Raises ValueError for an unknown model or dtype, a layer that the model lacks, a negative `m`, or a `tp` that does
    not divide d_ff, or the kv heads.
    """

    model: str
    layer: str
    tp: int
    m: int
    dtype: str
    op, form = "matmul", "{model}-{layer}-tp{tp}-m{m}-{dtype}"
    layers: ClassVar[Names] = (*ALL_LAYERS, SHAPE)
    sets = 2
    dtypes = tuple(ITEMSIZE)

    def __post_init__(self):
        model = parse_model(self.model)
        self.require("layer", self.layers)
        super().__post_init__()
        sides(self.model, self.layer)
        if self.m < 0:
            raise ValueError(f"tokens m={self.m}: it must be 0 or more")
        name, size = ("kv_heads", model.kv_heads) if self.layer in BY_HEADS else ("d_ff", model.d_ff)
        if self.tp < 1 or size % self.tp:
            raise ValueError(f"tp={self.tp} does not divide {name}={size} of {self.model}: choose a divisor of it")

    @property
    def n(self) -> int:
        _, d_out = sides(self.model, self.layer)
        return d_out if self.layer in ROW_PARALLEL else d_out // self.tp

    @property
    def k(self) -> int:
        d_in, _ = sides(self.model, self.layer)
        return d_in // self.tp if self.layer in ROW_PARALLEL else d_in

    @property
    def facts(self) -> dict[str, int]:
        return {"n": self.n, "k": self.k}

    @property
    def result_dtype(self) -> str:
        return "bf16" if ITEMSIZE[self.dtype] == 1 else self.dtype

    @property
    def work(self) -> Work:
        m = self.m
        n = self.n
        k = self.k
        device_bytes = (m * k + n * k) * ITEMSIZE[self.dtype]
        device_bytes += m * n * ITEMSIZE[self.result_dtype]
        if self.dtype == "fp8":
            device_bytes += (m + n) * SCALE_BYTES
        elif self.dtype == "fp8_block":
            device_bytes += (m + math.ceil(n / SCALE_BLOCK)) * math.ceil(k / SCALE_BLOCK) * SCALE_BYTES
        return Work(2 * m * n * k, device_bytes)


def sweep(options) -> list[Matmul]:
    """All matmuls that the options ask for, in the order of the run."""
    if options.shapes:
        return [OPERATION.parse(shape)[0] for shape in options.shapes]
    cases = []
    for dtype, layer, tp, m in product(options.dtypes, options.layers, options.tp, options.tokens):
        cases.append(Matmul(options.model, layer, tp, m, dtype))
    return cases


OPERATION = register(
    Operation(
        case=Matmul,
        analysis="throughput",
        sweep=sweep,
        planner="kernels.registry:Planner",
        runner="kernels.bench.matmul:Runner",
        example="matmul-xxl-up-tp8-m4096-bf16-persistent",
    )
)
