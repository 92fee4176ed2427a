"""Shares that are forks of the process which begins them: it has imported already what takes each of them a second."""

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace


class Forked:
    """Stands in for the `Popen` of a share, which does `first` what it is given."""

    def __init__(self, first: Callable[[], None], command: list[str], *, cwd, stdout, **_):
        self.returncode = None
        self.pid = os.fork()
        if not self.pid:
            be_share(first, command, cwd, stdout.fileno())

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired("a share", timeout)
            time.sleep(0.005)
        return self.returncode

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)


def be_share(first: Callable[[], None], command: list[str], cwd: str, output: int) -> None:
    """Be what `command` would be. Does not return."""
    from roofline.worker import process

    code = 1
    try:
        os.setsid()
        os.chdir(cwd)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for number in (1, 2):
            os.dup2(output, number)
        inherited = [*map(int, command[-2:])]
        for number in {*range(3, 256)} - {*inherited}:  # sockets and files of its parent, which shall end with that
            with suppress(OSError):
                os.close(number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        sys.orig_argv = command
        first()
        process.main(*inherited)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else print(stop.code, file=sys.stderr) or 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def install(first: Callable[[], None] = lambda: None) -> None:
    """Begin shares so from now on."""
    from roofline.supervise import child

    more = {"DEVNULL": subprocess.DEVNULL, "TimeoutExpired": subprocess.TimeoutExpired}
    child.subprocess = SimpleNamespace(Popen=partial(Forked, first), **more)
