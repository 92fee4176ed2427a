"""The sections of what overlaps a wire: how much of it an arm hides, and how much it could."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roofline.analysis.fields import FIELDS
from roofline.analysis.overlap import LOST, overlapping, valid
from roofline.operations.gathering import exercise_wire, scaling
from roofline.operations.shown import Field
from roofline.report.tables import TABLES, Section, section
from roofline.store.run import Run
from roofline.theory.arms import ALL_REDUCE, ARMS

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURES = ("network_roofline", "overlap", "timeline")
BEST_ARM = Field("contender", "the arm that hides the most", header="best arm")
ABOVE_IDEAL = Field("above_ideal", "the time above the ideal, as a share of it", "1", "above it", "growth")


def brief(run: Run, frame: DataFrame) -> Section:
    """The section of the arm that hides the most of each gather, scatter or layer."""
    best = by_gather(frame)
    made = section(TABLES["best_arms"], best, balances(best), FIELDS | {"contender": BEST_ARM})
    return made._replace(figures=FIGURES[:1])


def by_gather(frame: DataFrame) -> DataFrame:
    """A row for each shape whose link kept its pace: that of the arm that hid the most."""
    hiding = overlapping(frame).dropna(subset="hidden_fraction")
    ranked = hiding.sort_values("hidden_fraction", ascending=False, kind="stable")
    best = ranked.drop_duplicates("shape").sort_index()
    return best.sort_values(["op", "ratio"], kind="stable")


def balances(best: DataFrame) -> list[str]:
    """A line for each wire whose name is a balance: what that is of the exercise's."""
    lines = []
    wires = best[["wire", "model", "dtype"]].drop_duplicates()
    for wire, model, dtype in wires.itertuples(index=False):
        if wire == exercise_wire(model, dtype):
            how = scaling(model, dtype)
            lines.append(f"{wire}: FLOP per byte that the wire is asked for, the exercise's: {how}")
    return lines


def summary(frame: DataFrame) -> list[str]:
    """A line per operation and arm: the median of what it hid; what plain tensor parallelism takes of a layer; then,
    per operation, what waiting and traffic cost, and what its caches hold."""
    lines = []
    hiding = overlapping(frame).dropna(subset="hidden_fraction")
    for (op, arm), rows in hiding.groupby(["op", "contender"], sort=False):
        lines.append(
            f"{op}, {arm}: hides {rows['hidden_fraction'].median():.2f} of the shorter of matmul and wire, "
            f"reaches {rows['of_own_ideal'].median():.2f} of its own ideal (medians over {len(rows)} cases)"
        )
    rated = valid(frame).dropna(subset="ratio_to_baseline")
    plain = rated[rated["contender"] == ALL_REDUCE]
    for op, ratios in plain.groupby("op", sort=False)["ratio_to_baseline"]:
        lines.append(
            f"{op}: serial, whose tokens are sharded between layers, takes {ratios.median():.2f} of the time of plain "
            f"tensor parallelism with its all-reduce (median over {len(ratios)} cases)"
        )
    for op, rows in hiding.dropna(subset="preset_slowdown").groupby("op", sort=False):
        lines.append(_costs(op, rows))
    cached = frame[frame["cache"] != ""]
    shape_counts = cached.groupby(["op", "cache"], sort=False)["shape"].nunique()
    for (op, cache), shapes in shape_counts.items():
        lines.append(f"{op}, cache {cache} ({shapes} shapes)")
    return lines


def _costs(op: str, rows: DataFrame) -> str:
    """The cost of waiting, and that of kernel and link to one another, where the kernel was preset."""
    has_table = rows["contender"].map(lambda arm: arm in ARMS and ARMS[arm].table)
    shapes = rows.loc[has_table.sort_values(kind="stable").index].drop_duplicates("shape", keep="last")
    preset = shapes["preset_slowdown"].median()
    text = f"{op}: with all flags up the kernel takes {preset:.2f} of the time of the fastest unsplit matmul"
    slowdowns = shapes["gemm_slowdown"].dropna()
    if len(slowdowns):
        text += f", beside other traffic {slowdowns.median():.2f} of that"
    slower = rows.dropna(subset="link_slowdown").groupby("contender", sort=False)["link_slowdown"].median()
    if len(slower):
        times = [f"{ratio:.2f} ({arm})" for arm, ratio in slower.items()]
        text += f"; the link takes {', '.join(times)} of its time alone"
    return f"{text} (medians over {len(shapes)} shapes)"


def splits(frame: DataFrame) -> Section:
    """The section of what arms that overlap take above their ideal, and what that goes to."""
    rows = overlapping(frame).dropna(subset="diagnosis")
    lines = []
    counts = rows.groupby(["op", "contender"], sort=False)["diagnosis"].value_counts()
    for (op, arm), of_arm in counts.groupby(level=[0, 1], sort=False):
        parts = [f"{diagnosis} in {count}" for (_, _, diagnosis), count in of_arm.items()]
        lines.append(f"{op}, {arm}: {', '.join(parts)}")
    shares = rows[[*LOST]].div(rows["time_s"], axis=0)
    shares["above_ideal"] = 1 - rows["ideal_s"] / rows["time_s"]
    return section(TABLES["splits"], rows.assign(**shares), lines, FIELDS | {"above_ideal": ABOVE_IDEAL})
