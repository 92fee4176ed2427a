"""The arms that are one launch, on a GPU: their agreement, and room for the copier. All else the machine has."""

import time

import pytest
import torch

from collectives import flagged_arms
from collectives.device import PacedCopier
from collectives.flagged_arms import ARMS, prepare
from collectives.transfers import Preset
from kernels import hopper
from kernels.contract import interpreted

every_arm = pytest.mark.parametrize("arm", ARMS)
NO_GPU = not torch.cuda.is_available() or interpreted(flagged_arms.flagged.flagged_kernel)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NO_GPU, reason="there is no GPU, or kernels are interpreted")]


def test_arms_agree_to_the_bit_on_any_data(operands, link, poison):
    """They add the same chunks in the same order, and a spill in fp32 is exact."""
    results = {}
    for arm in ARMS:
        mine = operands(1)
        poison(mine)
        results[arm] = ARMS[arm](mine, link(rank=1))
    assert mine.out.isfinite().all()
    assert all(torch.equal(result, mine.out) for result in results.values())


@every_arm
def test_preset_kernel_waits_for_nothing(arm, operands, close):
    mine = operands()
    Preset.fill(mine.by_chunk)
    flagged_arms.preset(mine, arm)
    close(mine)
    assert int(mine.prepared[arm].up.lost) == 0


class Held(PacedCopier):
    """Moves nothing before it is let go, where it is `held`."""

    held = False

    def move(self, route):
        self.route = route
        if not self.held:
            super().move(route)

    def began(self):
        if not self.held:
            super().began()

    def let_go(self):
        self.held = False
        with torch.cuda.stream(self._stream):
            self.move(self.route)


def test_copier_finishes_while_the_matmul_holds_every_sm(operands, monkeypatch):
    """The matmul is there first, one program on each SM, and none of them ends before its chunks are here."""
    monkeypatch.setattr(hopper, "programs", lambda of: torch.cuda.get_device_properties(of).multi_processor_count)
    mine, link = operands(rows=4096, columns=2048), Held(100e9)
    ready = prepare(mine, "row_block")
    assert len(ready.plan.grid.tiles) >= hopper.programs(mine.out.device)
    ARMS["row_block"](mine, link)  # loads the kernels
    link.timeline()
    link.held = True
    link.start(ready.transfers)
    mine.out.fill_(torch.nan)
    flagged_arms.flagged.matmul(mine.gathered, mine.w, mine.out, ready.plan, link.signals())
    time.sleep(0.2)
    assert not torch.cuda.current_stream().query(), "the matmul has ended without its chunks"
    link.let_go()
    link.finish()
    link.timeline()  # raises where a flag was given up
    assert mine.out.isfinite().all()
