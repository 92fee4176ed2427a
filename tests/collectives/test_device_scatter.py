"""The reduce-scatter on a GPU: exact where a part is computed late, an error where one never goes, and sent while the
rest is computed. That each arm is exact else, a run checks before it times it. Never run yet: there was no GPU.
"""

import pytest
import torch
from gather_cases import whole_numbers

from collectives import signalled
from collectives.device import PacedCopier
from collectives.matmul_reduce_scatter import ARMS, Operands
from collectives.transfers import LinkError
from kernels import hopper
from kernels.contract import interpreted
from kernels.signalled import signalled_kernel

NO_GPU = not torch.cuda.is_available() or interpreted(signalled_kernel)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NO_GPU, reason="there is no GPU, or kernels are interpreted")]
RANKS, HEIGHT, COLUMNS, DEPTH = 4, 512, 1024, 512


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=str)
def operands(request, monkeypatch):
    monkeypatch.undo()  # as many programs as there are SMs
    out = torch.empty(HEIGHT, COLUMNS, dtype=request.param, device="cuda")
    return signalled.added_by_kernel(Operands(values(0, out), values(1, out)[:COLUMNS], out, RANKS))


def values(seed, like):
    """Whole numbers whose sums every dtype holds."""
    numbers, kept = (whole_numbers(2 * seed + part, RANKS * HEIGHT, DEPTH, most=10**part) for part in (0, 1))
    return (numbers * (kept == 0)).to(like)  # one in 21 is left


def poison(operands):
    for tensor in (operands.products, operands.arrived, operands.out):
        tensor.fill_(torch.nan)


def right(operands):
    return sum(part.float() @ operands.w.float().T for part in operands.x.chunk(RANKS)).to(operands.out.dtype)


@pytest.mark.parametrize("late", range(RANKS))
def test_part_that_is_computed_late_is_waited_for(operands, late):
    link, multiply, calls = PacedCopier(500e9), operands.matmul, []

    def slow(x, w, out):
        calls.append(x)
        if len(calls) % RANKS == late:
            torch.cuda._sleep(20_000_000)
        return multiply(x, w, out)

    operands.matmul = slow
    for _ in range(2):
        poison(operands)
        assert torch.equal(ARMS["block_launches"](operands, link), right(operands))
        link.timeline()


def test_part_that_never_goes_is_an_error_within_a_bound(operands, monkeypatch):
    link = PacedCopier(500e9)
    monkeypatch.setattr(link, "ready", lambda count: None)
    ARMS["block_launches"](operands, link)
    with pytest.raises(LinkError, match=r"chunk 1 .*has not arrived"):
        link.timeline()


def test_signalled_starts_before_it_has_computed_all(operands, monkeypatch):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("signalled needs a Hopper GPU")
    monkeypatch.setattr(hopper, "programs", lambda device: 4)  # so it takes a while
    link = PacedCopier(500e9)
    for _ in range(2):
        signalled.run(operands, link)
        timeline = link.timeline()
    assert timeline.arrivals_s[0] < timeline.ready_s[-1]
