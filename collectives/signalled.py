"""The arm of the reduce-scatter that is one launch, `signalled`; and how parts are added on a GPU, for all its arms.

`kernels.signalled` computes tile after tile, ordered by destination, and the link sends each piece when the piece's
counter says that it is whole. How many row blocks a part is cut into is what the simulator finds best; a wrong guess
costs time, never the result. The sum is `kernels.part_sums`, of parts in the order of their arrival and the own one.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from collectives.links import Scatter
from collectives.matmul_reduce_scatter import Operands
from kernels import part_sums, persistent, signalled
from kernels.configs import choose_for
from roofline.analysis.overlap import simulator
from roofline.analysis.overlap.arms import BLOCKS, OverlapPlan
from roofline.theory.schedule import Grid


@dataclass(frozen=True)
class Prepared:
    """What the arm needs on each call."""

    pieces: signalled.Pieces
    transfers: Scatter


def added_by_kernel(operands: Operands) -> Operands:
    """The same operands, whose parts a kernel adds."""
    order = torch.tensor(operands.sources, dtype=torch.int32, device=operands.out.device)
    own = operands.block(operands.products, operands.rank)
    operands.add_all = partial(part_sums.add, operands.arrived, order, own, operands.out)
    return operands


def prepare(operands: Operands, t_gemm_s=1.0, t_comm_s=1.0, delays=simulator.NONE) -> Prepared:
    """Cut the product for a matmul and a scatter that take so long alone, and keep that in `operands.prepared`.
    `delays` are the link's, as in `simulator.pieces`.

    Raises what `kernels.signalled.require` raises.
    """
    x, w, products = operands.x, operands.w, operands.products
    persistent.require_hopper(x, "signalled")  # other GPUs have no tile of it to choose
    config, order = choose_for("signalled", x, w), (*operands.destinations, operands.rank)
    whole = signalled.Pieces(torch.tensor(order, dtype=torch.int32, device=x.device), 1, config)
    signalled.require(x, w, products, whole)
    grid = Grid(len(x) // config.block_m, -(-len(w) // config.block_n))
    able = [count for count in BLOCKS if grid.row_tiles // len(order) % count == 0]
    about = grid, persistent.programs(x.device), len(order)
    plans = [OverlapPlan("signalled", *about, count, delays) for count in able]
    blocks = min(plans, key=lambda plan: plan.simulate(t_gemm_s, t_comm_s).end_s).row_blocks
    operands.prepared = Prepared(replace(whole, blocks=blocks), operands.pieces(blocks))
    return operands.prepared


def run(operands: Operands, link) -> Tensor:
    """Multiply, and send each piece when it is whole; then add. The link is one of a GPU."""
    ready = operands.prepared or prepare(operands)
    tiles = ready.pieces.tiles(operands.products)
    link.start(ready.transfers, ready=0, raised=tiles)
    signalled.matmul(operands.x, operands.w, operands.products, ready.pieces, *link.counters)
    link.wait(len(ready.transfers))
    operands.add_all()
    link.finish()
    return operands.out


ARMS = {"signalled": run}
"""Name -> `arm(operands, link)`, as in `collectives.matmul_reduce_scatter.ARMS`."""
