"""Where programs of one launch leave partial sums for each other: buffers that outlive the launch, one set a stream.

Nothing is allocated or zeroed in the path of a launch. Counters are zero before the first launch, and a kernel that
counts on them leaves them zero. Launches of one stream follow one another, so they may share; those of several streams
may run at the same time, so each stream has its own. A launch that is captured in a CUDA graph may be replayed on any
stream, beside any other: it gets buffers that belong to the graph, and zeroes its counters in each replay.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Workspace(NamedTuple):
    partials: Tensor
    """fp32, whatever was left there."""
    counters: Tensor
    """int32, zero before and after each launch."""


KEPT: dict[tuple[torch.device, int], Workspace] = {}


def workspace(device: torch.device, partials: int, counters: int) -> Workspace:
    """Buffers of at least so many elements, for a launch on the current stream of `device`.

    A buffer that has become too small is let go while launches may still use it: the allocator gives its memory to
    later work of that stream alone.
    """
    stream = 0
    if device.type == "cuda":
        with torch.cuda.device(device):
            stream = torch.cuda.current_stream().cuda_stream
            if torch.cuda.is_current_stream_capturing():
                return _new(device, partials, counters)
    kept = KEPT.get((device, stream))
    if not kept or kept.partials.numel() < partials or kept.counters.numel() < counters:
        if kept:
            partials = max(partials, kept.partials.numel())
            counters = max(counters, kept.counters.numel())
        kept = KEPT[device, stream] = _new(device, partials, counters)
    return kept


def _new(device: torch.device, partials: int, counters: int) -> Workspace:
    return Workspace(
        torch.empty(partials, dtype=torch.float32, device=device),
        torch.zeros(counters, dtype=torch.int32, device=device),
    )
