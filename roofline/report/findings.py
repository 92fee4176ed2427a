"""What a reader should know of a run first, by rules: docs/start.md says what triggers each, and what it means."""

from collections import Counter
from collections.abc import Callable, Iterable

from roofline.analysis.overlap.metrics import GAIN, is_gathered
from roofline.analysis.throughput.metrics import FEW_ROUNDS, ceilings_of
from roofline.report import forecasts, tables
from roofline.report.format import error_text, interval_text, percent_text
from roofline.stats import grouped
from roofline.store.run import INTERRUPTED, Run
from roofline.theory.arms import ALL_CORES, is_serial

MARGIN, OWN_IDEAL, OTHERS, STOLEN = 0.03, 0.9, 0.05, 0.02
"""Of a ratio and of a roof; the share of its own ideal that an arm shall reach; of a CPU's time, by who took it."""
RATIO = ("ratio_to_vendor", "ratio_low", "ratio_high")
QUICK = "few shapes and few rounds: a first look, nothing to compare with or to rest on"
NOTHING = "nothing wrong: no rule of docs/start.md speaks against these numbers"

Find = Callable[[Run, list[dict]], Iterable[str]]
"""`find(run, records)` gives a line for each thing that it finds."""


def findings(run: Run, records: list[dict]) -> list[str]:
    """Return `rule: what it found`, the most important first; where nothing is wrong, that."""
    lines_of_rule = {name: [f"{name}: {line}" for line in find(run, records)] for name, find in RULES.items()}
    good = lines_of_rule.pop("faster")
    return [*([line for lines in lines_of_rule.values() for line in lines] or [NOTHING]), *good]


def _cut_off(run: Run, records: list[dict]) -> Iterable[str]:
    if run.end is None or run.unfinished:
        yield f"{(run.end or {}).get('cut_short') or 'it did not come to its end'}; {len(records)} rows by then"


def _missing(**words: str) -> Find:
    """Finds the cases of these outcomes, and says of each so."""

    def find(run: Run, records: list[dict]) -> Iterable[str]:
        cases = grouped((entry["outcome"], entry["case"]) for entry in run.missing)
        return [
            f"{len(cases[outcome])} {words[outcome]}: {tables.named(cases[outcome])}"
            for outcome in words
            if outcome in cases
        ]

    return find


def _cases(holds: Callable[[dict], object], far: Callable[[dict], float], describe: Callable[[dict], str]) -> Find:
    """Finds the cases of which `holds`; what is `said` is of the one that goes furthest."""

    def find(run: Run, records: list[dict]) -> Iterable[str]:
        if matches := [record for record in records if holds(record)]:
            most = max(matches, key=far)
            yield f"{len(matches)} of {len(records)} cases, {describe(most)}: {most['case']}"

    return find


def _beside(word: str, sign: int) -> Find:
    """Finds where an interval lies beyond the margin of 1: below it of `sign` -1, above it of 1. An arm's baseline is
    `serial_all_cores` where there is one; one over a fabric of its own has none."""

    def find(run: Run, records: list[dict]) -> Iterable[str]:
        both = [(RATIO, r["vendor"], r) if r.get(GAIN[0]) is None else (GAIN, ALL_CORES, r) for r in records]
        rows = ((pair, r) for *pair, r in both if not (is_serial(r["contender"]) or r.get("own_fabric")))
        pairs = grouped(((r["op"], *pair), r) for pair, r in rows)
        for (op, names, baseline), rows in pairs.items():
            rivals = [r for r in rows if r["contender"] != baseline and r[names[0]] is not None]
            if matches := [r for r in rivals if sign * (r[names[sign]] - 1) > MARGIN]:
                most = max(matches, key=lambda r: sign * r[names[0]])
                interval = interval_text(*(most[name] for name in names))
                yield f"{op}: {_who(matches, rivals)}, than {baseline}; {word} {interval}: {most['case']}"

    return find


def _who(matches: list[dict], compared: list[dict]) -> str:
    """Return who is among `matches`, and on how many of the shapes on which it is compared."""
    counts, of = (Counter(record["contender"] for record in rows) for rows in (matches, compared))
    return ", ".join(f"{name} on {count} of {of[name]} shapes" for name, count in counts.items())


def _own_ideal(run: Run, records: list[dict]) -> Iterable[str]:
    arms = [r for r in records if is_gathered(r) and r["of_own_ideal"] and not is_serial(r["arm"])]
    for op, rows in grouped((r["op"], r) for r in arms).items():
        if low := [r for r in rows if r["of_own_ideal"] < OWN_IDEAL]:
            least = min(low, key=lambda r: r["of_own_ideal"])
            why = ", ".join(
                f"{count} x {diagnosis}" for diagnosis, count in Counter(r["diagnosis"] for r in low).most_common()
            )
            yield (
                f"{op}: {_who(low, rows)}, lost to {why}; least {percent_text(least['of_own_ideal'])}: {least['case']}"
            )


def _drifted(run: Run, records: list[dict]) -> Iterable[str]:
    values_of = grouped(((ceiling["ceiling"], ceiling["dtype"]), ceiling["value"]) for ceiling in run.ceilings)
    for ceiling in ceilings_of(run):
        values = values_of.get((ceiling.kind, ceiling.dtype), [ceiling.value])
        off = max((ceiling.high - ceiling.low) / ceiling.value / 2, max(values) / min(values) - 1)
        if off > MARGIN and ceiling.kind != "copy":
            yield f"{ceiling.kind}{f' {ceiling.dtype}' if ceiling.dtype else ''} is known to within {error_text(off)}"


def _forecast(run: Run, records: list[dict]) -> Iterable[str]:
    if newest := forecasts.of_chip(run):
        name, forecast = newest
        for field, (inside, count) in forecasts.held(forecast, records).items():
            if inside < forecast["interval"] * count:
                yield f"{field} of {count - inside} of {count} cases lies outside its interval in {name}"


RULES = {
    "cut off": _cut_off,
    "quick": lambda run, records: [QUICK] * bool(run.metadata.get("options", {}).get("quick")),
    "failed": _missing(failed="wrong, crashed or hung"),
    "void": _cases(lambda r: r.get("link_off_pace"), lambda r: abs(r["link_off_pace"]),
                   lambda r: f"the link off its pace by up to {100 * r['link_off_pace']:+.0f} %"),
    "throttled": _cases(lambda r: r.get("throttled") or r.get("steady_throttled"), lambda r: r["time_s"],
                        lambda r: f"as by {r.get('throttle_reasons') or r.get('steady_throttled')}"),
    "above the roof": _cases(lambda r: r["above_roof"], lambda r: r["of_roof"],
                             lambda r: f"up to {percent_text(r['of_roof'])}"),
    "slower": _beside("worst", -1),
    "below own ideal": _own_ideal,
    "few rounds": _cases(lambda r: r["rounds"] < FEW_ROUNDS or r["stopped_by"] == INTERRUPTED, lambda r: -r["rounds"],
                         lambda r: f"{r['rounds']} or more"),
    "roof drifted": _drifted,
    "disturbed": _cases(lambda r: (r.get("others_share") or 0) > OTHERS, lambda r: r["others_share"],
                        lambda r: f"other processes took up to {error_text(r['others_share'])} of the CPU"),
    "waiting": _cases(lambda r: (r.get("waiting_share") or 0) > OTHERS, lambda r: r["waiting_share"],
                      lambda r: f"threads waited for a core in up to {error_text(r['waiting_share'])} of the samples"),
    "stolen time": _cases(lambda r: (r.get("stolen_share") or 0) > STOLEN, lambda r: r["stolen_share"],
                          lambda r: f"up to {error_text(r['stolen_share'])}"),
    "forecast missed": _forecast,
    "not measured": _missing(skipped="skipped", not_run="not run"),
    "faster": _beside("best", 1),
}  # fmt: skip
