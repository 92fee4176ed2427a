"""The kernel that waits for rows: right in every order, whatever is late, stale or lost."""

from dataclasses import replace

import pytest
import torch

from kernels import flagged_rows
from kernels.contract import Signals
from kernels.signalled import Pieces
from kernels.tiles import arch_of, choose_for, table

RANKS = 4
ORDER = 2, 0, 3, 1


class Case:
    """x in the rows of RANKS ranks, poisoned but for the own ones, and a flag for each other rank."""

    def __init__(self, device, dtype, order=ORDER, config=None, wanted=1):
        like = torch.empty((0, 0), dtype=dtype, device=device)
        config = config or choose_for("flagged_rows", like, like)
        self.order, generator = order, torch.Generator().manual_seed(sum(order[:2]))

        def values(rows, columns):
            return torch.randint(-2, 3, (rows, columns), generator=generator).to(device, dtype)

        depth = 2 * config.block_k + 8
        self.source, self.w = values(2 * RANKS * config.block_m, depth), values(2 * config.block_n - 8, depth)
        self.x = torch.full_like(self.source, torch.nan)
        self.out = torch.full((len(self.x), len(self.w)), torch.nan, dtype=dtype, device=device)
        self.pieces = Pieces(torch.tensor(order, dtype=torch.int32, device=device), 1, config)
        flags = torch.full((RANKS - 1,), wanted - 1, dtype=torch.int32, device=device)
        self.signals = Signals(flags, wanted, flags.new_zeros(1), 2_000)
        self.bring(0)

    def bring(self, position):
        """The rows of the rank at one position of the order of arrival."""
        self.x.chunk(RANKS)[self.order[position]].copy_(self.source.chunk(RANKS)[self.order[position]])
        if position:
            self.signals.flags[position - 1] += 1

    def bring_all(self):
        for position in range(1, RANKS):
            self.bring(position)

    def run(self):
        assert flagged_rows.matmul(self.x, self.w, self.out, self.pieces, self.signals) is self.out
        return int(self.signals.lost)

    def is_right(self):
        return not self.run() and torch.equal(self.out, (self.source.double() @ self.w.double().T).to(self.out.dtype))


@pytest.fixture
def case(device, dtypes):
    return lambda **more: Case(device, [*dtypes.values()][-1], **more)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), ORDER])
def test_right_in_every_order(case, order):
    one = case(order=order)
    one.bring_all()
    assert one.is_right()


@pytest.mark.parametrize("arch", ["sm90", "interpreter"])
def test_every_checked_in_configuration(case, arch, device):
    if device == "cuda" and arch != arch_of(torch.device(device)):
        pytest.skip(f"{arch} is not for this GPU")
    (entry,) = (entry for entry in table(arch).entries if entry.kernel == "flagged_rows")
    one = case(config=entry.config)
    one.bring_all()
    assert one.is_right()


def test_rows_that_come_when_they_are_waited_for_are_soon_enough(case, device, monkeypatch):
    if device == "cuda":
        pytest.skip("kernels.machine has late flags")
    one, wait, waited = case(), flagged_rows.wait, []

    def late(flags, place, *more):
        position = int(place.handle.data.item())
        if not one.signals.flags[position - 1]:
            one.bring(position)
            waited.append(position)
        return wait(flags, place, *more)

    monkeypatch.setattr(flagged_rows, "wait", late)
    assert one.is_right()
    assert waited == [1, 2, 3]


def test_without_its_wait_the_same_kernel_is_wrong(case):
    one = case()
    one.signals = replace(one.signals, wanted=0)
    assert one.run() == 0
    assert one.out.isnan().any()


@pytest.mark.parametrize("position", [1, 3])
def test_rows_that_are_lost_end_the_kernel_and_are_told(case, position):
    one = case()
    one.bring_all()
    one.signals.flags[position - 1] -= 1
    assert one.run() == position


def test_flags_of_the_launch_before_are_stale(case):
    one = case(wanted=3)
    one.bring_all()
    assert one.is_right()
    one.signals = replace(one.signals, wanted=4)
    assert one.run() == 1


def test_rows_that_are_no_whole_tiles_are_refused(case):
    one = case()
    one.pieces = replace(one.pieces, order=one.pieces.order[:3])
    with pytest.raises(ValueError, match="rows over 3 ranks in 1 row blocks: flagged_rows needs a multiple of its"):
        one.run()
