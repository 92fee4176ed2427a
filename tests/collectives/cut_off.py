"""What hangs on a GPU is cut off: the process ends, and says where each of its threads was.

Nothing of Python ends it, since what waits for a stream is inside the driver. A process that a test starts is cut off
before the test is, by `cut_off_after` of its own; it must not be a fork, which has a lock of the test's for ever.
"""

import faulthandler
import os

import pytest

LIMIT_S, RANKS_LIMIT_S = 60, 45
"""Of a test, and of the ranks that it starts."""


def cut_off_after(seconds: float, stderr: int = 2) -> None:
    """End this process then, with the stacks of its threads on `stderr`."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=stderr)


@pytest.fixture(autouse=True)
def cut_off(request, device):
    """A test on a GPU ends within LIMIT_S, or all of pytest does."""
    if device != "cuda" or not request.node.get_closest_marker("gpu"):
        yield
        return
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        stderr = os.dup(2)  # what is captured is lost with the process
    cut_off_after(LIMIT_S, stderr)
    yield
    faulthandler.cancel_dump_traceback_later()
    os.close(stderr)
