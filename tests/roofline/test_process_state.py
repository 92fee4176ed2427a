"""What a contender changes of the process: put back and told, or it loses its row where each call changes it."""

import io
import os
import signal
import sys
import threading

import pytest
import torch

from roofline.worker.prepared import Entrant, PreparedCase

CHANGES = {
    "torch.set_num_threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "torch.mm": lambda: setattr(torch, "mm", lambda *given, out=None: out),
    "torch.backends.cuda.matmul.allow_tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "torch.set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "the handler of signal 14": lambda: signal.signal(signal.SIGALRM, print),
    "a timer": lambda: signal.alarm(60),
    "the working folder": lambda: os.chdir("/"),
    "sys.stdout": lambda: setattr(sys, "stdout", io.StringIO()),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("each", [False, True], ids=["once", "in each call"])
def test_what_a_contender_changes_of_the_process_is_put_back(name, each, folder):
    before = torch.get_num_threads(), torch.mm, signal.getsignal(signal.SIGALRM), sys.stdout, os.getcwd()
    calls = []

    def call():
        if each or not calls:
            CHANGES[name]()
        calls.append(1)

    def check():
        call()
        return Entrant("bad", call)

    prepared = PreparedCase(None, "good")
    prepared.enter("bad", check)
    after = torch.get_num_threads(), torch.mm, signal.getsignal(signal.SIGALRM), sys.stdout, os.getcwd()
    assert after == before
    assert torch.is_grad_enabled()
    assert signal.alarm(0) == 0
    if each:
        assert prepared.rejected["bad"].reason.startswith("bad: each of its calls changes ")
        assert name in prepared.rejected["bad"].reason
    else:
        assert prepared.contenders == ["bad"]
        assert name in prepared.changes["bad"]  # two of torch's flags are one
        assert prepared.changes["bad"].endswith(", which was put back")


def test_a_closed_stdout_is_opened_again(folder):
    before = sys.stdout
    prepared = PreparedCase(None, "good")
    sys.stdout = io.StringIO()
    try:
        prepared.enter("bad", lambda: sys.stdout.close() or Entrant("bad", lambda: None))
        assert not sys.stdout.closed
    finally:
        sys.stdout = before
    assert prepared.changes["bad"] == "an open sys.stdout, which was put back"


def test_threads_that_go_on_are_told():
    ends, prepared = threading.Event(), PreparedCase(None, "good")
    thread = threading.Thread(target=ends.wait)
    prepared.enter("bad", lambda: thread.start() or Entrant("bad", lambda: None))
    ends.set()
    thread.join()
    assert (prepared.contenders, prepared.changes) == (["bad"], {"bad": "the number of threads, which go on"})
