"""The peer among the arms: with the error it may have, by its own time, and never in the way of the arms."""

from dataclasses import replace

import pytest
import torch
from test_gather_bench import all_gather, options_of

from collectives import peer
from collectives.bench import all_gather_matmul, symm_mem, weight_prefetch
from roofline.measure.clocks import CpuClock
from roofline.measure.prepared import PreparedCase


class Group:
    """Stands in for processes on GPUs."""

    made, error, time_s, broken = 0, 2e-6, 0.125, False

    def __init__(self, ranks):
        Group.made += 1
        if self.broken:
            raise peer.PeerError("start: no answer within 120 s from ranks [0, 1]")

    def prepare(self, *case):
        if isinstance(self.error, Exception):
            raise self.error
        return self.error

    def seconds(self):
        return self.time_s

    def close(self):
        pass


@pytest.fixture
def several_gpus(monkeypatch):
    monkeypatch.setattr(peer, "why_not", lambda ranks: None)
    monkeypatch.setattr(peer, "PeerGroup", Group)
    monkeypatch.setattr(Group, "made", 0)
    monkeypatch.setattr(symm_mem, "_groups", {})


def prepare():
    return all_gather_matmul.Runner(options_of()).prepare(all_gather(), ["row_block_launches", "symm_mem"])


@pytest.mark.parametrize(("gpus", "contenders", "there"), [(2, None, True), (1, None, False), (1, ("symm_mem",), True)])
def test_it_is_there_where_there_are_several_gpus_or_it_is_asked_for(gpus, contenders, there, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    options = replace(options_of(contenders), device="cuda")
    assert ("symm_mem" in all_gather_matmul.Runner(options).names(all_gather())) == there
    assert "symm_mem" not in weight_prefetch.Runner(options).names(all_gather())


def test_it_is_timed_by_itself(several_gpus):
    found = prepare()
    assert found.contenders == ["serial", "row_block_launches", "symm_mem"]
    assert found.entrants["symm_mem"].relative_error == Group.error
    assert found.entrants["symm_mem"].facts == {"link": "fabric of 4 GPUs"}
    assert CpuClock().turn([found.entrants["symm_mem"].call]) == [Group.time_s]


def test_shapes_share_one_group(several_gpus):
    prepare(), prepare()
    assert Group.made == 1


def test_it_may_round_once_for_each_chunk_and_no_more(several_gpus, monkeypatch):
    monkeypatch.setattr(Group, "error", 1.5e-5)  # of one rounding: 1e-5
    assert "symm_mem" in prepare().contenders
    monkeypatch.setattr(Group, "error", 1.6e-5)
    found = prepare()
    assert "symm_mem" in found.rejected
    assert found.contenders == ["serial", "row_block_launches"]


def test_a_group_that_fails_leaves_the_arms_and_is_not_asked_again(several_gpus, monkeypatch):
    monkeypatch.setattr(Group, "error", peer.PeerError("prepare: rank 1 died with exit code -9"))
    found = prepare()
    assert "rank 1 died" in found.rejected["symm_mem"].reason
    assert found.contenders == ["serial", "row_block_launches"]
    prepare()
    assert Group.made == 2


def test_a_group_that_cannot_start_is_not_started_for_every_case(several_gpus, monkeypatch):
    monkeypatch.setattr(Group, "broken", True)
    told = []
    for _ in range(3):
        first_call = lambda *of: told.append((*of, Group.made))  # noqa: E731
        symm_mem.enter(found := PreparedCase(all_gather(), "serial", first_call=first_call), 0)
        assert "start: no answer within 120 s from ranks [0, 1]" in found.rejected["symm_mem"].reason
    assert told == [("symm_mem", 360, made) for made in (0, 1, 1)]  # more than its own limits add up to
    assert Group.made == 1


def test_too_few_gpus_are_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert "4 ranks need 4 GPUs, there are 2: choose --ffn-ranks 2" in prepare().rejected["symm_mem"].reason
