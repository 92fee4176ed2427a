"""Arms over real ranks: 2 and 4 processes that gather from one another, to the bit, whoever is late."""

import gc
import platform
import re
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from collectives import all_gather_matmul, weight_prefetch
from collectives.bench import messages
from collectives.group_links import Gloo
from roofline.measure.ranks import LATE_S, Ranks, RanksCpuClock
from roofline.measure.rounds import CallError, named
from roofline.store.run import Run

B, D, F, CALLS = 20, 16, 12, 3


def whole_numbers(seed, *shape):
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


def gather_matmuls(rank, ranks, path):
    link = Gloo(Ranks(dist.FileStore(path, ranks), rank, ranks))
    torch.set_num_threads(1)
    w = whole_numbers(rank, F, D)  # of its own on each rank
    for late in range(ranks):
        for name, arm in all_gather_matmul.ARMS.items():
            for call in range(CALLS):
                x = whole_numbers(100 + call, B, D)
                gathered = torch.full((B, D), torch.nan)
                shards = [part.contiguous() for part in x.chunk(ranks, 1)]
                operands = all_gather_matmul.Operands(
                    shards, gathered, w, torch.full((B, F), torch.nan), rank, blocks=3
                )
                time.sleep(0.02 * (late == rank))
                assert torch.equal(arm(operands, link), x @ w.T), (name, rank, late, call)
                timeline = link.timeline()
                assert timeline.arrivals_s == sorted(timeline.arrivals_s)
                assert len(timeline.arrivals_s) == (ranks - 1) * (3 if name == "row_block_launches" else 1)


def prefetches(rank, ranks, path):
    link = Gloo(Ranks(dist.FileStore(path, ranks), rank, ranks))
    x = whole_numbers(rank, B, D)
    for late in range(ranks):
        layers = [whole_numbers(10 * late + layer, F, D) for layer in range(2)]
        buffers = [torch.full((F, D), torch.nan) for _ in range(2)]
        shards = [layer.chunk(ranks) for layer in layers]
        operands = weight_prefetch.Operands(shards, buffers, x, x.new_empty(B, F), rank)
        for step in range(6):
            for transfer in operands.next:
                transfer.target.fill_(torch.nan)
            arm = list(weight_prefetch.ARMS.values())[step % 2]
            time.sleep(0.02 * (late == rank))
            assert torch.equal(arm(operands, link), x @ layers[step % 2].T), (rank, late, step)


class Journal:
    """As much of a session as what measures messages asks for."""

    def __init__(self):
        self.run, self.lines = Run({}), []

    def add(self, line):
        self.lines.append(line)
        self.run.take(line)


def messages_of(rank, ranks, path):
    torch.set_num_threads(1)
    world, journal = Ranks(dist.FileStore(path, ranks), rank, ranks), Journal()
    about = world.metadata()["ranks"]
    assert about["loopback"] is world.loopback is True
    assert (about["world"], about["threads"], about["interfaces"]) == (ranks, [1] * ranks, [None] * ranks)
    assert platform.node() not in repr(about)
    messages.SIZES = sizes = messages.SIZES[:5]
    for _ in range(2):  # of two operations: the second finds them there
        messages.Messages(journal, world).begun()
    found = [(line["pattern"], line["nbytes"], line["received_bytes"]) for line in journal.lines]
    assert found == [one for n in sizes for one in (("all", n, (ranks - 1) * n), ("pair", n, n))]
    assert all(len(line["times_s"]) == messages.ROUNDS and min(line["times_s"]) > 0 for line in journal.lines)
    assert len(set(map(repr, world.gather(journal.lines)))) == 1


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("of_a_rank", [gather_matmuls, prefetches, messages_of])
def test_arms_and_messages_over_gloo(of_a_rank, ranks, tmp_path):
    multiprocessing.start_processes(of_a_rank, (ranks, str(tmp_path / "store")), ranks, start_method="fork")


def one_fails(rank, ranks, path):
    """On each rank in turn an arm raises, before its link starts or after that; the others are released at once, and
    nothing of that call comes into the next."""
    gc.freeze()  # a rank collects garbage where it drops its group
    world = Ranks(dist.FileStore(path, ranks), rank, ranks)
    clock, link = RanksCpuClock(world), Gloo(world)
    gathered, w = torch.empty(B, D), whole_numbers(rank, F, D)
    for culprit in range(ranks):
        for seed, when in enumerate(("before", "after", "never")):
            x = whole_numbers(100 * culprit + seed, B, D)
            shards = [part.contiguous() for part in x.chunk(ranks, 1)]
            operands = all_gather_matmul.Operands(shards, gathered, w, torch.empty(B, F), rank)

            def arm(culprit=culprit, when=when, operands=operands, x=x):
                if when == "before" and culprit == rank:
                    raise ArithmeticError("planted")
                if when == "after" and culprit == rank:
                    operands.matmul = lambda *tensors: {}["planted"]
                assert torch.equal(all_gather_matmul.serial(operands, link), x @ w.T)

            arm.long = True
            began, calls = time.monotonic(), [named("good", lambda: None), named("arm", arm)]

            def turn(calls=calls):
                return clock.turn(calls)

            if when == "never":
                times = clock.agreed("a turn", turn)
                assert times == [max(of_call.values()) for of_call in clock.said]
            else:
                with pytest.raises(CallError, match="arm") as raised:
                    clock.agreed("a turn", turn)
                assert re.match(f"rank {culprit}: .*planted", str(raised.value.__cause__))
            assert time.monotonic() - began < LATE_S / 2


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_raises_releases_the_others_and_the_next_call_has_a_fresh_group(ranks, tmp_path):
    multiprocessing.start_processes(one_fails, (ranks, str(tmp_path / "store")), ranks, start_method="fork")


def test_what_arrives_once_its_call_was_given_up_stays_out_of_the_target():
    link = Gloo(Ranks(dist.HashStore(), 0, 2))
    landing, target = torch.ones(2, 2), torch.zeros(2, 4)[:, ::2]
    job = SimpleNamespace(transfers=[SimpleNamespace(target=target)])
    for given_up in (True, False):
        link._targets, link._receives = [landing], [SimpleNamespace(wait=link.forget if given_up else bool)]
        link._bring(job, 0)
        assert torch.equal(target, torch.zeros(2, 2) if given_up else landing)
