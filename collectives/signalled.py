"""The arms whose matmuls are one launch each: `signalled` of the reduce-scatter, and `layer_signalled` of the layer.
And how parts are added on a GPU, for all arms of both.

`kernels.pieces` computes tile after tile, ordered by destination, and the link sends each piece when the piece's
counter says that it is whole. How many row blocks a part is cut into is what the simulator finds best; a wrong guess
costs time, never the result. The sum is `kernels.part_sums`, in the order of `matmul_reduce_scatter`. Of a layer,
the same kernel multiplies by `up` before, and waits on the device for each rank's rows.
"""

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from collectives import ffn
from collectives.matmul_reduce_scatter import Operands
from collectives.transfers import Transfers
from kernels import hopper, part_sums, pieces
from kernels.tiles import choose_for
from roofline.theory.arms import BLOCKS, OverlapPlan
from roofline.theory.schedule import Grid


@dataclass(frozen=True)
class Prepared:
    """What the arm needs on each call."""

    sent: pieces.Pieces
    transfers: Transfers
    rows: pieces.Pieces | None
    """Of a layer, those that come."""


def added_by_kernel(operands: Operands | ffn.Operands) -> Operands | ffn.Operands:
    """Return the same operands, whose parts a kernel adds."""
    parts = parts_of(operands)
    parts.add_all = partial(part_sums.add, parts.arrived, parts.block(parts.products, parts.rank), parts.out)
    return operands


def prepare(operands: Operands | ffn.Operands, t_gemm_s=1.0, t_comm_s=1.0) -> Prepared:
    """Cut the product for a matmul and a scatter that take so long alone, and keep that in `operands.prepared`.
    Of a layer both are times of all of it.

    Raises what `require` of `kernels.pieces` raises.
    """
    given, operands = operands, parts_of(operands)
    x, w, products = operands.x, operands.w, operands.products
    hopper.require_hopper(pieces.pieces_kernel, x, "signalled")  # other GPUs have no tile of it to choose
    config, order = choose_for("pieces_counters", x, w), (*operands.destinations, operands.rank)
    pieces.require(x, w, products, pieces.Pieces.of_ranks(order, 1, config, x.device))
    grid = Grid(len(x) // config.block_m, -(-len(w) // config.block_n))
    able = [count for count in BLOCKS if grid.row_tiles // len(order) % count == 0]
    about = grid, hopper.programs(x.device), len(order)
    arm = "signalled" if given is operands else "layer_signalled"
    plans = [OverlapPlan(arm, *about, count) for count in able]
    blocks = min(plans, key=lambda plan: plan.simulate(t_gemm_s, t_comm_s).end_s).row_blocks
    transfers, rows = operands.pieces(blocks), None
    if given is not operands:
        up, order_up = (given.gathered, given.up, given.hidden), (order[-1], *order[:-1])
        transfers = given.before(transfers)
        rows = pieces.Pieces.of_ranks(order_up, 1, choose_for("pieces_flags", *up[:2]), x.device)
        pieces.require(*up, rows)
    operands.prepared = Prepared(pieces.Pieces.of_ranks(order, blocks, config, x.device), transfers, rows)
    return operands.prepared


def parts_of(operands: Operands | ffn.Operands) -> Operands:
    """Return what is multiplied and scattered: all of it, or the layer's second half."""
    return operands.scatter if isinstance(operands, ffn.Operands) else operands


def run(operands: Operands | ffn.Operands, link) -> Tensor:
    """Multiply, and send each piece when it is whole; then add. Of a layer, multiply by `up` before, as rows come. An
    arm as those of `collectives.matmul_reduce_scatter` and `collectives.ffn`; its link is one of
    `collectives.device`. Raises what `prepare` raises."""
    down = parts_of(operands)
    ready = down.prepared or prepare(operands)
    gathered = len(ready.transfers) - ready.sent.count
    link.start(ready.transfers, ready=gathered, raised=ready.sent.tiles(down.products))
    if gathered:
        pieces.matmul(operands.gathered, operands.up, operands.hidden, ready.rows, link.signals(gathered))
        link.wait(gathered)  # here already: tells the timeline when `up` was done
    counters, times_ns = link.counters
    to_raise = counters[gathered:], times_ns[gathered:]
    pieces.matmul(down.x, down.w, down.products, ready.sent, counters=to_raise)
    link.wait(len(ready.transfers))
    down.add_all()
    link.finish()
    return down.out
