"""The cost of a short call otherwise than in a sample: of its host, as Python calls it, and replayed in a CUDA graph.

A sample hides the host behind a gate, and times one call on the device. Who calls from Python pays for the host where
that is slower; who captures a graph pays for no host, and for less of a gap between calls.
"""

from statistics import median

from roofline.worker.clocks import Call

CALLS = 100
"""Back to back: far fewer than the launches that a stream queues before its host waits."""
GRAPH_CALLS = 24
"""In one graph: all sets of operands take their turn."""
REPEATS = 5


def captured(call: Call, calls: int) -> Call:
    """Capture so many calls in a CUDA graph. Gives what replays it. Raises what capturing raises."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return Call(graph.replay)


def host_s(call: Call, clock) -> float:
    """The seconds that the host takes for a call, of calls back to back, which the device does behind it."""
    seconds = []
    for _ in range(REPEATS):
        clock.turn([])  # which waits for the device
        began = clock.now()
        for _ in range(CALLS):
            call()
        seconds.append((clock.now() - began) / CALLS)
    return median(seconds)


def graph_s(call: Call, clock) -> float:
    """The seconds of the device for a call, of calls in a graph. Raises what capturing raises."""
    replay = captured(call, GRAPH_CALLS)
    replay()
    return median(clock.burst(replay, 1) / GRAPH_CALLS for _ in range(REPEATS))
