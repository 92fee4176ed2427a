"""A case that gathers, of four ranks, and options to run it by."""

from pathlib import Path

import torch

from roofline.operations import gathering
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.options import Options

ARMS = ["serial", "chunk_launches", "row_block_launches"]


def options_of(contenders=None):
    gather = gathering.make("cpu", "128x512", (4,), tokens=(1024,), tp=(1,))
    return Options(
        "cpu", True, "128x512", ("up",), (1024,), (1,), ("fp32",), contenders, 0, 1.0, Path("x"), False, gather
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
