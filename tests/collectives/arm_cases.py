"""Cases that gather and scatter over four ranks, options to run them by, and operands whose right results are known."""

import itertools
import math
import time
from dataclasses import replace
from functools import partial

import torch

from collectives import all_gather_matmul, ffn, matmul_reduce_scatter, weight_prefetch
from collectives.bench.links import make_link
from collectives.ranks import shared
from collectives.transfers import WarmUp
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.operations.gathering import Sweep
from roofline.operations.options import Options
from roofline.theory.arms import ARMS as ARM_SPECS

RANKS, ROWS, WIDTH, DEPTH = 4, 24, 16, 12
SIZES = {"cpu": (ROWS, WIDTH, 48), "cuda": (512, 48, 1024)}
"""Rows, columns and depth of a gather: where kernels are compiled, their tiles are larger."""
ARMS = [*all_gather_matmul.ARMS]


OPTIONS = Options(
    device="cpu",
    timed=True,
    model="128x512",
    layers=("up",),
    tokens=(1024,),
    tp=(1,),
    dtypes=("fp32",),
    max_seconds=1.0,
    gather=Sweep(rows=(1024,), tp=(1,), tokens=(1024,), ranks=(4,), wires=("balance",)),
)
ON_GPU = replace(OPTIONS, device="cuda", dtypes=("fp16",), model="256x384")
"""Whose tiles are larger, and whose dtype all arms take."""


def all_gather(wire="0.05GBps", dtype="fp32"):
    return AllGatherMatmul("128x512", "up", 1, 1024, dtype, 4, wire)


def whole_numbers(seed, *shape, most=4):
    """From -`most` to `most`: sums of them are exact."""
    return torch.randint(-most, most + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


class Products(torch.overrides.TorchFunctionMode):
    """Lists the shapes that are multiplied."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.mm, torch.addmm):
            self.shapes.append([tuple(tensor.shape) for tensor in args[-2:]])
        return func(*args, **(kwargs or {}))


class Scatter:
    """One matmul. `alone`, what arrives is the rank's product for some rank, of each rank once."""

    arms, gathered = matmul_reduce_scatter.ARMS, 0

    def __init__(
        self, rank=0, ranks=RANKS, *, alone=True, device="cpu", dtype=torch.float32, sizes=(ROWS, WIDTH, DEPTH)
    ):
        self.rank, self.ranks, self.alone, self.device, self.dtype = rank, ranks, alone, device, dtype
        self.rows, self.columns, self.depth = sizes
        self.operands = self.made()
        self.renew(0)

    def empty(self, *shape):
        return torch.empty(shape, dtype=self.dtype).to(self.device)

    def made(self):
        self.inputs = [self.empty(self.rows, self.depth), self.empty(self.columns, self.depth)]
        out = self.empty(self.rows // self.ranks, self.columns)
        made = matmul_reduce_scatter.Operands(*self.inputs, out, self.ranks, self.rank)
        self.written = made.products, made.arrived, out
        return made

    def numbers(self, seed, rank):
        """Of what `rank` multiplies."""
        x = whole_numbers(100 * seed + rank, self.rows, self.depth, most=1)
        return x, whole_numbers(50 + rank, self.columns, self.depth, most=1)

    def renew(self, seed, arm=""):
        """Take other numbers, and poison all that an arm writes, or has no right to."""
        numbers = [self.numbers(seed, rank) for rank in range(self.ranks)]
        self.of_ranks = [[part.to(self.dtype).to(self.device) for part in parts] for parts in numbers]
        for tensor, values in zip(self.inputs, self.of_ranks[self.rank], strict=True):
            tensor.copy_(values)
        for tensor in self.written:
            tensor.fill_(torch.nan)

    @staticmethod
    def product(x, w):
        return x @ w.T

    def expected(self, arm):
        if self.alone:
            sums = sum(self.product(*self.of_ranks[self.rank]).chunk(self.ranks))
            return sums.repeat(self.ranks, 1) if arm == "all_reduce" else sums
        sums = sum(self.product(*numbers) for numbers in self.of_ranks)
        return sums if arm == "all_reduce" else sums.chunk(self.ranks)[self.rank]

    def blocks_of(self, arm):
        """The row blocks of all transfers, in their order."""
        return (self.ranks - 1) * [0]

    def run(self, name, arm, link, seed=0):
        """Run the arm of this name over a link with other numbers, to the bit. Returns the timeline."""
        self.renew(seed, name)
        assert torch.equal(arm(self.operands, link), self.expected(name)), (name, self.rank, seed)
        timeline = link.timeline()
        assert [transfer.block for transfer in timeline.transfers] == self.blocks_of(name)
        assert len(timeline.arrivals_s) == len(timeline.transfers)
        return timeline


class Layer(Scatter):
    """Both matmuls. All ranks have the same tokens."""

    arms, gathered = ffn.ARMS, 1

    def made(self):
        self.inputs = [self.empty(ROWS, WIDTH), self.empty(DEPTH, WIDTH), self.empty(WIDTH, DEPTH)]
        out = self.empty(ROWS // self.ranks, WIDTH)
        made = ffn.Operands(*self.inputs, out, self.ranks, self.rank)
        self.written = made.hidden, made.gathered, made.whole, out, made.scatter.products, made.scatter.arrived
        return made

    def numbers(self, seed, rank):
        tokens = whole_numbers(100 * seed, ROWS, WIDTH)
        return tokens, whole_numbers(9 + rank, DEPTH, WIDTH), whole_numbers(50 + rank + seed, WIDTH, DEPTH)

    def renew(self, seed, arm=""):
        """What comes is there of this rank's own tokens alone; other ranks' have none but for `all_reduce`."""
        super().renew(seed)
        x, block = self.operands.x, self.operands.scatter.block
        block(self.operands.gathered, self.rank).copy_(block(x, self.rank))
        for other in set(range(self.ranks)) - {self.rank}:
            if not self.alone and arm != "all_reduce":
                block(x, other).fill_(torch.nan)

    @staticmethod
    def product(x, up, down):
        return x @ up.T @ down.T

    def blocks_of(self, arm):
        rows, parts = (self.ranks - 1) * [0], (self.ranks - 1) * [1]
        return parts + rows if arm == "all_reduce" else rows + parts


class Gather(Scatter):
    """One matmul whose x comes, by columns. Of the others' shards a rank that is not `alone` has NaN."""

    arms = all_gather_matmul.ARMS

    def __init__(self, *where, sizes=SIZES["cpu"], blocks=3, share=torch.clone, **more):
        self.blocks, self.share = blocks, share
        super().__init__(*where, sizes=sizes, **more)

    def made(self):
        shards = [self.empty(self.rows, self.depth // self.ranks).fill_(torch.nan) for _ in range(self.ranks)]
        shards[self.rank] = self.share(shards[self.rank])
        self.inputs = [shards[self.rank], self.empty(self.columns, self.depth)]
        self.written = self.empty(self.rows, self.depth), self.empty(self.rows, self.columns)
        gathered, out = self.written
        return all_gather_matmul.Operands(shards, gathered, self.inputs[1], out, self.rank, blocks=self.blocks)

    def numbers(self, seed, rank):
        shard = whole_numbers(100 * seed + rank, self.rows, self.depth // self.ranks, most=1)
        return shard, whole_numbers(50 + rank, self.columns, self.depth, most=1)

    def renew(self, seed, arm=""):
        super().renew(seed)
        operands = self.operands
        if self.alone:
            for shard, (values, _) in zip(operands.shards, self.of_ranks, strict=True):
                shard.copy_(values)
        operands.columns(self.rank, operands.gathered).copy_(operands.shards[self.rank])

    def expected(self, arm):
        x = torch.cat([shard for shard, _ in self.of_ranks], 1)
        return x @ self.of_ranks[self.rank][1].T

    def blocks_of(self, arm):
        blocks = self.blocks if ARM_SPECS[arm].by_block else 1
        return [block for block in range(blocks) for _ in range(self.ranks - 1)]


class Prefetch:
    """Two layers, whose weights come by turns."""

    def __init__(self, rank=0, ranks=RANKS, *, sizes=(ROWS, WIDTH, 48), device="cpu", dtype=torch.float32):
        rows, columns, depth = sizes
        self.layers = [whole_numbers(layer, columns, depth, most=1).to(device, dtype) for layer in range(2)]
        self.x = whole_numbers(2, rows, depth, most=1).to(device, dtype)
        shares, buffers = [[*layer.chunk(ranks)] for layer in self.layers], [layer * math.nan for layer in self.layers]
        out = torch.empty(rows, columns, device=device, dtype=dtype)
        self.operands = weight_prefetch.Operands(shares, buffers, self.x, out, rank)


def gather_over(kind, ranks, **more):
    """A gather between ranks with GPUs over a link of this kind, and the link."""
    share = torch.clone if kind.startswith("nccl") else partial(shared, ranks=ranks)
    case = Gather(ranks.rank, ranks.size, alone=False, share=share, **more)
    return case, make_link(kind, "cuda", None, ranks)


def late_runs(case, link, calls=3, arms=None):
    """Run each arm of a case over a link of real ranks, to the bit, each rank late in turn, with other numbers in each
    call: what a rank shares is overwritten as soon as an arm is done. Gives the arm's name and the timeline."""
    for late, (name, arm) in itertools.product(range(case.ranks), (arms or case.arms).items()):
        if case.device != "cpu":  # what is loaded while a stream waits would wait for it
            arm(case.operands, WarmUp())
        for call in range(calls):
            time.sleep(0.02 * (late == case.rank))
            yield name, case.run(name, arm, link, 10 * late + call)
