"""Two contenders of known durations, one that is wrong, one that cannot run; no device is touched.

The environment variable FAULT, as in `numpy 128 SIGTERM`, strikes once: in the tenth round of that contender, or
`late`, in the second of three passes, or in `prepare`, or at its end (`prepared`), of the shape with so many tokens, or
in that contender's first call (`first-numpy`) or a steady block of it (`block-numpy`), or in the first call of the
probe `copy`. Calls take as many times as long as SLOWER says.
"""

import ctypes
import dataclasses
import functools
import itertools
import os
import signal
import sys
from pathlib import Path

import pytest  # noqa: F401 what is appended to this file takes it
from fake_clock import FakeClock, ffn_clock  # noqa: F401 what follows may be more than this file

from roofline import operations
from roofline.measure import runner
from roofline.measure.prepared import Entrant, PreparedCase, Rejection, unwatched

pytest_plugins = ["roofline.pytest_plugin.hooks"]

SLOWER = float(os.environ.get("SLOWER", "1"))
TORCH = [SLOWER * time_s for time_s in (0.002, 0.0021, 0.0019, 0.0025)]
NUMPY = [SLOWER * time_s for time_s in (0.001, 0.0011, 0.0009, 0.0010)]


def strike(place, number):
    where, at, what = (os.environ.get("FAULT") or "nowhere 0 nothing").split()
    place = f"later-{place}" if "worker" in sys.argv[0] else place
    if (where, int(at)) != (place, number):
        return
    if what.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, what))
    if what == "MemoryError":
        raise MemoryError("12 GiB asked for")
    if what == "lost":
        from roofline.measure import device_errors

        device_errors.device_lost = lambda device: True
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if what == "hang":
        hang()
    if what == "crash":
        raise RuntimeError("no such instruction\nat line 3")


def hang():
    """In C, with Python's lock held, in a way that no signal ends: a mutex is locked twice. A file says in which
    process."""
    Path("hangs").write_text(str(os.getpid()))
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


def probes():
    from roofline.measure.ceilings import Probe

    copies = itertools.count()

    return [
        Probe("matmul", "known", 3e9, lambda: 1e-3, "fp32"),
        Probe("matmul", "slower", 1e9, lambda: 1e-3, "fp32"),
        Probe("read", "known", 1e9, lambda: 1e-3),
        Probe("copy", "known", 2e9, lambda: strike("copy", next(copies)) or 1e-3),
    ]


def call(case, name, durations, calls):
    index = next(calls)
    strike({9: name, 299: "late", 999: f"block-{name}"}.get(index), case.m)
    return durations[index % len(durations)]


class Runner(runner.Runner):
    """Also of the workers that count or measure, which find it by this file's name."""

    def probes(self):
        return probes()

    def untrusted(self, names):
        return []

    def prepare(self, case, names, first_call=unwatched):
        strike("prepare", case.m)
        found = PreparedCase(case, "torch")
        durations = {"torch": TORCH, "numpy": NUMPY}
        for name in dict.fromkeys(["torch", *names]):
            if name == "wrong":
                found.rejected[name] = Rejection("failed", "wrong: relative error 1 is above 1e-05")
            elif name == "unable":
                found.rejected[name] = Rejection("skipped", "unable: needs a Hopper GPU")
            else:
                try:
                    first_call(name)
                    strike(f"first-{name}", case.m)
                except RuntimeError as error:
                    found.refuse(name, error)
                    continue
                run = functools.partial(call, case, name, durations[name], itertools.count())
                found.entrants[name] = Entrant(name, run, config="known", relative_error=1e-7)
        strike("prepared", case.m)
        return found


operations.OPERATIONS["matmul"] = dataclasses.replace(operations.matmul.OPERATION, runner="conftest:Runner")
