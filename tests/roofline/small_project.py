"""Two contenders of known durations, one that is wrong, one that cannot run; no device is touched.

The environment variable FAULT, as in `numpy 128 SIGTERM`, says where something strikes, at how many tokens, and what:
in the tenth round of that contender, or `late`, in the second of three passes, or in `prepare`, or at its end
(`prepared`), of the shape, or in that contender's first call (`first-numpy`), a steady block of it (`block-numpy`) or
its second check (`again-numpy`), or in the first call of the probe `copy`; with `later-` before it, in a share that
goes on with what another one measured. Signals that ask for an end go to the run, others to the share. Calls take as
many times as long as SLOWER says.
"""

import ctypes
import dataclasses
import functools
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest  # noqa: F401 what is appended to this file takes it
from fake_clock import FakeClock
from forked import hang

from roofline import operations
from roofline.host import machine
from roofline.pytest_plugin.hooks import STATE
from roofline.store import journal
from roofline.worker import runner
from roofline.worker.prepared import Entrant, PreparedCase, Rejection, unwatched

pytest_plugins = ["roofline.pytest_plugin.hooks"]


def pytest_unconfigure(config):
    """Each report is drawn of the run in memory: it has to be what its journal is read as."""
    state = config.stash.get(STATE, None)
    if state and state.options.timed and state.has_begun and state.run.end:
        read = journal.load(state.folder)
        if read != state.run or list(read.shapes) != list(state.run.shapes):
            print("the run in memory is not its journal:", read, state.run, sep="\n")


AFFINITY, INSTRUCTION_SETS = 32, ["avx512f"]


def describe(device, described=machine.describe):
    """A machine on which 12.3 TFLOP/s are the most, whatever the tests run on."""
    return described(device) | {"affinity": AFFINITY, "instruction_sets": INSTRUCTION_SETS}


machine.describe = describe
SLOWER = float(os.environ.get("SLOWER", "1"))
TORCH = [SLOWER * time_s for time_s in (0.002, 0.0021, 0.0019, 0.0025)]
NUMPY = [SLOWER * time_s for time_s in (0.001, 0.0011, 0.0009, 0.0010)]


class Own(BaseException):
    """No Exception."""


class MuteError(Exception):
    def __str__(self):
        raise ValueError


def strike(place, number, later=False):
    where, at, fault = (os.environ.get("FAULT") or "nowhere 0 nothing").split()
    if (where.startswith("later-") and not later) or (where.removeprefix("later-"), int(at)) != (place, number):
        return
    is_share = "roofline.worker.process" in sys.orig_argv
    match fault:
        case "SIGINT" | "SIGTERM" | "SIGHUP":
            os.kill(os.getppid() if is_share else os.getpid(), getattr(signal, fault))
            time.sleep(1 if is_share else 0)
        case "KILLED":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(1)
        case "once" if not Path("struck").exists():
            Path("struck").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "handler":
            signal.signal(signal.SIGALRM, print)
        case "Ctrl-C":
            raise KeyboardInterrupt  # of its own, which no signal sent
        case "own":
            raise Own("of its own kind")
        case "fork":
            if os.fork() == 0:
                os.setsid()
                time.sleep(30)
                os._exit(0)
        case "mute":
            raise MuteError
        case "close":
            os.closerange(3, 256)
        case "bytes":
            for number in map(int, os.listdir("/proc/self/fd")):
                if Path(f"/proc/self/fd/{number}").is_socket():
                    os.write(number, b"\xff" * 64)
        case "hide":
            subprocess.Popen(["sleep", "30"], start_new_session=True, env={}, cwd=os.getcwd())
        case "sys.exit":
            sys.exit("no licence")
        case "null":
            ctypes.string_at(0)
        case "greedy":
            kept = []
            while True:
                kept.append(numpy.empty(2**30, dtype=numpy.uint8))  # never touched: it takes none before it is refused
        case "noise":
            print("x" * 2**20)
        case "MemoryError":
            raise MemoryError("12 GiB asked for")
        case "lost":
            from roofline.host import device_errors

            device_errors.device_lost = lambda device: True
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        case "hang":
            Path("hangs").touch()
            hang()
        case "crash":
            raise RuntimeError("no such instruction\nat line 3")
        case _ if fault.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, fault))


def probes():
    from roofline.worker.ceilings import Probe

    copies = itertools.count()

    return [
        Probe("matmul", "known", 3e9, lambda: 1e-3, "fp32"),
        Probe("matmul", "slower", 1e9, lambda: 1e-3, "fp32"),
        Probe("read", "known", 1e9, lambda: 1e-3),
        Probe("copy", "known", 2e9, lambda: strike("copy", next(copies)) or 1e-3),
    ]


def call(case, name, durations, calls, later):
    index = next(calls)
    strike({9: name, 299: "late", 999: f"block-{name}"}.get(index), case.m, later)
    return durations[index % len(durations)]


class Runner(runner.Runner):
    def clock(self):
        return FakeClock()

    def probes(self):
        return probes()

    def prepare(self, case, names, first_call=unwatched):
        later = bool(self.earlier.get(case.id, {}).get("medians_s"))
        strike("prepare", case.m, later)
        prepared = PreparedCase(case, "torch", first_call=first_call)
        for name in dict.fromkeys(["torch", *names]):
            prepared.enter(name, functools.partial(check, case, name, later))
        strike("prepared", case.m, later)
        return prepared


def check(case, name, later):
    strike(f"first-{name}", case.m, later)
    if name == "wrong":
        return Rejection("failed", "wrong: relative error 1 is above 1e-05")
    if name == "unable":
        return Rejection("skipped", "unable: needs a Hopper GPU")
    durations = {"torch": TORCH, "numpy": NUMPY}[name]
    run = functools.partial(call, case, name, durations, itertools.count(), later)
    again = functools.partial(strike, f"again-{name}", case.m, later)
    return Entrant(name, run, config="known", relative_error=1e-7, recheck=again)


if __name__ == "conftest":  # and not where doctests are looked for
    operations.OPERATIONS["matmul"] = dataclasses.replace(operations.matmul.OPERATION, runner=Runner)
