"""Clocks: how long the device took for a call. The one place that knows when a time stamp can lie.

A clock has `source` ("gpu" or "cpu": what ran the work), `timer` (the name saved with every record), `now()` for time
budgets, and `turn(calls)`, which runs the calls one after another and returns a time in seconds for each, or None for
a sample that the host spoilt by being late.
"""

import gc
import time
from collections.abc import Callable

Call = Callable[[], object]


class CpuClock:
    """Wall time of the calling thread around each call, with the garbage collector off."""

    source = "cpu"
    timer = "perf_counter_replay"

    def __init__(self, idle_s: float = 0.002):
        # OpenMP workers of the last contender spin for about a millisecond before they sleep; on a small machine they
        # would take a core from the next contender, so each call starts after a pause.
        self._idle_s = idle_s

    @staticmethod
    def now() -> float:
        return time.perf_counter()

    def turn(self, calls: list[Call]) -> list[float | None]:
        times = []
        collecting = gc.isenabled()
        gc.disable()
        try:
            for call in calls:
                time.sleep(self._idle_s)
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
        finally:
            if collecting:
                gc.enable()
        return times


class CudaClock:
    """Device events around each call on the current stream, with no host synchronisation inside a turn.

    A spinning kernel (the pre-roll) goes before every start event, so that the launches of the work hide behind it.
    Whether they did is checked: once the stop event is enqueued, the start event must not have happened yet.
    If it has, the sample holds host time: it is dropped (None) and the pre-roll doubles from the next turn on.
    """

    source = "gpu"
    timer = "cuda_event_replay"
    LONGEST_PREROLL_S = 0.02

    def __init__(self, preroll_s: float = 1e-4):
        import torch

        self._cuda = torch.cuda
        self.preroll_s = preroll_s
        # The spin counts SM cycles. Slower clocks than this one only make the pre-roll longer.
        self._cycles_per_s = 1.98e9
        self.while_busy: Callable[[], None] | None = None  # called once a turn, before the host waits

    @staticmethod
    def now() -> float:
        return time.perf_counter()

    def turn(self, calls: list[Call]) -> list[float | None]:
        pairs = []
        for call in calls:
            start = self._cuda.Event(enable_timing=True)
            stop = self._cuda.Event(enable_timing=True)
            self._cuda._sleep(int(self.preroll_s * self._cycles_per_s))
            start.record()
            call()
            stop.record()
            pairs.append((start, stop, start.query()))
        if self.while_busy:
            self.while_busy()
        self._cuda.synchronize()
        if any(late for _, _, late in pairs):
            self.preroll_s = min(2 * self.preroll_s, self.LONGEST_PREROLL_S)
        return [None if late else start.elapsed_time(stop) * 1e-3 for start, stop, late in pairs]

    def empty_pair_s(self) -> float:
        """Median time between two events with nothing between them: what every sample carries on top of its work."""
        times = sorted(t for t in self.turn([lambda: None] * 32) if t is not None)
        return times[len(times) // 2] if times else float("nan")


def for_device(device: str):
    """The clock of `device`: `cpu` or `cuda`."""
    return CudaClock() if device == "cuda" else CpuClock()
