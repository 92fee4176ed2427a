"""Steady state: what a long kernel sustains when it runs by itself for seconds.

Turn-taking puts all contenders on one shared clock, which no large matmul keeps by itself: these chips are bound by
power there. So contenders also run alone in blocks, with energy and clock per block. The order of an alternation is
that of the one before it reversed, A B B A: what drifts evenly meets all alike.
"""

import math
from collections.abc import Iterator

import numpy as np

from roofline.worker.clocks import Call
from roofline.worker.prepared import PreparedCase

FROM_S = 0.002
"""Shapes whose quickest contender takes less than this get no steady state: they end before the power limit acts."""
FROM_TOKENS = 1024
"""Shapes of so many have a steady state by default on a GPU; of fewer, the memory sets the pace."""
BLOCKS = 4
"""For each contender by default: so many ratios have an interval, and eight shapes of
two contenders take less than three minutes."""
DROPPED_S = 0.4
"""The first part of a block, in which clock and power settle: run and not counted."""
COUNTED_S = 1.5
"""Power limits act within tens of milliseconds. Temperature takes many seconds, and drifts over several blocks."""
SLICE_S = 0.25
"""Calls are enqueued by slices of about this long, and the clock and the energy are read in each."""


def chosen(prepared: PreparedCase, medians_s: dict[str, float], options) -> list[str]:
    """The contenders that get blocks, by their `medians_s` of single calls.

    All with `--ffn-steady`, none with `--ffn-steady 0`; else, on a GPU, of matmuls from FROM_TOKENS on, the baseline
    and the fastest other that is no library's. None over a link, and where the quickest takes less than FROM_S.
    """
    if options.steady == 0 or prepared.analysis != "throughput":
        return []
    timed = sorted(medians_s, key=medians_s.__getitem__)
    if not timed or medians_s[timed[0]] < FROM_S:
        return []
    if options.steady:
        return timed
    case = prepared.case
    if options.device != "cuda" or case.op != "matmul" or case.m < FROM_TOKENS:
        return []
    return _baseline_and_fastest(prepared, timed)


def _baseline_and_fastest(prepared: PreparedCase, timed: list[str]) -> list[str]:
    """The baseline, and the fastest other that is no library's, of contenders that stand the fastest first."""
    others = [name for name in timed if not prepared.entrants[name].facts.get("of_library")]
    fastest = next((name for name in others if name != prepared.baseline), "")
    return [name for name in timed if name in (prepared.baseline, fastest)]


def blocks(names: list[str], *, seed: int, count: int) -> Iterator[dict]:
    """Yield `count` alternating blocks of each contender, as the journal names them. The order of the first alternation
    is seeded; each other one has that of the one before, reversed. Who is removed from `names` has no more blocks."""
    names[:] = np.random.default_rng(seed).permutation(names).tolist()
    for index in range(count):
        order = names if index % 2 == 0 else names[::-1]
        for position, name in enumerate(list(order)):
            yield {"contender": name, "block": index, "position": position}


def run_block(call: Call, median_s: float, clock, telemetry, counted_s: float = COUNTED_S) -> dict:
    """Run a call of `median_s` for a block, of which `counted_s` seconds count, as the journal has it: `time_s` is per
    call, `energy_j` of all `calls`, None where nobody counts."""
    calls = max(1, math.ceil(SLICE_S / median_s))
    _run_for(DROPPED_S, call, calls, clock)
    telemetry.start()
    readings = []
    with clock.while_busy(lambda: readings.append(telemetry.energy())):
        count, seconds = _run_for(counted_s, call, calls, clock)
    counted = {"calls": count, "time_s": seconds / count, "energy_j": None}
    if len(readings) > 1 and None not in readings:
        (began_s, began_j), *_, (ended_s, ended_j) = readings
        counted["energy_j"] = seconds * ((ended_j - began_j) / (ended_s - began_s))
    return counted | telemetry.summary()


def _run_for(seconds: float, call: Call, calls: int, clock) -> tuple[int, float]:
    """Run slices of `calls` calls until they took `seconds` in all; returns how many calls, and their seconds."""
    count = 0
    total = 0.0
    while total < seconds:
        total += clock.burst(call, calls)
        count += calls
    return count, total
