"""Contenders that hang, die or take everything in their first call, each in its own way, beside two that behave, and
one, `idle`, that no longer computes once it was timed."""

import ctypes
import dataclasses
import os
import signal
import time

import numpy

from roofline import operations
from roofline.measure.prepared import Entrant, PreparedCase, Rejection, unwatched
from roofline.measure.session import FIRST_CALL_S


def sleep_in_c():
    ctypes.CDLL(None).sleep(10**6)


def hold_the_lock():
    ctypes.PyDLL(None).sleep(10**6)


def spin():
    while True:
        pass


def dereference_null():
    ctypes.string_at(0)


def exhaust_memory():
    kept = []
    while True:
        kept.append(numpy.empty(2**30, dtype=numpy.uint8))  # never touched: it takes no memory before it is refused


BAD = {
    "sleeps": sleep_in_c,
    "locks": hold_the_lock,
    "spins": spin,
    "null": dereference_null,
    "exits": lambda: os._exit(3),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "greedy": exhaust_memory,
    "raises": lambda: 1 / 0,
}


class Runner:
    def __init__(self, options, selected=None):
        pass

    def release(self):
        pass

    def untrusted(self, names):
        return names

    def probes(self):
        return []

    def prepare(self, case, names, first_call=unwatched):
        found = PreparedCase(case, "torch", first_call=first_call)
        for name in dict.fromkeys(["torch", *names]):
            found.enter(name, lambda name=name: self.check(name))
        return found

    def check(self, name):
        BAD.get(name, time.perf_counter)()
        idle = Rejection("failed", "idle: it stopped to work") if name == "idle" else None
        return Entrant(name, lambda: 1e-3, config="known", relative_error=0.0, recheck=lambda: idle)


def install():
    """For a run: its runner, and what a first call may take."""
    FIRST_CALL_S["cpu"] = 3.0
    operations.OPERATIONS["matmul"] = dataclasses.replace(operations.matmul.OPERATION, runner="trial_project:Runner")
