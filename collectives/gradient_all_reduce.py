"""A backward pass of linear layers, whose gradients are summed over ranks: after it, or while it goes on.

    flat           backward, then one all-reduce of all gradients
    per_parameter  backward, then one all-reduce for each, one after another
    overlapped     an all-reduce for each gradient as soon as it is there, while the backward pass goes on
    bucketed       the same of neighbours together, once they have so many bytes

All gradients are views of one buffer, so that a bucket is a part of it and nothing is copied. `Ddp` is torch's
DistributedDataParallel on the same layers, which copies them into buckets of its own, and averages.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

Reduce = Callable[[Tensor], object]
"""Begins to sum a tensor over all ranks, in place; what it returns has `wait()`."""


@dataclass
class Operands:
    """What one rank multiplies: `weights[L, d, d]`, `inputs` of the layers, L x [m, d], and `gradient[m, d]` of what
    comes out at last, x @ w.T for each. `buffer[L, d, d]` takes the gradients of the weights."""

    weights: Tensor
    inputs: list[Tensor]
    gradient: Tensor

    def __post_init__(self):
        self.buffer = torch.empty_like(self.weights)
        self._between = [torch.empty_like(self.gradient) for _ in range(2)]

    def backward(self, done: Callable[[int], object] = lambda layer: None) -> None:
        """Gradients of all layers, from the last one on; `done(layer)` once that of its weights is in the buffer."""
        gradient = self.gradient
        for layer in reversed(range(len(self.weights))):
            torch.mm(gradient.T, self.inputs[layer], out=self.buffer[layer])
            done(layer)
            if layer:
                gradient = torch.mm(gradient, self.weights[layer], out=self._between[layer % 2])


def flat(operands: Operands, reduce: Reduce) -> None:
    operands.backward()
    reduce(operands.buffer).wait()


def per_parameter(operands: Operands, reduce: Reduce) -> None:
    operands.backward()
    for gradient in reversed(operands.buffer.unbind()):
        reduce(gradient).wait()


def bucketed(operands: Operands, reduce: Reduce, nbytes: int = 1) -> None:
    """Send what is there whenever it has `nbytes`, and with the first layer the rest."""
    buffer, works, end = operands.buffer, [], len(operands.buffer)

    def done(layer: int) -> None:
        nonlocal end
        bucket = buffer[layer:end]
        if bucket.nbytes >= nbytes or not layer:
            works.append(reduce(bucket))
            end = layer

    operands.backward(done)
    for work in works:
        work.wait()


ARMS: dict[str, Callable[[Operands, Reduce], None]] = {
    "flat": flat,
    "per_parameter": per_parameter,
    "overlapped": bucketed,
}
"""Name -> `arm(operands, reduce)`, which leaves the sums in `operands.buffer`. Beside them is `bucketed`, by size."""


class Ddp:
    """torch's DistributedDataParallel with its defaults over the gloo group of `ranks`, a `measure.ranks.Ranks`. It has
    operands by turns. A call is the backward pass alone: `forward` makes its graph, once for each call."""

    def __init__(self, sets: list[Operands], ranks):
        self._sets, self._ranks = itertools.cycle(sets), ranks
        self._model = self._out = None

    def forward(self) -> None:
        self.operands = next(self._sets)
        if not self._model:
            self._model = self._made()
        self._model.zero_grad()
        self._out = self._model(self.operands.inputs[0])

    def __call__(self) -> None:
        out, self._out = self._out, None
        out.backward(self.operands.gradient)

    def _made(self) -> torch.nn.Module:
        layers = []
        for weight in self.operands.weights:
            layers.append(torch.nn.Linear(*weight.shape, bias=False, device="meta"))
            layers[-1].weight = torch.nn.Parameter(weight)
        # It takes a torch.distributed group, which no default group is needed for.
        group = dist.ProcessGroup(self._ranks.fresh_store("ddp"), self._ranks.rank, self._ranks.size)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._ranks.group)
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        return torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group)

    @property
    def sums(self) -> Tensor:
        """Of the gradients over all ranks, [L, d, d]: their means that the last call left, times the ranks."""
        return torch.stack([weight.grad for weight in self._model.parameters()]) * self._ranks.size

    @property
    def sizes(self) -> list[int]:
        """Return bytes of each bucket that it sends."""
        about = self._model._get_ddp_logging_data()
        return [int(size) for size in (about.get("rebuilt_bucket_sizes") or about["bucket_sizes"]).split(", ")]
