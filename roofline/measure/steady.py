"""Steady state: what a long kernel sustains when it runs by itself for a second or more.

Turn-taking puts all contenders on one shared clock, which no large matmul keeps by itself: these chips are bound by
power there. So, on request, each contender also runs alone in blocks, in alternation, with energy and clock per block.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from roofline.measure.clocks import Call
from roofline.measure.rounds import CallError, named

FROM_S = 0.002
"""Shapes whose quickest contender takes less than this get no steady state: they end before the power limit acts."""
BLOCKS = 4
"""For each contender. Power limits act within tens of milliseconds, temperature within many seconds."""
DROPPED_S = 0.5
"""The first part of a block, in which clock and power settle: run and not counted."""
COUNTED_S = 1.0
SLICE_S = 0.25
"""Calls are enqueued by slices of about this long, and the clock is read in each."""


def blocks(
    entrants: dict[str, Call],
    medians_s: dict[str, float],
    clock,
    telemetry,
    *,
    seed: int,
    failed: Callable[[str, CallError], None],
) -> Iterator[dict]:
    """Run `entrants` ({name: call}, with their `medians_s` of single calls) in alternating blocks; none if too short.

    Blocks are yielded as they end, as the journal has them: `time_s` is per call, `energy_j` of all `calls`, None where
    nobody counts it. The order within each alternation is seeded and differs, as in `rounds`.
    A contender whose call raises is told to `failed(name, error)`, and the others go on.
    """
    if min(medians_s.values(), default=0.0) < FROM_S:
        return
    rng = np.random.default_rng(seed)
    names = [name for name in entrants if name in medians_s]
    entrants = {name: named(name, call) for name, call in entrants.items()}
    for index in range(BLOCKS):
        for position, name in enumerate(rng.permutation(names).tolist()):
            try:
                about = {"contender": name, "block": index, "position": position}
                yield about | _block(entrants[name], medians_s[name], clock, telemetry)
            except CallError as error:
                failed(name, error)
                names.remove(name)


def _block(call: Call, median_s: float, clock, telemetry) -> dict:
    calls = max(1, math.ceil(SLICE_S / median_s))
    _run_for(DROPPED_S, call, calls, clock)
    telemetry.start()
    before = telemetry.energy_j()
    count, seconds = _run_for(COUNTED_S, call, calls, clock)
    after = telemetry.energy_j()
    energy = None if before is None or after is None else after - before
    return {"calls": count, "time_s": seconds / count, "energy_j": energy} | telemetry.summary()


def _run_for(seconds: float, call: Call, calls: int, clock) -> tuple[int, float]:
    """Slices of `calls` calls until they took `seconds` in all; returns how many calls, and their seconds."""
    count, total = 0, 0.0
    while total < seconds:
        total += clock.burst(call, calls)
        count += calls
    return count, total
