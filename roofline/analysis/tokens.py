"""The speed by rows of x, M: the first table of a report, and README's. `[tokens]` of fields.toml has its columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from roofline.analysis.fields import GROUPS, with_ends
from roofline.analysis.records import steady_ratios
from roofline.operations.shapes import shape_text
from roofline.store.run import AGAIN, Run, Shape
from roofline.store.stats import Interval, geometric_mean, student

if TYPE_CHECKING:
    from pandas import DataFrame, Series

COLUMNS = GROUPS["tokens"]
NUMPY = "numpy"
"""A library, which runs before method 6 do not say."""
TUNED, GUESS = "quack_tuned", "quack"
"""A library by its tuner, and by its guess, which counts where the other did not run: ours have tuned entries, too."""


def compared(frame: DataFrame) -> DataFrame:
    """The rows that have a ratio, without the baseline's."""
    others = frame[frame["contender"] != frame["baseline"]]
    return others.dropna(subset="ratio_to_baseline")


def by_tokens(run: Run, frame: DataFrame) -> DataFrame:
    """A row for each dtype and M of `frame`, the cases of `run`: the baseline, on each shape the fastest of ours and
    the user's beside it, and what `kernels.matmul` takes, in the geometric mean over the shapes. Libraries have columns
    of their own."""
    import pandas

    cases = frame[frame["analysis"] == "throughput"].dropna(subset=["m", "ratio_to_baseline"])
    rows = []
    for (dtype, m), of_row in cases.groupby(["dtype", "m"]):
        others = compared(of_row)
        is_rival = others["rival"].astype(bool)
        rivals = others[is_rival].sort_values("ratio_to_baseline", ascending=False, kind="stable")
        if rivals.empty:
            continue
        row = {"m": m, "dtype": dtype, **_fastest(run, rivals.drop_duplicates("shape").sort_index())}
        alone = rivals.dropna(subset="steady_ratio_to_baseline")
        row |= _sustained(run, alone.drop_duplicates("shape"))
        row |= _dispatched(run, of_row[of_row["contender"].eq(of_row["dispatched"])])
        for name, of_library in others[~is_rival].groupby("contender", sort=False):
            row |= zip(columns_of(name), mean_ratio(run, of_library), strict=True)
        rows.append(row)
    table = pandas.DataFrame(rows)
    return table.reindex(columns=[*COLUMNS, *(name for name in table if name not in COLUMNS)])


def over_libraries(run: Run, frame: DataFrame) -> tuple[str, int, Interval] | None:
    """The fastest library of those that ran on every shape of a matmul that one of ours, or of the user's, did; how
    many shapes; and the mean of the fastest of ours over it. None without such a library, or one of ours, or where some
    shape has too few rounds of both."""
    matmuls = frame[frame["op"] == "matmul"]
    cases = matmuls[matmuls["contender"] != matmuls["baseline"] + AGAIN]
    libraries = {NUMPY, *cases["baseline"]}
    for shape, name in _cases(run, cases):
        if shape.entrants[name].get("of_library"):
            libraries.add(name)
    times_s = cases.pivot(index="shape", columns="contender", values="time_s")
    is_library = times_s.columns.isin(libraries)
    ours = times_s.loc[:, ~is_library].dropna(how="all")
    others = times_s.loc[ours.index, is_library].dropna(axis="columns")
    if TUNED in others:
        others = others.drop(columns=GUESS, errors="ignore")
    if ours.empty or others.empty:
        return None
    ratios = []
    fastest = others.agg(geometric_mean).idxmin()
    for shape_id, name in ours.idxmin(axis="columns").items():
        of_ours = run.rows[shape_id, name].ratios(name)
        of_library = run.rows[shape_id, fastest].ratios(fastest)
        both = of_ours.keys() & of_library  # of two that were apart, none
        ratios.append({index: of_ours[index] / of_library[index] for index in sorted(both)})
    if not all(ratios):
        return None
    values = [geometric_mean(of_shape.values()) for of_shape in ratios]
    return fastest, len(ours), _mean(values, ratios)


def columns_of(name: str) -> tuple[str, str, str]:
    """The columns of the library of that name: a mean and its ends."""
    return name, f"{name}_low", f"{name}_high"


def _fastest(run: Run, best: DataFrame) -> dict:
    """The baseline on the shapes of a row, and the fastest beside it on each."""
    least = best.loc[best["ratio_to_baseline"].idxmin()]
    return with_ends("ratio_to_baseline", mean_ratio(run, best), COLUMNS) | {
        "shapes": len(best),
        "baseline": best["baseline"].iloc[0],
        "baseline_tflops": geometric_mean(best["flop"] / best["baseline_time_s"]) / 1e12,
        "fastest": _names(best),
        "tuned": _tuned(best),
        "tflops": geometric_mean(best["flop"] / best["time_s"]) / 1e12,
        "least": least["ratio_to_baseline"],
        "least_shape": shape_text(least),
        "of_roof": geometric_mean(best["of_roof"].dropna()),
    }


def _sustained(run: Run, rows: DataFrame) -> dict:
    """The fastest in blocks, where they ran alone. The interval is Student's over alternations, each of which says the
    mean over all of `rows`."""
    ratios = [steady_ratios(shape, name) for shape, name in _cases(run, rows)]
    sustained = _mean(rows["steady_ratio_to_baseline"], ratios)
    return with_ends("sustained", sustained, COLUMNS) | {"sustained_shapes": len(rows)}


def _dispatched(run: Run, rows: DataFrame) -> dict:
    """The choice of `kernels.matmul`, where that was measured."""
    return with_ends("dispatched_ratio", mean_ratio(run, rows), COLUMNS) | {
        "dispatched": _names(rows),
        "dispatched_shapes": len(rows),
        "dispatched_tuned": _tuned(rows),
    }


def _names(rows: DataFrame) -> str | None:
    return ", ".join(rows["contender"].unique()) or None


def _tuned(rows: DataFrame) -> float:
    """On how many of the shapes a trial had chosen the configuration; NaN where no journal says."""
    return rows["tuned"].dropna().sum(min_count=1)


def mean_ratio(run: Run, rows: DataFrame) -> Interval:
    """The geometric mean of the ratios to the baseline. The interval is Student's over processes, each of which
    says the mean over all of `rows`; a single one says none."""
    ratios = [shape.ratios(name) for shape, name in _cases(run, rows)]
    return _mean(rows["ratio_to_baseline"], ratios)


def _cases(run: Run, rows: DataFrame) -> Iterator[tuple[Shape, str]]:
    for shape_id, contender in zip(rows["shape"], rows["contender"], strict=True):
        yield run.rows[shape_id, contender], contender


def _mean(values: Series, ratios: list[dict[int, float]]) -> Interval:
    """The mean of the `values` of cases, with Student's interval by the `ratios` of those who have one of all cases;
    NaN of none."""
    import pandas

    of_all = pandas.DataFrame(ratios).dropna(axis="columns")
    return student(geometric_mean(values), [*of_all.agg(geometric_mean)])
