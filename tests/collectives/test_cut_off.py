"""A test that hangs on a GPU ends, with what it has started, and says where it was."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HANGS = """
import multiprocessing
import os
import time
from pathlib import Path

import cut_off as guard
import pytest
from cut_off import cut_off

guard.LIMIT_S = {limit_s}


@pytest.fixture
def device():
    return "{device}"


def a_rank():
    guard.cut_off_after({limit_s} / 2)
    Path("pid").write_text(str(os.getpid()))
    time.sleep(60)


@pytest.mark.gpu
def test_that_hangs():
    if "{device}" == "cuda":
        multiprocessing.get_context("spawn").Process(target=a_rank).start()
    time.sleep({seconds})
"""


def run(folder: Path, **about) -> subprocess.CompletedProcess:
    (folder / "test_hangs.py").write_text(HANGS.format(**about))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore", "test_hangs.py"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100)


def is_alive(pid: int) -> bool:
    """Return whether it still runs: one that has ended may stay listed where nobody asks for its exit code."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_test_that_hangs_on_a_gpu_is_cut_off_with_its_ranks(tmp_path):
    ended = run(tmp_path, device="cuda", limit_s=6, seconds=40)
    assert ended.returncode == 1
    assert "Timeout (0:00:06)!" in ended.stderr
    assert "in test_that_hangs" in ended.stderr
    deadline, pid = time.monotonic() + 20, int((tmp_path / "pid").read_text())
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_without_a_gpu_nothing_is_cut_off(tmp_path):
    ended = run(tmp_path, device="cpu", limit_s=0.3, seconds=1)
    assert ended.returncode == 0, ended.stdout
