"""How what computes while a wire brings or takes is shown: how much of it an arm hides, and how much it could."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from roofline.analysis.fields import FIELDS
from roofline.analysis.overlap import LOST
from roofline.operations.gathering import exercise, scaling
from roofline.report.sections import Section
from roofline.report.tables import texts
from roofline.store.run import Run
from roofline.theory.arms import ALL_REDUCE, ARMS, is_serial

if TYPE_CHECKING:
    from pandas import DataFrame

BRIEF = (
    *("op", "tp", "ranks", "m", "wire", "ratio", "t_gemm_s", "t_comm_s", "contender", "hidden_fraction"),
    *("ratio_to_baseline", "gain_all_cores", "of_own_ideal"),
)
CASES = (
    *("shape", "contender", "time_s", "t_gemm_s", "t_comm_s", "hidden_fraction", "hidden_expected"),
    *("hidden_clock_normalised", "ratio_to_baseline", "gain_all_cores", "of_roof", "of_own_ideal", "tflops"),
    *("wire_intensity", "ratio", "ranks_per_launch", "split_slowdown", "spilled_bytes", "link"),
    *("link_bytes_per_s", "bound", "rank_spread", "gemm_rank_spread", "notes"),
)
FIGURES = ("network_roofline", "overlap", "timeline")


def overlapping(frame: DataFrame) -> DataFrame:
    """Return the rows of arms that overlap and have a hidden fraction."""
    return frame[~frame["contender"].map(is_serial).astype(bool) & frame["hidden_fraction"].notna()]


def brief(run: Run, frame: DataFrame) -> Section:
    """Return the section of the arm that hides the most of each gather, scatter or layer."""
    best = by_gather(frame)
    return Section(
        "Does the wire hide?",
        "One row for each gather, scatter or layer, with the arm that hides the most. *T_gemm / T_comm* is FLOP per "
        "byte received, in multiples of the balance at which matmul and link take equally long: above 1 the matmul "
        "sets the pace, below it the link. On the exercise's chip 1 is 2750 FLOP/byte.",
        FIGURES[:1],
        texts(best, BRIEF).rename(columns={FIELDS["contender"].header: "best arm"}),
        tuple(balances(best)),
    )


def by_gather(frame: DataFrame) -> DataFrame:
    """Return a row for each shape whose link kept its pace: that of the arm that hid the most."""
    ranked = overlapping(frame).sort_values("hidden_fraction", ascending=False, kind="stable")
    return ranked.drop_duplicates("shape").sort_index().sort_values(["op", "ratio"], kind="stable")


def balances(best: DataFrame) -> list[str]:
    """Return a line for each wire whose name is a balance: what that is of the exercise's."""
    wires = best[["wire", "model", "dtype"]].drop_duplicates().itertuples(index=False)
    of_exercise = [(wire, scaling(*case)) for wire, *case in wires if wire == exercise(*case)]
    return [f"{wire}: FLOP per byte that the wire is asked for, the exercise's: {how}" for wire, how in of_exercise]


def summary(frame: DataFrame) -> list[str]:
    """Return a line per operation and arm: the median of what it hid; what plain tensor parallelism takes of a layer;
    then, per operation, what waiting and traffic cost, and what its caches hold."""
    rows = overlapping(frame)
    lines = [
        f"{op}, {arm}: hides {of_arm['hidden_fraction'].median():.2f} of the shorter of matmul and wire, "
        f"reaches {of_arm['of_own_ideal'].median():.2f} of its own ideal (medians over {len(of_arm)} cases)"
        for (op, arm), of_arm in rows.groupby(["op", "contender"], sort=False)
    ]
    plain = frame[(frame["contender"] == ALL_REDUCE) & frame["ratio_to_baseline"].notna()]
    lines += [
        f"{op}: serial, whose tokens are sharded between layers, takes {ratios.median():.2f} of the time of plain "
        f"tensor parallelism with its all-reduce (median over {len(ratios)} cases)"
        for op, ratios in plain.groupby("op", sort=False)["ratio_to_baseline"]
    ]
    preset = rows[rows["preset_slowdown"].notna()]
    lines += [_costs(op, of_op) for op, of_op in preset.groupby("op", sort=False)]
    caches = frame[frame["cache"] != ""].groupby(["op", "cache"], sort=False)["shape"].nunique()
    return lines + [f"{op}, cache {cache} ({shapes} shapes)" for (op, cache), shapes in caches.items()]


def _costs(op: str, rows: DataFrame) -> str:
    """Return what waiting costs the kernel, and what it and the link take from one another, where the kernel was
    preset."""
    tabled = rows["contender"].map(lambda arm: arm in ARMS and ARMS[arm].table)
    shapes = rows.assign(tabled=tabled).sort_values("tabled", kind="stable").drop_duplicates("shape", keep="last")
    text = f"{op}: with all flags up the kernel takes {shapes['preset_slowdown'].median():.2f} of the time of the "
    text += "fastest unsplit matmul"
    if len(beside := shapes["gemm_slowdown"].dropna()):
        text += f", beside other traffic {median(beside):.2f} of that"
    under = rows.assign(tabled=tabled).sort_values("tabled", kind="stable").dropna(subset="link_slowdown")
    if len(under):
        slower = under.groupby("contender", sort=False)["link_slowdown"].median()
        times = ", ".join(f"{ratio:.2f} ({arm})" for arm, ratio in slower.items())
        text += f"; the link takes {times} of its time alone"
    return f"{text} (medians over {len(shapes)} shapes)"


def splits(frame: DataFrame) -> Section:
    """Return the section of what an arm takes above its ideal, and of what: of arms that overlap."""
    rows = frame[~frame["contender"].map(is_serial).astype(bool) & frame["diagnosis"].notna()]
    parts = {"above it": rows["time_s"] - rows["ideal_s"]} | {words: rows[name] for name, words in LOST.items()}
    table = texts(rows, ("shape", "contender", "ratio", "time_s", "ideal_s"))
    for words, lost_s in parts.items():
        if lost_s.notna().any():
            table[words] = (lost_s / rows["time_s"]).map(lambda share: f"{100 * share:+.1f} %", na_action="ignore")
    table["diagnosis"] = rows["diagnosis"]
    counts = rows.groupby(["op", "contender"], sort=False)["diagnosis"].value_counts()
    lines = [
        f"{op}, {arm}: " + ", ".join(f"{why} in {count}" for (_, _, why), count in of_arm.items())
        for (op, arm), of_arm in counts.groupby(level=[0, 1], sort=False)
    ]
    return Section(
        "Where an arm's time goes",
        "*Ideal* is the longer of T_gemm and T_comm. What an arm takes above it is split by what the same rounds "
        "measured, in shares of the arm's time: *schedule* is what its order of work costs by the simulator; *split* "
        "what launches for some ranks' rows each cost over one for all; *waiting code* what its own matmul costs "
        "beyond the fastest; *contention* what matmul and link take from each other; the rest is what is left. Each is "
        "the growth of the simulated time when that is let in: what hides behind the other costs nothing.",
        table=table.fillna("-"),
        lines=tuple(lines),
        long=True,
    )
