"""The machine's own roof: the most FLOP/s and bytes/s that probes reach.

Which calls make good probes is the caller's knowledge. At the start of a run they take turns among themselves; the best
of each kind then takes turns with the contenders, so that a case's fraction of the roof is of the same minute as its
time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter

from roofline.host.device_errors import CallError
from roofline.protocol.stop_rule import StopRule
from roofline.store.outcome import FAILED, SKIPPED, Outcome
from roofline.store.run import PROBE
from roofline.store.stats import grouped, is_known, time_of
from roofline.theory.bounds import Roof
from roofline.theory.chips import roof_of
from roofline.worker.clocks import Call
from roofline.worker.prepared import Entrant, PreparedCase, stop_if_lost
from roofline.worker.rounds import take_turns


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

    def checked(self) -> Entrant | Outcome:
        """What takes turns, or why that sets no ceiling."""
        if reason := self.why_not():
            return Outcome(SKIPPED, f"{self.name}: {reason}")
        return Entrant(self.name, Call(self.call), facts={"amount": self.amount})


STOP_RULE = StopRule(max_seconds=2.0, min_rounds=10, max_rounds=60, warmup_s=0.1)
NEAR = 0.9
"""The first of a CPU's readers that reaches this fraction of the best stands beside the cases. Which of two is faster
by a hair is chance, and a neighbour matters. On an AMD EPYC, with the reader set by hand, torch's product of 2 tokens
took 25 to 40 % longer beside one that reads by matrix-vector products than beside one that sums."""
LONG_S = 0.005
"""A call that takes longer need not be called once more, untimed, to wake its threads."""


def measure(
    probes: list[Probe], clock, *, when: str, seed: int, device: str = "cpu", rule: StopRule = STOP_RULE
) -> tuple[list[dict], list[str]]:
    """The best of `probes` for each (kind, dtype), as the journal has a ceiling, and why others set none. `beside`
    names the probe that takes turns with the cases below the ceiling; rates are per second.

    All of one kind take turns, within `rule`'s time. A probe that is wrong, or raises, is left out. Raises `Broken`
    where that lost the `device`.
    """
    best = []
    reasons = []
    by_kind = grouped(((probe.kind, probe.dtype), probe) for probe in probes)
    for (kind, dtype), group in by_kind.items():
        prepared = PreparedCase(None, "", device, is_guarded=False)
        for probe in group:
            prepared.enter(probe.name, probe.checked)
        while prepared.entrants:
            try:
                turns = take_turns(prepared, clock, rule, seed=seed)
                break
            except CallError as error:
                stop_if_lost(device, error)
                prepared.refuse(error.name, error)
        reached = []
        for name, entrant in list(prepared.entrants.items()):
            times_s = turns.times_s[name]
            amount = entrant.facts["amount"]
            if time := time_of(times_s):
                ceiling = {
                    "ceiling": kind,
                    "dtype": dtype,
                    "when": when,
                    "probe": name,
                    "value": amount / time.value,
                    "rounds": len(times_s),
                }
                if is_known(time.low, time.high):
                    ceiling |= {"low": amount / time.high, "high": amount / time.low}
                reached.append(ceiling)
            else:
                late = Outcome(FAILED, f"{name}: each of its samples was late; is the host overloaded?")
                prepared.reject(name, late)
        if reached:
            highest = max(reached, key=itemgetter("value"))
            best.append(highest | {"beside": _neighbour(reached, highest, device)})
        for outcome in prepared.rejected.values():
            reasons.append(" ".join(filter(None, [kind, dtype, outcome.reason])))
    return best, reasons


def _neighbour(reached: list[dict], highest: dict, device: str) -> str:
    """The probe that takes turns with the cases below the `highest` of what probes of a kind reached."""
    least = highest["value"]
    if highest["ceiling"] == "read" and device == "cpu":
        least *= NEAR
    return next(ceiling["probe"] for ceiling in reached if ceiling["value"] >= least)


def probe_for(case, probes: list[Probe], ceilings: list[dict], datasheet: dict | None) -> Entrant | None:
    """The probe that takes turns with the contenders of the matmul `case`: a reader where it lies below the ridge, else
    a matmul; None where one of the two ceilings was not measured.

    The ridge is the datasheet's, so that each run of a chip has the same neighbour. By the ceilings of a day M = 256 on
    an H100 had the reader in one run and the matmul in the next: the clock fell from 1925 to 1607 MHz, and a ratio by
    6 %. Without a datasheet the first of the run's `ceilings` decide, also for a later worker that measured others.
    """
    first: dict[tuple[str, str | None], dict] = {}
    for line in ceilings:
        first.setdefault((line["ceiling"], line["dtype"]), line)
    matmul = first.get(("matmul", case.dtype))
    read = first.get(("read", None))
    if not (matmul and read):
        return None
    roof = roof_of(datasheet, case.dtype) or Roof(matmul["value"], read["value"])
    line = read if roof.bound(case.work.device_intensity) == "memory" else matmul
    key = line["ceiling"], line["beside"], line["dtype"]
    for probe in probes:
        if (probe.kind, probe.name, probe.dtype) == key:
            call = Call(probe.call, is_long=probe.amount / line["value"] > LONG_S)
            facts = {"ceiling": probe.kind, "amount": probe.amount}
            return Entrant(f"{PROBE} {probe.kind}", call, PROBE, probe.name, facts=facts)
    return None
