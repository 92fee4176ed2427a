"""A stand-in for a GPU whose streams do at once what they are told: for what links and arms enqueue, and in what order.

Its kernels are Python's. What kernels do as compiled, and in other orders, the machine tells: tests/machine/links.py.
"""

import ctypes
import time
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import torch

from collectives import device
from kernels.contract import KernelLaunch


class Event:
    """Of what is done when it is recorded."""

    def __init__(self, enable_timing=False):
        pass

    def record(self):
        self.at = time.perf_counter()

    def elapsed_time(self, later):
        return (later.at - self.at) * 1e3


def stamp_kernel(time_ptr, **about):
    time_ptr[0] = time.perf_counter_ns()


def raise_kernel(counters_ptr, times_ptr, first, end, by, **about):
    counters_ptr[first:end] += by
    times_ptr[first:end] = time.perf_counter_ns()


def wait_kernel(flag_ptr, wanted, times_ptr, lost_ptr, number, **about):
    times_ptr[:2] = time.perf_counter_ns()
    if flag_ptr[0] < wanted and not lost_ptr[0]:
        lost_ptr[0] = number


def copy_kernel(
    transfers_ptr, flags_ptr, started_ptr, arrivals_ptr, t0_ptr, ns_per_word, counters_ptr=None, wanted=0,
    lost_ptr=None, **about
):  # fmt: skip
    """Transfers arrive by the pace, from the time on that is in `t0_ptr`."""
    started_ptr += arrivals_ptr.shape[1]
    arrived_ns = int(t0_ptr[0])
    for index, (source, target, rows, words, source_row, target_row) in enumerate(transfers_ptr.tolist()):
        if counters_ptr is not None and counters_ptr[index] < wanted:
            lost_ptr[0] = index + 1
            return
        for row in range(rows):
            ctypes.memmove(target + 4 * row * target_row, source + 4 * row * source_row, 4 * words)
        arrived_ns += round(rows * words * ns_per_word)
        flags_ptr[index] += arrivals_ptr.shape[1]
        arrivals_ptr[index] = arrived_ns


def add_kernel(arrived_ptr, local_ptr, out_ptr, **about):
    sums = arrived_ptr[:-1].float().sum(0) + local_ptr.float()
    out_ptr.copy_(sums + arrived_ptr[-1].float())


@contextmanager
def on():
    """Yield the names of the kernels that are launched, of links of a GPU that lies in this process's memory."""
    stream, launched = SimpleNamespace(wait_stream=lambda other: None, cuda_stream=0), []

    def run(launch, of_device):
        launched.append(launch.kernel.__name__)
        globals()[launched[-1]](**launch.args)
        return SimpleNamespace(function=0)

    cuda = dict(
        synchronize=lambda: None, current_stream=lambda: stream, stream=lambda of: nullcontext(),
        Stream=lambda priority: stream, Event=Event,
    )  # fmt: skip
    with (
        patch.multiple(torch.cuda, **cuda),
        patch.object(KernelLaunch, "run", run),
        patch.object(device, "leave_shared_memory", lambda function: None),
        patch.object(device.DeviceLink, "device", "cpu"),
    ):
        yield launched
