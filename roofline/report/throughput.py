"""The sections of what computes from device memory: FLOP/s against the roof and against the baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roofline.analysis.decision import LOOKS, SURE
from roofline.analysis.records import records_of
from roofline.analysis.tokens import COLUMNS as BY_TOKENS
from roofline.analysis.tokens import by_tokens, columns_of, compared, over_libraries
from roofline.analysis.verdicts import SLOWER, VERDICTS
from roofline.operations.shown import Field
from roofline.report.format import interval_text, small_text
from roofline.report.tables import TABLES, Section, escaped, section, texts
from roofline.store.run import Run
from roofline.store.stats import geometric_mean

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FASTEST, LEAST, SUSTAINED, DISPATCHED = (
    BY_TOKENS[name].header for name in ("fastest", "least", "sustained", "dispatched_ratio")
)
"""Columns of the table by rows of x that say more than their fields do."""
FIGURES = "speedup", "memory_roofline"


def brief(run: Run, frame: DataFrame) -> Section:
    """The section of the fastest contender beside the baseline, by rows of x."""
    table = tokens_table(by_tokens(run, frame))
    about = (
        "Each row has all shapes of so many tokens, M: the baseline, and on each shape the fastest of ours and the "
        "user's, in the geometric mean. *Least* is the shape where that does worst."
    )
    if DISPATCHED in table:
        about += (
            " Which is the fastest is known once all were measured. *Dispatched* is what `kernels.matmul` takes by its "
            "rule, and how fast that is."
        )
    if frame["tuned"].eq(True).any():
        about += " *Tuned* are those whose configuration a trial had chosen on that very shape."
    if SUSTAINED in table:
        about += (
            " *In turns* is the ratio of single calls on one clock, *sustained* that of blocks of seconds, in which "
            "each runs alone at the clock that its power allows."
        )
    if not compared(frame)["rival"].all():
        about += (
            " Libraries have a column each, of their ratio to the baseline, and are not among the fastest. That of the "
            "baseline's second turn in each round says how far apart equals come out."
        )
    probes = frame["roof_probe"].dropna().unique()
    if len(probes):
        about += f" *Of roof* is the share of what a probe reached in the same rounds: {escaped(', '.join(probes))}."
        if frame.dropna(subset="of_roof")["roof_probe"].isna().any():
            about += " Where the run's ceiling of the other kind is lower, it is the share of that."
    return Section("Against the baseline", about, FIGURES[:1], table)


def first_line(run: Run, frame: DataFrame) -> str:
    """The fastest library, and ours over it; empty of a run that has not both."""
    found = over_libraries(run, frame)
    if not found:
        return ""
    name, shapes, ratio = found
    means = f"in the geometric mean over {shapes} shape{'s' * (shapes > 1)}"
    return f"Fastest library: {name}. The fastest of ours and the user's over it: {interval_text(*ratio)}, {means}."


def tokens_table(rows: DataFrame) -> DataFrame:
    """The table of `analysis.tokens.by_tokens` in texts."""
    fields = dict(BY_TOKENS)
    for name in list(rows)[len(BY_TOKENS) :: 3]:  # libraries, with two columns more for the ends of each
        fields[name] = Field(name, "", "1", f"{name} [95 %]", "mean", columns_of(name)[1:])
    columns = [name for name, field in fields.items() if field.header]
    table = texts(rows, columns, fields)
    for index, row in rows.iterrows():
        table.loc[index, FASTEST] += _tuned_text(row["tuned"])
        table.loc[index, LEAST] = f"{table.loc[index, LEAST]} {row['least_shape']}".rstrip()
        if SUSTAINED in table:
            table.loc[index, SUSTAINED] += _fewer_text(row, "sustained_shapes")
        if row["dispatched_shapes"]:
            names = f" {row['dispatched']}{_tuned_text(row['dispatched_tuned'])}"
            table.loc[index, DISPATCHED] += names + _fewer_text(row, "dispatched_shapes")
        elif DISPATCHED in table:
            table.loc[index, DISPATCHED] = "unmeasured"
    return table


def _tuned_text(shapes: float | None) -> str:
    return f" ({shapes:g} tuned)" if shapes and shapes > 0 else ""


def _fewer_text(row: Series, name: str) -> str:
    """Of how many shapes a mean is, where it is not of all."""
    return f", {row[name]} shapes" if 0 < row[name] < row["shapes"] else ""


def summary(frame: DataFrame) -> list[str]:
    """A line per contender: geometric mean of its ratio to the baseline, over all tokens and over 1024 and
    more."""
    lines = []
    for name, rows in compared(frame).groupby("contender", sort=False):
        ratios = rows["ratio_to_baseline"]
        large = ratios[rows["m"].ge(1024)]
        text = f"{name}: {small_text(geometric_mean(ratios))} of {rows['baseline'].iloc[0]}'s speed"
        text += f" in the geometric mean over {len(ratios)} shapes"
        if len(large):
            text += f", {small_text(geometric_mean(large))} over M >= 1024 ({len(large)})"
        lines.append(text)
    return lines


def decided(run: Run, frame: DataFrame) -> Section:
    """The section of the decisions, with how many there are of each verdict."""
    counts = frame["verdict"].value_counts()
    text = ", ".join(f"{counts[word]} {word}" for word in VERDICTS if word in counts)
    margin = f"+-{100 * run.metadata['options']['decide']:g} %"
    text += f" of {counts.sum()} at {margin}, {100 * SURE:.0f} % sure (alpha spent over {len(LOOKS)} looks)"
    return section(TABLES["decided"], frame, [text])


def slower(run: Run) -> list[str]:
    """A line for each case that is decided to be SLOWER."""
    lines = []
    for record in records_of(run):
        if record["verdict"] == SLOWER:
            ratio = interval_text(record["decided"], record["decided_low"], record["decided_high"])
            lines.append(f"{SLOWER}: {record['case']}: {ratio} of {record['baseline']}'s speed")
    return lines


def steady(frame: DataFrame) -> Section:
    """The section of what ran alone in blocks, and what it took of power."""
    rows = frame.assign(steady_energy_j=1e12 * frame["steady_energy_j"] / frame["flop"])
    lines = []
    for name, of_contender in rows.dropna(subset="steady_energy_j").groupby("contender", sort=False):
        joules = geometric_mean(of_contender["steady_energy_j"])
        lines.append(f"{name}: {joules:.3g} J per TFLOP in the geometric mean over {len(of_contender)} shapes")
    return section(TABLES["steady"], rows, lines)


def counted(frame: DataFrame) -> Section:
    """The section of what a profiler counted. Its lines are the tools, their versions and their metrics."""
    sources = frame["counter_source"].dropna().unique()
    return section(TABLES["counted"], frame, [f"counted by {source}" for source in sources])
