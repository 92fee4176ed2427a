"""The arms that are one launch for each matmul, on a GPU: the kernel starts at once, and waits or tells on the device.

    chunk_outer      the exercise: all tiles with each chunk as it comes, with spills, but for those that the expected
                     arrivals let it spare. Hides all but the last chunk, and pays for the spills
    row_block        every tile once, rows come block by block: the first tiles have all their chunks after a fraction
                     of the gather. The last tiles are cut along K between programs, so that all end together. The best
                     where the order of arrival is ours to choose
    signalled        of the reduce-scatter: tile after tile, ordered by destination; the link sends each piece when the
                     piece's counter says that it is whole
    layer_signalled  of the layer: the same, and before it a matmul by `up`, which waits for each rank's rows

The first two are arms of the all-gather matmul, each by its table: `kernels.flagged_spills` runs the first, and
`kernels.flagged` the other, by a tile that leaves a copier its registers where one is on the SMs. The others run
`kernels.pieces`, and `kernels.part_sums`, which adds in the order of `matmul_reduce_scatter`. Tables and pieces are
made before the launch, from what matmul and link are expected to take; a wrong guess costs time, never the result.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from collectives import all_gather_matmul, ffn, matmul_reduce_scatter
from collectives.transfers import Transfers
from kernels import flagged, flagged_spills, hopper, part_sums, pieces, tables
from kernels.contract import KernelLaunch
from kernels.tiles import choose_for
from roofline.theory import simulator
from roofline.theory.arms import BLOCKS, OverlapPlan, pieces_of, row_block_plans
from roofline.theory.schedule import Grid
from roofline.theory.wires import BY_ENGINE, PACED


@dataclass(frozen=True)
class Prepared:
    """What an arm needs on each call."""

    transfers: Transfers
    config: str
    """How the matmul is cut, and by what it multiplies, in words."""
    facts: dict
    """The fields that a journal keeps of that."""
    launch: Callable[..., KernelLaunch]
    """The launch that this is for, by the link's signals or counters."""
    up: Callable[..., KernelLaunch] | None = None
    """That of a layer's first matmul, whose rows come."""
    gathered: int = 0
    """The number of transfers that bring those rows."""
    raised: int = 0
    """How often the launch raises the counter of each other transfer."""


def prepare(operands, arm: str, link: str = PACED, t_gemm_s: float = 1.0, t_comm_s: float = 1.0) -> Prepared:
    """Cut `arm` for a kind of link, and for a matmul and a link that take so long alone, and keep that in
    `operands.prepared`. Both times are those of a whole layer where the operands are a layer's.

    Raises what `tile_schedule` and `require` of the kernel raise.
    """
    hopper.require_hopper(operands.out, arm)  # others have no tile of it
    cut = {"chunk_outer": _chunk_outer, "row_block": _row_block}.get(arm) or partial(_pieces, arm=arm)
    operands.prepared[arm] = cut(operands, link=link, t_gemm_s=t_gemm_s, t_comm_s=t_comm_s)
    return operands.prepared[arm]


def _beside(link: str, kernel: str) -> str:
    """The name of the tiles of a kernel: those that leave a copier its registers, or where none is on the SMs all."""
    return f"{kernel}_alone" if link in BY_ENGINE else kernel


def _chunk_outer(operands: all_gather_matmul.Operands, link: str, t_gemm_s: float, t_comm_s: float) -> Prepared:
    x, w = operands.gathered, operands.w
    config = choose_for("flagged_spills", x, w)
    programs, chunks = hopper.programs(x.device), len(operands.shards)
    grid = Grid(*config.tile_counts(len(x), len(w)), config.group_m)
    chunk_s = simulator.product_s(grid, programs, chunks, t_gemm_s)
    arrival_s = simulator.arrivals(chunks, t_comm_s, 1)[0]
    table = tables.spill_once(grid, programs, arrival_s, chunk_s)
    plan = tables.tile_schedule(table, grid, operands.order, len(x), config, x.device)
    return _of_table(operands, plan, flagged_spills, row_blocks=1)


def _row_block(operands: all_gather_matmul.Operands, link: str, t_gemm_s: float, t_comm_s: float) -> Prepared:
    x, w = operands.gathered, operands.w
    config = choose_for(_beside(link, "flagged"), x, w)
    chunks = len(operands.shards)
    grid = Grid(*config.tile_counts(len(x), len(w)))
    chunk_steps = max(1, x.shape[1] // chunks // config.block_k)
    plans = row_block_plans(grid, hopper.programs(x.device), chunks, chunk_steps)
    best = min(plans, key=lambda plan: plan.end_s(t_gemm_s, t_comm_s))
    group = max(rows for rows in range(1, config.group_m + 1) if best.block_tiles % rows == 0)
    grid = replace(grid, group=group)  # no group lies across row blocks
    pieces, _ = pieces_of(best._replace(grid=grid), t_gemm_s, t_comm_s)
    height = best.block_tiles * config.block_m
    plan = tables.tile_schedule(pieces, grid, operands.order, height, config, x.device)
    cut = {"row_blocks": best.row_blocks, "block_tiles": best.block_tiles, "chunk_steps": chunk_steps}
    return _of_table(operands, plan, flagged, **cut)


def _of_table(operands: all_gather_matmul.Operands, plan: tables.TileSchedule, kernel, **facts: int) -> Prepared:
    """What an arm needs that runs `plan` by a module of kernels; `facts` are what else is kept of the plan."""
    given = operands.gathered, operands.w, operands.out, plan
    kernel.require(*given)
    blocks, grid = facts["row_blocks"], plan.grid
    facts |= {"row_tiles": grid.row_tiles, "column_tiles": grid.column_tiles, "spilled_bytes": plan.spilled_bytes}
    words = f"{blocks} row blocks, {kernel.__name__.removeprefix('kernels.')} {plan.config}"
    transfers = operands.transfers(block_rows=plan.block_rows)
    return Prepared(transfers, words, facts, partial(kernel.prepare, *given))


def _pieces(operands, arm: str, link: str, t_gemm_s: float, t_comm_s: float) -> Prepared:
    scatter = operands.scatter
    x, w, products = scatter.x, scatter.w, scatter.products
    config = choose_for(_beside(link, "pieces_counters"), scatter.block(x, 0), w)  # by the rows of a rank
    order = *scatter.destinations, scatter.rank
    pieces.require(x, w, products, pieces.Pieces.of_ranks(order, 1, config, x.device))
    grid = Grid(*config.tile_counts(*products.shape))
    able = [count for count in BLOCKS if grid.row_tiles // len(order) % count == 0]
    programs = hopper.programs(x.device)
    plans = [OverlapPlan(arm, grid, programs, len(order), count) for count in able]
    blocks = min(plans, key=lambda plan: plan.end_s(t_gemm_s, t_comm_s)).row_blocks
    transfers, launch_up = scatter.pieces(blocks), None
    about = f"{blocks} row blocks, pieces {config}"
    if scatter is not operands:
        up, order_up = (operands.gathered, operands.up, operands.hidden), (order[-1], *order[:-1])
        transfers = operands.before(transfers)
        config_up = choose_for(_beside(link, "pieces_flags"), scatter.block(up[0], 0), up[1])
        rows = pieces.Pieces.of_ranks(order_up, 1, config_up, x.device)
        pieces.require(*up, rows)
        launch_up = partial(pieces.prepare, *up, rows)
        about = f"pieces {rows.config}, {about}"
    plan = pieces.Pieces.of_ranks(order, blocks, config, x.device)
    facts = {"row_blocks": blocks, "row_tiles": grid.row_tiles, "column_tiles": grid.column_tiles}
    launch = partial(pieces.prepare, x, w, products, plan)
    return Prepared(transfers, about, facts, launch, launch_up, len(transfers) - plan.count, plan.tiles(products))


def added_by_kernel(operands: ffn.Operands | matmul_reduce_scatter.Operands) -> None:
    """Have a kernel add the parts of these operands."""
    scatter = operands.scatter
    local = scatter.block(scatter.products, scatter.rank)
    scatter.add_all = partial(part_sums.add, scatter.arrived, local, scatter.out)


def gather(operands: all_gather_matmul.Operands, link, arm: str) -> Tensor:
    """Gather and multiply by the table of `arm`, made for equal times where `prepare` has made none."""
    ready: Prepared = operands.prepared.get(arm) or prepare(operands, arm, link.kind)
    link.start(ready.transfers)
    ready.launch(link.signals()).run(operands.out.device)
    link.finish()
    return operands.out


def scatter(operands: ffn.Operands | matmul_reduce_scatter.Operands, link, arm: str) -> Tensor:
    """Multiply, and send each piece when it is whole; then add. A layer multiplies by `up` before, as rows come. The
    link is one of `collectives.device`. Raises what `prepare` raises."""
    down = operands.scatter
    ready: Prepared = operands.prepared.get(arm) or prepare(operands, arm, link.kind)
    link.start(ready.transfers, ready=ready.gathered, raised=ready.raised)
    if ready.up:
        ready.up(link.signals(ready.gathered)).run(down.out.device)
        link.wait(ready.gathered)  # here already: tells the timeline when `up` was done
    ready.launch(counters=link.counters()).run(down.out.device)
    matmul_reduce_scatter.add(down, link, len(ready.transfers))
    link.finish()
    return down.out


ARMS: dict[str, Callable[..., Tensor]] = {
    "chunk_outer": partial(gather, arm="chunk_outer"),
    "row_block": partial(gather, arm="row_block"),
    "signalled": partial(scatter, arm="signalled"),
    "layer_signalled": partial(scatter, arm="layer_signalled"),
}
"""Name -> `arm(operands, link)`, as the `ARMS` of the operations."""
