"""Ranks on real GPUs, to the bit: one each where there are several, else two on the one, over symmetric memory alone.

No time of it says anything of a wire. Never run yet: there was no GPU. A whole run of ranks is
`torchrun --nproc-per-node N -m pytest --benchmark-only`, a check of all that gathers the same without the option.
"""

import os
import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from gather_cases import whole_numbers

from kernels.contract import interpreted
from roofline.theory.wires import ALL_GATHER, RANKS_TAKE

B, D, F, CALLS = 512, 256, 256, 3
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]


def few(seed, *shape):
    """Small whole numbers: bf16 holds their sums."""
    return whole_numbers(seed, *shape, most=1).cuda().bfloat16()


def product(x, w):
    return (x.float() @ w.float().T).bfloat16()


def a_rank(rank, count, path, kind):
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
    from collectives import all_gather_matmul, flagged_arms
    from collectives.bench.setting import make_link
    from collectives.ranks import shared
    from roofline.measure import device_ranks, ranks

    own = ranks.Ranks(dist.FileStore(path, count), rank, count)
    own.world = device_ranks.World(own)
    assert own.world.why_not(kind.partition("_")[0]) is None
    link, w = make_link(kind, "cuda", None, own), few(rank, F, D)
    share = (lambda shard: shared(shard, own)) if kind == "symmetric" else torch.clone

    arms = dict(all_gather_matmul.ARMS)
    if kind.endswith("all_gather"):
        arms = {"serial": arms["serial"]}
    elif kind != "nccl" and torch.cuda.get_device_capability()[0] == 9:
        arms |= flagged_arms.ARMS
    x, gathered = few(0, B, D), torch.empty(B, D, device="cuda", dtype=torch.bfloat16)
    shards = [torch.full_like(part, torch.nan).contiguous() for part in x.chunk(count, 1)]
    shards[rank] = share(x.chunk(count, 1)[rank].contiguous())
    operands = all_gather_matmul.Operands(shards, gathered, w, gathered.new_empty(B, F), rank, blocks=4)
    for late in (None, *range(count)):
        for name, arm in arms.items():
            for call in range(CALLS):
                x = few(100 * call + 7, B, D)
                gathered.fill_(torch.nan)
                operands.out.fill_(torch.nan)
                shards[rank].copy_(x.chunk(count, 1)[rank])
                operands.columns(rank, gathered).copy_(shards[rank])
                torch.cuda.synchronize()
                time.sleep(0.05 * (late == rank))
                arm(operands, link)
                timeline = link.timeline()
                assert torch.equal(operands.out, product(x, w)), (name, rank, late, call)
                assert timeline.arrivals_s == sorted(timeline.arrivals_s)
    clock = own.clock(own)
    times = clock.agreed("a turn", lambda: clock.turn([lambda: all_gather_matmul.serial(operands, link)] * 3))
    assert len(times) == len(clock.readings) == 3
    own.gather(None)  # none ends while others read its memory


@pytest.mark.parametrize("kind", [*RANKS_TAKE["cuda"], ALL_GATHER])
def test_ranks_with_gpus(kind, tmp_path, monkeypatch):
    from collectives.copier import copy_kernel

    if interpreted(copy_kernel):
        pytest.skip("kernels are interpreted here")
    count = min(torch.cuda.device_count(), 4)
    if count == 1 and kind.startswith("nccl"):
        pytest.skip("NCCL takes a GPU for each rank, and there is one")
    monkeypatch.setenv("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", str(int(count == 1)))
    multiprocessing.start_processes(a_rank, (max(count, 2), str(tmp_path / "store"), kind), max(count, 2))
