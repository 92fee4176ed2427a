"""Gradients of a backward pass, summed over ranks as DDP does: five ways, and which bucket is the best.

An operation between ranks, declared as docs/your-operation.md tells. From the checkout, measure it and then show it:

    torchrun --nproc-per-node 2 -m pytest --benchmark-only --ffn-operations docs/examples/gradient_all_reduce.py
    python -m docs.examples.gradient_all_reduce RUN

| arm | when gradients are summed |
| :-- | :-- |
| flat | all at once, after the backward pass |
| per_parameter | one layer after another, after the backward pass |
| overlapped | each layer's as soon as it is there, while the backward pass goes on |
| bucketed_1MiB | while it goes on, neighbours together once they have so many bytes |
| ddp | torch's DistributedDataParallel; its backward pass alone is timed |

A larger bucket costs fewer all-reduces, and leaves more to be sent once the backward pass is over. An all-reduce of b
bytes takes o + b / w. Of s bytes in buckets of b, s / b cost o each, and the first is there after b / s of the backward
pass. Where that takes as long as the bytes, s / w, the sum of both costs is least at b = sqrt(s o w).

Ranks have a GPU each and NCCL, or gloo on a CPU.
"""

import itertools
import math
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas
import torch
import torch.distributed as dist
from matplotlib.figure import Figure

import roofline
from kernels.bench import roof
from kernels.tiles import DTYPES
from roofline import operations
from roofline.operations import SKIPPED, Call, Contender, Entrant, Rejection, verdict
from roofline.store.stats import ratio_of
from roofline.theory.models import parse as parse_model
from roofline.theory.simulator import hidden_fraction
from roofline.theory.work import ITEMSIZE, Work

LAYERS, PART, TOKENS = 128, 8, 256
"""Layers are small, d = d_model / 8, so that an all-reduce for each costs more than its bytes."""
SETS = 2
"""Sets of activations and gradients, used by turns."""
PIECES = 16
"""A quarter of the gradients goes in one piece and in so many: what these differ by is the overhead."""


# What is measured.


@dataclass(frozen=True)
class GradientAllReduce(operations.Case):
    """The backward pass of `layers` layers of d x d for `m` tokens on each rank, and the sum of their gradients."""

    d: int
    layers: int
    m: int
    dtype: str
    ranks: int
    op, form = "gradient_all_reduce", "d{d}-l{layers}-m{m}-{dtype}-p{ranks}"

    @property
    def gradient_bytes(self):
        return self.layers * self.d**2 * ITEMSIZE[self.dtype]

    @property
    def facts(self):
        return {"sum_bytes": self.gradient_bytes}

    @property
    def work(self):
        """Two matmuls for each layer but the first, whose input needs no gradient."""
        matmuls = 2 * self.layers - 1
        elements = (2 * self.m + self.d) * self.d
        received = 2 * self.gradient_bytes * (self.ranks - 1) // self.ranks
        return Work(matmuls * 2 * self.m * self.d**2, matmuls * elements * ITEMSIZE[self.dtype], received)

    @property
    def buckets(self):
        """{arm: bytes of its buckets}: all gradients halved, and halved again, down to two layers'."""
        buckets, size = {}, self.gradient_bytes // 2
        while size >= 2 * self.gradient_bytes // self.layers and len(buckets) < 6:
            buckets[f"bucketed_{size_text(size)}"] = size
            size //= 2
        return dict(reversed(buckets.items()))

    @property
    def arms(self):
        return ["flat", "per_parameter", "overlapped", *self.buckets, "ddp"]


def size_text(size_bytes):
    for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
        if size_bytes % unit == 0:
            return f"{size_bytes // unit}{name}"
    return f"{size_bytes}B"


def why_not(options):
    if options.world == 1:
        return "it is between ranks: start torchrun --nproc-per-node N -m pytest ..."
    if parse_model(options.model).d_model < PART:
        return f"its layers are 1/{PART} of d_model, and {options.model} has less: take another --ffn-model"
    return ""


def sweep(options):
    if why_not(options):
        return []
    d, m = parse_model(options.model).d_model // PART, max(options.lengths, default=TOKENS)
    return [GradientAllReduce(d, LAYERS, m, dtype, options.world) for dtype in options.dtypes]


class Planner(operations.Planner):
    def choices(self):
        names = [name for case in sweep(self.options) for name in case.arms]
        return list(dict.fromkeys(names))

    def names(self, case):
        return [name for name in case.arms if name in (self.options.contenders or case.arms)]


# How it runs. An arm leaves the sums in `operands.buffer`; `reduce(tensor)` begins to sum a tensor over all ranks, in
# place, and what it returns has `wait()`. Gradients are views of one buffer: a bucket is a part of it.


class Operands:
    """`weights[L, d, d]`, `inputs` of the layers, L x [m, d], and `gradient[m, d]` of what comes out of the last."""

    def __init__(self, weights, inputs, gradient):
        self.weights, self.inputs, self.gradient = weights, inputs, gradient
        self.buffer = torch.empty_like(weights)
        self._between = [torch.empty_like(gradient) for _ in range(2)]

    def backward(self, done=lambda layer: None):
        """Compute the gradients from the last layer on, and call `done(layer)` for each."""
        gradient = self.gradient
        for layer in reversed(range(len(self.weights))):
            torch.mm(gradient.T, self.inputs[layer], out=self.buffer[layer])
            done(layer)
            if layer:
                gradient = torch.mm(gradient, self.weights[layer], out=self._between[layer % 2])


def flat(operands, reduce):
    operands.backward()
    reduce(operands.buffer).wait()


def per_parameter(operands, reduce):
    operands.backward()
    for gradient in reversed(operands.buffer.unbind()):
        reduce(gradient).wait()


def bucketed(operands, reduce, nbytes=1):
    """Send what is there whenever it has `nbytes`, and with the first layer the rest."""
    sent, end = [], len(operands.buffer)

    def done(layer):
        nonlocal end
        bucket = operands.buffer[layer:end]
        if bucket.nbytes >= nbytes or layer == 0:
            sent.append(reduce(bucket))
            end = layer

    operands.backward(done)
    for work in sent:
        work.wait()


ARMS = {"flat": flat, "per_parameter": per_parameter, "overlapped": bucketed}


def by_turns(runs):
    """A call on each set of operands by turns. It is long, so that the clock does not make it once more before each
    sample."""
    turns = itertools.cycle(runs)
    return Call(lambda: next(turns)(), is_long=True)


class Ddp:
    """The backward pass of torch's DistributedDataParallel, on each set of operands by turns."""

    def __init__(self, sets, group):
        layers = []
        for weight in sets[0].weights:
            layers.append(torch.nn.Linear(*weight.shape, bias=False, device="meta"))
            layers[-1].weight = torch.nn.Parameter(weight)
        self._turns, self._out = itertools.cycle(sets), None
        self._model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group)

    def notes(self):
        """Make the graph of the next call. Rounds call this after each turn, when nothing is timed."""
        self._operands = next(self._turns)
        self._model.zero_grad()
        self._out = self._model(self._operands.inputs[0])
        return {}

    def __call__(self):
        if self._out is None:
            self.notes()
        out, self._out = self._out, None
        out.backward(self._operands.gradient)

    def sums(self, ranks):
        """The operands of the last call, and its sums: DDP leaves means."""
        gradients = [weight.grad for weight in self._model.parameters()]
        return self._operands, torch.stack(gradients) * ranks


class Setting:
    """What the arms of a case work on. All numbers are whole: weights are permutations with signs, so that activations
    and gradients stay as large as they are, and sums in fp32 are exact."""

    def __init__(self, case, options, ranks):
        self.case, self.seed, self.ranks = case, options.seed, ranks
        about = {"device": options.device, "dtype": DTYPES[case.dtype]}
        generator = torch.Generator().manual_seed(self.seed)
        weights = torch.zeros(case.layers, case.d, case.d)
        for weight in weights:
            signs = 2.0 * torch.randint(2, (case.d,), generator=generator) - 1
            weight[torch.arange(case.d), torch.randperm(case.d, generator=generator)] = signs
        self.weights = weights.to(**about)
        self.sets, self.right = [], {}
        for number in range(SETS):
            first, gradient = (end.to(**about) for end in self.ends(ranks.rank, number))
            inputs = [first]
            for weight in self.weights[:-1]:
                inputs.append(inputs[-1] @ weight.T)
            self.sets.append(Operands(self.weights, inputs, gradient))
            self.right[self.sets[-1]] = self.right_sums(weights, number).to(options.device)
        self.group = group_of(ranks)

    def ends(self, rank, number):
        """What goes into the first layer of a rank, and the gradient that comes into its last."""
        generator = torch.Generator().manual_seed(self.seed + 1 + SETS * rank + number)
        return torch.randint(-4, 5, (2, self.case.m, self.case.d), generator=generator).float().unbind()

    def right_sums(self, weights, number):
        total = torch.zeros_like(weights)
        for rank in range(self.ranks.size):
            out, gradient = self.ends(rank, number)
            leaf = weights.clone().requires_grad_()
            for weight in leaf:
                out = out @ weight.T
            total += torch.autograd.grad(out, leaf, gradient)[0]
        return total

    def error(self, operands, sums):
        right = self.right[operands]
        return float((sums.float() - right).norm() / right.norm())

    def reduce(self, tensor):
        return dist.all_reduce(tensor, group=self.group, async_op=True)

    def checked(self, name):
        """The arm `name`, if what it computes is right, twice on each set of operands."""
        sent, errors = [], []

        def noted(bucket):
            sent.append(bucket.nbytes)
            return self.reduce(bucket)

        if name == "ddp":
            ddp = Ddp(self.sets, self.group)
            for _ in range(2 * SETS):
                ddp()
                errors.append(self.error(*ddp.sums(self.ranks.size)))
            call, config = Call(ddp, notes=ddp.notes, is_long=True), f"torch {torch.__version__}"
        else:
            size = self.case.buckets.get(name)
            arm = partial(bucketed, nbytes=size) if size else ARMS[name]
            for operands in 2 * self.sets:
                operands.buffer.fill_(math.nan)
                sent.clear()
                arm(operands, noted)
                errors.append(self.error(operands, operands.buffer))
            call, config = (
                by_turns([partial(arm, operands, self.reduce) for operands in self.sets]),
                "views of one buffer",
            )
        error = math.nan if any(map(math.isnan, errors)) else max(errors)
        facts = {"bucket_bytes": max(sent), "all_reduces": len(sent)} if sent else {}
        return verdict(name, error, self.case.dtype) or Entrant(
            name, call, config=config, relative_error=error, facts=facts
        )

    def references(self):
        """The backward pass alone, and all-reduces alone."""
        everything = torch.zeros_like(self.weights).flatten()
        quarter = everything[: len(everything) // 4]

        def one_after_another(pieces):
            for piece in pieces:
                self.reduce(piece).wait()

        return [
            Entrant("backward", by_turns([operands.backward for operands in self.sets]), "gemm"),
            Entrant("all_reduce", by_turns([partial(one_after_another, [everything])]), "link"),
            Entrant("quarter in 1", by_turns([partial(one_after_another, [quarter])]), "link"),
            Entrant(f"quarter in {PIECES}", by_turns([partial(one_after_another, quarter.chunk(PIECES))]), "link"),
        ]


def group_of(ranks):
    """torch.distributed's group of all ranks: NCCL's where they have GPUs, else gloo's."""
    if ranks.world:
        return ranks.world.group
    if not dist.is_initialized():
        store = ranks.fresh_store("gradients")
        dist.init_process_group("gloo", store=store, rank=ranks.rank, world_size=ranks.size)
    return dist.group.WORLD


class Runner(roof.Runner):
    """Ranks keep in step: what raises on one of them ends the share of all, and an arm that is refused on one of them
    is refused on all."""

    def contenders(self, case):
        arms = {name: Contender(name, name) for name in case.arms}
        return arms | {"ddp": Contender("ddp", Ddp)}

    def operands(self, prepared):
        if reason := self.ranks.world and self.ranks.world.why_not("nccl"):
            return Rejection(SKIPPED, reason)
        prepared.cache = f"{SETS} sets of activations and gradients, used by turns"
        return Setting(prepared.case, self.options, self.ranks)

    def candidate(self, contender, prepared, setting, _):
        return setting.checked(contender.name)

    def references(self, prepared, setting):
        return {each.name: each for each in setting.references()} if self.options.timed else {}


operations.register(
    operations.Operation(
        case=GradientAllReduce,
        analysis="throughput",
        sweep=sweep,
        planner=Planner,
        runner=Runner,
        example="gradient_all_reduce-d128-l128-m256-fp32-p2-bucketed_1MiB",
        why_not=why_not,
        between_ranks=True,
    )
)


def test_gradient_all_reduce(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)


# What it shows.


def typical_s(shape, name):
    time = shape.time(name)
    return time.value if time else math.nan


def overhead_and_bandwidth(shape):
    """o in seconds and w in bytes/s, of an all-reduce that takes o + b / w."""
    pieces_s, piece_s = typical_s(shape, f"quarter in {PIECES}"), typical_s(shape, "quarter in 1")
    overhead_s = (pieces_s - piece_s) / (PIECES - 1)
    return overhead_s, shape.facts["sum_bytes"] / (typical_s(shape, "all_reduce") - overhead_s)


def best_bucket_bytes(shape):
    """sqrt(s o w); NaN where no more time went by in pieces, or one of the all-reduces was not measured."""
    overhead_s, bytes_per_s = overhead_and_bandwidth(shape)
    square = shape.facts["sum_bytes"] * overhead_s * bytes_per_s
    return math.sqrt(square) if square > 0 else math.nan


def table(shape):
    """A row for each arm. `hidden` is 1 where the shorter of backward pass and all-reduce hides behind the other."""
    backward_s, all_reduce_s = typical_s(shape, "backward"), typical_s(shape, "all_reduce")
    rows = []
    for name in shape.measured:
        entrant, times_s = shape.entrants[name], shape.times_s(name)
        time = shape.time(name)
        row = {"arm": name, "bucket_KiB": entrant.get("bucket_bytes", math.nan) / 2**10}
        row["all_reduces"] = entrant.get("all_reduces", math.nan)
        row |= {"ms": 1e3 * time.value, "low": 1e3 * time.low, "high": 1e3 * time.high}
        ratio = ratio_of(shape.anchor or {}, times_s, shape.groups)
        row["speed_of_flat"] = ratio.value if ratio else math.nan
        row["hidden"] = hidden_fraction(backward_s, all_reduce_s, time.value)
        rows.append(row)
    return pandas.DataFrame(rows).set_index("arm")


def in_buckets(rows):
    """The rows of the arms that send buckets while the backward pass goes on."""
    return rows[rows.index.str.startswith(("overlapped", "bucketed"))]


def finding(shape):
    swept = in_buckets(table(shape))
    if swept.empty:
        return "no buckets were measured"
    measured = f"best bucket: {swept.loc[swept['ms'].idxmin(), 'bucket_KiB']:.0f} KiB measured"
    overhead_s, bytes_per_s = overhead_and_bandwidth(shape)
    model = f"o = {1e6 * overhead_s:.0f} us, w = {bytes_per_s / 1e9:.3g} GB/s"
    if math.isnan(best := best_bucket_bytes(shape)):
        return f"{measured}, and no sqrt(s o w) of {model}"
    return f"{measured}, sqrt(s o w) = {best / 2**10:.0f} KiB by {model}"


def figure(run, shape):
    """Time over the size of a bucket."""
    drawing, rows = Figure(figsize=(9.5, 5), layout="constrained"), table(shape)
    swept = in_buckets(rows)
    axes = drawing.add_subplot(xlabel="KiB of a bucket", ylabel="ms of the slowest rank")
    axes.set_xscale("log", base=2)
    ends = swept["ms"] - swept["low"], swept["high"] - swept["ms"]
    axes.errorbar(swept["bucket_KiB"], swept["ms"], ends, fmt="o", capsize=2, label="while the backward pass goes on")
    for name, colour in (("flat", "C1"), ("per_parameter", "C2"), ("ddp", "C3")):
        if name in rows.index:
            axes.axhline(rows.loc[name, "ms"], color=colour, label=name)
    axes.axhline(1e3 * typical_s(shape, "backward"), color="grey", linestyle=":", label="backward pass alone")
    axes.axvline(best_bucket_bytes(shape) / 2**10, color="black", linewidth=0.8, label="sqrt(s o w)")
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.legend(frameon=False)
    title = [shape.id, finding(shape), *(["void: ranks share a machine, and this is no wire"] if run.void else [])]
    axes.set_title("\n".join(title), loc="left", fontsize=10)
    return drawing


def main(folder):
    """Print the table of each shape of a run, and save its figure in the run's folder."""
    run = roofline.load(folder)
    if run.void:
        print(run.void)
    for shape in run.shapes.values():
        if shape.op == GradientAllReduce.op:
            print(shape.id)
            print(table(shape).to_string(float_format="{:.4g}".format, na_rep="-"))
            print(finding(shape))
            path = Path(folder) / f"{shape.id}.png"
            figure(run, shape).savefig(path, dpi=150)
            print(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"python -m docs.examples.gradient_all_reduce RUN: give one run folder, not {len(sys.argv) - 1}")
    try:
        main(sys.argv[1])
    except ValueError as error:
        sys.exit(str(error))
