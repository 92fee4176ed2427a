"""Runs that hang in C, where no signal reaches Python: they end with all they measured, and can be gone on with."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from roofline.pytest_plugin import hooks
from roofline.store import journal

ALL = [f"m{m}-{name}" for m in (64, 128, 256) for name in ("torch", "numpy")]

IMPATIENT = """
from roofline.measure.watchdog import Watchdog


def expect(self, within_s=0.0, why="", cases=None, known=Watchdog.expect):
    hangs = why.endswith({why!r}) and cases[-1].endswith({case!r})
    known(self, within_s / 1000 if hangs else within_s, why, cases)


Watchdog.expect = expect
"""
"""What hangs gets a thousandth of its time: nothing else is in a hurry."""

FIRST_CALL, BEFORE, BESIDE = "in its first call", "before its first call", "that it took turns with did"

WITH_A_CHILD = """
import subprocess

subprocess.Popen(["sleep", "300"])  # it has the stdout of the run, by -s
"""


def test_contender_that_hangs_in_its_first_call_ends_the_run_and_is_not_tried_again(three_shapes):
    more = IMPATIENT.format(why=FIRST_CALL, case="m128-fp32-numpy") + WITH_A_CHILD
    run = three_shapes("-s", more=more, fault="first-numpy 128 hang")
    assert run.code == -signal.SIGKILL
    assert run.measured == ["m64-torch", "m64-numpy"]
    why = "hung in its first call: it was not over in 0.6 s, the limit"
    assert run.reasons["m128-numpy"] == ("failed", why)
    assert {run.reasons[name][0] for name in ("m128-torch", "m256-torch", "m256-numpy")} == {"not_run"}
    assert f"matmul-xxl/16-up-tp8-m128-fp32-numpy: {why}" in run.text
    shown = run.folder.relative_to(run.root)
    assert f"go on with it: python3 -m pytest --benchmark-only --ffn-resume={shown}" in run.text
    assert f"saved in {shown}: {journal.NAME}" in run.text
    tried = [line["case"] for line in run.lines if line["kind"] == "trying"]
    assert tried == [f"matmul-xxl/16-up-tp8-m{m}-fp32-{name}" for m in (64, 128) for name in ("torch", "numpy")]
    again = run.go_on(fault="first-numpy 128 hang")
    assert again.code == 1
    assert sorted(again.cases) == sorted(set(ALL) - {"m128-numpy"})
    assert again.reasons == {"m128-numpy": ("failed", why)}


def test_yardstick_that_hung_does_not_come_along_when_the_run_is_gone_on_with(three_shapes):
    more, fault = IMPATIENT.format(why=FIRST_CALL, case="m128-fp32-torch"), "first-torch 128 hang"
    run = three_shapes("-k", "m128 and numpy", more=more, fault=fault)
    assert run.code == -signal.SIGKILL
    assert run.reasons["m128-torch"][0] == "failed"
    again = run.go_on(fault=fault)
    assert again.cases == again.measured == ["m128-numpy"]


@pytest.mark.parametrize(
    ("place", "why", "failed"),
    [("numpy", BESIDE, ["m128-numpy"]), ("prepare", BEFORE, ["m128-torch", "m128-numpy"])],
)
def test_shape_in_which_something_hangs_costs_who_may_have_done_it(three_shapes, place, why, failed):
    more = IMPATIENT.format(why=why, case="m128-fp32-numpy")
    run = three_shapes("--ffn-max-seconds=0.5", more=more, fault=f"{place} 128 hang")
    assert run.code == -signal.SIGKILL
    assert [name for name in ALL if run.reasons.get(name, [""])[0] == "failed"] == failed
    assert sorted(run.go_on().cases) == sorted(set(ALL) - set(failed))


def signals(root: Path, *numbers: int) -> threading.Thread:
    """Sends them to the run in `root`, a second apart, once it hangs."""

    def send() -> None:
        while not (root / "hangs").exists():
            time.sleep(0.1)
        for number in numbers:
            time.sleep(1)
            os.kill(int((root / "hangs").read_text()), number)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("numbers", "grace_s", "why"),
    [
        ((signal.SIGTERM, signal.SIGTERM), 600, "SIGTERM came after another signal"),
        ((signal.SIGINT,), 1, "SIGINT came, and what went on does not heed it: it was not over in 1 s, the limit"),
    ],
)
def test_run_that_is_stuck_ends_by_a_second_signal_or_soon_after_the_first(
    three_shapes, tmp_path, numbers, grace_s, why
):
    more = f"\nfrom roofline.measure import watchdog\nwatchdog.GRACE_S = {grace_s}\n"
    sender = signals(tmp_path, *numbers)
    run = three_shapes(more=more, fault="first-numpy 128 hang", root=tmp_path)
    sender.join()
    assert run.code == -signal.SIGKILL
    assert why in run.text
    assert "saved in results/local/" in run.text
    assert run.reasons["m128-numpy"][0] == "not_run"  # that nobody waited is no evidence against it
    assert sorted(run.go_on().cases) == sorted(ALL)


BEGINS = """
import ctypes, os, signal, sys, time
from pathlib import Path
from roofline.measure.watchdog import Watchdog

watchdog = Watchdog(Path("nowhere"))
watchdog.expect(1.0, "hung")
print(watchdog._process.pid, flush=True)
exec(sys.argv[1])
watchdog.expect()
watchdog.close()
"""


@pytest.fixture
def watched(environment):
    """`watched(code)` begins a process that runs `code`, of which a watchdog expects that it takes a second; with the
    watchdog's process id."""

    def begin(code: str) -> tuple[subprocess.Popen, Path]:
        command = [sys.executable, "-c", BEGINS, code]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
        return process, Path("/proc", process.stdout.readline().strip())

    return begin


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("time.sleep(60)", -signal.SIGKILL),
        ("me = os.getpid(); os.fork() or (time.sleep(2), os.kill(me, 18), os._exit(0)); os.kill(me, 19)", 0),
        ("ctypes.CDLL(None).ptrace(0, 0, 0, 0) and os._exit(77); time.sleep(2); os._exit(0)", 0),  # PTRACE_TRACEME
    ],
    ids=["goes on", "stopped", "traced"],
)
def test_time_counts_unless_the_run_is_stopped_or_a_debugger_is_attached(watched, code, ends):
    process, _ = watched(code)
    if process.wait(30) == 77:
        pytest.skip("nobody may trace a process here")
    assert process.returncode == ends
    assert ("hung: it was not over in 1 s, the limit" in process.stdout.read()) == (ends != 0)


def test_watchdog_ends_with_the_run_whatever_that_has_left_behind(watched):
    process, watchdog = watched("os.fork() and os.kill(os.getpid(), signal.SIGKILL); time.sleep(4)")
    assert process.wait(30) == -signal.SIGKILL
    deadline = time.monotonic() + 3
    while watchdog.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not watchdog.exists()


@pytest.mark.parametrize("looks_around", [None, "usepdb", "trace", "a tracer"])
def test_nothing_is_watched_where_somebody_may_stop_to_look_around(looks_around, monkeypatch):
    monkeypatch.setattr(hooks, "Watchdog", lambda folder: Mock())
    monkeypatch.setattr(sys, "gettrace", lambda: looks_around == "a tracer")
    narrator = SimpleNamespace(uncaptured=nullcontext)
    config = SimpleNamespace(
        option=SimpleNamespace(usepdb=looks_around == "usepdb", trace=looks_around == "trace"),
        pluginmanager=SimpleNamespace(get_plugin=lambda name: narrator),
        stash={hooks.STATE: hooks.State(None, Path("nowhere"), None, session=SimpleNamespace())},
    )
    state = config.stash[hooks.STATE]
    hooks._watch(config, state)
    watchdog = state.watchdog
    assert (watchdog is None) == bool(looks_around)
    hooks.pytest_enter_pdb(config)  # breakpoint() is enough
    assert state.watchdog is None
    assert watchdog is None or watchdog.close.called
