"""Tuning: matmuls, each by the configurations that a kernel of ours might take for it (`--ffn-tune`)."""

import re
from dataclasses import astuple, dataclass, fields

from roofline.operations import matmul
from roofline.operations.base import Operation, register
from roofline.operations.matmul import Matmul


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
        return Matmul(**{one.name: getattr(self, one.name) for one in fields(Matmul)})


def sweep(options, kernels) -> list[Tuning]:
    """Every matmul asked for, to be tuned: all of them for one of `kernels`, then for the next."""
    return [Tuning(*astuple(case), kernel) for kernel in kernels for case in matmul.sweep(options)]


OPERATION = register(
    Operation(
        name="tune",
        case=Tuning,
        analysis="throughput",
        sweep=None,  # which kernels can be tuned, and what is left to tune, the tables of configurations say
        runner="kernels.bench.tune:Runner",
        pattern=re.compile(rf"tune_(?P<kernel>\w+)-{matmul.OPERATION.pattern.pattern}"),
        example="tune_persistent-xxl-up-tp8-m2048-bf16-128x256x64_w8_s3_g16",
        notes=lambda options, cases: (
            ["Configurations of our own kernels, each compared with the one that is taken at present."] if cases else []
        ),
        mode="tune",
    )
)
