"""Two sides of one or more runs, case by case: what became faster, what slower, and what cannot be told.

A case is judged by its speed in NEW over its speed in BASE. Both speeds are taken relative to the baseline, which took
turns with the case in every run, so that what the machine did to both alike cancels. An arm that overlaps a wire is
judged by the share it hides, NEW's less BASE's, since the wire of a case differs from run to run where it was made for
the machine's pace of that minute; one that hides nothing by definition is compared where the wires are alike.

What a case alone cannot tell, the mean over all cases of a contender often does: that is judged in the same way, by
the processes' means. `changes` says how far a case changed, `verdicts` how that is told from no change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from roofline.analysis.changes import change_of_runs, values_of
from roofline.analysis.records import records_of
from roofline.analysis.verdicts import HIDDEN, MARGIN, SLOWER, SPEED, UNDECIDED, Change, verdicts
from roofline.store.conditions import NUMBERS, differences
from roofline.store.run import REQUESTED, Run
from roofline.store.stats import geometric_mean, grouped

SAME_WIRE = 0.01
"""Wires whose bytes/s are within this share of one another are alike."""
NOT_COMPARED = "not compared"
"""A case that both sides have: its wires differ, or it is void."""

Measured = list[tuple[Run, dict]]
"""(run, record) of those that measured a case."""


class CaseChange(NamedTuple):
    """The change of one case, or of a contender in the mean over the cases that all runs have of it. Times are
    geometric means over the runs of a side; a mean over cases has none."""

    case: str
    change: Change
    base_time_s: Any = None
    new_time_s: Any = None
    notes: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`."""

    base: Sequence[Run]
    new: Sequence[Run]
    differences: dict[str, tuple[str, str]]
    means: list[CaseChange]
    cases: list[CaseChange]
    missing: list[tuple[str, str, str]]
    """(where it is missing or `NOT_COMPARED`, why, case) of each that has no verdict in some run."""
    baseline_speed: float | None
    """Geometric mean of the baseline's own speed, NEW over BASE: how far the machine moved between the runs."""

    def count(self, verdict: str) -> int:
        return [case.verdict for case in self.cases].count(verdict)

    def exit_code(self, *, strict: bool = False) -> int:
        """1 where a case or a contender in the mean is slower; if `strict`, also where one is undecided or missing."""
        if any(row.verdict == SLOWER for row in (*self.cases, *self.means)):
            return 1
        is_missing = any(where != NOT_COMPARED for where, _, _ in self.missing)
        return int(strict and (is_missing or self.count(UNDECIDED) > 0))


class Pair:
    """A case, as the runs of BASE and those of NEW measured it: `sides` are (run, record) of each. Raises ValueError
    where they have no baseline in common."""

    def __init__(self, case: str, sides: tuple[Measured, Measured]):
        self.case = case
        self.sides = sides
        baseline, *others = dict.fromkeys(self.all_of("baseline"))
        if others:
            raise ValueError(f"{case}: the runs have no baseline in common to measure it by; take runs of one")
        self.contender = self.all_of("contender")[0]
        self.is_of_baseline = self.contender == baseline
        self.is_void = any(self.all_of("link_off_pace"))
        self.judged_by = SPEED if None in self.all_of("hidden_fraction") else HIDDEN
        base, new = self.wires = self.means(REQUESTED)
        """The bytes/s that the wire was asked for on each side; None without a wire."""
        self.on_one_wire = True
        if base and new:
            self.on_one_wire = max(base, new) / min(base, new) - 1 <= SAME_WIRE
        self.values = []
        """Those of each run, by sides."""
        for side in sides:
            self.values.append([values_of(run, record, self.judged_by) for run, record in side])
        self.telling = [list(filter(None, side)) for side in self.values]
        """The values of the runs that say something."""

    def all_of(self, field: str) -> list:
        """The values of a field in all runs' records."""
        return [record.get(field) for _, record in chain(*self.sides)]

    def means(self, field: str) -> list[Any]:
        """The geometric mean of a field on each side; None where a run lacks it."""
        means = []
        for side in self.sides:
            values = [record.get(field) for _, record in side]
            means.append(None if None in values else geometric_mean(values))
        return means

    def speed(self, field: str) -> float | None:
        """NEW's over BASE's, by a field of time, over wires that are alike; None where a run lacks it."""
        base_s, new_s = self.means(field)
        return base_s / new_s if base_s and new_s and self.on_one_wire else None

    def problem(self) -> tuple[str, str]:
        """Where it is missing, and why it cannot be compared in all runs; empty where it can. Times over wires that
        differ, or that missed their pace, say nothing in any run."""
        if self.is_void:
            return NOT_COMPARED, "void: its link was off its pace in one of the runs"
        if self.judged_by == SPEED and not self.on_one_wire:
            way_out = "--ffn-wires-of=RUN takes those of another run"
            return NOT_COMPARED, f"judged by its time, and the wires differ: {way_out}"
        if all(chain(*self.values)):
            return "", ""
        has_baseline = None not in self.all_of("ratio_to_baseline")
        reason = "too few rounds to say how far they vary" if has_baseline else "no baseline was timed beside it"
        return "missing in BASE or NEW", reason

    def row(self, change: Change) -> CaseChange:
        notes = []
        base, new = self.wires
        if not self.on_one_wire:
            notes.append(f"wire {base / 1e9:.3g} and {new / 1e9:.3g} GB/s")
        moved = self.speed("baseline_time_s")
        if moved and abs(math.log(moved)) > math.log1p(MARGIN):
            notes.append(f"baseline {100 * abs(moved - 1):.1f} % {'faster' if moved > 1 else 'slower'}")
        base_s, new_s = self.means("time_s")
        return CaseChange(self.case, change, base_s, new_s, ", ".join(notes))


def compare(base: Sequence[Run], new: Sequence[Run], *, allow=()) -> Comparison:
    """Compare the runs `new` with `base`. Raises ValueError where chip, driver or method differ, unless `allow`
    names them, for a side of one quick run, where the baseline is not the same, and where no case can be compared."""
    changed = _differences(base, new, allow)
    runs = named_runs("BASE", base) | named_runs("NEW", new)
    measured = _measured(base, new)
    pairs = [Pair(case, sides) for case, sides in measured.items() if all(sides)]
    if not pairs:
        raise ValueError("the two sides have no case in common: nothing can be compared")
    judged = []
    missing = []
    for pair in pairs:
        where, reason = pair.problem()
        if where:
            missing.append((where, reason, pair.case))
        if where != NOT_COMPARED and all(pair.telling) and not pair.is_of_baseline:
            judged.append(pair)
    return Comparison(
        base=base,
        new=new,
        differences=changed,
        means=_means(judged, len(runs)),
        cases=_cases(judged),
        missing=missing + _missing(runs, measured),
        baseline_speed=_baseline_speed(pairs),
    )


def _baseline_speed(pairs: list[Pair]) -> float | None:
    own = [pair.speed("time_s") for pair in pairs if pair.is_of_baseline and not pair.is_void]
    speeds = list(filter(None, own))
    return geometric_mean(speeds) if speeds else None


def _cases(pairs: list[Pair]) -> list[CaseChange]:
    """The cases that some runs of both sides tell of. Raises ValueError where there is none."""
    cases = []
    for pair in pairs:
        if change := change_of_runs([pair.telling], pair.judged_by):
            cases.append(pair.row(change))
    if not cases:
        raise ValueError("no case has a ratio to a baseline on both sides: nothing can be compared; measure it beside")
    return _with_verdicts(cases)


def _means(pairs: list[Pair], run_count: int) -> list[CaseChange]:
    """The changes of contenders in the mean over the cases that all runs measured, where these are several."""
    values_of_contender: dict[tuple, list] = {}
    for pair in pairs:
        if sum(map(len, pair.sides)) == run_count:
            key = pair.contender, pair.judged_by
            values_of_contender.setdefault(key, []).append(pair.values)
    means = []
    for (contender, judged_by), values in values_of_contender.items():
        change = change_of_runs(values, judged_by)
        if change and len(values) > 1:
            means.append(CaseChange(f"{contender} in the mean over {len(values)} cases", change))
    return _with_verdicts(means)


def _with_verdicts(rows: list[CaseChange]) -> list[CaseChange]:
    """The rows with the verdicts on them, which are tested at once."""
    words = verdicts([row.change for row in rows])
    return [row._replace(verdict=word) for row, word in zip(rows, words, strict=True)]


def _differences(base: Sequence[Run], new: Sequence[Run], allow) -> dict[str, tuple[str, str]]:
    """{condition: (BASE's, NEW's)} of those that differ. Raises ValueError for one that decides the numbers."""
    for side in (base, new):
        if len(side) == 1 and side[0].metadata.get("options", {}).get("quick"):
            raise ValueError(
                "a single quick run is too short to be compared: take several a side, or run without --ffn-quick"
            )
    changed = differences([run.metadata for run in base], [run.metadata for run in new])
    for name, (base_words, new_words) in changed.items():
        if name in NUMBERS and name not in allow:
            raise ValueError(
                f"another {name}: BASE has {base_words}, NEW has {new_words}; --allow {name} compares them all the same"
            )
    return changed


def _measured(*sides: Sequence[Run]) -> dict[str, tuple[Measured, Measured]]:
    """{case: (run, record) of those of BASE that measured it, and of those of NEW}."""
    measured: dict[str, tuple[Measured, Measured]] = {}
    for side, runs in enumerate(sides):
        for run in runs:
            for record in records_of(run):
                sides_of_case = measured.setdefault(record["case"], ([], []))
                sides_of_case[side].append((run, record))
    return measured


def named_runs(side: str, runs: Sequence[Run]) -> dict[str, Run]:
    """{`BASE`: run}, or {`BASE 1`: run, ...} of several."""
    if len(runs) == 1:
        return {side: runs[0]}
    return {f"{side} {number}": run for number, run in enumerate(runs, 1)}


def _missing(runs: dict[str, Run], cases: Iterable[str]) -> list[tuple[str, str, str]]:
    """The cases that some run measured and others did not, as `Comparison.missing`."""
    lacking = []
    for name, run in runs.items():
        reasons = {}
        for outcome in run.missing:
            reasons[outcome.case] = f"{outcome.outcome.replace('_', ' ')}: {outcome.reason}"
        measured = {record["case"] for record in records_of(run)}
        for case in cases:
            if case not in measured:
                lacking.append(((case, reasons.get(case, "not asked for")), name))
    missing = []
    for (case, reason), names in grouped(lacking).items():
        missing.append((f"missing in {', '.join(names)}", reason, case))
    return missing
