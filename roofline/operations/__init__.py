"""What is measured: the cases of each operation, their ids and sweeps. Needs no torch."""

from roofline.operations import (
    all_gather_matmul,
    ffn,
    gradient_all_reduce,
    matmul,
    matmul_reduce_scatter,
    weight_prefetch,
)
from roofline.operations.base import OPERATIONS, Case, Operation, Planner, Runners, find, parse, places, register

__all__ = [
    "OPERATIONS",
    "Case",
    "Operation",
    "Planner",
    "Runners",
    "all_gather_matmul",
    "ffn",
    "find",
    "gradient_all_reduce",
    "matmul",
    "matmul_reduce_scatter",
    "parse",
    "places",
    "register",
    "weight_prefetch",
]
