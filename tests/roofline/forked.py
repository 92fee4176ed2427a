"""Processes that are forks of this one: each has imported already what takes a new one a second."""

import ctypes
import math
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


class Fork:
    """A fork that does `deed` and ends with the exit code that it returns. It has of `Popen` what is asked of a
    share."""

    def __init__(self, deed: Callable[[], int]):
        self.returncode = None
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            code = deed()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else print(stop.code, file=sys.stderr) or 1
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)  # what was imported takes long to end, and what was inherited may have threads elsewhere

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = math.inf) -> int:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired("a share", timeout)
            time.sleep(0.005)
        return self.returncode

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def be_share(first: Callable[[], None], command: list[str], cwd: str, output: int) -> None:
    """Be what `command` would be, after `first`. Does not return."""
    from roofline.worker import process

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


def install(first: Callable[[], None] = lambda: None) -> None:
    """Begin shares so from now on."""
    from roofline.supervise import child

    def begin(command, *, cwd, stdout, **_):
        return Fork(partial(be_share, first, command, cwd, stdout.fileno()))

    more = {"DEVNULL": subprocess.DEVNULL, "TimeoutExpired": subprocess.TimeoutExpired}
    child.subprocess = SimpleNamespace(Popen=begin, **more)


def until(holds: Callable[[], bool], looks: int = 600) -> None:
    """Look twenty times a second."""
    for _ in range(looks):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it does not come")


def hang() -> None:
    """In C, with Python's lock held, in a way that no signal ends: a mutex is locked twice."""
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
