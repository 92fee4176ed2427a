"""RMSNorm of rows, forward and backward: torch's, and a kernel of each in Triton. From the checkout:

    pytest --ffn-operations docs/examples/rms_norm.py                        # right? ours in Triton's interpreter
    pytest --benchmark-only --ffn-operations docs/examples/rms_norm.py       # how fast: on a CPU torch's alone

Its report has the bytes that a call moves a second, beside what a copy reached, and a figure of these.
"""

from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
import triton
import triton.language as tl

from kernels.bench import roof
from kernels.tiles import DTYPES
from roofline import operations
from roofline.operations import Contender, Entrant, Field, Table, verdict
from roofline.operations.base import dtypes_of
from roofline.theory.work import ITEMSIZE, Work

EPS = 1e-6
PARTS = ("forward", "backward")
FLOP = {"forward": 4, "backward": 8}
"""Of an element."""
TENSORS = {"forward": 2, "backward": 3}
"""That are read or written: x and out; x and the gradients of both."""


@dataclass(frozen=True)
class RmsNorm(operations.Case):
    """out = x / sqrt(mean(x^2) + EPS) of each row of x[m, d], or the gradient of x for that of out."""

    m: int
    d: int
    part: str
    dtype: str
    op, form = "rms_norm", "m{m}-d{d}-{part}-{dtype}"

    def __post_init__(self):
        super().__post_init__()
        self.require("part", PARTS)

    @property
    def work(self):
        elements = self.m * self.d
        return Work(FLOP[self.part] * elements, TENSORS[self.part] * elements * ITEMSIZE[self.dtype])


@triton.jit
def forward_kernel(x_ptr, out_ptr, d, share, eps, BLOCK: tl.constexpr):  # noqa: N803 as Triton code has it
    column = tl.arange(0, BLOCK)
    place = tl.program_id(0).to(tl.int64) * d + column
    x = tl.load(x_ptr + place, column < d, 0.0).to(tl.float32)
    out = x * tl.rsqrt(tl.sum(x * x, 0) * share + eps)
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), column < d)


@triton.jit
def backward_kernel(x_ptr, grad_ptr, dx_ptr, d, share, eps, BLOCK: tl.constexpr):  # noqa: N803
    column = tl.arange(0, BLOCK)
    place = tl.program_id(0).to(tl.int64) * d + column
    x = tl.load(x_ptr + place, column < d, 0.0).to(tl.float32)
    grad = tl.load(grad_ptr + place, column < d, 0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) * share + eps)
    along = tl.sum(grad * x, 0) * share * scale * scale
    tl.store(dx_ptr + place, ((grad - x * along) * scale).to(dx_ptr.dtype.element_ty), column < d)


def arguments(x) -> dict:
    d = x.shape[1]
    return {"d": d, "share": 1 / d, "eps": EPS, "BLOCK": triton.next_power_of_2(d)}


def by_triton(part, x, grad):
    result = torch.empty_like(x)
    if part == "forward":
        forward_kernel[(len(x),)](x, result, **arguments(x))
    else:
        backward_kernel[(len(x),)](x, grad, result, **arguments(x))
    return result


def by_torch(part, x, grad):
    norm = partial(torch.nn.functional.rms_norm, normalized_shape=x.shape[1:], eps=EPS)
    if part == "forward":
        return norm(x)
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(norm(leaf), leaf, grad)[0]


class Runner(roof.Runner):
    def operands(self, prepared):
        prepared.cache = "warm: one set of operands"
        case, device = prepared.case, self.options.device
        numbers = torch.Generator(device).manual_seed(self.options.seed)
        shape, dtype = (case.m, case.d), DTYPES[case.dtype]
        return [torch.randn(shape, generator=numbers, device=device, dtype=dtype) for _ in range(2)]

    def reference(self, case, operands):
        return by_torch(case.part, *(tensor.double() for tensor in operands))

    def candidate(self, contender, prepared, operands, right):
        call = partial(contender.load(), prepared.case.part, *operands)
        error = float((call().double() - right).norm() / right.norm())
        entrant = Entrant(contender.name, call, config=contender.config(), relative_error=error)
        return verdict(contender.name, error, prepared.case.dtype) or entrant


def sweep(options):
    sizes = product(options.tokens, [1024], PARTS, dtypes_of(RmsNorm, options))
    return [RmsNorm(*size) for size in sizes]


def bandwidth(run):
    """The bytes a second over the rows, a line for each contender and part."""
    from matplotlib.figure import Figure

    from roofline.analysis.records import frame

    figure = Figure(figsize=(8, 5))
    axes = figure.add_subplot(xscale="log", xlabel="rows", ylabel="GB/s")
    cases = frame(run)
    for (name, part), rows in cases[cases["op"] == RmsNorm.op].groupby(["contender", "part"], sort=False):
        axes.plot(rows["m"], rows["bytes_per_s"] / 1e9, "o-", label=f"{name}, {part}")
    axes.legend()
    return figure


operations.register(
    operations.Operation(
        case=RmsNorm,
        analysis="throughput",
        sweep=sweep,
        contenders=(
            Contender("torch", by_torch),
            Contender(
                "ours", by_triton, kind="triton", devices=("cuda",), describe=lambda: f"triton {triton.__version__}"
            ),
        ),
        runner=Runner,
        example="rms_norm-m16-d1024-forward-fp32-ours",
        fields=(
            Field("part", "`forward` or `backward`"),
            Field(
                "bytes_per_s",
                "least bytes over `time_s`",
                unit="bytes/s",
                header="bandwidth",
                format="bandwidth",
                of=lambda measured: measured.shape.work.device_bytes / measured.time.value,
            ),
        ),
        tables=(Table("Norms", of="bytes_per_s", columns=("shape", "contender", "time_s", "bytes_per_s")),),
        figures={"norms": bandwidth},
    )
)


def test_rms_norm(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)
