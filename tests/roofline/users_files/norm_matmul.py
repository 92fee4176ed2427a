"""The page docs/your-operation.md as it was in November 2026: a user's file of that day still runs."""

from dataclasses import dataclass

import torch

from kernels.bench import matmul
from kernels.tiles import DTYPES
from roofline import operations
from roofline.measure.prepared import Entrant, PreparedCase, unwatched, verdict
from roofline.theory.work import ITEMSIZE, Work


@dataclass(frozen=True)
class NormMatmul(operations.Case):
    """rmsnorm(x[m, d]) @ w[d, d].T"""

    m: int
    d: int
    dtype: str
    op, form, facts = "norm_matmul", "m{m}-d{d}-{dtype}", {}

    @property
    def work(self):
        m, d = self.m, self.d
        return Work(flop=2 * m * d * d + 4 * m * d, device_bytes=(2 * m * d + d * d) * ITEMSIZE[self.dtype])


def norm_first(x, w):
    return torch.nn.functional.rms_norm(x, x.shape[1:]) @ w.T


def norm_last(x, w):
    """Scale the product's rows: one pass over x less."""
    return (x @ w.T) * torch.rsqrt(x.square().mean(1, keepdim=True) + torch.finfo(x.dtype).eps)


CONTENDERS = {"norm_first": norm_first, "norm_last": norm_last}
BASELINE = "norm_first"


class Planner(operations.Planner):
    def choices(self):
        return [*CONTENDERS]

    def names(self, case):
        return [name for name in self.options.contenders or CONTENDERS if name in CONTENDERS]


class Runner(matmul.Runner):
    def prepare(self, case, names, first_call=unwatched):
        prepared = PreparedCase(case, BASELINE, self.options.device, first_call=first_call)
        numbers = torch.Generator(self.options.device).manual_seed(self.options.seed)
        about = {"generator": numbers, "device": self.options.device, "dtype": DTYPES[case.dtype]}
        x, w = (torch.randn(rows, case.d, **about) for rows in (case.m, case.d))
        right = norm_first(x.double(), w.double())

        def checked(name):
            run = CONTENDERS[name]
            error = float((run(x, w).double() - right).norm() / right.norm())
            wrong = verdict(name, error, case.dtype)
            return wrong or Entrant(name, lambda: run(x, w), config=f"torch {torch.__version__}", relative_error=error)

        for name in dict.fromkeys([BASELINE, *names]):
            prepared.enter(name, lambda name=name: checked(name))
        prepared.cache = "warm: one set of operands"
        return prepared


operations.register(
    operations.Operation(
        case=NormMatmul,
        analysis="throughput",
        sweep=lambda options: [NormMatmul(m, 1024, dtype) for dtype in options.dtypes for m in options.tokens],
        planner=Planner,
        runner=Runner,
        example="norm_matmul-m16-d1024-fp32-norm_last",
    )
)


def test_norm_matmul(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)
