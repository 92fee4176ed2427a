"""Two sides of one or more runs, case by case: what became faster, what slower, and what cannot be told.

A case is judged by its speed in NEW over its speed in BASE. Both speeds are taken relative to the baseline, which took
turns with the case in every run (`by="ratio"`), so that what the machine did to both alike cancels; or plainly, by time
(`by="time"`), where the baseline itself is under test or changed. An arm that overlaps a wire is judged by the share it
hides, NEW's less BASE's, since the wire of a case differs from run to run where it was made for the machine's pace of
that minute; one that hides nothing by definition is compared where the wires are alike.

A run says the mean over its processes (of a single one: over its blocks) of the logarithm of the speed, and how far it
varies. What moves a whole run shows in no run alone: `BETWEEN_RUNS` is added, with the weight of `KNOWN` degrees of
freedom. Where a side has several runs, their own spread is pooled with that, and taken alone where it is larger. The
interval is Student's at 95 %, by Welch's and Satterthwaite's degrees of freedom. With a margin of 3 %:

    FASTER    no change is refuted, and NEW was faster by more than the margin
    SLOWER    no change is refuted, and NEW was slower by more than the margin
    SAME      the whole interval lies within the margin
    UNCLEAR   anything else

What a case alone cannot tell, the mean over all cases of a contender often does: that is judged in the same way, by
the processes' means.

FASTER and SLOWER hold for all cases at once: the two-sided tests of no change are corrected by Holm (1979), so that of
20 comparisons of equal machines one calls any case changed. Intervals are those of each case alone.
`tests/roofline/test_compare.py` measures coverage, false verdicts and power on made-up runs whose spread is known;
docs/how.md has how far runs of one machine agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import chain
from statistics import fmean, variance
from typing import TYPE_CHECKING

from roofline.analysis.overlap import unsplit_times_s
from roofline.analysis.records import records_of
from roofline.report import tables
from roofline.report.format import error_text, interval_text, time_text
from roofline.stats import BLOCKS, Interval, beyond, by_process, geometric_mean, grouped, student_quantile
from roofline.store.conditions import NUMBERS, conditions
from roofline.store.run import Run
from roofline.theory.simulator import hidden_fraction

if TYPE_CHECKING:
    from pandas import DataFrame

FASTER, SLOWER, SAME, UNCLEAR = "FASTER", "SLOWER", "SAME", "UNCLEAR"
SPEED, HIDDEN = "speed", "hidden"
"""What a case is judged by."""
MARGIN = 0.03
LEVEL = 0.05
"""The chance that any of the equal cases of a comparison is called changed."""
BETWEEN_RUNS = 0.013
"""Standard deviation from run to run of the logarithm of a speed, beyond what varies within a run: so much covers
made-up runs of up to 1.4 %. docs/how.md says what committed runs have; a GPU's is not known."""
KNOWN = 16
"""Degrees of freedom that it counts for: of 8, 16 and 24, that with which made-up runs kept coverage and power best."""
SAME_WIRE = 0.01
"""Wires whose bytes/s are within this share of one another are alike."""
AND = " and "
NEITHER = "neither"
"""Lacks a case that both sides have and that is not compared: its wires differ."""
SCHEMA = 4


@dataclass(frozen=True)
class Spread:
    """What one run says of a case: the logarithm of its speed, the variance of that, its degrees of freedom."""

    value: float
    variance: float
    freedom: int


@dataclass(frozen=True)
class Change:
    """The logarithm of NEW's speed over BASE's, or what it hides more; the standard error of that, and its degrees of
    freedom."""

    value: float
    error: float
    freedom: int
    of: str = SPEED

    @property
    def interval(self) -> Interval:
        """Of the speed, or of what is hidden more, at 95 %."""
        half = student_quantile(self.freedom) * self.error
        values = (self.value + step for step in (0, -half, half))
        return Interval(*(map(math.exp, values) if self.of == SPEED else values))

    @property
    def resolution(self) -> float:
        """Return the least change that its interval tells from none: of the speed, or of what is hidden."""
        half = student_quantile(self.freedom) * self.error
        return math.expm1(half) if self.of == SPEED else half

    @property
    def chance(self) -> float:
        """Return the chance that equal machines differ as far: the two-sided test of no change."""
        return beyond(self.value / self.error, self.freedom)

    def within(self, margin: float) -> bool:
        """Return whether the whole interval lies within `margin`."""
        return abs(self.value) + student_quantile(self.freedom) * self.error <= math.log1p(margin)


@dataclass(frozen=True)
class Case:
    """One case of both sides. Times and wires are geometric means over the runs of a side. `change` is of the speed,
    NEW's over BASE's, above 1 where NEW is faster, or of the hidden fraction, NEW's less BASE's, as `judged_by` says;
    with its 95 % interval."""

    case: str
    base_time_s: float
    new_time_s: float
    base_wire_bytes_per_s: float | None
    new_wire_bytes_per_s: float | None
    judged_by: str
    change: float
    change_low: float
    change_high: float
    verdict: str
    resolution: float
    """A smaller change, of the speed as a share, would not have been told from none in this case alone."""
    baseline_speed: float | None
    """The baseline's own on this shape, NEW's over BASE's; None where it goes over another wire."""
    notes: str


@dataclass(frozen=True)
class Together:
    """A contender's change in the mean over the cases that all runs have of it, as a `Case` has it."""

    contender: str
    cases: int
    judged_by: str
    change: float
    change_low: float
    change_high: float
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. `missing` says which cases a run lacks, and what it says about them."""

    by: str
    margin: float
    base_runs: int
    new_runs: int
    differences: dict[str, tuple[str, str]]
    unfinished: list[str]
    """Which runs were cut short."""
    together: list[Together]
    cases: list[Case]
    missing: list[dict]
    vendor_speed: float | None
    """Geometric mean of the baseline's own speed, NEW over BASE: how far the machine moved between the runs."""

    def count(self, verdict: str) -> int:
        return sum(case.verdict == verdict for case in self.cases)

    def exit_code(self, *, strict: bool = False) -> int:
        """1 where a case or a contender in the mean is slower; if `strict`, also where a case is unclear or missing."""
        slower = self.count(SLOWER) or any(mean.verdict == SLOWER for mean in self.together)
        missing = any(case["missing_in"] != NEITHER for case in self.missing)
        return int(bool(slower or (strict and (self.count(UNCLEAR) or missing))))


def compare(
    base: Sequence[Run], new: Sequence[Run], *, by: str = "ratio", margin: float = MARGIN, allow=(), quick: bool = False
) -> Comparison:
    """Compare the runs `new` with `base`. Raises ValueError where chip, driver or method differ, unless `allow`
    names them, for quick runs unless `quick`, where `by` is `ratio` and the baseline is not the same, and where no case
    can be compared."""
    if not quick and any(run.metadata.get("options", {}).get("quick") for run in (*base, *new)):
        raise ValueError(
            "a quick run is for a first look, and too short to be compared: run both sides without --ffn-quick, or say "
            "--quick to compare them all the same"
        )
    a, b = side_conditions(base), side_conditions(new)
    differ = {name: (a[name], b[name]) for name in a if a[name] != b[name] or AND in a[name]}
    for name in NUMBERS:
        if name in differ and name not in allow:
            raise ValueError(
                f"another {name}: BASE has {a[name]}, NEW has {b[name]}; --allow {name} compares them all the same"
            )
    records_of_side = [[{record["case"]: record for record in records_of(run)} for run in runs] for runs in (base, new)]
    common = [
        case
        for case in dict.fromkeys(chain(*records_of_side[0]))
        if any(case in records for records in records_of_side[1])
    ]
    if not common:
        raise ValueError("the two sides have no case in common: nothing can be compared")
    changes, unpaired, vendors, whole = [], [], [], {}
    for case in common:
        sides = [
            [(run, of[case]) for run, of in zip(runs, records, strict=True) if case in of]
            for runs, records in zip((base, new), records_of_side, strict=True)
        ]
        record = sides[0][0][1]
        is_vendor, alike = record["contender"] == record["vendor"], _alike([_wire(side) for side in sides])
        if is_vendor and alike:
            vendors.append(_speed(sides, "time_s"))
        hides = by == "ratio" and all(record.get("hidden_fraction") is not None for _, record in chain(*sides))
        of = HIDDEN if hides else SPEED
        values = [[values_of(run, record, HIDDEN if hides else by) for run, record in side] for side in sides]
        if of == SPEED and not alike:
            reason = "judged by its time, and the wires differ: --ffn-wires-of=RUN takes those of another run"
            unpaired.append({"case": case, "missing_in": NEITHER, "reason": reason})
            continue
        spreads = [[s for of_run in of_side if (s := spread_of([of_run]))] for of_side in values]
        if by == "ratio" and len({record["vendor"] for _, record in chain(*sides)}) > 1:
            raise ValueError(f"{case}: the runs have no baseline in common to measure it by; say --by time")
        if list(map(len, spreads)) != list(map(len, sides)):
            alone = by == "ratio" and any(record["ratio_to_vendor"] is None for _, record in chain(*sides))
            reason = "no baseline was timed beside it" if alone else "too few rounds to say how far they vary"
            unpaired.append({"case": case, "missing_in": "BASE or NEW", "reason": reason})
        if all(spreads) and (by == "time" or not is_vendor):
            changes.append((case, sides, change(*spreads, of=of)))
            if list(map(len, sides)) == [len(base), len(new)]:
                whole.setdefault((record["contender"], of), []).append(values)
    if not changes:
        raise ValueError("no case has a ratio to a baseline on both sides: nothing can be compared; say --by time")
    of_cases = verdicts([of_case for _, _, of_case in changes], margin)
    cases = [_case(*case, verdict, margin) for case, verdict in zip(changes, of_cases, strict=True)]
    of_all = {key: mean for key, values in whole.items() if len(values) > 1 and (mean := together(values, of=key[1]))}
    verdicts_of = dict(zip(of_all, verdicts([*of_all.values()], margin), strict=True))
    means = [
        Together(who, len(whole[who, of]), of, *astuple(mean.interval), verdicts_of[who, of])
        for (who, of), mean in of_all.items()
    ]
    runs = {**_named("BASE", base), **_named("NEW", new)}
    unfinished = [name for name, run in runs.items() if run.end is None or run.unfinished]
    missing = unpaired + _missing(runs, dict(zip(runs, chain(*records_of_side), strict=True)))
    moved = geometric_mean(vendors) if vendors else None
    return Comparison(by, margin, len(base), len(new), differ, unfinished, means, cases, missing, moved)


def side_conditions(runs: Sequence[Run]) -> dict[str, str]:
    """Return the conditions of all `runs`; what differs among them is joined by `and`."""
    each = [conditions(run.metadata) for run in runs]
    return {name: AND.join(dict.fromkeys(conditions_of_run[name] for conditions_of_run in each)) for name in each[0]}


def values_of(run: Run, record: dict, by: str = "ratio") -> dict[int, float]:
    """Return {process: logarithm of the speed, or the hidden fraction} of the case of `record`; of a single process
    {block: ...}; {} without ratio."""
    shape = run.shapes[record["shape"]]
    series, groups = [shape.times_s(record["contender"])], shape.groups
    if by == HIDDEN:
        series = [*unsplit_times_s(shape), *series]
    elif by == "ratio":
        if record["ratio_to_vendor"] is None:
            return {}
        series.append(shape.anchor)
    if len({process for process, _ in groups.values()}) == 1:  # its blocks take the place of processes
        whole = len(set(groups.values())) >= BLOCKS
        groups = {
            index: (groups[index][1] if whole else place * BLOCKS // len(groups), 0)
            for place, index in enumerate(sorted(groups))
        }
    if by == HIDDEN:
        return by_process(hidden_fraction, *series, groups=groups, anchor=shape.anchor)
    of = by_process(lambda own_s, vendor_s=1.0: vendor_s / own_s, *series, groups=groups, anchor=shape.anchor)
    return {process: math.log(value) for process, value in of.items()}


def _wire(side: list) -> float | None:
    """Return the bytes/s that the wire of a case was asked for in the runs of a `side`; None without a wire."""
    asked = [record.get("link_bytes_per_s_requested") for _, record in side]
    return None if None in asked else geometric_mean(asked)


def _alike(wires: Sequence[float | None]) -> bool:
    return None in wires or max(wires) / min(wires) - 1 <= SAME_WIRE


def spread_of(each: Sequence[dict[int, float]]) -> Spread | None:
    """Of the mean over some cases, by the `values_of` each; None where fewer than two processes have all of them."""
    means = [
        fmean(values_of_run[process] for values_of_run in each)
        for process in each[0]
        if all(process in values_of_run for values_of_run in each)
    ]
    return Spread(fmean(means), variance(means) / len(means), len(means) - 1) if len(means) > 1 else None


def together(cases: Sequence[Sequence[Sequence[dict[int, float]]]], of: str = SPEED) -> Change | None:
    """Return the change of the mean over `cases`: of each, for BASE and for NEW, the `values_of` every run."""
    spreads = [[spread_of(each) for each in zip(*side, strict=True)] for side in zip(*cases, strict=True)]
    return None if None in chain(*spreads) else change(*spreads, of=of)


def change(base: Sequence[Spread], new: Sequence[Spread], of: str = SPEED) -> Change:
    """NEW over BASE, by what the runs of each say of one case."""
    runs = [*base, *new]
    within = fmean(run.variance for run in runs)
    of_one = within + BETWEEN_RUNS**2
    noise = sum((run.variance / len(runs)) ** 2 / run.freedom for run in runs)
    degrees = min(KNOWN, of_one**2 / noise) if noise else KNOWN
    means = [fmean(run.value for run in side) for side in (base, new)]
    spread = sum((run.value - mean) ** 2 for side, mean in zip((base, new), means, strict=True) for run in side)
    degrees_of_runs = len(runs) - 2
    pooled = max((degrees * of_one + spread) / (degrees + degrees_of_runs), spread / max(1, degrees_of_runs))
    error = math.sqrt(pooled * (1 / len(base) + 1 / len(new)))
    return Change(means[1] - means[0], error, int(degrees + degrees_of_runs), of)


def verdicts(changes: Sequence[Change], margin: float = MARGIN) -> list[str]:
    """FASTER, SLOWER, SAME or UNCLEAR of each of all the cases that are tested at once."""
    refuted = holm([change_.chance for change_ in changes])
    return [
        (FASTER if change_.value > 0 else SLOWER) if sure and abs(change_.value) > math.log1p(margin)
        else SAME if change_.within(margin) else UNCLEAR
        for change_, sure in zip(changes, refuted, strict=True)
    ]  # fmt: skip


def holm(chances: Sequence[float]) -> list[bool]:
    """Return which tests are refuted, so that the chance that any falsely is stays within `LEVEL` (Holm 1979)."""
    refuted = [False] * len(chances)
    for rank, index in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        if chances[index] > LEVEL / (len(chances) - rank):
            break
        refuted[index] = True
    return refuted


def _speed(sides: list, field: str) -> float | None:
    """NEW's over BASE's by geometric means of a time; None where a run lacks it."""
    times = [[record[field] for _, record in side] for side in sides]
    return None if None in chain(*times) else geometric_mean(times[0]) / geometric_mean(times[1])


def _case(case: str, sides: list, change_: Change, verdict: str, margin: float) -> Case:
    times = [geometric_mean(record["time_s"] for _, record in side) for side in sides]
    wires = [_wire(side) for side in sides]
    moved, note = _speed(sides, "vendor_time_s") if _alike(wires) else None, ""
    if moved and abs(math.log(moved)) > math.log1p(margin):
        note = f"baseline {100 * abs(moved - 1):.1f} % {'faster' if moved > 1 else 'slower'}"
    if not _alike(wires):
        note = ", ".join(filter(None, [f"wire {wires[0] / 1e9:.3g} and {wires[1] / 1e9:.3g} GB/s", note]))
    return Case(case, *times, *wires, change_.of, *astuple(change_.interval), verdict, change_.resolution, moved, note)


def _named(side: str, runs: Sequence[Run]) -> dict[str, Run]:
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


def change_text(row: Case | Together) -> str:
    """Return `speed 1.031 [1.024, 1.040] x`, or `hidden +0.02 [-0.01, +0.05]`."""
    if row.judged_by == SPEED:
        return f"speed {interval_text(row.change, row.change_low, row.change_high)} x"
    return f"hidden {row.change:+.2f} [{row.change_low:+.2f}, {row.change_high:+.2f}]"


COLUMNS = {
    "case": lambda row: row.case,
    "base": lambda row: time_text(row.base_time_s),
    "new": lambda row: time_text(row.new_time_s),
    "speed, new / base; hidden, new - base [95 %]": change_text,
    "verdict": lambda row: row.verdict,
    "least change seen": lambda row: error_text(row.resolution),
    "notes": lambda row: row.notes,
}


def _table(cases: Sequence[Case]) -> DataFrame:
    return tables.written(cases, COLUMNS)


def summary(comparison: Comparison) -> list[str]:
    """Return what the verdicts rest on, and their counts, in lines."""
    counts = ", ".join(f"{comparison.count(verdict)} {verdict}" for verdict in (SLOWER, FASTER, SAME, UNCLEAR))
    against = "relative to the baseline in each run" if comparison.by == "ratio" else "by time alone"
    tests = len(comparison.cases)
    lines = [
        f"{counts} of {tests} cases, {against}, margin {100 * comparison.margin:g} %, runs: "
        f"{comparison.base_runs} BASE, "
        f"{comparison.new_runs} NEW",
        f"SLOWER, FASTER: corrected for {tests} tests (Holm, {100 * LEVEL:g} % that any is false); intervals are not",
        *(
            f"{mean.verdict} {mean.contender} in the mean over {mean.cases} cases, {change_text(mean)}"
            for mean in comparison.together
        ),
    ]
    if comparison.vendor_speed:
        lines.append(f"the baseline's own speed moved by {100 * (comparison.vendor_speed - 1):+.1f} % between the runs")
    lines += [f"{name} was cut short: it may have few rounds" for name in comparison.unfinished]
    lines += [f"{name}: BASE has {a}, NEW has {b}" for name, (a, b) in comparison.differences.items()]
    missing = grouped(((m["missing_in"], m["reason"]), m["case"]) for m in comparison.missing).items()
    lacks = {where: "not compared" if where == NEITHER else f"missing in {where}" for (where, _), _ in missing}
    return [*lines, *(f"{lacks[where]}: {tables.named(cases)}: {why}" for (where, why), cases in missing)]


def terminal(comparison: Comparison) -> list[str]:
    return [*tables.terminal(_table(comparison.cases)), "", *summary(comparison)]


def markdown(comparison: Comparison, base: Sequence[Run], new: Sequence[Run]) -> str:
    """Return the text for a pull request: the counts first, what changed in the open, the rest folded away."""
    changed = [case for case in comparison.cases if case.verdict in (SLOWER, FASTER)]
    parts = ["\n".join(f"- {line}" for line in summary(comparison))]
    if changed:
        parts.append(tables.markdown(_table(changed)))
    table = tables.markdown(_table(comparison.cases))
    parts.append(f"<details><summary>all {len(comparison.cases)} cases</summary>\n\n{table}\n\n</details>")
    runs = {**_named("BASE", base), **_named("NEW", new)}
    parts.append("  \n".join(f"{name}: {run.metadata['footer']}" for name, run in runs.items()))
    return "\n\n".join(parts)


def as_json(comparison: Comparison, base: Sequence[Run], new: Sequence[Run], *, strict: bool) -> dict:
    """Plain values; results/README.md documents them."""
    return {
        "schema": SCHEMA,
        **asdict(comparison),
        "base": side_conditions(base),
        "new": side_conditions(new),
        "counts": {name: comparison.count(name) for name in (SLOWER, FASTER, SAME, UNCLEAR)},
        "exit_code": comparison.exit_code(strict=strict),
    }
