"""The weight prefetch: each step multiplies with the layer that the step before gathered."""

import pytest
import torch
from gather_cases import normal

from collectives.weight_prefetch import ARMS, Operands

every_arm = pytest.mark.parametrize("arm", ARMS)
RANKS, TOKENS, ROWS, DEPTH = 4, 24, 64, 128
pytestmark = pytest.mark.gpu


@pytest.fixture
def layers(device, dtype):
    whole = [normal(layer, ROWS, DEPTH).to(device, dtype) for layer in range(2)]
    x = normal(2, TOKENS, DEPTH).to(device, dtype)

    def make(rank=0):
        shares = [list(layer.chunk(RANKS)) for layer in whole]
        buffers = [torch.full_like(layer, torch.nan) for layer in whole]
        return Operands(shares, buffers, x, x.new_full((TOKENS, ROWS), torch.nan), rank)

    return whole, make


@every_arm
@pytest.mark.parametrize("rank", range(RANKS))
def test_each_step_multiplies_with_its_layer_and_gathers_the_next(arm, rank, layers, link):
    whole, make = layers
    operands, wire = make(rank), link(rank=rank)
    for step in range(4):
        for transfer in operands.next:
            transfer.target.fill_(torch.nan)
        out = ARMS[arm](operands, wire)
        wire.timeline()
        reference = operands.x.double() @ whole[step % 2].double().T
        assert (out.double() - reference).norm() / reference.norm() < 3e-3
        assert torch.equal(operands.now, whole[(step + 1) % 2])


def test_overlapped_multiplies_before_the_weights_are_here_and_serial_after(layers, link):
    _, make = layers
    for arm, steps in (("overlapped", ["matmul", "wait"]), ("serial", ["wait", "matmul"])):
        operands, wire, taken = make(), link(bytes_per_s=5e6), []
        multiply, wait = operands.matmul, wire.wait
        operands.matmul = lambda *given, taken=taken, multiply=multiply: taken.append("matmul") or multiply(*given)
        wire.wait = lambda count, taken=taken, wait=wait: taken.append("wait") or wait(count)
        ARMS[arm](operands, wire)
        assert taken == steps
