"""What takes a GPU, to the bit: arms that are one launch, parts that are late, and ranks, one each where there are
several GPUs, else two on the one, over symmetric memory alone.

Those of parts and ranks have not passed on a GPU yet. On an H200 the first of parts hung, in a torch.mm that was loaded
while a link waited for it. Since then arms are warmed up, links load their kernels ahead, and test_loads runs all but
those of ranks on a stand-in that would hang so. What hangs all the same is cut off: see `cut_off`.

No time of it says anything of a wire. A whole run of ranks is `torchrun --nproc-per-node N -m pytest --benchmark-only`,
a check of all that gathers the same without the option.
"""

import os
import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from arm_cases import RANKS, Gather, Scatter, gather_over, late_runs
from cut_off import RANKS_LIMIT_S, cut_off_after

from collectives import matmul_reduce_scatter, on_device
from collectives.device import PacedCopier
from collectives.transfers import WarmUp, ended
from kernels import hopper
from kernels.contract import interpreted
from roofline.theory.arms import ARMS as ARM_SPECS
from roofline.theory.arms import arms_of
from roofline.theory.wires import ALL_GATHER, RANKS_TAKE
from roofline.worker.clocks import Call

NO_GPU = not torch.cuda.is_available() or interpreted()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NO_GPU, reason="there is no GPU, or kernels are interpreted")]
HERE = {"device": "cuda", "dtype": torch.bfloat16}
FLAGGED = {name: on_device.ARMS[name] for name in arms_of("all_gather_matmul", gpu=True) if ARM_SPECS[name].table}


class Held(PacedCopier):
    """Moves nothing before it is let go, where it is `held`."""

    held = False

    def move(self, *about):
        self.about = about
        if not self.held:
            super().move(*about)

    def began(self):
        if not self.held:
            super().began()

    def let_go(self):
        self.held = False
        with torch.cuda.stream(self._stream):
            self.move(*self.about)


def test_copier_finishes_while_the_matmul_holds_every_sm(monkeypatch):
    """The matmul is there first, one program on each SM, and none of them ends before its chunks are here."""
    monkeypatch.setattr(hopper, "programs", lambda of: torch.cuda.get_device_properties(of).multi_processor_count)
    mine, link = Gather(sizes=(4096, 2048, 1024), **HERE).operands, Held(100e9)
    ready = on_device.prepare(mine, "row_block")
    assert ready.facts["row_tiles"] * ready.facts["column_tiles"] >= hopper.programs(mine.out.device)
    on_device.ARMS["row_block"](mine, link)  # loads the kernels
    link.timeline()
    link.held = True
    link.start(ready.transfers)
    mine.out.fill_(torch.nan)
    ready.launch(link.signals()).run(mine.out.device)
    time.sleep(0.2)
    assert not torch.cuda.current_stream().query(), "the matmul has ended without its chunks"
    link.let_go()
    link.finish()
    link.timeline()  # raises where a flag was given up
    assert mine.out.isfinite().all()


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=str)
def scatter(request, monkeypatch):
    monkeypatch.undo()  # as many programs as there are SMs
    case = Scatter(sizes=(RANKS * 512, 1024, 512), device="cuda", dtype=request.param)
    on_device.added_by_kernel(case.operands)
    return case


@pytest.mark.parametrize("late", range(RANKS))
def test_part_that_is_computed_late_is_waited_for(scatter, late):
    operands = scatter.operands
    link, multiply, calls = PacedCopier(500e9), operands.matmul, []

    def slow(x, w, out):
        calls.append(x)
        if len(calls) % RANKS == late:
            torch.cuda._sleep(20_000_000)
        return multiply(x, w, out)

    block_launches = ended(matmul_reduce_scatter.ARMS["block_launches"])
    torch.cuda._sleep(1)  # what is loaded while a link waits may wait for it: an H200 hung in the first torch.mm
    block_launches(operands, WarmUp())
    operands.matmul = slow
    for call in range(2):
        scatter.run("block_launches", block_launches, link, call)


def test_signalled_starts_before_it_has_computed_all(scatter, monkeypatch):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("signalled needs a Hopper GPU")
    monkeypatch.setattr(hopper, "programs", lambda device: 4)  # so it takes a while
    link, signalled = PacedCopier(500e9), ended(on_device.ARMS["signalled"])
    signalled(scatter.operands, WarmUp())  # what is loaded while a link waits may wait for it
    for _ in range(2):
        signalled(scatter.operands, link)
        timeline = link.timeline()
    assert timeline.arrivals_s[0] < timeline.ready_s[-1]


def a_rank(rank, count, path, kind):
    cut_off_after(RANKS_LIMIT_S)
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
    from roofline.worker import device_ranks, ranks

    members = ranks.Ranks(dist.FileStore(path, count), rank, count)
    members.world = device_ranks.World(members)
    assert members.world.why_not(kind.partition("_")[0]) is None
    case, link = gather_over(kind, members, sizes=(512, 256, 256), blocks=4, **HERE)
    arms = dict(case.arms)
    if kind.endswith("all_gather"):
        arms = {"serial": arms["serial"]}
    elif kind != "nccl" and torch.cuda.get_device_capability()[0] == 9:
        arms |= FLAGGED
    for _, timeline in late_runs(case, link, arms=arms):
        assert timeline.arrivals_s == sorted(timeline.arrivals_s)
    clock = members.clock(members)
    with clock.ranks.in_step():
        times = clock.turn([Call(lambda: case.arms["serial"](case.operands, link))] * 3)
    assert len(times) == len(clock.readings) == 3
    members.gather(None)  # none ends while others read its memory


@pytest.mark.parametrize("kind", [*RANKS_TAKE["cuda"], ALL_GATHER])
def test_ranks_with_gpus(kind, tmp_path, monkeypatch):
    count = min(torch.cuda.device_count(), 4)
    if count == 1 and kind.startswith("nccl"):
        pytest.skip("NCCL takes a GPU for each rank, and there is one")
    monkeypatch.setenv("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", str(int(count == 1)))
    multiprocessing.start_processes(a_rank, (max(count, 2), str(tmp_path / "store"), kind), max(count, 2))
