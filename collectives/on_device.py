"""The arms that are one launch for each matmul, on a GPU: the kernel starts at once, and waits or tells on the device.

    chunk_outer      the exercise: all tiles with each chunk as it comes, with spills, but for those that the expected
                     arrivals let it spare. Hides all but the last chunk, and pays for the spills
    row_block        every tile once, rows come block by block: the first tiles have all their chunks after a fraction
                     of the gather. Nothing is spilled. The best where the order of arrival is ours to choose
    signalled        of the reduce-scatter: tile after tile, ordered by destination; the link sends each piece when the
                     piece's counter says that it is whole
    layer_signalled  of the layer: the same, and before it a matmul by `up`, which waits for each rank's rows

The first two are arms of the all-gather matmul, each by its table: `kernels.flagged_spills` runs the first, and
`kernels.flagged` the other, by a tile that leaves a copier its registers where one is on the SMs. The others run
`kernels.pieces`, and `kernels.part_sums`, which adds in the order of `matmul_reduce_scatter`. Tables and pieces are
made before the launch, from what matmul and link are expected to take; a wrong guess costs time, never the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from collectives import all_gather_matmul, ffn, matmul_reduce_scatter
from collectives.transfers import Transfers
from kernels import flagged, flagged_spills, hopper, part_sums, pieces, tables
from kernels.tiles import choose_for
from roofline.theory import schedule, simulator
from roofline.theory.arms import BLOCKS, OverlapPlan
from roofline.theory.schedule import Grid
from roofline.theory.wires import PACED


@dataclass(frozen=True)
class Prepared:
    """What an arm needs on each call."""

    transfers: Transfers
    plan: tables.TileSchedule | pieces.Pieces
    config: str
    """How the matmul is cut, and by what it multiplies, in words."""
    facts: dict
    """The fields that a journal keeps of that."""
    matmul: Callable[..., Tensor]
    """The kernel that takes the plan."""
    rows: pieces.Pieces | None = None
    """The pieces of a layer's first matmul, whose rows come."""


def prepare(operands, arm: str, link: str = PACED, t_gemm_s: float = 1.0, t_comm_s: float = 1.0) -> Prepared:
    """Cut `arm` for a kind of link, and for a matmul and a link that take so long alone, and keep that in
    `operands.prepared`. Both times are those of a whole layer where the operands are a layer's.

    Raises what `tile_schedule` and `require` of the kernel raise.
    """
    cut = _pieces if arm in ("signalled", "layer_signalled") else _table
    operands.prepared[arm] = cut(operands, arm, link, t_gemm_s, t_comm_s)
    return operands.prepared[arm]


def _best(plans: list[OverlapPlan], t_gemm_s: float, t_comm_s: float) -> int:
    """The row blocks of the plan that ends first."""
    return min(plans, key=lambda plan: plan.end_s(t_gemm_s, t_comm_s)).row_blocks


def _beside(link: str, kernel: str) -> str:
    """The name of the tiles of a kernel: those that leave a copier its registers, or where none is on the SMs all."""
    return kernel if link == PACED else f"{kernel}_alone"


def _table(operands: all_gather_matmul.Operands, arm: str, link: str, t_gemm_s: float, t_comm_s: float) -> Prepared:
    x, w, out = operands.gathered, operands.w, operands.out
    kernel, name = (flagged_spills, "flagged_spills") if arm == "chunk_outer" else (flagged, "flagged")
    hopper.require_hopper(flagged_spills.flagged_spills_kernel, x, name)  # other GPUs have no tile of it to choose
    config = choose_for(name if kernel is flagged_spills else _beside(link, name), x, w)
    rows, columns = -(-len(x) // config.block_m), -(-len(w) // config.block_n)
    programs, chunks = hopper.programs(x.device), len(operands.shards)
    grid, blocks = Grid(rows, columns, config.group_m), 1
    chunk_s = simulator.product_s(grid, programs, chunks, t_gemm_s)
    if arm == "row_block":
        able = [count for count in BLOCKS if len(x) % (count * config.block_m) == 0 or count == 1]
        plans = [OverlapPlan(arm, Grid(rows, columns), programs, chunks, count) for count in able]
        blocks = _best(plans, t_gemm_s, t_comm_s)
        grid = Grid(rows, columns, max(n for n in range(1, config.group_m + 1) if rows // blocks % n == 0))
        arrival_s = simulator.arrivals(chunks, t_comm_s, rows, blocks)
        table, _ = schedule.row_block(grid, programs, arrival_s, chunk_s)
    else:
        table = tables.spill_once(grid, programs, simulator.arrivals(chunks, t_comm_s, 1)[0], chunk_s)
    plan = tables.tile_schedule(table, grid, operands.order, -(-len(x) // blocks), config, x.device)
    kernel.require(x, w, out, plan)
    transfers = operands.transfers(blocks)
    facts = {"row_blocks": blocks, "row_tiles": rows, "column_tiles": columns, "spilled_bytes": plan.spilled_bytes}
    return Prepared(transfers, plan, f"{blocks} row blocks, {name} {config}", facts, kernel.matmul)


def _pieces(operands, arm: str, link: str, t_gemm_s: float, t_comm_s: float) -> Prepared:
    scatter = scatter_of(operands)
    x, w, products = scatter.x, scatter.w, scatter.products
    hopper.require_hopper(flagged_spills.flagged_spills_kernel, x, "signalled")
    config = choose_for(_beside(link, "pieces_counters"), scatter.block(x, 0), w)  # by the rows of a rank
    order = *scatter.destinations, scatter.rank
    pieces.require(x, w, products, pieces.Pieces.of_ranks(order, 1, config, x.device))
    grid = Grid(len(x) // config.block_m, -(-len(w) // config.block_n))
    able = [count for count in BLOCKS if grid.row_tiles // len(order) % count == 0]
    programs = hopper.programs(x.device)
    blocks = _best([OverlapPlan(arm, grid, programs, len(order), count) for count in able], t_gemm_s, t_comm_s)
    transfers, rows = scatter.pieces(blocks), None
    about = f"{blocks} row blocks, pieces {config}"
    if scatter is not operands:
        up, order_up = (operands.gathered, operands.up, operands.hidden), (order[-1], *order[:-1])
        transfers = operands.before(transfers)
        config_up = choose_for(_beside(link, "pieces_flags"), scatter.block(up[0], 0), up[1])
        rows = pieces.Pieces.of_ranks(order_up, 1, config_up, x.device)
        pieces.require(*up, rows)
        about = f"pieces {rows.config}, {about}"
    plan = pieces.Pieces.of_ranks(order, blocks, config, x.device)
    facts = {"row_blocks": blocks, "row_tiles": grid.row_tiles, "column_tiles": grid.column_tiles}
    return Prepared(transfers, plan, about, facts, pieces.matmul, rows)


def scatter_of(operands: ffn.Operands | matmul_reduce_scatter.Operands) -> matmul_reduce_scatter.Operands:
    """The operands of what is multiplied and scattered: these, or those of the layer's second half."""
    return getattr(operands, "scatter", operands)


def added_by_kernel(operands):
    """Have a kernel add the parts of these operands, of a reduce-scatter or a layer. Returns them."""
    scatter = scatter_of(operands)
    local = scatter.block(scatter.products, scatter.rank)
    scatter.add_all = partial(part_sums.add, scatter.arrived, local, scatter.out)
    return operands


def gather(operands: all_gather_matmul.Operands, link, arm: str) -> Tensor:
    """Gather and multiply by the table of `arm`, made for equal times where `prepare` has made none."""
    ready = operands.prepared.get(arm) or prepare(operands, arm, link.kind)
    link.start(ready.transfers)
    ready.matmul(operands.gathered, operands.w, operands.out, ready.plan, link.signals())
    link.finish()
    return operands.out


def scatter(operands: ffn.Operands | matmul_reduce_scatter.Operands, link, arm: str) -> Tensor:
    """Multiply, and send each piece when it is whole; then add. A layer multiplies by `up` before, as rows come. The
    link is one of `collectives.device`. Raises what `prepare` raises."""
    down = scatter_of(operands)
    ready = operands.prepared.get(arm) or prepare(operands, arm, link.kind)
    gathered = len(ready.transfers) - ready.plan.count
    link.start(ready.transfers, ready=gathered, raised=ready.plan.tiles(down.products))
    if gathered:
        ready.matmul(operands.gathered, operands.up, operands.hidden, ready.rows, link.signals(gathered))
        link.wait(gathered)  # here already: tells the timeline when `up` was done
    ready.matmul(down.x, down.w, down.products, ready.plan, counters=link.counters())
    link.wait(len(ready.transfers))
    down.add_all()
    link.finish()
    return down.out


ARMS: dict[str, Callable[..., Tensor]] = {
    "chunk_outer": partial(gather, arm="chunk_outer"),
    "row_block": partial(gather, arm="row_block"),
    "signalled": partial(scatter, arm="signalled"),
    "layer_signalled": partial(scatter, arm="layer_signalled"),
}
"""Name -> `arm(operands, link)`, as the `ARMS` of the operations."""
