"""What a tuning found: for each shape and kernel, whether a candidate is faster than what is taken at present.

Of many candidates that are all alike one always looks best. So the earlier half of a shape's rounds says which is best,
and only the later half whether it is faster: its ratio to the incumbent, paired within rounds, must have an interval
that lies above 1, of at least `stats.FEWEST` rounds. The ratio that is told and saved is that of the later half, which
had no part in choosing. `tests/roofline/test_tuned.py` states how often equal ones are taken for faster, by this rule
and without halves.
"""

from collections import Counter
from dataclasses import dataclass, replace

from roofline.report.format import interval_text
from roofline.report.layout import Column, Table
from roofline.report.throughput.columns import CASE, CONFIG, NOTES, OF_ROOF, RATIO, TFLOPS, TIME
from roofline.stats import Interval, ratio_of
from roofline.store.run import Run

INCUMBENT = "incumbent"
"""The contender that is the configuration taken at present; the baseline of a tuning."""

OP = "tune_"
"""How the operations of tunings begin; the kernel follows."""

PRUNED = "pruned, "
"""How the reason begins of a candidate that was left out before it was timed; its kind follows, and a colon."""


@dataclass(frozen=True)
class Verdict:
    """Of one shape and kernel. `winner` is a contender: the incumbent, or the best candidate where that is faster."""

    case: str
    kernel: str
    winner: str
    config: str
    """The winner's, in words."""
    best: str | None
    """The best candidate by the earlier half; None where none has samples in both halves."""
    ratio: Interval | None
    """The incumbent's time over that of `best`, in the later half; above 1 is faster."""
    over: str
    """The incumbent's configuration, in words."""
    tried: int
    """Candidates that were timed."""
    pruned: dict[str, int]
    """{kind of reason: candidates} that were not timed for it."""
    not_compiled: str
    """Why the compiler could not be asked which candidates are sound, if that is so."""

    @property
    def stays(self) -> bool:
        return self.winner == INCUMBENT


FEWEST = 6
"""Rounds that a verdict needs."""


def is_tuning(op: str) -> bool:
    """Whether an operation is a tuning."""
    return op.startswith(OP)


def verdict(run: Run, case: str) -> Verdict | None:
    """What the rounds of the shape `case` say; None where it is no tuning, was cut short, or its incumbent has no
    samples: then there is nothing to be faster than."""
    import pandas

    shape = run.shapes[case]
    incumbent = pandas.Series(shape.times_s(INCUMBENT), dtype=float)
    if not is_tuning(shape.op) or case in run.interrupted or incumbent.empty:
        return None
    names = [name for name in run.measured(case) if name != INCUMBENT]
    ratios = pandas.DataFrame({name: incumbent / pandas.Series(shape.times_s(name)) for name in names}).sort_index()
    late = ratios.index >= shape.round_count // 2
    medians = ratios[~late].median()[ratios[late].notna().any()].dropna()
    best = None if medians.empty else medians.idxmax()
    gains = ratios[late][best].dropna().index if best else []
    ratio = ratio_of({r: incumbent[r] for r in gains}, {r: shape.times_s(best)[r] for r in gains}) if best else None
    winner = best if best and len(gains) >= FEWEST and ratio.low > 1 else INCUMBENT
    configs = {name: own["config"] for name, own in shape.entrants.items()}
    return Verdict(
        case, shape.op.removeprefix(OP), winner, configs[winner], best, ratio, configs[INCUMBENT], len(names),
        _pruned(run, case), shape.facts.get("not_compiled", ""),
    )  # fmt: skip


def _pruned(run: Run, case: str) -> dict[str, int]:
    """Kinds of reasons: of those left out when the candidates were listed, and of cases that were skipped for one."""
    skipped = [
        entry["reason"].removeprefix(PRUNED)
        for entry in run.missing
        if entry["case"].startswith(f"{case}-") and entry["reason"].startswith(PRUNED)
    ]
    reasons = [*run.shapes[case].facts.get("pruned", {}).values(), *skipped]
    return dict(Counter(reason.partition(":")[0] for reason in reasons))


def verdicts(run: Run) -> list[Verdict]:
    """In the order of the run."""
    return [found for case in run.shapes if (found := verdict(run, case))]


def ratio_text(found: Verdict) -> str:
    """`1.031 [1.024, 1.040]`, of the best candidate."""
    return "-" if found.ratio is None else interval_text(found.ratio.value, found.ratio.low, found.ratio.high)


def _left_out(found: Verdict) -> str:
    counts = [f"{kind}: {count}" for kind, count in found.pruned.items()]
    return ", ".join(counts + ([f"none compiled ahead ({found.not_compiled})"] if found.not_compiled else []))


def line(found: Verdict) -> str:
    """One shape, as soon as it is measured."""
    what = "stays" if found.stays else f"-> {found.config}"
    return f"{found.case:<48} {found.over} {what}  best of {found.tried}: {ratio_text(found)}"


COLUMNS = (
    Column(header="shape", of_row=lambda v: v.case.removeprefix(f"{OP}{v.kernel}-"), right=False),
    Column(header="tuned kernel", of_row=lambda v: v.kernel, right=False),
    Column(header="taken from now on", of_row=lambda v: v.config, right=False),
    Column(header="was", of_row=lambda v: "the same" if v.stays else v.over, right=False),
    Column(header="best candidate's ratio [95 %]", of_row=ratio_text),
    Column(header="timed", of_row=lambda v: str(v.tried)),
    Column(header="not timed", of_row=lambda v: _left_out(v) or "-", right=False),
)

TUNED = (
    "Candidates and the configuration that was taken before, the incumbent, took turns. The earlier half of the rounds "
    "says which candidate is best, the later half how much faster it is than the incumbent; it is taken where all of "
    "that interval is above 1. What was not timed is counted by reason."
)
CANDIDATES = Table(
    "Candidates",
    "All that was timed, over all rounds. The best ratio of many flatters; those of the table above do not.",
    (
        *CASE,
        replace(CONFIG, header="configuration", right=False),
        *(TIME, TFLOPS, OF_ROOF, replace(RATIO, header="ratio to incumbent [95 %]"), NOTES),
    ),
    lambda run, records: [record for record in records if is_tuning(record["op"])],
    long=True,
)
