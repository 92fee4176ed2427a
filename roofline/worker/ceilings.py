"""The machine's own roof: the most FLOP/s and bytes/s that probes reach.

Which calls make good probes is the caller's knowledge. At the start of a run they take turns among themselves; the best
of each kind then takes turns with the contenders, so that a case's share of the roof is of the same minute as its time.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from roofline.store.run import PROBE
from roofline.store.stats import time_of
from roofline.theory.bounds import bound
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
"""Of a CPU's readers that reach this share of the best, the first stands beside the cases. Which of two is faster by a
hair is chance, and a neighbour matters. On an AMD EPYC, with the reader set by hand, torch's product of 2 tokens took
25 to 40 % longer beside one that reads by matrix-vector products than beside one that sums."""
LONG_S = 0.005
"""A call that takes longer need not be called once more, untimed, to wake its threads."""


def measure(
    probes: list[Probe], clock, *, when: str, seed: int, device: str = "cpu", rule: StopRule = STOP_RULE
) -> tuple[list[Ceiling], dict[str, str]]:
    """Return the best of `probes` for each (kind, dtype), and {probe: reason} of those that set none.

    All of one kind take turns, within `rule`'s time. A probe that is wrong, or raises, is left out. Raises `Broken`
    where that lost the `device`.
    """
    best = []
    reasons = {}

    def refuse(probe: Probe, reason: str) -> None:
        reasons[f"{probe.kind} {probe.name}{f' {probe.dtype}' if probe.dtype else ''}"] = reason

    for kind, dtype in dict.fromkeys((probe.kind, probe.dtype) for probe in probes):
        group = {}
        for probe in probes:
            if (probe.kind, probe.dtype) == (kind, dtype):
                if reason := _reason(probe, device):
                    refuse(probe, reason)
                else:
                    group[probe.name] = probe
        while group:
            try:
                turns = take_turns({name: probe.call for name, probe in group.items()}, clock, rule, seed=seed)
                break
            except CallError as error:
                stop_if_lost(device, error)
                refuse(group.pop(error.name), device_errors.reason(error))
        if not group:
            continue
        reached = []
        for name, times in turns.times_s.items():
            if times:
                time = time_of(times)
                amount = group[name].amount
                rates = amount / time.value, amount / time.high, amount / time.low
                reached.append(Ceiling(kind, dtype, when, name, *rates, len(times)))
        if reached:
            highest = max(reached, key=lambda ceiling: ceiling.value)
            least = (NEAR if kind == "read" and device == "cpu" else 1.0) * highest.value
            near = next(ceiling.probe for ceiling in reached if ceiling.value >= least)
            best.append(replace(highest, beside=near))
        else:
            for probe in group.values():
                refuse(probe, "each of its samples was late; is the host overloaded?")
    return best, reasons


def _reason(probe: Probe, device: str) -> str | None:
    try:
        return probe.why_not()
    except Exception as error:
        stop_if_lost(device, error)
        return device_errors.reason(error)


def beside(case, probes: list[Probe], ceilings: list[dict]) -> Entrant | None:
    """Return what takes turns with the contenders of the matmul `case`: the probe of the ceiling above it, by the
    `ceilings` of the run so far; None where one of the two was not measured."""
    best = {}
    for line in ceilings:
        key = line["ceiling"], line["dtype"]
        if key not in best or line["value"] > best[key]["value"]:
            best[key] = line
    matmul, read = best.get(("matmul", case.dtype)), best.get(("read", None))
    if not (matmul and read):
        return None
    line = read if bound(case.work.device_intensity, matmul["value"], read["value"]) == "memory" else matmul
    key = line["ceiling"], line.get("beside") or line["probe"], line["dtype"]
    probe = next((candidate for candidate in probes if (candidate.kind, candidate.name, candidate.dtype) == key), None)
    if probe is None:
        return None
    call = partial(probe.call)
    call.long = probe.amount / line["value"] > LONG_S
    facts = {"ceiling": probe.kind, "amount": probe.amount}
    return Entrant(f"{PROBE} {probe.kind}", call, PROBE, probe.name, facts=facts)
