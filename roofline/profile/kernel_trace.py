"""Which kernels each contender ran, by torch's profiler. Asked when all timing is over: it stays in the process once it
was used.

Names say which tile, depth and cluster a library chose, which is the cheapest explanation of a gap. No right to read
counters is needed: only launches are traced.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from roofline.measure import device_errors
from roofline.measure.observer import Observer

TOPIC = "kernel names"

DEVICE = "cuda"
"""What runs kernels that have a name."""

ATTEMPTS = 2
"""The first trace of a process may come out empty: tracing is switched on while it begins."""


@dataclass
class KernelTrace(Observer):
    """Journals the names of the kernels that `session`'s run measured and that have none yet.

    Shapes are prepared once more for it, which takes a moment each. Arms are left out: what they run is the matmul of
    the same name and the link's copier.
    """

    session: object
    lacking = "not all kernels were named"

    def finished(self) -> None:
        session = self.session
        if session.options.device != DEVICE:
            return
        failures: list[str] = []
        for shape, about in session.run.shapes.items():
            names = [name for name in about.measured if "kernel_name" not in about.entrants[name]]
            if about.analysis == "overlap" or not names:
                continue
            try:
                found = session.prepared(shape, names)
                named = {name: of_call(found.entrants[name].call) for name in names if name in found.entrants}
            except Exception as error:  # a name is not worth a run
                failures.append(device_errors.reason(error))
                if device_errors.device_lost(session.options.device):
                    break
                continue
            found.entrants.clear()  # lets go of operands that are not shared with other shapes
            failures += [found.rejected[name].reason for name in names if name in found.rejected]
            if named:
                session.add({"kind": "kernels", "shape": shape, "kernel_names": named})
        if failures:
            session.note(TOPIC, f"Kernel names: not all were found, {len(failures)} times: {failures[0]}.")


def of_call(call: Callable[[], object]) -> str:
    """Names of what `call` launches, in the order of their start, joined by ` + `. Raises what the profiler raises, and
    RuntimeError where it saw nothing."""
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
