"""Processes that a worker leaves behind, in whatever session, without the mark in their environment: while this process
measures, the system gives them to it as children, and it ends them. Linux only."""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from roofline.host.waiting import wait_for

SET_SUBREAPER, GET_SUBREAPER = 36, 37
"""Of prctl(2)."""
DEATH_S = 10.0
"""A process that was killed and is there for so long is held by its device's driver."""
BEGUN: set[int] = set()
"""The children of this process that are its own. Who begins one while it adopts others adds it."""


def children() -> set[int]:
    """The children of this process."""
    texts = []
    with suppress(OSError):
        texts = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    return {int(word) for text in texts for word in text.split()}


@contextmanager
def adopted() -> Iterator[None]:
    """Processes that others leave behind become children of this one until the end of the context."""
    before = ctypes.c_int()
    prctl = getattr(ctypes.CDLL(None), "prctl", lambda *given: None)
    prctl(GET_SUBREAPER, ctypes.byref(before))
    BEGUN.clear()
    BEGUN.update(children())
    prctl(SET_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(SET_SUBREAPER, before.value)


def end() -> None:
    """End the children that were adopted, and what these leave behind. What leads no other session than this
    process is somebody else's."""

    def is_adopted(child: int) -> bool:
        with suppress(ProcessLookupError):
            return child not in BEGUN and os.getsid(child) != os.getsid(0)
        return False

    while orphans := list(filter(is_adopted, children())):
        for orphan in orphans:
            with suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
            with suppress(ChildProcessError):
                wait_for(partial(os.waitid, os.P_PID, orphan, os.WEXITED | os.WNOHANG), DEATH_S)
            BEGUN.add(orphan)
