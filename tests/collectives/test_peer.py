"""The peer's processes: what they compute, and that however one fails, an error names it and none is left running."""

import importlib
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from collectives import peer
from collectives.peer import PeerError, PeerGroup, why_not

FINE, OFF, UNWRITTEN, RAISES, DIES, HANGS = range(300, 306)
"""Rows of x, by which `troubled` knows what shall happen on rank 1."""


def troubled(x, w):
    out = peer.fused_all_gather_matmul(x, w)
    trouble = len(x) if dist.get_rank() == 1 else FINE
    if trouble == OFF:
        return 1.01 * out
    if trouble == UNWRITTEN:
        left = torch.empty_like(out)
        assert left.isnan().all(), "new memory is not poisoned"
        left[:6], left[7:] = out[:6], out[7:]  # of these many rows, 6 is not among those that are sampled
        return left
    if trouble == RAISES:
        raise OSError("the cable was cut")
    if trouble == DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    if trouble == HANGS:
        time.sleep(3600)
    return out


@pytest.fixture(scope="module")
def multiply():
    """`troubled`, of a module that a spawned process finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent)
        yield importlib.import_module(Path(__file__).stem).troubled


def prepare(group, trouble):
    return group.prepare(trouble, 48, 256, torch.float32, seed=0, scale=1 / 16)


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def groups(request, multiply):
    """Gives the last group, or another if that is closed: they take seconds to start."""
    if request.param == "cuda" and (reason := why_not(2)):
        pytest.skip(reason)
    before, made = set(multiprocessing.active_children()), []

    def group():
        if not made or not made[-1]._members:
            made.append(PeerGroup(2, request.param, multiply))
        return made[-1]

    yield group
    made[-1].close()
    assert set(multiprocessing.active_children()) <= before


@pytest.fixture
def group(groups):
    return groups()


def test_every_rank_multiplies_all_chunks_with_its_own_weights(group):
    assert 0 < prepare(group, FINE) < 1e-5
    assert group.seconds() > 0
    assert group() > 0


def test_error_is_that_of_the_worst_rank(group):
    assert prepare(group, OFF) == pytest.approx(0.01, rel=1e-3)


def test_element_that_one_rank_leaves_unwritten_is_nan(group):
    assert math.isnan(prepare(group, UNWRITTEN))


def test_depth_that_the_ranks_do_not_divide_is_refused(group):
    with pytest.raises(ValueError, match="2 ranks do not divide k=255"):
        group.prepare(FINE, 48, 255, torch.float32, seed=0, scale=1.0)


@pytest.mark.parametrize(
    ("trouble", "told"),
    [(RAISES, "prepare: rank 1: OSError: the cable was cut"), (DIES, "prepare: rank 1 died with exit code -9")],
    ids=["raises", "dies"],
)
def test_rank_that_fails_is_named_and_ends_the_group(trouble, told, group):
    processes = [process for process, _ in group._members]
    with pytest.raises(PeerError, match=f"^{told}$"):
        prepare(group, trouble)
    assert not any(process.is_alive() for process in processes)
    with pytest.raises(PeerError, match="burst: the group was closed"):
        group.seconds()


def test_ranks_that_do_not_answer_in_time_are_named_and_killed(monkeypatch):
    before = set(multiprocessing.active_children())
    monkeypatch.setattr(peer, "START_S", 0.01)  # they are still importing torch
    with pytest.raises(PeerError, match=r"^start: no answer within 0.01 s from ranks \[0, 1\]$"):
        PeerGroup(2, "cpu")
    assert set(multiprocessing.active_children()) <= before


def test_ranks_that_hang_end_with_the_process_that_made_them():
    code = f"""
import os, signal, sys, threading
sys.path[:0] = {[str(Path(peer.__file__).parents[1]), str(Path(__file__).parent)]}
import test_peer
group = test_peer.PeerGroup(2, "cpu", test_peer.troubled)
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
test_peer.prepare(group, test_peer.HANGS)
"""
    # It returns when nobody holds the other end of the pipe, ranks among them.
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=300, check=False)
    assert ended.returncode == -signal.SIGKILL


def test_why_not_names_what_is_missing_and_the_way_out(monkeypatch):
    gpus = 2
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda gpu, other: True)
    assert why_not(2) is None
    assert why_not(8) == "8 ranks need 8 GPUs, there are 2: choose --ffn-ranks 2"
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda gpu, other: {gpu, other} != {0, 1})
    assert why_not(2).startswith("GPU 1 cannot read GPU 0's memory")
    gpus = 1
    with pytest.raises(PeerError, match="2 ranks need 2 GPUs, there are 1: symm_mem takes two or more"):
        PeerGroup(2)
    gpus = 2
    monkeypatch.setattr(torch.ops, "symm_mem", object())
    assert "has no symm_mem.fused_all_gather_matmul" in why_not(2)
