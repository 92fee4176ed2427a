"""The peer `symm_mem`: torch's own fused operators between the GPUs of real ranks.

`torch.ops.symm_mem.fused_all_gather_matmul`, told to gather the last dimension, shards x as the arms of
`collectives.all_gather_matmul` do. Whole chunks are copied from the other GPUs' memory, on two streams by turns, and
behind each copy goes a matmul that adds to the result. It should win where the fabric is fast and chunks are wide: the
copies leave the SMs to the vendor's matmul. It loses where chunks are narrow, as each takes the whole result through
memory (torch's compiler does not choose it below 1024 columns a rank). It sums in the dtype of the result, which each
chunk rounds once more: in bf16 at P = 8 that leaves an error of 3.5e-3 on normal values, sums in fp32 leave 1.7e-3.
Source of the idea: torch's pull request 163068.

`torch.ops.symm_mem.fused_matmul_reduce_scatter` multiplies for one rank after another and has each part copied into its
memory; then it adds the parts, as they were rounded.

torch's ranks meet by torch's barrier of symmetric memory, which waits for ever: where one does not come, the run ends.
"""

import torch
from torch import Tensor
from torch.distributed import _symmetric_memory  # noqa: F401 (defines the operators)


def fused_all_gather_matmul(operands, ranks) -> Tensor:
    """torch's operator on this rank's chunk of x, [B, D/P], and its weights w[F_loc, D]: out[B, F_loc]. All `ranks`
    call it."""
    x, group = operands.shards[ranks.rank], ranks.world.group.group_name
    return torch.ops.symm_mem.fused_all_gather_matmul(x, [operands.w.T], x.ndim - 1, group, return_A=False)[1][0]


def fused_matmul_reduce_scatter(operands, ranks) -> Tensor:
    """torch's operator on this rank's x[B, F_loc] and w[D, F_loc]: its rows of the sum over ranks, out[B/P, D]. All
    `ranks` call it."""
    group = ranks.world.group.group_name
    return torch.ops.symm_mem.fused_matmul_reduce_scatter(operands.x, operands.w.T, "sum", 0, group)


def why_not(ranks) -> str | None:
    """Why `ranks`, as a runner has them, cannot call torch's operators; None if they can."""
    if not ranks.world:
        return "it takes a GPU for each rank: start torchrun --nproc-per-node N -m pytest --benchmark-only"
    return ranks.world.why_not("symmetric")
