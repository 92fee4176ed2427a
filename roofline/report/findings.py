"""The first lines of a report, by rules: docs/start.md says what triggers each, and what it means."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from roofline.analysis.memory_roof import ceilings_of
from roofline.analysis.overlap import overlapping, valid
from roofline.analysis.verdicts import UNDECIDED
from roofline.host import environment as variables
from roofline.operations.matmul import SHAPE
from roofline.operations.shapes import shape_text
from roofline.report import tables
from roofline.report.format import error_text, interval_text, percent_text
from roofline.store.run import AGAIN, FEWEST_ROUNDS, INTERRUPTED, Run
from roofline.store.stats import CONFIDENCE, DECADE, LEAST_ROUNDS, grouped, is_known
from roofline.theory.arms import ALL_CORES

if TYPE_CHECKING:
    from pandas import DataFrame, Series

MARGIN = 0.03
"""The distance of a ratio from 1, or of a ceiling from its values, up to which it is not told."""
OTHERS, STOLEN = 0.05, 0.02
"""The fractions of a CPU's time that other processes, and other guests of the machine, may take."""
OWN_IDEAL = 0.9
"""The fraction of its own ideal that an arm shall reach."""
IN_A_GRAPH = 0.8
"""The fraction of a sample below which the same call in a CUDA graph says that launching it takes the rest."""
HALF = 0.3, 0.7
"""Hidden fractions between which one asks what hides no more."""
WAYS = {
    "schedule": "--ffn-ranks, as other chunks",
    "split": "--ffn-contenders, as an arm of one kernel",
    "waiting code": "--ffn-contenders, as an arm of launches",
    "contention": "--ffn-link-bandwidth, as a link over the copy engine",
    "the rest": "--ffn-contenders, as an arm of fewer launches",
}
"""What an arm's time goes to -> the option by which that changes."""
CHANCE = 0.01
"""Where the chance that so many intervals of equals miss 1 is lower, they are no equals."""
QUICK = "few shapes and few rounds: a first look, nothing to rest on"
NOTHING = "nothing wrong: no rule of docs/start.md speaks against these numbers"
REST = "launches and what was not measured"
RATIO = ["ratio_to_baseline", "ratio_low", "ratio_high"]
GAIN = ["gain_all_cores", "gain_all_cores_low", "gain_all_cores_high"]
WORDS = {"layer": "{}", "tp": "tp {}", "ranks": "P {}", "m": "M {}", "dtype": "{}", "wire": "wire {}"}
"""Field -> how a case is named by it."""

Lines = Iterable[str]
"""A line for each thing that a rule finds."""


def findings(run: Run, frame: DataFrame) -> list[str]:
    """`rule: what it finds`, the most important first; where nothing is wrong, that."""
    lines = []
    for rule, found in rules(run, frame).items():
        lines += [f"{rule}: {line}" for line in found]
    is_well = all(line.startswith("faster: ") for line in lines)
    return [NOTHING, *lines] if is_well else lines


def rules(run: Run, frame: DataFrame) -> dict[str, Lines]:
    """{rule: what it finds}. A void case has one finding, that it is void, and one of fewer than `LEAST_ROUNDS` that
    it has few; ranks get their threads from torchrun."""
    options = run.metadata.get("options", {})
    valid_rows = valid(frame)
    judged = valid_rows[valid_rows["rounds"] >= LEAST_ROUNDS]
    return {
        "cut off": cut_off(run, frame),
        "quick": [QUICK] if options.get("quick") else [],
        "failed": _outcomes(run, failed="wrong, crashed or hung"),
        "void": void(frame),
        "one binary": one_binary(frame),
        "environment": [] if "ranks" in run.metadata else variables.told(run.metadata["machine"]),
        "throttled": throttled(judged),
        "above the roof": above_the_roof(judged),
        "unequal": unequal(judged),
        "slower": _beyond_margin(judged, "worst", -1),
        "below own ideal": below_own_ideal(judged),
        "half hidden": half_hidden(judged),
        "launch bound": launch_bound(judged),
        "undecided": undecided(judged, options.get("decide")),
        "few rounds": few_rounds(valid_rows),
        "roof drifted": roof_drifted(run),
        "disturbed": _above(judged, "others_share", OTHERS, "other processes took up to {} of the CPU"),
        "waiting": waiting(judged),
        "stolen time": _above(judged, "stolen_share", STOLEN, "up to {}"),
        "not measured": _outcomes(run, skipped="skipped", not_run="not run"),
        "faster": _beyond_margin(judged, "best", 1),
    }


def cut_off(run: Run, frame: DataFrame) -> Lines:
    if run.end is None or run.unfinished:
        reason = (run.end or {}).get("cut_short") or "it did not come to its end"
        yield f"{reason}; {len(frame)} rows by then"


def void(frame: DataFrame) -> Lines:
    off_pace = frame["link_off_pace"].dropna()
    furthest = max(off_pace, key=abs, default=0)
    return _cases(frame, off_pace.abs(), f"the link off its pace by up to {100 * furthest:+.0f} %")


def throttled(frame: DataFrame) -> Lines:
    is_steady = frame["steady_throttled"].fillna("").ne("")
    hot = frame[frame["throttled"].eq(True) | is_steady]
    longest = hot.sort_values("time_s").tail(1)
    reasons = longest[["throttle_reasons", "steady_throttled"]].fillna("").to_numpy().ravel()
    return _cases(frame, hot["time_s"], f"as by {next(filter(None, reasons), 'unknown')}")


def above_the_roof(frame: DataFrame) -> Lines:
    of_roof = frame["of_roof"][frame["above_roof"].eq(True)]
    return _cases(frame, of_roof, f"up to {percent_text(of_roof.max())}")


def unequal(frame: DataFrame) -> Lines:
    """A line where the baseline differs from itself, in its second turn, on more shapes than intervals may miss."""
    is_again = frame["contender"] == frame["baseline"] + AGAIN
    again = frame[is_again].dropna(subset="ratio_to_baseline")
    missed = again[(again["ratio_low"] > 1) | (again["ratio_high"] < 1)]
    if missed.empty or _chance_of_missing(len(missed), len(again)) >= CHANCE:
        return
    most = missed.loc[(missed["ratio_to_baseline"] - 1).abs().idxmax()]
    where = f"{len(missed)} of {len(again)} shapes"
    yield f"the baseline is not as fast as itself on {where}, {_ratio_text(most)}: {case_words(most)}"


def below_own_ideal(frame: DataFrame) -> Lines:
    arms = overlapping(frame).dropna(subset="of_own_ideal")
    for op, low in arms[arms["of_own_ideal"] < OWN_IDEAL].groupby("op", sort=False):
        least = low.loc[low["of_own_ideal"].idxmin()]
        counts = low["diagnosis"].replace("the rest", REST).value_counts()
        reasons = [f"{diagnosis} on {count}" for diagnosis, count in counts.items()]
        text = f"{op}: {_counts(low, arms[arms['op'] == op])}, lost mostly to {', '.join(reasons)}"
        yield f"{text}; least {percent_text(least['of_own_ideal'])}: {case_words(least)}"


def one_binary(frame: DataFrame) -> Lines:
    """A line for each set of contenders that run the same machine code on a shape, as a sweep that took the default."""
    known = frame.dropna(subset="binary")
    known = known[known["binary"] != ""]
    same = known[known.duplicated(["shape", "binary"], keep=False)]
    names = same.groupby(["shape", "binary"], sort=False)["contender"].agg(" and ".join)
    for contenders, count in names.value_counts(sort=False).items():
        yield f"{contenders} run the same machine code on {count} of {frame['shape'].nunique()} shapes"


def half_hidden(frame: DataFrame) -> Lines:
    """A line for each operation and what its half-hidden cases lost most to, with the option that changes it."""
    arms = overlapping(frame)
    half = arms[arms["hidden_fraction"].between(*HALF) & arms["diagnosis"].isin(WAYS)]
    for (op, diagnosis), cases in half.groupby(["op", "diagnosis"], sort=False):
        counts = _counts(cases, arms[arms["op"] == op])
        yield f"{op}: {counts}, lost mostly to {diagnosis.replace('the rest', REST)}: try {WAYS[diagnosis]}"


def launch_bound(frame: DataFrame) -> Lines:
    share = (frame["graph_s"] / frame["time_s"]).dropna()
    low = share[share < IN_A_GRAPH]
    return _cases(frame, -low, f"which take down to {percent_text(low.min())} of their time in a graph")


def undecided(frame: DataFrame, margin: float) -> Lines:
    """A line on the cases that no look decided, with what the last look could tell apart."""
    rows = frame[frame["verdict"] == UNDECIDED]
    width = (rows["decided_high"] - rows["decided_low"]) / rows["decided"] / 2
    asked = f"of {error_text(margin)} that was asked for" if margin else ""
    return _cases(frame, width, f"known to within {error_text(width.max())} {asked}")


def few_rounds(frame: DataFrame) -> Lines:
    rounds = frame["rounds"]
    few = rounds[rounds.lt(FEWEST_ROUNDS) | frame["stopped_by"].eq(INTERRUPTED)]
    return _cases(frame, -few, f"{few.min()} or more")


def waiting(frame: DataFrame) -> Lines:
    """A line where a case waited in samples enough to say so: one of ten is chance."""
    share = frame["waiting_share"]
    is_proven = (share * frame["rounds"]).round() >= LEAST_ROUNDS
    text = "threads waited for a core in up to {} of the samples"
    if any(share[is_proven] > OTHERS):
        yield from _above(frame, "waiting_share", OTHERS, text)


def roof_drifted(run: Run) -> Lines:
    """A line for each ceiling that is not known to within the margin, by its interval or by its values over the run."""
    values_of: dict[tuple, list[float]] = {}
    for line in run.ceilings:
        kind = line["ceiling"], line["dtype"]
        values_of.setdefault(kind, []).append(line["value"])
    for ceiling in ceilings_of(run):
        if ceiling.kind == "copy":
            continue
        name = " ".join(filter(None, (ceiling.kind, ceiling.dtype)))
        values = values_of.get((ceiling.kind, ceiling.dtype), [1])
        half_width = (ceiling.high - ceiling.low) / ceiling.value / 2
        off = max(half_width, max(values) / min(values) - 1)
        if not is_known(ceiling.low, ceiling.high):
            yield f"{name} is unknown: its samples are too few, or more than a factor of {DECADE} apart"
        elif off > MARGIN:
            yield f"{name} is known to within {error_text(off)}"


def case_words(row: Series) -> str:
    """A case of an operation in words: `numpy on up, tp 8, M 1, fp32`."""
    values = row[[*WORDS]]
    if row["layer"] == SHAPE:
        values["layer"] = shape_text(row)
        values["tp"] = None
    return f"{row['contender']} on {in_words(values)}"


def in_words(values: Series) -> str:
    """What a case is called by, of fields of `WORDS`."""
    words = []
    for name, value in values.dropna().items():
        words.append(WORDS[name].format(value))
    return ", ".join(words)


def _outcomes(run: Run, **words: str) -> Lines:
    """The cases of some outcomes, each described by its words."""
    cases_of = grouped((outcome.outcome, outcome.case) for outcome in run.missing)
    for outcome, text in words.items():
        cases = cases_of.get(outcome)
        if cases:
            yield f"{len(cases)} {text}: {tables.named(cases)}"


def _cases(frame: DataFrame, values: Series, text: str) -> Lines:
    """A line on the cases of `frame` that have one of the `values`: their number, and the one with the highest."""
    if len(values):
        most = frame.loc[values.astype(float).idxmax()]
        yield f"{len(values)} of {len(frame)} cases, {text}: {most['op']}, {case_words(most)}"


def _above(frame: DataFrame, name: str, limit: float, text: str) -> Lines:
    """The cases whose field `name` is above the limit; `text` has a place for the highest."""
    values = frame[name][frame[name] > limit]
    return _cases(frame, values, text.format(error_text(values.max())))


def _beyond_margin(frame: DataFrame, word: str, sign: int) -> Lines:
    """Where an interval lies beyond the margin of 1: below it of `sign` -1, above it of 1. An arm's baseline is
    `serial_all_cores` where there is one; one over a fabric of its own has none."""
    rows = overlapping(frame)
    rows = rows[~rows["own_fabric"].isin([True])]
    ratios = rows[GAIN].set_axis(RATIO, axis=1).fillna(rows[RATIO])
    baseline = rows["baseline"].mask(rows["gain_all_cores"].notna(), ALL_CORES)
    rows = rows.assign(baseline=baseline, **ratios)
    for (op, baseline), group in rows.groupby(["op", "baseline"], sort=False):
        is_rival = ~group["rival"].isin([False]) & group["contender"].ne(baseline)
        rivals = group[is_rival].dropna(subset="ratio_to_baseline")
        nearest_end = rivals["ratio_low"] if sign > 0 else rivals["ratio_high"]
        matches = rivals[sign * (nearest_end - 1) > MARGIN]
        if len(matches):
            most = matches.loc[(sign * matches["ratio_to_baseline"]).idxmax()]
            yield f"{op}: {_counts(matches, rivals)}, than {baseline}; {word} {_ratio_text(most)}: {case_words(most)}"


def _ratio_text(row: Series) -> str:
    return interval_text(*row[RATIO])


def _chance_of_missing(least: int, intervals: int) -> float:
    """The chance that so many of the intervals of equals miss 1, or more of them."""
    chance = 0.0
    for missed in range(least, intervals + 1):
        ways = math.comb(intervals, missed)
        chance += ways * (1 - CONFIDENCE) ** missed * CONFIDENCE ** (intervals - missed)
    return chance


def _counts(matches: DataFrame, compared: DataFrame) -> str:
    """The contenders among `matches`, each with the number of its shapes, of those on which it is compared."""
    counts = matches["contender"].value_counts(sort=False)
    shapes = compared["contender"].value_counts(sort=False)
    return ", ".join(f"{name} on {count} of {shapes[name]} shapes" for name, count in counts.items())
