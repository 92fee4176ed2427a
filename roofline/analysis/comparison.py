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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from roofline.analysis.changes import Sides, change_of_pairs, change_of_runs, values_of
from roofline.analysis.records import records_of
from roofline.analysis.verdicts import HIDDEN, MARGIN, SLOWER, SPEED, UNDECIDED, Change, verdicts
from roofline.store.conditions import ALL, NUMBERS, are_alike, condition
from roofline.store.run import Run
from roofline.store.stats import geometric_mean

SAME_WIRE = 0.01
"""Wires whose bytes/s are within this share of one another are alike."""
Records = dict[str, dict]
"""{case: its record} of a run."""
ChangeOf = Callable[[Sequence[Sides], str], Change | None]
NEITHER = "neither"
"""Lacks a case that both sides have and that is not compared: its wires differ."""


class Case(NamedTuple):
    """One case of both sides. Times are geometric means over the runs of a side."""

    case: str
    base_time_s: float
    new_time_s: float
    change: Change
    notes: str
    verdict: str = ""


class Mean(NamedTuple):
    """A contender's change in the mean over the cases that all runs have of it."""

    contender: str
    cases: int
    change: Change
    verdict: str = ""


class Missing(NamedTuple):
    """A case that some run lacks, or that is not compared, and why."""

    case: str
    missing_in: str
    reason: str


@dataclass(frozen=True)
class Comparison:
    """What `compare` found."""

    base_runs: int
    new_runs: int
    differences: dict[str, tuple[str, str]]
    unfinished: list[str]
    """Which runs were cut short."""
    means: list[Mean]
    cases: list[Case]
    missing: list[Missing]
    baseline_speed: float | None
    """Geometric mean of the baseline's own speed, NEW over BASE: how far the machine moved between the runs."""

    def count(self, verdict: str) -> int:
        return [case.verdict for case in self.cases].count(verdict)

    def exit_code(self, *, strict: bool = False) -> int:
        """1 where a case or a contender in the mean is slower; if `strict`, also where one is undecided or missing."""
        if any(row.verdict == SLOWER for row in (*self.cases, *self.means)):
            return 1
        is_missing = any(case.missing_in != NEITHER for case in self.missing)
        return int(strict and (is_missing or self.count(UNDECIDED) > 0))


@dataclass(frozen=True)
class Pair:
    """A case that both sides have: of each, the runs that measured it with their records."""

    case: str
    sides: list[list[tuple[Run, dict]]]

    @cached_property
    def records(self) -> list[dict]:
        return [record for _, record in chain(*self.sides)]

    def of_all(self, field: str) -> list:
        """What each run's record has of a field."""
        return [record.get(field) for record in self.records]

    def means(self, field: str) -> list[float | None]:
        """The geometric mean of a field on each side; None where a run lacks it."""
        values = self.of_all(field)
        base_runs = len(self.sides[0])
        means = []
        for of_side in (values[:base_runs], values[base_runs:]):
            means.append(None if None in of_side else geometric_mean(of_side))
        return means

    def speed(self, field: str) -> float | None:
        """NEW's over BASE's, by a field of time; None where a run lacks it."""
        base_s, new_s = self.means(field)
        return base_s / new_s if base_s and new_s else None

    @cached_property
    def wires(self) -> list[float | None]:
        """The bytes/s that the wire was asked for on each side; None without a wire."""
        return self.means("link_bytes_per_s_requested")

    @property
    def on_one_wire(self) -> bool:
        return None in self.wires or max(self.wires) / min(self.wires) - 1 <= SAME_WIRE

    @property
    def is_of_baseline(self) -> bool:
        record = self.records[0]
        return record["contender"] == record["baseline"]

    @cached_property
    def judged_by(self) -> str:
        return SPEED if None in self.of_all("hidden_fraction") else HIDDEN

    @cached_property
    def values(self) -> Sides:
        """What each run says. Nothing can be said of times over wires that differ."""
        if self.judged_by == SPEED and not self.on_one_wire:
            return [[], []]
        values = []
        for side in self.sides:
            values.append([values_of(run, record, self.judged_by) for run, record in side])
        return values

    @property
    def comparable(self) -> Sides:
        """The `values` of the runs that say something."""
        return [list(filter(None, side)) for side in self.values]

    def problem(self) -> Missing | None:
        """Why it cannot be compared in all runs, if there is a reason."""
        if self.values == [[], []]:
            reason = "judged by its time, and the wires differ: --ffn-wires-of=RUN takes those of another run"
            return Missing(self.case, NEITHER, reason)
        if all(chain(*self.values)):
            return None
        reason = "too few rounds to say how far they vary"
        if None in self.of_all("ratio_to_baseline"):
            reason = "no baseline was timed beside it"
        return Missing(self.case, "BASE or NEW", reason)

    def row(self, change: Change) -> Case:
        notes = []
        if not self.on_one_wire:
            base, new = self.wires
            notes.append(f"wire {base / 1e9:.3g} and {new / 1e9:.3g} GB/s")
        moved = self.speed("baseline_time_s") if self.on_one_wire else None
        if moved and abs(math.log(moved)) > math.log1p(MARGIN):
            notes.append(f"baseline {100 * abs(moved - 1):.1f} % {'faster' if moved > 1 else 'slower'}")
        return Case(self.case, *self.means("time_s"), change, ", ".join(notes))


def compare(base: Sequence[Run], new: Sequence[Run], *, allow=()) -> Comparison:
    """Compare the runs `new` with `base`. Raises ValueError where chip, driver or method differ, unless `allow`
    names them, for quick runs, where the baseline is not the same, and where no case can be compared."""
    differences = _differences(base, new, allow)
    runs = named_runs("BASE", base) | named_runs("NEW", new)
    records_of_run = {}
    unfinished = []
    for name, run in runs.items():
        records_of_run[name] = {record["case"]: record for record in records_of(run)}
        if run.end is None or run.unfinished:
            unfinished.append(name)
    pairs = _pairs(base, new, [*records_of_run.values()])
    judged = []
    missing = []
    for pair in pairs:
        if problem := pair.problem():
            missing.append(problem)
        if not pair.is_of_baseline and all(pair.comparable):
            judged.append(pair)
    change_of = change_of_pairs if new[0].base is base[0] else change_of_runs
    return Comparison(
        base_runs=len(base),
        new_runs=len(new),
        differences=differences,
        unfinished=unfinished,
        means=_means(judged, len(runs), change_of),
        cases=_cases(judged, change_of),
        missing=missing + _missing(runs, records_of_run),
        baseline_speed=_baseline_speed(pairs),
    )


def _baseline_speed(pairs: list[Pair]) -> float | None:
    speeds = []
    for pair in pairs:
        if pair.is_of_baseline and pair.on_one_wire:
            speeds.append(pair.speed("time_s"))
    return geometric_mean(speeds) if speeds else None


def _cases(pairs: list[Pair], change_of: ChangeOf) -> list[Case]:
    """The cases that some runs of both sides tell of. Raises ValueError where there is none."""
    cases = []
    for pair in pairs:
        if change := change_of([pair.comparable], pair.judged_by):
            cases.append(pair.row(change))
    if not cases:
        raise ValueError("no case has a ratio to a baseline on both sides: nothing can be compared; measure it beside")
    return _with_verdicts(cases)


def _means(pairs: list[Pair], run_count: int, change_of: ChangeOf) -> list[Mean]:
    """What contenders became in the mean over the cases that all runs measured, where these are several."""
    of_contender: dict[tuple[str, str], list[Sides]] = {}
    for pair in pairs:
        if len(pair.records) == run_count:
            key = pair.records[0]["contender"], pair.judged_by
            of_contender.setdefault(key, []).append(pair.values)
    means = []
    for (contender, judged_by), values in of_contender.items():
        change = change_of(values, judged_by)
        if change and len(values) > 1:
            means.append(Mean(contender, len(values), change))
    return _with_verdicts(means)


def _with_verdicts(rows: list) -> list:
    """The rows with the verdicts on them, which are tested at once."""
    words = verdicts([row.change for row in rows])
    return [row._replace(verdict=word) for row, word in zip(rows, words, strict=True)]


def _differences(base: Sequence[Run], new: Sequence[Run], allow) -> dict[str, tuple[str, str]]:
    """{condition: (BASE's, NEW's)} of those that differ. Raises ValueError for one that decides the numbers."""
    for run in (*base, *new):
        if run.metadata.get("options", {}).get("quick"):
            raise ValueError(
                "a quick run is for a first look, and too short to be compared: run both sides without --ffn-quick"
            )
    differences = {}
    for name in ALL:
        of_base = [condition(run.metadata, name) for run in base]
        of_new = [condition(run.metadata, name) for run in new]
        if are_alike(of_base + of_new):
            continue
        differences[name] = " and ".join(dict.fromkeys(of_base)), " and ".join(dict.fromkeys(of_new))
        if name in NUMBERS and name not in allow:
            base_words, new_words = differences[name]
            raise ValueError(
                f"another {name}: BASE has {base_words}, NEW has {new_words}; --allow {name} compares them all the same"
            )
    return differences


def _pairs(base: Sequence[Run], new: Sequence[Run], records_of_run: list[Records]) -> list[Pair]:
    """The cases that both sides have. Raises ValueError where there is none, and where a case has no baseline in
    common."""
    pairs = []
    base_records = records_of_run[: len(base)]
    new_records = records_of_run[len(base) :]
    for case in dict.fromkeys(chain(*base_records)):
        pair = Pair(case, [_having(case, base, base_records), _having(case, new, new_records)])
        if all(pair.sides):
            pairs.append(pair)
            if len(set(pair.of_all("baseline"))) > 1:
                raise ValueError(f"{case}: the runs have no baseline in common to measure it by; take runs of one")
    if not pairs:
        raise ValueError("the two sides have no case in common: nothing can be compared")
    return pairs


def _having(case: str, runs: Sequence[Run], records_of_run: list[Records]) -> list[tuple[Run, dict]]:
    """The runs of a side that measured the case, with their records of it."""
    having = []
    for run, records in zip(runs, records_of_run, strict=True):
        if case in records:
            having.append((run, records[case]))
    return having


def named_runs(side: str, runs: Sequence[Run]) -> dict[str, Run]:
    """{`BASE`: run}, or {`BASE 1`: run, ...} of several."""
    if len(runs) == 1:
        return {side: runs[0]}
    return {f"{side} {number}": run for number, run in enumerate(runs, 1)}


def _missing(runs: dict[str, Run], records_of_run: dict[str, Records]) -> list[Missing]:
    """The cases that some run measured and others did not."""
    runs_without: dict[tuple[str, str], list[str]] = {}
    cases = dict.fromkeys(chain(*records_of_run.values()))
    for name, run in runs.items():
        reasons = dict.fromkeys(cases, "not asked for")
        for lacking in run.missing:
            reasons[lacking.case] = f"{lacking.outcome.replace('_', ' ')}: {lacking.reason}"
        for case in cases:
            if case not in records_of_run[name]:
                runs_without.setdefault((case, reasons[case]), []).append(name)
    missing = []
    for (case, reason), names in runs_without.items():
        missing.append(Missing(case, ", ".join(names), reason))
    return missing
