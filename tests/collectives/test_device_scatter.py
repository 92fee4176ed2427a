"""The arms of the reduce-scatter on a GPU: exact from call to call, from parts that are poisoned, also where a part is
late, and an error where it never goes. Never run yet: there was no GPU.
"""

from contextlib import suppress

import pytest
import torch

from collectives import device_links, ffn, signalled
from collectives.links import LinkError
from collectives.matmul_reduce_scatter import ARMS, Operands
from kernels import hopper
from kernels.contract import interpreted
from kernels.signalled import signalled_kernel

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or interpreted(signalled_kernel), reason="there is no GPU, or kernels are interpreted"
)
RANKS, HEIGHT, COLUMNS, DEPTH = 4, 512, 1024, 512


@pytest.fixture(params=[*ARMS, "signalled"])
def arm(request):
    if request.param == "signalled" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("signalled needs a Hopper GPU")
    return (ARMS | {"signalled": signalled.run})[request.param]


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=str)
def operands(request, monkeypatch):
    monkeypatch.undo()  # as many programs as there are SMs
    out = torch.empty(HEIGHT, COLUMNS, dtype=request.param, device="cuda")
    return signalled.added_by_kernel(Operands(values(0, out), values(1, out)[:COLUMNS], out, RANKS))


def values(seed, like):
    """Whole numbers whose sums every dtype holds."""
    generator = torch.Generator("cuda").manual_seed(seed)
    found = torch.randint(-1, 2, (RANKS * HEIGHT, DEPTH), generator=generator, device="cuda")
    return found.to(like.dtype) * (torch.rand(found.shape, generator=generator, device="cuda") < 0.05)


def poison(operands):
    for tensor in (operands.products, operands.arrived, operands.out):
        tensor.fill_(torch.nan)


def right(operands):
    return sum(part.float() @ operands.w.float().T for part in operands.x.chunk(RANKS)).to(operands.out.dtype)


def warm(arm, operands, link):
    """What is compiled and loaded while the copier waits may come too late for it."""
    with suppress(LinkError):
        arm(operands, link)
        link.timeline()


@pytest.mark.parametrize("bytes_per_s", [5e9, 500e9])
def test_each_arm_is_exact_from_call_to_call(arm, operands, bytes_per_s):
    link = device_links.PacedCopier(bytes_per_s)
    warm(arm, operands, link)
    for call in range(5):
        operands.x.copy_(values(call, operands.out))
        poison(operands)
        assert torch.equal(arm(operands, link), right(operands)), call
        timeline = link.timeline()
        assert timeline.arrivals_s == sorted(timeline.arrivals_s)
        assert all(ready < here for ready, here in zip(timeline.ready_s, timeline.arrivals_s, strict=True))


@pytest.mark.parametrize("name", [*ffn.ARMS, "layer_signalled"])
@pytest.mark.parametrize("bytes_per_s", [5e9, 500e9])
def test_each_arm_of_a_layer_is_exact_from_call_to_call(name, operands, bytes_per_s):
    if name == "layer_signalled" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("layer_signalled needs a Hopper GPU")
    link, x, up = device_links.PacedCopier(bytes_per_s), operands.x, operands.w
    down = values(2, x)[:COLUMNS].T.contiguous()
    mine = ffn.Operands(x, up, down, operands.out[:, :DEPTH].contiguous(), RANKS)
    signalled.added_by_kernel(mine.scatter)
    arm = (ffn.ARMS | {"layer_signalled": signalled.run})[name]
    warm(arm, mine, link)
    for call in range(5):
        x.copy_(values(call, operands.out))
        for tensor in (mine.gathered, mine.hidden, mine.scatter.products, mine.scatter.arrived, mine.out, mine.whole):
            tensor.fill_(torch.nan)
        mine.scatter.block(mine.gathered, 0).copy_(mine.scatter.block(x, 0))
        total = sum((x.float() @ up.float().T @ mine.down.float().T).chunk(RANKS)).to(x.dtype)
        found = arm(mine, link)
        assert torch.equal(found, total.repeat(RANKS, 1) if name == "all_reduce" else total), call
        timeline = link.timeline()
        assert all(ready < here for ready, here in zip(timeline.ready_s, timeline.arrivals_s, strict=True))


@pytest.mark.parametrize("late", range(RANKS))
def test_part_that_is_computed_late_is_waited_for(operands, late):
    link, multiply, calls = device_links.PacedCopier(500e9), operands.matmul, []

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
    link = device_links.PacedCopier(500e9)
    monkeypatch.setattr(link, "ready", lambda count: None)
    ARMS["block_launches"](operands, link)
    with pytest.raises(LinkError, match=r"chunk 1 .*has not arrived"):
        link.timeline()


def test_signalled_starts_before_it_has_computed_all(operands):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("signalled needs a Hopper GPU")
    hopper.GRID = 4  # programs: so it takes a while
    try:
        link = device_links.PacedCopier(500e9)
        for _ in range(2):
            signalled.run(operands, link)
            timeline = link.timeline()
    finally:
        hopper.GRID = None
    assert timeline.arrivals_s[0] < timeline.ready_s[-1]
