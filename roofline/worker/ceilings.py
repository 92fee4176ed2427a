"""The machine's own roof: the most FLOP/s and bytes/s that probes reach.

Which calls make good probes is the caller's knowledge. At the start of a run they take turns among themselves; the best
of each kind then takes turns with the contenders, so that a case's fraction of the roof is of the same minute as its
time.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from roofline.store.run import PROBE
from roofline.store.stats import time_of
from roofline.theory.bounds import bound
from roofline.theory.floor import highest_of_kinds
from roofline.worker import device_errors
from roofline.worker.prepared import Entrant, stop_if_lost
from roofline.worker.rounds import CallError, StopRule, take_turns


@dataclass(frozen=True)
class Probe:
    """One way to reach for a ceiling of `kind`: `matmul` (FLOP), `read` or `copy` (bytes; of a copy both ways).

    `call` does `amount` of them. `dtype` matters for matmuls only. `why_not()` tries it, and returns why it sets no
    ceiling, or None.
    """

    kind: str
    name: str
    amount: float
    call: Callable[[], object]
    dtype: str | None = None
    why_not: Callable[[], str | None] = lambda: None


@dataclass(frozen=True)
class Ceiling:
    """The best probe of a kind: `value`, `low` and `high` per second. `when`: `start` or `resume`. `beside` names the
    probe that takes turns with the cases below this ceiling."""

    ceiling: str
    dtype: str | None
    when: str
    probe: str
    value: float
    low: float
    high: float
    rounds: int
    beside: str = ""


STOP_RULE = StopRule(max_seconds=2.0, min_rounds=10, max_rounds=60, warmup_s=0.1)
NEAR = 0.9
"""The first of a CPU's readers that reaches this fraction of the best stands beside the cases. Which of two is faster
by a hair is chance, and a neighbour matters. On an AMD EPYC, with the reader set by hand, torch's product of 2 tokens
took 25 to 40 % longer beside one that reads by matrix-vector products than beside one that sums."""
LONG_S = 0.005
"""A call that takes longer need not be called once more, untimed, to wake its threads."""


def measure(
    probes: list[Probe], clock, *, when: str, seed: int, device: str = "cpu", rule: StopRule = STOP_RULE
) -> tuple[list[Ceiling], dict[str, str]]:
    """The best of `probes` for each (kind, dtype), and {probe: reason} of those that set none.

    All of one kind take turns, within `rule`'s time. A probe that is wrong, or raises, is left out. Raises `Broken`
    where that lost the `device`.
    """
    groups: dict[tuple[str, str | None], dict[str, Probe]] = {}
    for probe in probes:
        groups.setdefault((probe.kind, probe.dtype), {})[probe.name] = probe
    best = []
    reasons = {}
    for group in groups.values():
        if ceiling := _highest(group, reasons, clock, rule, seed, device):
            best.append(replace(ceiling, when=when))
    return best, reasons


def _highest(
    group: dict[str, Probe], reasons: dict[str, str], clock, rule: StopRule, seed: int, device: str
) -> Ceiling | None:
    """The ceiling that probes of a kind set; None where none does. Why a probe sets none is added to `reasons`."""

    def refuse(name: str, reason: str) -> None:
        probe = group.pop(name)
        reasons[" ".join(filter(None, [probe.kind, name, probe.dtype]))] = reason

    for name, probe in list(group.items()):
        if reason := _reason(probe, device):
            refuse(name, reason)
    while group:
        try:
            turns = take_turns({name: probe.call for name, probe in group.items()}, clock, rule, seed=seed)
            break
        except CallError as error:
            stop_if_lost(device, error)
            refuse(error.name, device_errors.reason(error))
    reached = []
    for name, probe in group.items():
        if times := turns.times_s[name]:
            amount = probe.amount
            time = time_of(times)
            value = amount / time.value
            low = amount / time.high
            high = amount / time.low
            reached.append(Ceiling(probe.kind, probe.dtype, "", name, value, low, high, len(times)))
    if not reached:
        for name in list(group):
            refuse(name, "each of its samples was late; is the host overloaded?")
        return None
    return _with_neighbour(reached, device)


def _reason(probe: Probe, device: str) -> str | None:
    try:
        return probe.why_not()
    except Exception as error:
        stop_if_lost(device, error)
        return device_errors.reason(error)


def _with_neighbour(reached: list[Ceiling], device: str) -> Ceiling:
    """The highest of what probes of a kind reached, with the probe that takes turns with the cases below it."""
    highest = max(reached, key=lambda ceiling: ceiling.value)
    least = highest.value
    if highest.ceiling == "read" and device == "cpu":
        least *= NEAR
    near = next(ceiling.probe for ceiling in reached if ceiling.value >= least)
    return replace(highest, beside=near)


def probe_for(case, probes: list[Probe], ceilings: list[dict]) -> Entrant | None:
    """What takes turns with the contenders of the matmul `case`: the probe of the ceiling above it, by the `ceilings`
    of the run so far; None where one of the two was not measured."""
    highest = highest_of_kinds(ceilings)
    matmul = highest.get(("matmul", case.dtype))
    read = highest.get(("read", None))
    if not (matmul and read):
        return None
    line = read if bound(case.work.device_intensity, matmul["value"], read["value"]) == "memory" else matmul
    key = line["ceiling"], line.get("beside") or line["probe"], line["dtype"]
    for probe in probes:
        if (probe.kind, probe.name, probe.dtype) == key:
            call = partial(probe.call)
            call.long = probe.amount / line["value"] > LONG_S
            facts = {"ceiling": probe.kind, "amount": probe.amount}
            return Entrant(f"{PROBE} {probe.kind}", call, PROBE, probe.name, facts=facts)
    return None
