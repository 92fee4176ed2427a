"""Two sides of one or more runs, case by case: what became faster, what slower, and what cannot be told.

A case is judged by its speed in NEW over its speed in BASE. Both speeds are taken relative to the baseline, which took
turns with the case in every run, so that what the machine did to both alike cancels. An arm that overlaps a wire is
judged by the share it hides, NEW's less BASE's, since the wire of a case differs from run to run where it was made for
the machine's pace of that minute; one that hides nothing by definition is compared where the wires are alike.

What a case alone cannot tell, the mean over all cases of a contender often does: that is judged in the same way, by
the processes' means. roofline/analysis/changes.py says how a change is told from none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from roofline.analysis.changes import (
    HIDDEN,
    MARGIN,
    SLOWER,
    SPEED,
    UNCLEAR,
    Change,
    change,
    change_of_pairs,
    spread_of,
    together,
    values_of,
    verdicts,
)
from roofline.analysis.records import records_of
from roofline.store.conditions import ALL, NUMBERS, are_alike, condition
from roofline.store.run import Run
from roofline.store.stats import geometric_mean, grouped

SAME_WIRE = 0.01
"""Wires whose bytes/s are within this share of one another are alike."""
AND = " and "
NEITHER = "neither"
"""Lacks a case that both sides have and that is not compared: its wires differ."""


@dataclass(frozen=True)
class Case:
    """One case of both sides. Times are geometric means over the runs of a side."""

    case: str
    base_time_s: float
    new_time_s: float
    change: Change
    verdict: str
    notes: str


@dataclass(frozen=True)
class Together:
    """A contender's change in the mean over the cases that all runs have of it."""

    contender: str
    cases: int
    change: Change
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. `missing` says which cases a run lacks, and what it says about them."""

    base_runs: int
    new_runs: int
    differences: dict[str, tuple[str, str]]
    unfinished: list[str]
    """Which runs were cut short."""
    together: list[Together]
    cases: list[Case]
    missing: list[dict]
    baseline_speed: float | None
    """Geometric mean of the baseline's own speed, NEW over BASE: how far the machine moved between the runs."""

    def count(self, verdict: str) -> int:
        return sum(case.verdict == verdict for case in self.cases)

    def exit_code(self, *, strict: bool = False) -> int:
        """1 where a case or a contender in the mean is slower; if `strict`, also where a case is unclear or missing."""
        slower = self.count(SLOWER) or any(mean.verdict == SLOWER for mean in self.together)
        missing = any(case["missing_in"] != NEITHER for case in self.missing)
        return int(bool(slower or (strict and (self.count(UNCLEAR) or missing))))


class Pair(NamedTuple):
    """A case that both sides have: of each, the runs that measured it with their records."""

    case: str
    sides: list[list[tuple[Run, dict]]]

    @property
    def records(self) -> list[dict]:
        return [record for _, record in chain(*self.sides)]

    @property
    def wires(self) -> list[float | None]:
        """Return the bytes/s that the wire was asked for on each side; None without a wire."""
        asked = [[record.get("link_bytes_per_s_requested") for _, record in side] for side in self.sides]
        return [None if None in of_side else geometric_mean(of_side) for of_side in asked]

    @property
    def on_one_wire(self) -> bool:
        return None in (wires := self.wires) or max(wires) / min(wires) - 1 <= SAME_WIRE

    def speed(self, field: str) -> float | None:
        """Return NEW's over BASE's by geometric means of a time; None where a run lacks it."""
        times = [[record[field] for _, record in side] for side in self.sides]
        return None if None in chain(*times) else geometric_mean(times[0]) / geometric_mean(times[1])

    @property
    def judged_by(self) -> str:
        return HIDDEN if all(record.get("hidden_fraction") is not None for record in self.records) else SPEED

    @property
    def values(self) -> list[list[dict[int, float]]]:
        """Return what each run of each side says."""
        return [[values_of(run, record, self.judged_by) for run, record in side] for side in self.sides]


def compare(base: Sequence[Run], new: Sequence[Run], *, allow=()) -> Comparison:
    """Compare the runs `new` with `base`. Raises ValueError where chip, driver or method differ, unless `allow`
    names them, for quick runs, where the baseline is not the same, and where no case can be compared."""
    is_paired = new[0].base is base[0]
    differences = _differences(base, new, allow)
    runs = {**named_runs("BASE", base), **named_runs("NEW", new)}
    records_of_run = {name: {record["case"]: record for record in records_of(run)} for name, run in runs.items()}
    records = [*records_of_run.values()]
    pairs = _pairs([*zip(base, records, strict=False)], [*zip(new, records[len(base) :], strict=True)])
    changes = []
    missing = []
    of_contender = {}
    of_baselines = []
    for pair in pairs:
        record = pair.records[0]
        judged_by = pair.judged_by
        is_baseline = record["contender"] == record["baseline"]
        if len({record["baseline"] for record in pair.records}) > 1:
            raise ValueError(f"{pair.case}: the runs have no baseline in common to measure it by; take runs of one")
        if is_baseline and pair.on_one_wire:
            of_baselines.append(pair.speed("time_s"))
        if judged_by == SPEED and not pair.on_one_wire:
            reason = "judged by its time, and the wires differ: --ffn-wires-of=RUN takes those of another run"
            missing.append({"case": pair.case, "missing_in": NEITHER, "reason": reason})
            continue
        values = pair.values
        spreads = [[spread for of_run in side if (spread := spread_of([of_run]))] for side in values]
        if list(map(len, spreads)) != list(map(len, pair.sides)):
            alone = any(record["ratio_to_baseline"] is None for record in pair.records)
            reason = "no baseline was timed beside it" if alone else "too few rounds to say how far they vary"
            missing.append({"case": pair.case, "missing_in": "BASE or NEW", "reason": reason})
        if all(spreads) and not is_baseline:
            changed = change_of_pairs([values], judged_by) if is_paired else change(*spreads, of=judged_by)
            changes += [(pair, changed)] if changed else []
            if list(map(len, pair.sides)) == [len(base), len(new)]:
                of_contender.setdefault((record["contender"], judged_by), []).append(values)
    if not changes:
        raise ValueError("no case has a ratio to a baseline on both sides: nothing can be compared; measure it beside")
    of_cases = zip(changes, verdicts([change_ for _, change_ in changes]), strict=True)
    return Comparison(
        base_runs=len(base),
        new_runs=len(new),
        differences=differences,
        unfinished=[name for name, run in runs.items() if run.end is None or run.unfinished],
        together=_means(of_contender, change_of_pairs if is_paired else together),
        cases=[_case(*of_case, verdict) for of_case, verdict in of_cases],
        missing=missing + _missing(runs, records_of_run),
        baseline_speed=geometric_mean(of_baselines) if of_baselines else None,
    )


def _differences(base: Sequence[Run], new: Sequence[Run], allow) -> dict[str, tuple[str, str]]:
    """Return {condition: (BASE's, NEW's)} of those that differ. Raises ValueError for one that decides the numbers."""
    if any(run.metadata.get("options", {}).get("quick") for run in (*base, *new)):
        raise ValueError(
            "a quick run is for a first look, and too short to be compared: run both sides without --ffn-quick"
        )
    differences = {}
    for name in ALL:
        if not are_alike(condition(run.metadata, name) for run in (*base, *new)):
            differences[name] = (side_condition(base, name), side_condition(new, name))
    for name in NUMBERS:
        if name in differences and name not in allow:
            a, b = differences[name]
            raise ValueError(f"another {name}: BASE has {a}, NEW has {b}; --allow {name} compares them all the same")
    return differences


def _pairs(*sides: list[tuple[Run, dict[str, dict]]]) -> list[Pair]:
    """The cases that both sides have, each of some runs with their records by case. Raises ValueError where there is
    none."""
    pairs = []
    for case in dict.fromkeys(chain(*(records for _, records in sides[0]))):
        of_case = [[(run, records[case]) for run, records in side if case in records] for side in sides]
        if all(of_case):
            pairs.append(Pair(case, of_case))
    if not pairs:
        raise ValueError("the two sides have no case in common: nothing can be compared")
    return pairs


def _means(of_contender: dict[tuple[str, str], list], judge: Callable[..., Change | None]) -> list[Together]:
    """Return what contenders with several cases became in the mean."""
    means = {key: mean for key, cases in of_contender.items() if len(cases) > 1 and (mean := judge(cases, key[1]))}
    of_means = zip(means.items(), verdicts([*means.values()]), strict=True)
    return [Together(key[0], len(of_contender[key]), mean, verdict) for (key, mean), verdict in of_means]


def side_condition(runs: Sequence[Run], name: str) -> str:
    """A condition of `runs`; what differs among them is joined by `and`."""
    return AND.join(dict.fromkeys(condition(run.metadata, name) for run in runs))


def _case(pair: Pair, change_: Change, verdict: str) -> Case:
    times = [geometric_mean(record["time_s"] for _, record in side) for side in pair.sides]
    wires, notes = pair.wires, []
    if not pair.on_one_wire:
        notes.append(f"wire {wires[0] / 1e9:.3g} and {wires[1] / 1e9:.3g} GB/s")
    moved = pair.speed("baseline_time_s") if pair.on_one_wire else None
    if moved and abs(math.log(moved)) > math.log1p(MARGIN):
        notes.append(f"baseline {100 * abs(moved - 1):.1f} % {'faster' if moved > 1 else 'slower'}")
    return Case(pair.case, *times, change_, verdict, ", ".join(notes))


def named_runs(side: str, runs: Sequence[Run]) -> dict[str, Run]:
    """Return {`BASE`: run}, or {`BASE 1`: run, ...} of several."""
    return {side if len(runs) == 1 else f"{side} {number}": run for number, run in enumerate(runs, 1)}


def _missing(runs: dict[str, Run], records_of_run: dict[str, dict]) -> list[dict]:
    """Return {case, missing_in, reason} of the cases that some run measured and others did not."""
    lacking = []
    for name, run in runs.items():
        reasons = {entry["case"]: f"{entry['outcome'].replace('_', ' ')}: {entry['reason']}" for entry in run.missing}
        cases = [case for case in dict.fromkeys(chain(*records_of_run.values())) if case not in records_of_run[name]]
        lacking += [((case, reasons.get(case, "not asked for")), name) for case in cases]
    lacking_of = grouped(lacking).items()
    return [{"case": case, "missing_in": ", ".join(names), "reason": reason} for (case, reason), names in lacking_of]
