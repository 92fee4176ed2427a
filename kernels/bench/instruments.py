"""Instruments of a clock, as kernels: a gate that holds a stream until the host opens it, and the SM clock.

The gate lets the host enqueue all of a sample before any of it begins, however long that takes, and gives every sample
the same idle gap before it. It polls a word of pinned host memory, which the host writes past all streams. Its loads
are volatile: an atomic operation on such memory is not atomic to the host (CUDA programming guide), and could write the
old word back over the host's store. The SM clock is the cycles of one warp over its nanoseconds: arms that wait run
cooler and clock higher, which NVML's figure, an average over many samples, cannot tell apart.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import globaltimer

from kernels.contract import KernelLaunch

GAP_US = 100
"""The idle gap before a sample. The host enqueues the sample while the one before runs; the gap is longer where that
one is short."""

PATIENCE_US = 20_000
"""A gate ends after this, open or not: a call that itself waits for the device would hang behind it. Where the host
takes longer for a call, the gate ends after twice that time."""

SPAN_NS = 40_000
"""The length of a reading of the SM clock: the timer's tick is a microsecond at most, and both ends are exact to one
poll of it."""

SLOTS = 256
"""Readings of the SM clock that can be kept: one for each call in a turn."""


# A new variant may not be loaded while a gate is closed: it could wait for that.
@triton.jit(do_not_specialize=["wanted", "gap", "patience"])
def gate_kernel(flag_ptr, wanted, gap, patience):
    """Wait until the flag, int32 in host memory, has reached `wanted`, or `patience` ends; but at least for `gap`. Both
    are in microseconds."""
    spent = tl.zeros((), dtype=tl.int64)
    began = globaltimer()
    here = tl.load(flag_ptr, volatile=True)
    while (spent < gap) | ((here < wanted) & (spent < patience)):
        here = tl.load(flag_ptr, volatile=True)
        spent = (globaltimer() - began) // 1000


@triton.jit
def _cycles():
    return tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit(do_not_specialize=["slot"])
def clock_kernel(readings_ptr, slot, span_ns):
    """Count the cycles between two ticks of the timer, `span_ns` apart or little more. readings[slots, 2], int64, holds
    cycles of the SM, and nanoseconds."""
    before = globaltimer()
    began = before
    while began == before:
        began = globaltimer()
    cycles = _cycles()
    ended = began
    while ended - began < span_ns:  # left at a tick, too
        ended = globaltimer()
    tl.store(readings_ptr + 2 * slot, _cycles() - cycles)
    tl.store(readings_ptr + 2 * slot + 1, ended - began)


def gate_launch(flag: Tensor, wanted: int, gap: int = GAP_US, patience: int = PATIENCE_US) -> KernelLaunch:
    """The launch of a gate that waits for `flag` (int32 [1]) to reach `wanted`."""
    args = dict(flag_ptr=flag, wanted=wanted, gap=gap, patience=patience, num_warps=1)
    return KernelLaunch(gate_kernel, (1,), args)


def clock_launch(readings: Tensor, slot: int) -> KernelLaunch:
    """The launch that reads the SM clock into `readings[slot]` (int64 [slots, 2]): cycles, nanoseconds."""
    return KernelLaunch(clock_kernel, (1,), dict(readings_ptr=readings, slot=slot, span_ns=SPAN_NS, num_warps=1))


class Instruments:
    """Gate and clock of `roofline.worker.clocks.CudaClock` on a GPU. One for each device, on its current stream."""

    def __init__(self, device: str = "cuda"):
        """Load both kernels, with the gate open: a module that is loaded behind a closed one may wait for it."""
        self._flag = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._host = self._flag.numpy()  # a store costs less than through torch
        self._readings = torch.zeros((SLOTS, 2), dtype=torch.int64, device=device)
        self._closed, self._patience_us = -1, PATIENCE_US
        self.close()
        self.read_clock(0)
        torch.cuda.synchronize(self._readings.device)

    def close(self) -> None:
        """Have the current stream wait until `open`, `GAP_US` at least and as long as `expect` says at most."""
        self._closed += 1
        gate_launch(self._flag, self._closed, patience=self._patience_us).run(self._readings.device)

    def expect(self, host_s: float) -> None:
        """Let gates wait from now on for a host that takes so long for a call, at most."""
        self._patience_us = max(PATIENCE_US, round(2e6 * host_s))

    def open(self) -> None:
        """Let the stream go on past every gate so far: the flag only grows."""
        self._host[0] = self._closed

    def read_clock(self, slot: int) -> None:
        """Enqueue a reading of the SM clock. Raises IndexError for a slot that is not below `SLOTS`."""
        if not 0 <= slot < SLOTS:
            raise IndexError(f"slot {slot}: {SLOTS} readings are kept; time fewer calls in a turn")
        clock_launch(self._readings, slot).run(self._readings.device)

    def sm_clocks_hz(self, count: int) -> list[float]:
        """The SM clock by each reading in the first `count` slots. Waits for the device."""
        return [1e9 * cycles / ns if ns else 0.0 for cycles, ns in self._readings[:count].tolist()]
