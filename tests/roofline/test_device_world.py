"""Ranks with GPUs, without one: which GPU a rank takes, which links it can, what it says of them; and their clock."""

import ctypes
import types

import pytest
import torch
import torch.distributed as dist
from chosen_options import options
from fake_devices import Gated

from roofline.host import machine
from roofline.operations import gathering
from roofline.operations.options import refuse_conflicts
from roofline.worker import device_ranks, ranks
from roofline.worker.clocks import Call

SHARED = {"gpus": 1, "here": 2, "world": 2}


@pytest.fixture
def make_rank(monkeypatch):
    """`make_rank(gpus, here, world)` makes rank 1 of a world, `here` of which share a machine with `gpus` GPUs."""

    def make(gpus=8, here=8, world=8, apart=(), over_pcie=()):
        chosen = []

        def atomics(answer, attribute, gpu, peer):
            answer._obj.value = {gpu, peer} != {*over_pcie}
            return attribute != machine.NATIVE_ATOMIC

        for name, value in (("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", str(here))):
            monkeypatch.setenv(name, value)
        monkeypatch.delenv(device_ranks.OVERLAPPING, raising=False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: chosen[-1])
        monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda gpu, peer: {gpu, peer} != {*apart})
        monkeypatch.setattr(ctypes, "CDLL", lambda name: types.SimpleNamespace(cuDeviceGetP2PAttribute=atomics))
        rank = ranks.Ranks(dist.HashStore(), 1, world)
        monkeypatch.setattr(rank, "gather", lambda value, about="": [value] * world)
        rank.world = device_ranks.World(rank)
        return rank

    return make


@pytest.mark.parametrize(
    ("about", "nccl", "symmetric"),
    [
        ({}, "", ""),
        ({"here": 8, "world": 16}, "", "the ranks are on several: take nccl"),
        ({"apart": (1, 0)}, "", "GPU 1 cannot read GPU 0's memory: take nccl"),
        ({"over_pcie": (2, 5)}, "", "GPU 5 has no atomics in GPU 2's memory: take "),
        (
            SHARED,
            "2 ranks share 1 GPUs, and NCCL takes one for each: start torchrun",
            "2 ranks share 1 GPUs: for tests",
        ),
    ],
)
def test_a_rank_takes_the_gpu_of_its_number_and_says_why_not_which_link(make_rank, about, nccl, symmetric):
    rank = make_rank(**about)
    assert (rank.clock, rank.world.shared) == (device_ranks.RanksCudaClock, about == SHARED)
    assert torch.cuda.current_device() == (0 if about == SHARED else 1)
    for kind, reason in (("nccl", nccl), ("symmetric", symmetric)):
        assert reason in (rank.world.why_not(kind) or "")
        assert bool(rank.world.why_not(kind)) == bool(reason)


def test_a_link_gives_up_before_nccl_ends_the_process(make_rank, monkeypatch):
    asked = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **about: asked.update(about))
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    rank = make_rank(world=2, here=2)
    assert rank.world.group is dist.group.WORLD
    assert asked["timeout"].total_seconds() == 4 * rank.late_s


def test_a_run_says_what_lies_between_the_gpus_of_its_ranks(make_rank, monkeypatch):
    nvml = types.SimpleNamespace(NVML_NVLINK_MAX_LINKS=18, nvmlDeviceGetNvLinkState=lambda handle, link: link < 4)
    monkeypatch.setattr(device_ranks, "nvml_handle", lambda: (nvml, "one"))
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    about = make_rank(world=2, here=2).metadata()["ranks"]
    assert (about["backend"], about["nccl"], about["loopback"], about["world"]) == ("nccl", "2.28.9", False, 2)
    assert (about["gpus"], about["fabric"]) == ([1, 1], {"peer_access": True, "nvlinks": [4, 4]})
    monkeypatch.setattr(device_ranks, "nvml_handle", lambda: 1 / 0)
    about = make_rank(**SHARED).metadata()["ranks"]
    assert (about["loopback"], about["fabric"]) == (True, {"peer_access": False, "nvlinks": [None, None]})


def test_streams_of_ranks_are_aligned_behind_the_gate_and_the_slowest_rank_is_the_sample(make_rank, monkeypatch):
    of_ranks, device = make_rank(world=2), Gated()
    of_ranks.world, of_ranks.barrier = device, device.barrier
    monkeypatch.setattr(of_ranks, "gather", lambda times: [times, [7e-5, None][: len(times)]])
    clock = of_ranks.clock(of_ranks)
    clock._cuda = clock.instruments = device
    call = Call(lambda: device.events.append("call"))
    assert clock.turn([call, call]) == [7e-5, None]
    samples = [["close", "align", "event", "call", "event", "query", f"clock {slot}", "open"] for slot in (0, 1)]
    assert device.events == ["barrier", "align", *samples[0], *samples[1], "synchronize"]
    times = [{"rank0_s": 5e-5, "sm_clock_hz": 1.7e9 + slot} for slot in (0, 1)]
    assert clock.readings == [times[0] | {"rank1_s": 7e-5}, times[1] | {"rank1_s": None}]


def test_wires_of_ranks_are_those_of_their_device_and_of_no_other_run():
    assert options(world=2).gather.wires == ("gloo",)
    chosen = options("cuda", world=2)
    assert (chosen.gather.ranks, chosen.gather.wires) == ((2,), ("nccl", "symmetric"))
    assert "NCCL" in gathering.notes(chosen, ["one"])[0]
    assert options("cuda", world=2, link_bandwidth="symmetric").gather.wires == ("symmetric",)
    with pytest.raises(ValueError, match="'nccl': between the ranks that torchrun started the wire is real, as gloo"):
        options(world=2, link_bandwidth="nccl")
    with pytest.raises(ValueError, match="--ffn-wires-of under torchrun: it is of a run of one process"):
        refuse_conflicts(["wires_of"], timed=True, is_one_process=False)
