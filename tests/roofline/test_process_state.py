"""What a contender changes of the process: as it is imported it is put back and told, by a call it is its failure."""

import io
import os
import signal
import sys

import pytest
import torch

from kernels.bench import checks
from roofline.protocol.messages import Broken
from roofline.worker import process_state, rounds
from roofline.worker.prepared import Entrant, PreparedCase

CHANGES = {
    "torch.set_num_threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "torch.mm": lambda: setattr(torch, "mm", lambda *given, out=None: out),
    "torch.backends.cuda.matmul.allow_tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "torch.set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "torch.set_default_device": lambda: torch.set_default_device("meta"),
    "torch.autocast of cpu": lambda: torch.autocast("cpu").__enter__(),
    "the depth of torch.autocast": lambda: torch.autocast("cpu", enabled=False).__enter__(),
    "sys.settrace": lambda: sys.settrace(lambda *about: None),
    "sys.setprofile": lambda: sys.setprofile(lambda *about: None),
    "the handler of signal 14": lambda: signal.signal(signal.SIGALRM, print),
    "a timer": lambda: signal.alarm(60),
    "os.chdir": lambda: os.chdir("/"),
    "functions of kernels.bench.checks": lambda: setattr(checks.error_of, "__code__", (lambda *given: 0.0).__code__),
    "functions of roofline.worker.rounds.Rounds": lambda: setattr(rounds.Rounds, "run_pass", print),
    "sys.stdout": lambda: setattr(sys, "stdout", io.StringIO()),
}


def state():
    return (
        *(torch.get_num_threads(), torch.mm, torch.backends.cuda.matmul.allow_tf32, torch.is_grad_enabled()),
        *(torch.get_default_device(), torch.is_autocast_enabled("cpu"), process_state._depth()),
        *(sys.gettrace(), sys.getprofile()),
        *(signal.getsignal(signal.SIGALRM), signal.alarm(0), os.getcwd(), sys.stdout, rounds.Rounds.run_pass),
        checks.error_of.__code__,
    )


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_the_process_is_put_back_and_told(name, tmp_path, monkeypatch):
    """As it is imported; a call that does is the contender's failure."""
    monkeypatch.chdir(tmp_path)
    before = state()
    prepared = PreparedCase(None, "good")
    prepared.load("bad", CHANGES[name])
    assert state() == before
    assert name in prepared.changes["bad"]
    with pytest.raises(Broken) as broken:
        prepared.enter("bad", lambda: CHANGES[name]() or Entrant("bad", None))
    who, outcome = broken.value.args
    assert (who, outcome.reason.startswith("it changes ")) == ("bad", True)
    assert name in outcome.reason
    assert state() == before
