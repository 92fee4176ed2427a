"""The arms of the all-gather matmul that are one launch: the kernel starts at once, and waits on the device itself.

out[B, F_loc] = x[B, D] @ w[F_loc, D].T, x gathered over its columns. All run `kernels.flagged`, each by its table:

    chunk_outer  the exercise: all tiles with each chunk as it comes, with spills, but for those that the expected
                 arrivals let it spare. Hides all but the last chunk, and pays for the spills
    row_block    every tile once, rows come block by block: the first tiles have all their chunks after a fraction of
                 the gather. Nothing is spilled. The best where the order of arrival is ours to choose

Tables are made before the launch, from what matmul and gather are expected to take; a wrong guess costs time, never
the result.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from collectives.all_gather_matmul import Operands
from collectives.transfers import Transfers
from kernels import flagged, hopper
from kernels.contract import Signals
from kernels.tiles import choose_for
from roofline.theory import schedule, simulator
from roofline.theory.arms import BLOCKS, OverlapPlan
from roofline.theory.schedule import Grid


@dataclass(frozen=True)
class Prepared:
    """What an arm needs on each call."""

    plan: flagged.TileSchedule
    transfers: Transfers
    row_blocks: int
    up: Signals
    """Of a link on which all is here."""


def prepare(operands: Operands, arm: str, t_gemm_s=1.0, t_comm_s=1.0) -> Prepared:
    """Make the table of `arm` for a matmul and a gather that take so long alone, and keep it in `operands.prepared`.

    Raises what `kernels.flagged.tile_schedule` and `require` raise, and ValueError for an unknown arm.
    """
    schedule.known_name("arm", arm, ARMS)
    x, w, out = operands.gathered, operands.w, operands.out
    hopper.require_hopper(flagged.flagged_kernel, x, "flagged")  # other GPUs have no tile of it to choose
    config = choose_for("flagged_spills" if arm == "chunk_outer" else "flagged", x, w)
    rows, columns = -(-len(x) // config.block_m), -(-len(w) // config.block_n)
    programs, chunks = hopper.programs(x.device), len(operands.shards)
    grid, blocks = Grid(rows, columns, config.group_m), 1
    chunk_s = simulator.product_s(grid, programs, chunks, t_gemm_s)
    if arm == "row_block":
        able = [count for count in BLOCKS if len(x) % (count * config.block_m) == 0 or count == 1]
        plans = [OverlapPlan(arm, Grid(rows, columns), programs, chunks, count) for count in able]
        blocks = min(plans, key=lambda plan: plan.simulate(t_gemm_s, t_comm_s).end_s).row_blocks
        grid = Grid(rows, columns, max(n for n in range(1, config.group_m + 1) if rows // blocks % n == 0))
        arrival_s = simulator.arrivals(chunks, t_comm_s, rows, blocks)
        table = schedule.row_block(grid, programs, arrival_s, chunk_s)
    else:
        table = schedule.spill_once(grid, programs, simulator.arrivals(chunks, t_comm_s, 1)[0], chunk_s)
    plan = flagged.tile_schedule(table, grid, operands.order, -(-len(x) // blocks), config, x.device)
    flagged.require(x, w, out, plan)
    transfers = operands.transfers(blocks)
    flags = torch.zeros(len(transfers), dtype=torch.int32, device=x.device)
    operands.prepared[arm] = Prepared(plan, transfers, blocks, Signals(flags, 0, flags.new_zeros(1), 1))
    return operands.prepared[arm]


def run(operands: Operands, link, arm: str) -> Tensor:
    """Gather and multiply by the table of `arm`, made for equal times where `prepare` has made none."""
    ready = operands.prepared.get(arm) or prepare(operands, arm)
    link.start(ready.transfers)
    flagged.matmul(operands.gathered, operands.w, operands.out, ready.plan, link.signals())
    link.finish()
    return operands.out


def preset(operands: Operands, arm: str) -> Tensor:
    """Return the matmul of `arm` with nothing to wait for, on what is in `operands.gathered`: what waiting code
    costs."""
    ready = operands.prepared.get(arm) or prepare(operands, arm)
    return flagged.matmul(operands.gathered, operands.w, operands.out, ready.plan, ready.up)


ARMS = {arm: partial(run, arm=arm) for arm in ("chunk_outer", "row_block")}
"""Name -> `arm(operands, link)`, as in `collectives.all_gather_matmul.ARMS`."""
