"""Cases that gather and scatter over four ranks, options to run them by, and operands whose right results are known."""

import torch

from collectives import all_gather_matmul, ffn, matmul_reduce_scatter
from roofline.operations import gathering
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.operations.options import Options

RANKS, ROWS, WIDTH, DEPTH = 4, 24, 16, 12
ARMS = [*all_gather_matmul.ARMS]


def options_of(contenders=None, *, device="cpu", dtype="fp32", model="128x512", gather=None):
    gather = gather or gathering.make(device, model, ranks=(4,), tokens=(1024,), tp=(1,))
    return Options(
        device=device,
        timed=True,
        model=model,
        layers=("up",),
        tokens=(1024,),
        tp=(1,),
        dtypes=(dtype,),
        contenders=contenders,
        max_seconds=1.0,
        gather=gather,
    )


def all_gather(wire="0.05GBps", dtype="fp32"):
    return AllGatherMatmul("128x512", "up", 1, 1024, dtype, 4, wire)


def whole_numbers(seed, *shape, most=4):
    """From -`most` to `most`: sums of them are exact."""
    return torch.randint(-most, most + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Products(torch.overrides.TorchFunctionMode):
    """Lists the shapes that are multiplied."""

    def __init__(self, shapes):
        super().__init__()
        self.shapes = shapes

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.mm, torch.addmm):
            self.shapes.append([tuple(tensor.shape) for tensor in args[-2:]])
        return func(*args, **(kwargs or {}))


class Scatter:
    """One matmul. `alone`, what arrives is the rank's product for some rank, of each rank once."""

    arms, gathered = matmul_reduce_scatter.ARMS, 0

    def __init__(self, rank=0, ranks=RANKS, *, alone=True, device="cpu"):
        self.rank, self.ranks, self.alone, self.device = rank, ranks, alone, device
        self.operands = self.made(torch.empty(ROWS // ranks, WIDTH).to(device))
        self.renew(0)

    def made(self, out):
        self.inputs = [torch.empty(shape).to(self.device) for shape in ((ROWS, DEPTH), (WIDTH, DEPTH))]
        made = matmul_reduce_scatter.Operands(*self.inputs, out, self.ranks, self.rank)
        self.written = made.products, made.arrived, out
        return made

    def numbers(self, seed, rank):
        """Of what `rank` multiplies."""
        return whole_numbers(100 * seed + rank, ROWS, DEPTH), whole_numbers(50 + rank, WIDTH, DEPTH)

    def renew(self, seed):
        """Take other numbers, and poison all that an arm writes."""
        self.of_ranks = [[part.to(self.device) for part in self.numbers(seed, rank)] for rank in range(self.ranks)]
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


class Layer(Scatter):
    """Both matmuls. All ranks have the same tokens."""

    arms, gathered = ffn.ARMS, 1

    def made(self, out):
        shapes = (ROWS, WIDTH), (DEPTH, WIDTH), (WIDTH, DEPTH)
        self.inputs = [torch.empty(shape).to(self.device) for shape in shapes]
        made = ffn.Operands(*self.inputs, out, self.ranks, self.rank)
        self.written = made.hidden, made.gathered, made.whole, out, made.scatter.products, made.scatter.arrived
        return made

    def numbers(self, seed, rank):
        tokens = whole_numbers(100 * seed, ROWS, WIDTH)
        return tokens, whole_numbers(9 + rank, DEPTH, WIDTH), whole_numbers(50 + rank + seed, WIDTH, DEPTH)

    def renew(self, seed):
        """What comes is there of this rank's own tokens alone."""
        super().renew(seed)
        block = self.operands.scatter.block
        block(self.operands.gathered, self.rank).copy_(block(self.operands.x, self.rank))

    @staticmethod
    def product(x, up, down):
        return x @ up.T @ down.T
