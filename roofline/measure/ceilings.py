"""The machine's own roof: the most FLOP/s and bytes/s that probes reach, measured at the start and the end of a run.

Which calls make good probes is the caller's knowledge; this module times them and keeps the best of each kind.
"""

from collections.abc import Callable
from dataclasses import dataclass

from roofline.measure.rounds import StopRule, take_turns
from roofline.stats import median_interval


@dataclass(frozen=True)
class Probe:
    """One way to reach for a ceiling of `kind`: `matmul` (FLOP), `read` or `copy` (bytes; of a copy both ways).

    `call` does `amount` of them. `dtype` matters for matmuls only.
    """

    kind: str
    name: str
    amount: float
    call: Callable[[], object]
    dtype: str | None = None


@dataclass(frozen=True)
class Ceiling:
    """The best probe of a kind: `value`, `low` and `high` per second. `when`: `start`, `end`, or a shape's id."""

    ceiling: str
    dtype: str | None
    when: str
    probe: str
    value: float
    low: float
    high: float
    rounds: int


STOP_RULE = StopRule(max_seconds=6.0, min_rounds=15, max_rounds=60, warmup_s=0.1)


def measure(probes: list[Probe], clock, *, when: str, seed: int, rule: StopRule = STOP_RULE) -> list[Ceiling]:
    """The best of `probes` for each (kind, dtype). All of one kind take turns, within `rule`'s time."""
    best = []
    for kind, dtype in dict.fromkeys((probe.kind, probe.dtype) for probe in probes):
        group = {probe.name: probe for probe in probes if (probe.kind, probe.dtype) == (kind, dtype)}
        turns = take_turns({name: probe.call for name, probe in group.items()}, clock, rule, seed=seed)
        found = []
        for name, times in turns.times_s.items():
            if times:
                time, amount = median_interval(list(times.values())), group[name].amount
                rates = amount / time.median, amount / time.high, amount / time.low
                found.append(Ceiling(kind, dtype, when, name, *rates, len(times)))
        if not found:
            raise RuntimeError(
                f"no {kind} ceiling: each sample of {', '.join(group)} was late; is the host overloaded?"
            )
        best.append(max(found, key=lambda ceiling: ceiling.value))
    return best
