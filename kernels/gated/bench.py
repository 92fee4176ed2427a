"""How the operation `ffn_gated` runs: its contenders, their checks against float64, and their matmuls alone.

The weights of gate and up lie in one matrix w[2F, D]. `fused` reads its rows as interleaved, the others as two halves.
So all read the same memory, and each is compared with the layer that its reading makes.

In fp8 scales are by row. x is given in fp8, and torch quantises the hidden rows: each by its largest value, as serving
systems do where no scale was calibrated before (vLLM's dynamic per-token scheme). That takes whole rows, and a tile of
a fused kernel has only some of their columns, so `fused` leaves it to torch, too.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor

import kernels
from kernels import vendor
from kernels.bench import checks, matmul, roof
from kernels.contract import Scales, result_dtype
from kernels.fp8 import LARGEST, quantise
from kernels.gated.operation import MAKER, FfnGated
from kernels.registry import Contender as Matmul
from kernels.tiles import DTYPES
from roofline.store.run import PART
from roofline.worker.prepared import VENDOR_TOLERANCE, Entrant

FP8_TOLERANCE = 4e-2
"""The tolerance of the layer in fp8: rounding the hidden rows to four bits makes an error of 2.6e-2 by itself."""

LOOKED_AT_ROWS = 16
"""Rows of a timed result that are looked at: for each, the whole hidden row is computed again."""


@dataclass(frozen=True)
class Weights:
    """One set of weights, and the tensors that one kernel writes and the next one reads."""

    gate_up: Tensor
    """[2F, D]"""
    down: Tensor
    """[D, F]"""
    both: Tensor
    """[m, 2F], x @ gate_up.T"""
    hidden: Tensor
    """[m, F], silu(gate) * up"""
    factor: Tensor
    """[m, F], the operand that `down` multiplies: `hidden`, or that in fp8"""
    scales: Scales | None = None
    """The scales of x and gate_up, in fp8."""
    down_scales: Scales | None = None
    """The scales of `factor` and down, in fp8."""


def halves(both: Tensor, by_turns: bool, dim: int) -> tuple[Tensor, Tensor]:
    """The parts of gate and of up along `dim`: interleaved where they lie `by_turns`, else one half each."""
    if by_turns:
        return both.unflatten(dim, (-1, 2)).unbind(dim + 1)
    return both.chunk(2, dim)


def hidden_rows(x: Tensor, gate_up: Tensor, by_turns: bool, dtype: torch.dtype, scales: Scales | None = None) -> Tensor:
    """silu(x @ gate.T) * (x @ up.T) in `dtype`, a slice of the weights at a time."""
    x_scales, w_scales = scales or (1, x.new_ones(1, len(gate_up), dtype=dtype))
    x = x.to(dtype) * x_scales
    slices = []
    for half in (*halves(gate_up, by_turns, 0), *halves(w_scales.T, by_turns, 0)):
        slices.append(half.split(checks.SLICE))
    parts = []
    for gate, up, gate_scales, up_scales in zip(*slices, strict=True):
        gates = x @ (gate.to(dtype) * gate_scales).T
        ups = x @ (up.to(dtype) * up_scales).T
        parts.append(F.silu(gates) * ups)
    return torch.cat(parts, 1)


def multiply_gate_up(multiply: Callable[..., Tensor], x: Tensor, weights: Weights, out: Tensor) -> Tensor:
    return multiply(x, weights.gate_up, weights.both, weights.scales)


def multiply_down(multiply: Callable[..., Tensor], x: Tensor, weights: Weights, out: Tensor) -> Tensor:
    return multiply(weights.factor, weights.down, out, weights.down_scales)


def run_torch(multiply: Callable[..., Tensor], x: Tensor, weights: Weights, out: Tensor) -> Tensor:
    """The layer by two matmuls `multiply(x, w, out, scales)`, and torch's elementwise functions between them."""
    multiply_gate_up(multiply, x, weights, out)
    gate, up = halves(weights.both, False, 1)
    torch.ops.aten.silu.out(gate, out=weights.hidden)
    weights.hidden.mul_(up)
    quantise_hidden(weights)
    return multiply_down(multiply, x, weights, out)


def quantise_hidden(weights: Weights) -> None:
    """In fp8, round the hidden rows, each by a scale of its own."""
    if weights.down_scales:
        row_scales = weights.down_scales[0]
        torch.linalg.vector_norm(weights.hidden, torch.inf, 1, keepdim=True, dtype=row_scales.dtype, out=row_scales)
        row_scales.div_(LARGEST)
        weights.factor.copy_(weights.hidden.div_(row_scales))


run_vendor = partial(run_torch, vendor.run_cublas)
run_unfused = partial(run_torch, kernels.matmul)


def run_fused(x: Tensor, weights: Weights, out: Tensor) -> Tensor:
    GATED.load()(x, weights.gate_up, weights.hidden, weights.scales)
    quantise_hidden(weights)
    return multiply_down(kernels.matmul, x, weights, out)


def run_compiled(x: Tensor, weights: Weights, out: Tensor) -> Tensor:
    layer = vendor.compiled(layer_of_torch, fullgraph=True)
    down_scales = weights.down_scales and weights.down_scales[1]
    return layer(x, weights.gate_up, weights.down, out, weights.scales, down_scales)


def layer_of_torch(x: Tensor, gate_up: Tensor, down: Tensor, out: Tensor, scales, down_scales) -> Tensor:
    """The layer as torch.compile gets it."""
    if scales is None:
        gate, up = (x @ gate_up.T).chunk(2, 1)
        return out.copy_((F.silu(gate) * up) @ down.T)
    multiply = partial(torch._scaled_mm, out_dtype=out.dtype, use_fast_accum=True)
    gate, up = multiply(x, gate_up.T, *scales).chunk(2, 1)
    hidden = F.silu(gate) * up
    row_scales = hidden.abs().amax(1, keepdim=True).float() / LARGEST
    factor = (hidden / row_scales).to(x.dtype)
    return out.copy_(multiply(factor, down.T, row_scales, down_scales))


def run_numpy(x: Tensor, weights: Weights, out: Tensor) -> Tensor:
    gate, up = numpy.split(x.numpy() @ weights.gate_up.numpy().T, 2, axis=1)
    hidden = gate / (1 + numpy.exp(-gate)) * up
    numpy.matmul(hidden, weights.down.numpy().T, out=out.numpy())
    return out


GATED = Matmul("gated", "kernels.gated.kernel:gated")
"""Our kernel for the first half."""

MULTIPLY = {"cublas": vendor.run_cublas, "ours": kernels.matmul}
"""{whose matmuls take turns alone: multiply(x, w, out, scales)}."""

HALVES = {"gate_up": multiply_gate_up, "down": multiply_down}

MULTIPLIED_BY = {"cublas": "cublas", "unfused": "ours", "fused": "ours"}
"""{contender: whose matmuls are compared with its layer}."""


class Rotation(checks.Rotation):
    """Sets of (x, weights, out) by turns."""

    def look_by(self, limit: float, by_turns: bool, result: Tensor) -> Callable[[], str]:
        """Look at some rows of the `result` of the last call."""
        x, weights, out = self.sets[self.number]
        if problem := checks.not_out(result, out):
            return lambda: problem
        rows = torch.randperm(len(out), generator=self.numbers, device=out.device)[:LOOKED_AT_ROWS]
        scales = weights.scales and (weights.scales[0][rows], weights.scales[1])
        hidden = hidden_rows(x[rows], weights.gate_up, by_turns, torch.float32, scales)
        return checks.glance(out[rows], hidden, weights.down, limit, self.numbers, scales_of_down(hidden, weights))


def scales_of_down(hidden: Tensor, weights: Weights) -> Scales | None:
    """Scales of hidden rows that are not quantised, and of down."""
    return weights.down_scales and (hidden.new_ones(len(hidden), 1), weights.down_scales[1])


class Runner(roof.Runner):
    """Runs gated layers."""

    def operands(self, prepared):
        rotation = Rotation(operands(prepared.case, self.options), self.options.seed)
        prepared.inputs = rotation
        prepared.cache = f"cold: {len(rotation.sets)} sets of operands in rotation"
        return rotation

    def reference(self, case, rotation):
        """The sums that `checks` compares, for x and for -x, by how a contender reads gate and up."""
        x, weights, _ = rotation.sets[0]

        @cache
        def sums(by_turns: bool) -> list[Tensor]:
            sums = []
            for sign in (1, -1):
                hidden = hidden_rows(x.double() * sign, weights.gate_up, by_turns, torch.float64, weights.scales)
                sums.append(checks.reference_sums(hidden, weights.down, scales_of_down(hidden, weights)))
            return sums

        return sums

    def candidate(self, contender, prepared, rotation, references):
        name = contender.name
        dtype = prepared.case.dtype
        limit = FP8_TOLERANCE if dtype == "fp8" else VENDOR_TOLERANCE[dtype]
        x, weights, out = rotation.sets[0]
        by_turns = name == "fused"
        run = contender.load()

        def run_first(x: Tensor, gate_up: Tensor, out: Tensor) -> Tensor:
            return run(x, weights, out)

        right, of_minus = references(by_turns)
        check = partial(checks.check, name, run_first, (x, weights.gate_up, out), right, limit, of_minus)
        facts = {MAKER: MULTIPLIED_BY[name]} if name in MULTIPLIED_BY else {}
        look = partial(rotation.look_by, limit, by_turns)
        return rotation.entrant(name, run, check, config=contender.config(), facts=facts, look=look)

    def references(self, prepared, rotation):
        return parts(prepared.contenders, rotation) if self.options.timed else {}


def parts(contenders: list[str], rotation: Rotation) -> dict[str, Entrant]:
    """Both matmuls alone, for each of `MULTIPLY` that multiplies in a timed layer."""
    entrants = {}
    for by in dict.fromkeys(MULTIPLIED_BY[name] for name in contenders if name in MULTIPLIED_BY):
        for half, run in HALVES.items():
            name = f"{half}_{by}"
            call = rotation.rotated(partial(run, MULTIPLY[by]))
            entrants[name] = Entrant(name, call, PART, f"{half} alone", facts={MAKER: by})
    return entrants


def require_cublas(case: FfnGated, options, rotation: Rotation) -> None:
    x, weights, _ = rotation.sets[0]
    vendor.cublas.require(x, weights.gate_up, weights.both, weights.scales)


def require_cublas_in_fp8(case: FfnGated, *about) -> None:
    if case.dtype == "fp8":
        require_cublas(case, *about)


def require_gated(case: FfnGated, options, rotation: Rotation) -> None:
    x, weights, _ = rotation.sets[0]
    matmul.require(GATED, options, (x, weights.gate_up, weights.hidden, weights.scales))


def operands(case: FfnGated, options) -> list[tuple[Tensor, Weights, Tensor]]:
    """Sets of x, weights and out, enough of them to leave none in the cache as far as the memory has room. They share
    the tensors between two kernels. Normal values, of sizes that keep out below about 1."""
    device = options.device
    dtype = result_dtype(DTYPES[case.dtype])
    numbers = torch.Generator(device).manual_seed(options.seed)
    m = case.m
    width = case.n
    hidden = case.k
    count = 1
    if options.timed:
        room = matmul.POOL * roof.machine(device)["memory_bytes"]
        wanted = math.ceil(roof.ROTATION * roof.cache_bytes(device) / case.work.device_bytes)
        count = max(1, min(wanted, int(room // case.work.device_bytes)))

    def normal(rows: int, columns: int, scale: float = 1.0) -> Tensor:
        """Normal values [rows, columns], with memory around them that checks look at."""
        guard = checks.GUARD_ROWS
        whole = torch.randn(rows + 2 * guard, columns, generator=numbers, device=device, dtype=dtype)
        return whole.mul_(scale)[guard : guard + rows]

    both = normal(m, 2 * hidden)
    between = normal(m, hidden)
    sets = []
    for _ in range(count):
        gate_up = normal(2 * hidden, width, width**-0.5)
        weights = Weights(gate_up, normal(width, hidden, hidden**-0.5), both, between, between)
        x = normal(m, width)
        if case.dtype == "fp8":
            x, weights = in_fp8(x, weights)
        sets.append((x, weights, normal(m, width)))
    return sets


def in_fp8(x: Tensor, weights: Weights) -> tuple[Tensor, Weights]:
    """x and weights in fp8, with scales by row."""
    x, x_scales = quantise(x)
    gate_up, of_gate_up = quantise(weights.gate_up)
    down, of_down = quantise(weights.down)
    of_factor = torch.ones_like(x_scales)
    return x, replace(
        weights,
        gate_up=gate_up,
        down=down,
        factor=torch.zeros_like(weights.hidden, dtype=x.dtype),
        scales=(x_scales, of_gate_up.T),
        down_scales=(of_factor, of_down.T),
    )
