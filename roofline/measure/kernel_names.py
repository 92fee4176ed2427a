"""Which kernels a call launches, by torch's profiler. Asked when all timing is over: it stays in the process once it
was used.

Names say which tile, depth and cluster a library chose, which is the cheapest explanation of a gap. No right to read
counters is needed: only launches are traced.
"""

import warnings
from collections.abc import Callable

DEVICE = "cuda"
"""What runs kernels that have a name."""

ATTEMPTS = 2
"""The first trace of a process may come out empty: tracing is switched on while it begins."""


def of_call(call: Callable[[], object]) -> str:
    """Return the names of what `call` launches, in the order of their start, joined by ` + `. Raises what the profiler
    raises, and RuntimeError where it saw nothing."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(ATTEMPTS):
        torch.cuda.synchronize()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                call()
                torch.cuda.synchronize()
            events = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        if events:
            return " + ".join(event.name for event in sorted(events, key=lambda event: event.time_range.start))
    raise RuntimeError("the profiler saw no kernel")
