"""The sections of what computes from device memory: FLOP/s against the roof and against the baseline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from roofline.analysis.changes import complete
from roofline.analysis.decision import LOOKS, SURE
from roofline.analysis.fields import FIELDS
from roofline.analysis.throughput import steady_ratios
from roofline.analysis.verdicts import VERDICTS
from roofline.operations.format import (
    error_text,
    flops_text,
    number_text,
    percent_text,
    range_text,
    rate_text,
    roof_text,
    shape_text,
)
from roofline.report.findings import OTHERS
from roofline.report.sections import Section, declared
from roofline.report.tables import TABLES, escaped
from roofline.store.run import Run, Shape
from roofline.store.stats import by_process, geometric_mean, student

if TYPE_CHECKING:
    from pandas import DataFrame, Series

COLUMNS = TABLES["columns"]["throughput"]
IN_TURNS, SUSTAINED = "in turns [95 %]", "sustained [95 %]"
"""The ratio to the baseline: of single calls that take turns on one clock, and of blocks of seconds, each alone."""
LIBRARY_RATIO = " [95 %]"
"""Behind a library's name, over the column of its ratio to the baseline."""
FIGURES = ("memory_roofline", "attention")
STEP_FIGURES = tuple(TABLES["sections"]["steps"]["figures"])


def beside_baseline(frame: DataFrame) -> DataFrame:
    """The rows that have a ratio, without the baseline's."""
    return frame[(frame["contender"] != frame["baseline"]) & frame["ratio_to_baseline"].notna()]


def brief(run: Run, frame: DataFrame) -> Section:
    """The section of the fastest contender beside the baseline, by rows of x."""
    table = by_tokens(run, frame)
    about = (
        "Each row has all shapes of so many tokens, M: the baseline, and on each shape the fastest of ours and the "
        "user's, in the geometric mean. *Least* is the shape where that does worst."
    )
    if SUSTAINED in table:
        about += (
            " *In turns* is the ratio of single calls on one clock, *sustained* that of blocks of seconds, in which "
            "each runs alone at the clock that its power allows."
        )
    if not beside_baseline(frame)["rival"].all():
        about += (
            " Libraries have a column each, of their ratio to the baseline, and are not among the fastest. That of the "
            "baseline's second turn in each round says how far apart equals come out."
        )
    probes = frame["roof_probe"].dropna().unique()
    if len(probes):
        about += f" *Of roof* is the share of what a probe reached in the same rounds: {escaped(', '.join(probes))}."
        if frame["roof_probe"][frame["of_roof"].notna()].isna().any():
            about += " Where the run's ceiling of the other kind is lower, it is the share of that."
    return Section("Against the baseline", about, FIGURES[:1], table)


def by_tokens(run: Run, frame: DataFrame) -> DataFrame:
    """A row for each dtype and M: the baseline, and on each shape its fastest rival, in the geometric mean. Who
    is measured and nobody's rival, as a library, has a column of its ratio."""
    import pandas

    rows = beside_baseline(frame).dropna(subset="m")
    rivals = rows[rows["rival"].astype(bool)].sort_values("ratio_to_baseline", ascending=False, kind="stable")
    fastest = rivals.drop_duplicates("shape").sort_index()
    alone = rivals[rivals["steady_ratio_to_baseline"].notna()].drop_duplicates("shape")
    libraries = rows[~rows["rival"].astype(bool)]
    table = []
    for (dtype, m), best in fastest.groupby(["dtype", "m"]):
        row = _of_tokens(run, dtype, m, best)
        if len(alone):
            row[SUSTAINED] = mean_sustained(run, _alike(alone, dtype, m), len(best))
        shares = best["of_roof"].dropna()
        least = best.loc[best["ratio_to_baseline"].idxmin()]
        row["least"] = _least_text(least)
        row["of roof"] = roof_text(geometric_mean(shares)) if len(shares) else "-"
        for name, of_library in _alike(libraries, dtype, m).groupby("contender", sort=False):
            row[f"{name}{LIBRARY_RATIO}"] = mean_ratio(run, of_library)
        table.append(row)
    return pandas.DataFrame(table).fillna("-")


def _alike(rows: DataFrame, dtype: str, m: int) -> DataFrame:
    return rows[(rows["dtype"] == dtype) & (rows["m"] == m)]


def _least_text(row: Series) -> str:
    """The ratio of a shape, and the shape's name."""
    name = shape_text(row)
    if not name and isinstance(row["layer"], str):
        name = f"{row['layer']} tp{row['tp']}"
    return f"{number_text(row['ratio_to_baseline'])} {name}".rstrip()


def _of_tokens(run: Run, dtype: str, m: int, best: DataFrame) -> dict[str, str]:
    return {
        "M": str(m),
        "dtype": dtype,
        "shapes": str(len(best)),
        "baseline": best["baseline"].iloc[0],
        "its rate": flops_text(geometric_mean(best["flop"] / best["baseline_time_s"])),
        "fastest beside it": ", ".join(best["contender"].unique()),
        "rate": flops_text(geometric_mean(best["flop"] / best["time_s"])),
        IN_TURNS: mean_ratio(run, best),
    }


def mean_ratio(run: Run, rows: DataFrame) -> str:
    """The geometric mean of the ratios to the baseline. The interval is Student's over processes, each of which
    says the mean over all of `rows`; a single one says none."""
    ratios = []
    for shape, contender in _cases(run, rows):
        times = shape.anchor, shape.times_s(contender)
        ratios.append(by_process(lambda a, b: a / b, *times, groups=shape.groups))
    return _mean_text(rows["ratio_to_baseline"], ratios)


def mean_sustained(run: Run, rows: DataFrame, shapes: int) -> str:
    """The geometric mean of the ratios in blocks, and of how many of the `shapes` it is where not of all. The
    interval is Student's over alternations, each of which says the mean over all of `rows`."""
    if rows.empty:
        return "-"
    ratios = [steady_ratios(run, shape, contender) for shape, contender in _cases(run, rows)]
    text = _mean_text(rows["steady_ratio_to_baseline"], ratios)
    return text if len(rows) == shapes else f"{text}, {len(rows)} shapes"


def _cases(run: Run, rows: DataFrame) -> Iterator[tuple[Shape, str]]:
    for shape_id, contender in zip(rows["shape"], rows["contender"], strict=True):
        yield run.shapes[shape_id], contender


def _mean_text(values: Series, ratios: list[dict[int, float]]) -> str:
    """The mean of the `values` of cases, with Student's interval by the `ratios` of those who have one of all cases."""
    means = [geometric_mean(of_case[index] for of_case in ratios) for index in complete(ratios)]
    return range_text(*student(geometric_mean(values), means))


def summary(frame: DataFrame) -> list[str]:
    """A line per contender: geometric mean of its ratio to the baseline, over all tokens and over 1024 and
    more."""
    lines = []
    for name, rows in beside_baseline(frame).groupby("contender", sort=False):
        ratios = rows["ratio_to_baseline"]
        large = ratios[rows["m"].ge(1024).fillna(False)]
        text = f"{name}: {geometric_mean(ratios):.3f} of {rows['baseline'].iloc[0]}'s speed"
        text += f" in the geometric mean over {len(ratios)} shapes"
        if len(large):
            text += f", {geometric_mean(large):.3f} over M >= 1024 ({len(large)})"
        lines.append(text)
    return lines


def decided(run: Run, frame: DataFrame) -> Section:
    """The section of the decisions, with how many there are of each verdict."""
    rows = frame[frame["verdict"].notna()]
    counts = rows["verdict"].value_counts()
    text = ", ".join(f"{counts[word]} {word}" for word in VERDICTS if word in counts)
    margin = f"+-{100 * run.metadata['options']['decide']:g} %"
    text += f" of {len(rows)} at {margin}, {100 * SURE:.0f} % sure (alpha spent over {len(LOOKS)} looks)"
    others = rows["others_share"].median()
    if others > OTHERS:
        text += f", while others took {percent_text(others)} of the CPU"
    return declared("decided", rows, [text])


def steady(frame: DataFrame) -> Section:
    """The section of what ran alone in blocks, and what it took of power."""
    rows = frame[frame["steady_time_s"].notna()]
    lines = []
    for name, of_contender in rows.dropna(subset="steady_flop_per_joule").groupby("contender", sort=False):
        joules = geometric_mean(1e12 / of_contender["steady_flop_per_joule"])
        lines.append(f"{name}: {joules:.3g} J per TFLOP in the geometric mean over {len(of_contender)} shapes")
    for watts in rows["steady_idle_power_w"].dropna().unique():
        lines.append(f"idle power: {rate_text(watts)} W, before anything was measured")
    of_tflop = rows[["steady_energy_j", *FIELDS["steady_energy_j"].ends]].mul(1e12 / rows["flop"], axis=0)
    return declared("steady", rows.assign(**of_tflop), lines)


def memory(run: Run, frame: DataFrame) -> Section:
    """The section of the bytes that were kept, and of the most that were allocated. Its lines have who needs
    more than there is."""
    lines = []
    for missing in run.missing:
        if ": needs " in missing.reason:
            _, _, needs = missing.reason.partition(": ")
            lines.append(f"{missing.case}: {needs}")
    return declared("memory", frame, lines)


def clocks(frame: DataFrame) -> Section:
    """The section of the same kernels by several clocks. Its lines say how far apart they are."""
    lines = []
    for name in ("do_bench", "cupti"):
        off = (frame[f"{name}_s"] / frame["clock_s"] - 1).abs().dropna()
        if len(off):
            lines.append(f"{name}: {error_text(off.median())} from ours in the median, at most {error_text(off.max())}")
    return declared("clocks", frame, lines)


def counted(frame: DataFrame) -> Section:
    """The section of what a profiler counted. Its lines are the tools, their versions and their metrics."""
    sources = frame["counter_source"].dropna().unique()
    return declared("counted", frame, [f"counted by {source}" for source in sources])
