"""The launches of a call: the names of its kernels, by torch's profiler.

Asked when all timing is over: the profiler stays in the process once it was used. Names say which tile, depth and
cluster a library chose, which is the cheapest explanation of a gap. No right to read counters is needed: only launches
are traced.
"""

import sys
import warnings
from collections.abc import Callable
from hashlib import sha256
from unittest.mock import patch

from roofline.protocol.messages import Step

ATTEMPTS = 2
"""The first trace of a process may come out empty: tracing is switched on while it begins."""
NOT_ALL = "Kernel names: not all were found"


def of_call(call: Callable[[], object]) -> str:
    """The names of what `call` launches, in the order of their start, joined by ` + `."""
    return " + ".join(event.name for event in traced(call))


def traced(call: Callable[[], object]) -> list:
    """The profiler's events of what `call` launches, in the order of their start. Raises what the profiler raises, and
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
            return sorted(events, key=lambda event: event.time_range.start)
    raise RuntimeError("the profiler saw no kernel")


def binary_of(call: Callable[[], object]) -> str:
    """A hash of the machine code of Triton's kernels that `call` launches; empty where it launches none."""
    compiler = sys.modules.get("triton.compiler.compiler")
    if not compiler:
        return ""
    launched = []
    launch_metadata = compiler.CompiledKernel.launch_metadata

    def noted(kernel, *arguments):
        launched.append(kernel.asm["cubin"])
        return launch_metadata(kernel, *arguments)

    with patch.object(compiler.CompiledKernel, "launch_metadata", noted):  # each launch asks for it
        call()
    return sha256(b"".join(launched)).hexdigest()[:12] if launched else ""


def name_kernels(worker) -> None:
    """Tell which kernels each contender launches, with a hash of those by Triton, or the bytes that a call of it needs.
    What fails is told in a note: a name is not worth a run."""
    for shape, names in worker.request.cases.items():
        prepared = worker.prepare(shape, names)
        kernel_names, binaries = {}, {}
        for outcome in prepared.rejected.values():
            worker.note("kernel names", f"{NOT_ALL}: {outcome.reason}.")
        for name in names:
            if not (entrant := prepared.entrants.get(name)):
                continue
            worker.begin(Step.CALL, shape, name=name)
            with worker.noting("kernel names", NOT_ALL):
                if entrant.costs:  # a training step launches hundreds of kernels
                    worker.journal("costs", shape=shape, contender=name, costs=entrant.costs())
                else:
                    kernel_names[name] = of_call(entrant.call)
                    binaries[name] = binary_of(entrant.call)
        prepared.entrants.clear()
        if kernel_names:
            worker.journal("kernels", shape=shape, kernel_names=kernel_names, binaries=binaries)
