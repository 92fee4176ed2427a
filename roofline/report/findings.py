"""What a reader should know of a run first, by rules: docs/start.md says what triggers each, and what it means."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from roofline.analysis.fields import FIELDS
from roofline.analysis.overlap import overlapping, valid
from roofline.analysis.throughput import FEW_ROUNDS, ceilings_of
from roofline.operations.format import error_text, interval_text, percent_text, shape_text
from roofline.report import tables
from roofline.store.run import AGAIN, INTERRUPTED, Run, Shape
from roofline.store.stats import CONFIDENCE, DECADE, grouped, is_known
from roofline.theory import environment
from roofline.theory.arms import ALL_CORES

if TYPE_CHECKING:
    from pandas import DataFrame, Series

MARGIN = 0.03
"""How far a ratio may lie from 1, and a ceiling from its values, before it is told."""
OWN_IDEAL = 0.9
"""The fraction of its own ideal that an arm shall reach."""
OTHERS, STOLEN = 0.05, 0.02
"""The fractions of a CPU's time that other processes, and other guests of the machine, may take."""
CHANCE = 0.01
"""Where the chance that so many intervals of equals miss 1 is lower, they are no equals."""
QUICK = "few shapes and few rounds: a first look, nothing to rest on"
OF_ALL_CASES = "cut off", "void"
"""The rules that look at void cases, too."""
NOTHING = "nothing wrong: no rule of docs/start.md speaks against these numbers"
REST = "launches and what was not measured"
WORDS = {"layer": "{}", "tp": "tp {}", "ranks": "P {}", "m": "M {}", "dtype": "{}", "wire": "wire {}"}
"""Field -> how a case is named by it."""

Find = Callable[[Run, "DataFrame"], Iterable[str]]
"""`find(run, frame)` gives a line for each thing that it finds."""


def findings(run: Run, frame: DataFrame) -> list[str]:
    """`rule: what it finds`, the most important first; where nothing is wrong, that. A void case has one finding, that
    it is void."""
    lines = []
    good = []
    judged = valid(frame)
    for name, find in RULES.items():
        found = good if name == "faster" else lines
        for line in find(run, frame if name in OF_ALL_CASES else judged):
            found.append(f"{name}: {line}")
    return (lines or [NOTHING]) + good


def case_words(row: Series) -> str:
    """A case of an operation in words: `numpy on up, tp 8, M 1, fp32`."""
    values = row[[*WORDS]]
    shape = shape_text(row)
    if shape:
        values["layer"] = shape
        values["tp"] = None
    words = [WORDS[name].format(value) for name, value in values.dropna().items()]
    return f"{row['contender']} on {', '.join(words)}"


def _cut_off(run: Run, frame: DataFrame) -> Iterable[str]:
    if run.end is None or run.unfinished:
        reason = (run.end or {}).get("cut_short") or "it did not come to its end"
        yield f"{reason}; {len(frame)} rows by then"


def _quick(run: Run, frame: DataFrame) -> Iterable[str]:
    if run.metadata.get("options", {}).get("quick"):
        yield QUICK


def _outcomes(**words: str) -> Find:
    """A rule that finds the cases of these outcomes, and describes each by its words."""

    def find(run: Run, frame: DataFrame) -> Iterable[str]:
        cases_of = grouped((outcome.outcome, outcome.case) for outcome in run.missing)
        for outcome, text in words.items():
            cases = cases_of.get(outcome)
            if cases:
                yield f"{len(cases)} {text}: {tables.named(cases)}"

    return find


def _environment(run: Run, frame: DataFrame) -> Iterable[str]:
    """A line for each variable; ranks get their threads from torchrun."""
    return [] if "ranks" in run.metadata else environment.told(run.metadata["machine"])


def _cases(holds: str, far: str, describe: Callable[[Series], str]) -> Find:
    """A rule that finds the cases of which `holds`, and describes the one that goes furthest: by expressions of
    fields."""

    def find(run: Run, frame: DataFrame) -> Iterable[str]:
        import pandas

        matches = frame[pandas.eval(holds, engine="python", resolvers=[frame]).fillna(False).astype(bool)]
        if len(matches):
            most = matches.loc[pandas.eval(far, engine="python", resolvers=[matches]).astype(float).idxmax()]
            yield f"{len(matches)} of {len(frame)} cases, {describe(most)}: {most['op']}, {case_words(most)}"

    return find


def _beside(word: str, sign: int) -> Find:
    """A rule that finds where an interval lies beyond the margin of 1: below it of `sign` -1, above it of 1. An arm's
    baseline is `serial_all_cores` where there is one; one over a fabric of its own has none."""

    def find(run: Run, frame: DataFrame) -> Iterable[str]:
        rows = overlapping(frame)
        rows = rows[~rows["own_fabric"].eq(True).fillna(False)]
        has_all_cores = rows["gain_all_cores"].notna()
        rows = rows.assign(
            field=has_all_cores.map({True: "gain_all_cores", False: "ratio_to_baseline"}),
            baseline=rows["baseline"].mask(has_all_cores, ALL_CORES),
        )
        for (op, field, baseline), group in rows.groupby(["op", "field", "baseline"], sort=False):
            low, high = FIELDS[field].ends
            is_rival = group["rival"].ne(False).fillna(True) & group["contender"].ne(baseline)
            rivals = group[is_rival & group[field].notna()]
            nearest_end = low if sign > 0 else high
            matches = rivals[sign * (rivals[nearest_end] - 1) > MARGIN]
            if len(matches):
                most = matches.loc[(sign * matches[field]).idxmax()]
                interval = interval_text(most[field], most[low], most[high])
                yield f"{op}: {_counts(matches, rivals)}, than {baseline}; {word} {interval}: {case_words(most)}"

    return find


def _unequal(run: Run, frame: DataFrame) -> Iterable[str]:
    """A line where the baseline differs from itself, in its second turn, on more shapes than intervals may miss."""
    again = frame[frame["contender"].eq(frame["baseline"] + AGAIN) & frame["ratio_to_baseline"].notna()]
    missed = again[(again["ratio_low"] > 1) | (again["ratio_high"] < 1)]
    if missed.empty or _chance_of_missing(len(missed), len(again)) >= CHANCE:
        return
    most = missed.loc[(missed["ratio_to_baseline"] - 1).abs().idxmax()]
    interval = interval_text(most["ratio_to_baseline"], most["ratio_low"], most["ratio_high"])
    where = f"{len(missed)} of {len(again)} shapes"
    yield f"the baseline is not as fast as itself on {where}, {interval}: {case_words(most)}"


def _chance_of_missing(least: int, intervals: int) -> float:
    """The chance that so many of the intervals of equals miss 1, or more of them."""
    chance = 0.0
    for missed in range(least, intervals + 1):
        ways = math.comb(intervals, missed)
        chance += ways * (1 - CONFIDENCE) ** missed * CONFIDENCE ** (intervals - missed)
    return chance


def _counts(matches: DataFrame, compared: DataFrame) -> str:
    """Who is among `matches`, and on how many of the shapes on which it is compared."""
    counts = matches["contender"].value_counts(sort=False)
    shapes = compared["contender"].value_counts(sort=False)
    return ", ".join(f"{name} on {count} of {shapes[name]} shapes" for name, count in counts.items())


def _own_ideal(run: Run, frame: DataFrame) -> Iterable[str]:
    arms = overlapping(frame).dropna(subset="of_own_ideal")
    for op, rows in arms.groupby("op", sort=False):
        low = rows[rows["of_own_ideal"] < OWN_IDEAL]
        if len(low):
            least = low.loc[low["of_own_ideal"].idxmin()]
            counts = low["diagnosis"].replace("the rest", REST).value_counts()
            reasons = [f"{diagnosis} on {count}" for diagnosis, count in counts.items()]
            text = f"{op}: {_counts(low, rows)}, lost mostly to {', '.join(reasons)}"
            yield f"{text}; least {percent_text(least['of_own_ideal'])}: {case_words(least)}"


def _drifted(run: Run, frame: DataFrame) -> Iterable[str]:
    """A line for each ceiling that is not known to within the margin, by its interval or by its values over the run."""
    values_of = grouped(((ceiling["ceiling"], ceiling["dtype"]), ceiling["value"]) for ceiling in run.ceilings)
    for ceiling in ceilings_of(run):
        if ceiling.kind == "copy":
            continue
        name = f"{ceiling.kind} {ceiling.dtype}" if ceiling.dtype else ceiling.kind
        values = values_of.get((ceiling.kind, ceiling.dtype), [ceiling.value])
        half_width = (ceiling.high - ceiling.low) / ceiling.value / 2
        off = max(half_width, max(values) / min(values) - 1)
        if not is_known(ceiling.low, ceiling.high):
            yield f"{name} is unknown: the ends of its interval are more than a factor of {DECADE} apart"
        elif off > MARGIN:
            yield f"{name} is known to within {error_text(off)}"


def _above(name: str, limit: float, text: str) -> Find:
    """A rule that finds the cases whose field `name` is above the limit; `text` describes the highest."""
    return _cases(f"{name} > {limit}", name, lambda row: text.format(error_text(row[name])))


def disturbance(shapes: Sequence[Shape]) -> str:
    """What disturbs the measurement of `shapes`, in words, by the rules; empty where nothing does."""
    words = []
    for field, limit, text in (
        ("others_share", OTHERS, "other processes took {} of the CPU"),
        ("stolen_share", STOLEN, "other guests of the machine took {} of the CPU"),
    ):
        share = median(shape.telemetry.get(field) or 0.0 for shape in shapes)
        if share > limit:
            words.append(text.format(error_text(share)))
    if any(shape.telemetry.get("throttled") for shape in shapes):
        words.append("the clock was held down")
    return ", and ".join(words)


def _reasons(row: Series) -> str:
    reasons = row[["throttle_reasons", "steady_throttled"]].dropna()
    return f"as by {next(filter(None, reasons), 'unknown')}"


RULES = {
    "cut off": _cut_off,
    "quick": _quick,
    "failed": _outcomes(failed="wrong, crashed or hung"),
    "void": _cases(
        "link_off_pace.notna()",
        "link_off_pace.abs()",
        lambda row: f"the link off its pace by up to {100 * row['link_off_pace']:+.0f} %",
    ),
    "environment": _environment,
    "throttled": _cases("throttled == True or steady_throttled > ''", "time_s", _reasons),
    "above the roof": _cases("above_roof == True", "of_roof", lambda row: f"up to {percent_text(row['of_roof'])}"),
    "unequal": _unequal,
    "slower": _beside("worst", -1),
    "below own ideal": _own_ideal,
    "few rounds": _cases(
        f"rounds < {FEW_ROUNDS} or stopped_by == '{INTERRUPTED}'", "-rounds", lambda row: f"{row['rounds']} or more"
    ),
    "roof drifted": _drifted,
    "disturbed": _above("others_share", OTHERS, "other processes took up to {} of the CPU"),
    "waiting": _above("waiting_share", OTHERS, "threads waited for a core in up to {} of the samples"),
    "stolen time": _above("stolen_share", STOLEN, "up to {}"),
    "not measured": _outcomes(skipped="skipped", not_run="not run"),
    "faster": _beside("best", 1),
}
