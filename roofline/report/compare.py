"""Two runs, case by case: what became faster, what slower, and what the samples cannot tell.

A case is judged by its speed in NEW over its speed in BASE. Both speeds are taken relative to the vendor, which took
turns with the case in either run (`by="ratio"`), so that what the machine did to both alike cancels; or plainly, by
time (`by="time"`), where the vendor itself is under test or changed. Intervals come from the rounds of each run and are
joined by the method of variance estimates recovery (Zou and Donner 2008) on logarithms. With a margin of 3 %:

    FASTER    the whole interval lies above 1.03
    SLOWER    the whole interval lies below 1/1.03
    SAME      the whole interval lies between the two
    UNCLEAR   anything else: the samples allow more than one of these

`tests/roofline/test_compare.py` measures how often equal runs are called FASTER or SLOWER. What rounds cannot show, and
no interval here includes, is what changes from one process to the next: where memory came to lie, who else was there.
"""

import math
from dataclasses import asdict, astuple, dataclass

from roofline.analysis.base import Column
from roofline.report import tables
from roofline.report.format import interval_text, time_text
from roofline.stats import Interval, geometric_mean
from roofline.store.conditions import NUMBERS, conditions, differences
from roofline.store.run import Run

FASTER, SLOWER, SAME, UNCLEAR = "FASTER", "SLOWER", "SAME", "UNCLEAR"
MARGIN = 0.03
SCHEMA = 1


@dataclass(frozen=True)
class Case:
    """One case in both runs. `speed` is NEW's over BASE's, above 1 where NEW is faster, with its 95 % interval."""

    case: str
    base_time_s: float
    new_time_s: float
    speed: float
    speed_low: float
    speed_high: float
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. `missing` says which cases only one run measured, and what the other says about them."""

    by: str
    margin: float
    differences: dict[str, tuple[str, str]]
    unfinished: list[str]
    """Which of BASE and NEW was cut short."""
    cases: list[Case]
    missing: list[dict]
    vendor_speed: float | None
    """Geometric mean of the vendor's own speed, NEW over BASE: how far the machine moved between the runs."""

    def count(self, verdict: str) -> int:
        return sum(case.verdict == verdict for case in self.cases)

    def exit_code(self, *, strict: bool = False) -> int:
        """1 where a case is slower; if `strict`, also where one is unclear or missing."""
        return int(bool(self.count(SLOWER) or (strict and (self.count(UNCLEAR) or self.missing))))


def compare(base: Run, new: Run, *, by: str = "ratio", margin: float = MARGIN, allow=()) -> Comparison:
    """Compare `new` with `base`. Raises ValueError where chip, driver or method differ, unless `allow` names them,
    where `by` is `ratio` and the vendor is not the same, and where no case can be compared."""
    differ = differences(base.metadata, new.metadata)
    for name in NUMBERS:
        if name in differ and name not in allow:
            a, b = differ[name]
            raise ValueError(f"another {name}: BASE has {a}, NEW has {b}; --allow {name} compares them all the same")
    a, b = ({record["case"]: record for record in run.records()} for run in (base, new))
    common = [case for case in a if case in b]
    if not common:
        raise ValueError("the two runs have no case in common: nothing can be compared")
    cases, unpaired, vendors = [], [], []
    for case in common:
        own, other = a[case], b[case]
        if is_vendor := own["contender"] == own["vendor"]:
            vendors.append(own["time_s"] / other["time_s"])
        if by == "ratio" and None in (own["ratio_to_vendor"], other["ratio_to_vendor"]):
            unpaired.append({"case": case, "missing_in": "BASE or NEW", "reason": "no vendor was timed beside it"})
        elif by == "ratio" and own["vendor"] != other["vendor"]:
            raise ValueError(f"{case}: the two runs have no vendor in common to measure it by; say --by time")
        elif by == "time" or not is_vendor:
            cases.append(_judge(case, own, other, by, margin))
    if not cases:
        raise ValueError("no case has a ratio to a vendor in both runs: nothing can be compared; say --by time")
    unfinished = [name for name, run in (("BASE", base), ("NEW", new)) if run.end is None or run.unfinished]
    missing = unpaired + _missing(base, new, a, b)
    return Comparison(by, margin, differ, unfinished, cases, missing, geometric_mean(vendors) if vendors else None)


def _judge(case: str, base: dict, new: dict, by: str, margin: float) -> Case:
    names, pair = ("time_s", "time_low_s", "time_high_s"), (base, new)
    if by == "ratio":
        names, pair = ("ratio_to_vendor", "ratio_low", "ratio_high"), (new, base)
    speed = quotient(*(Interval(*(record[name] for name in names)) for record in pair))
    return Case(case, base["time_s"], new["time_s"], *astuple(speed), verdict(speed, margin))


def quotient(a: Interval, b: Interval) -> Interval:
    """a / b of two independent medians with their intervals, all above 0."""
    middle, other = math.log(a.median), math.log(b.median)
    down = math.hypot(middle - math.log(a.low), math.log(b.high) - other)
    up = math.hypot(math.log(a.high) - middle, other - math.log(b.low))
    return Interval(*(math.exp(middle - other + step) for step in (0, -down, up)))


def verdict(speed: Interval, margin: float) -> str:
    """FASTER, SLOWER, SAME or UNCLEAR by an interval of NEW's speed over BASE's."""
    if speed.low > 1 + margin:
        return FASTER
    if speed.high < 1 / (1 + margin):
        return SLOWER
    return SAME if speed.low >= 1 / (1 + margin) and speed.high <= 1 + margin else UNCLEAR


def _missing(base: Run, new: Run, a: dict, b: dict) -> list[dict]:
    """{case, missing_in, reason} of the cases that one run alone measured."""
    found = []
    for name, run, own, other in (("NEW", new, b, a), ("BASE", base, a, b)):
        reasons = {entry["case"]: f"{entry['outcome'].replace('_', ' ')}: {entry['reason']}" for entry in run.missing}
        found += [
            {"case": case, "missing_in": name, "reason": reasons.get(case, "not asked for")}
            for case in other
            if case not in own
        ]
    return found


COLUMNS = (
    Column(header="case", of_row=lambda c: c.case, right=False),
    Column(header="base", of_row=lambda c: time_text(c.base_time_s)),
    Column(header="new", of_row=lambda c: time_text(c.new_time_s)),
    Column(header="speed, new / base [95 %]", of_row=lambda c: interval_text(c.speed, c.speed_low, c.speed_high)),
    Column(header="verdict", of_row=lambda c: c.verdict, right=False),
)


def summary(found: Comparison) -> list[str]:
    """What the verdicts rest on, and their counts, in lines."""
    counts = ", ".join(f"{found.count(verdict)} {verdict}" for verdict in (SLOWER, FASTER, SAME, UNCLEAR))
    against = "relative to the vendor in each run" if found.by == "ratio" else "by time alone"
    lines = [f"{counts} of {len(found.cases)} cases, {against}, margin {100 * found.margin:g} %"]
    if found.cases:
        lines.append(f"speed in the geometric mean: {geometric_mean(c.speed for c in found.cases):.3f} x")
    if found.vendor_speed:
        lines.append(f"the vendor's own speed moved by {100 * (found.vendor_speed - 1):+.1f} % between the runs")
    lines += [f"{name} was cut short: it may have few rounds" for name in found.unfinished]
    lines += [f"{name}: BASE has {a}, NEW has {b}" for name, (a, b) in found.differences.items()]
    return [*lines, *(f"missing in {m['missing_in']}: {m['case']}: {m['reason']}" for m in found.missing)]


def terminal(found: Comparison) -> list[str]:
    return [*(tables.terminal(found.cases, COLUMNS) if found.cases else ()), "", *summary(found)]


def markdown(found: Comparison, base: Run, new: Run) -> str:
    """For a pull request: the counts first, what changed in the open, the rest folded away."""
    changed = [case for case in found.cases if case.verdict in (SLOWER, FASTER)]
    parts = ["\n".join(f"- {line}" for line in summary(found))]
    if changed:
        parts.append(tables.markdown(changed, COLUMNS))
    if found.cases:
        table = tables.markdown(found.cases, COLUMNS)
        parts.append(f"<details><summary>all {len(found.cases)} cases</summary>\n\n{table}\n\n</details>")
    parts.append(f"BASE: {base.metadata['footer']}  \nNEW: {new.metadata['footer']}")
    return "\n\n".join(parts)


def as_json(found: Comparison, base: Run, new: Run, *, strict: bool) -> dict:
    """Plain values; results/README.md documents them."""
    return {
        "schema": SCHEMA,
        **asdict(found),
        "base": conditions(base.metadata),
        "new": conditions(new.metadata),
        "counts": {name: found.count(name) for name in (SLOWER, FASTER, SAME, UNCLEAR)},
        "exit_code": found.exit_code(strict=strict),
    }
