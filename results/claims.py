"""The figures that README and docs state of the committed runs, beyond what the runs' reports print.

    python3 -m results.claims    # each as its page words it, below the runs that it is computed from

A claim is a function of runs, and the words of a page with a field for each figure that it needs. A test looks for the
words in the page.
"""

import math
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pandas import DataFrame, Series

import roofline
from results import rule
from roofline.analysis.changes import mean_of_run, values_of
from roofline.analysis.comparison import compare
from roofline.analysis.overlap import LOST, unsplit_times_s
from roofline.analysis.records import AnalysedRun, records_of
from roofline.analysis.verdicts import ALPHA, UNDECIDED
from roofline.store.stats import beyond, geometric_mean
from roofline.theory.simulator import hidden_fraction

REFERENCE = Path(__file__).parent / "reference"
H100 = "nvidia-h100-80gb-hbm3-2026-11-26"
EARLIER, GATHERS, SCATTERS, MATMULS, AGAIN, PREFETCHES = H100, *(f"{H100}-{number}" for number in range(2, 7))
"""MATMULS is README's run, and AGAIN the one behind it in the same visit to the card. EARLIER is of a visit four hours
before. Between the two visits `persistent`, its configurations and cuBLAS's kernels stayed the same."""
H200 = "nvidia-h200-2026-11-26"
UP_TP1_256, UP_TP8_256 = (f"matmul-xxl-up-tp{tp}-m256-bf16" for tp in (1, 8))


@cache
def load(name: str) -> AnalysedRun:
    return roofline.load(REFERENCE / name)


def changes(base: AnalysedRun, new: AnalysedRun, contender: str | None) -> DataFrame:
    """A row for each case that both runs have, of all contenders if None: the logarithm of its ratio to the baseline in
    `new` over that in `base`, and the chance of as much between equals, by Welch's test over processes."""
    sides = []
    for run in (base, new):
        means = {}
        for record in records_of(run):
            if contender in (None, record["contender"]) and record["contender"] != record["baseline"]:
                means[record["case"]] = mean_of_run([values_of(run, record)])
        sides.append(means)
    rows = {}
    for case in sides[0].keys() & sides[1].keys():
        before, after = sides[0][case], sides[1][case]
        change = after.value - before.value
        variance = before.error**2 + after.error**2
        noise = before.error**4 / before.freedom + after.error**4 / after.freedom
        rows[case] = change, beyond(change / math.sqrt(variance), int(variance**2 / noise))
    return DataFrame.from_dict(rows, orient="index", columns=["change", "chance"])


def spread_between(base: AnalysedRun, new: AnalysedRun, contender: str | None = None) -> dict:
    """How many cases differ and how far they move. `sd` is the standard deviation of one run that this gives."""
    table = changes(base, new, contender)
    moved = table["change"].abs()
    return {
        "cases": len(table),
        "differing": int((table["chance"] < ALPHA).sum()),
        "sd": math.sqrt((moved**2).mean() / 2),
        "median": moved.median(),
        "worst": abs(math.expm1(table["change"][moved.idxmax()])),
    }


def spread_of_persistent(base: AnalysedRun, new: AnalysedRun) -> dict:
    return spread_between(base, new, "persistent")


def verdicts(base: AnalysedRun, new: AnalysedRun) -> dict:
    """What `roofline compare` calls the cases, and how many of them are cuBLAS against itself."""
    cases = compare([base], [new]).cases
    words = [case.verdict for case in cases]
    return {
        "cases": len(cases),
        "undecided": words.count(UNDECIDED),
        "again": sum(case.case.endswith("cublas_again") for case in cases),
        "least": Series([case.change.resolution for case in cases]).median(),
    }


def sustained(run: AnalysedRun) -> dict:
    """The fastest of ours from 4096 tokens on, by single calls in turns and alone for seconds."""
    rows = run.frame().query("m >= 4096 and contender != baseline and steady_ratio_to_baseline.notna()")
    return {
        "shapes": len(rows),
        "in_turns": geometric_mean(rows["ratio_to_baseline"]),
        "sustained": geometric_mean(rows["steady_ratio_to_baseline"]),
    }


def clocks_hz(run: AnalysedRun) -> Series:
    """The SM clock behind a call, in the median over the samples of each case."""
    return run.samples().groupby("case")["sm_clock_hz"].median()


def clocks(run: AnalysedRun) -> dict:
    """The clock of cuBLAS in GHz, by M: the lowest and the highest of the shapes."""
    rows = run.frame().query("contender == 'cublas'")
    ghz = rows["case"].map(clocks_hz(run)) / 1e9
    figures = {}
    for m, of_shapes in ghz.groupby(rows["m"]):
        figures |= {f"low_{m}": of_shapes.min(), f"high_{m}": of_shapes.max()}
    few = ghz[rows["m"] <= 128]
    return figures | {
        "low_few": few.min(),
        "high_few": few.max(),
        "up_tp1_256": ghz[rows["shape"] == UP_TP1_256].iloc[0],
    }


def same_clock(run: AnalysedRun) -> dict:
    """How far the clock of the fastest of ours is from the baseline's."""
    frame = run.frame()
    frame["hz"] = frame["case"].map(clocks_hz(run))
    ours = frame[frame["rival"].fillna(False).astype(bool)].sort_values("ratio_to_baseline").groupby("shape").last()
    apart = (ours["hz"] / frame[frame["contender"] == "cublas"].set_index("shape")["hz"] - 1).abs()
    return {"shapes": len(apart), "alike": int((apart <= 0.005).sum()), "most": apart.max()}


def at_256(run: AnalysedRun) -> dict:
    """The ratio of each contender on each shape."""
    rows = run.frame().query("m == 256")
    figures = {}
    for row in rows.itertuples():
        figures[f"{row.contender}_{row.layer}_{row.tp}"] = row.ratio_to_baseline
    return figures | {"intensity": rows["device_intensity"].max()}


def by_rule(run: AnalysedRun) -> dict:
    """The mean ratio, by M, of what `kernels.matmul` takes by the rule of the run's commit; on how many shapes a trial
    had chosen the tile."""
    rule.apply(run)
    ratios = roofline.by_tokens(run).set_index("m")["dispatched_ratio"]
    figures = {f"m{m}": ratio for m, ratio in ratios.items()}
    return figures | {"tuned": run.frame()["tuned"].eq(True).sum(), "shapes": len(run.shapes)}


def sizes(run: AnalysedRun) -> dict:
    frame = run.frame()
    are_powers = all(m.bit_count() == 1 for m in frame["m"].tolist())
    return {"divisor": math.gcd(*frame["n"], *frame["k"]), "m": "powers of two" if are_powers else "any"}


def row_block(run: AnalysedRun) -> dict:
    """What `row_block` hides, and loses in fractions of the shorter of matmul and gather: at the ridge, and in the mean
    of the cases where the matmul sets the pace."""
    frame = run.frame().query("contender == 'row_block'")
    shorter_s = frame[["t_gemm_s", "t_comm_s"]].min(axis=1)
    lost = frame[list(LOST)].div(shorter_s, axis=0)
    by_matmul = frame["ratio"] > 1
    hidden = frame.groupby(["wire", by_matmul])["hidden_fraction"]
    least, most = hidden.min(), hidden.max()
    return {
        "cases": by_matmul.sum(),
        "by_matmul": lost[by_matmul].mean(),
        "at_ridge": lost[frame["wire"] == "ridge"].iloc[0],
        "of_ridge": least["ridge", False],
        "of_450": least["450GBps", True],
        "least": least["balance2750", True],
        "most": most["balance2750", True],
        "least_by_wire": least["balance2750", False],
        "most_by_wire": most["balance2750", False],
        "gain": frame["ratio_to_baseline"].max(),
    }


def late_links(run: AnalysedRun) -> dict:
    """How late the link is beside the launches of the vendor's matmul, at most."""
    late = run.frame().query("contender == 'row_block_launches'").groupby("wire")["link_slowdown"].max() - 1
    return {"at_450": late["450GBps"], "at_2750": late["balance2750"]}


def scatters(run: AnalysedRun) -> dict:
    """The gain of the fastest arm at the ridge over `serial`, and over the sum of the two times alone."""
    row = run.frame().query("contender == 'block_launches_persistent' and wire == 'ridge'").iloc[0]
    sum_s = row["t_gemm_s"] + row["t_comm_s"]
    return {
        "gain": row["ratio_to_baseline"],
        "over": row["baseline_time_s"] / sum_s - 1,
        "gain_of_sum": sum_s / row["time_s"],
    }


def prefetch(run: AnalysedRun) -> dict:
    """What a prefetch beside 8192 tokens hides, with its interval, and the quartiles of its rounds."""
    row = run.frame().query("m == 8192 and contender == 'overlapped'").iloc[0]
    shape = run.shapes[row["shape"]]
    gemm_s, comm_s = unsplit_times_s(shape)
    arm_s = shape.times_s("overlapped")
    rounds = gemm_s.keys() & comm_s.keys() & arm_s.keys()
    hidden = Series([hidden_fraction(gemm_s[index], comm_s[index], arm_s[index]) for index in rounds])
    return {
        "hidden": row["hidden_fraction"],
        "low": row["hidden_low"],
        "high": row["hidden_high"],
        "first": hidden.quantile(0.25),
        "third": hidden.quantile(0.75),
        "rounds": len(rounds),
    }


def steps(run: AnalysedRun) -> dict:
    """Cycles of `warpgroup` for 64 along K of a tile of 128x128, all tiles in one wave, less the
    14.5 us that a call takes beside its products (docs/kernel.md)."""
    row = run.frame().query(f"contender == 'warpgroup' and shape == '{UP_TP8_256}'").iloc[0]
    hz = clocks_hz(run)[row["case"]]
    return {"cycles": (row["time_s"] - 14.5e-6) * hz / (row["k"] / 64)}


@cache
def computed(figures: Callable[..., dict], runs: tuple[str, ...]) -> dict:
    return figures(*map(load, runs))


class Claim(NamedTuple):
    """What `page` says in these `words`, of the figures that the function computes from `runs`."""

    page: str
    figures: Callable[..., dict]
    runs: tuple[str, ...]
    words: str

    def text(self) -> str:
        text = self.words.format(**computed(self.figures, self.runs))
        return re.sub(r"(?<=\d)%", " %", text)


README, HOW, WARPGROUP = "README.md", "docs/how.md", "kernels/warpgroup.py"
CLAIMS = [
    Claim(
        README,
        by_rule,
        (MATMULS,),
        "takes by rule what has {m16:.3f} at M = 16, {m64:.3f} at 64 and {m8192:.3f} at 8192",
    ),
    Claim(README, by_rule, (MATMULS,), "For {tuned} of the {shapes} shapes a trial of these very shapes had chosen"),
    Claim(README, verdicts, (MATMULS, AGAIN), "Of {cases} cases"),
    Claim(README, verdicts, (MATMULS, AGAIN), "all are UNDECIDED, and {again} are cuBLAS itself"),
    Claim(README, spread_between, (MATMULS, AGAIN), "A ratio varies by {sd:.1%} (sd) within a visit"),
    Claim(README, spread_of_persistent, (EARLIER, MATMULS), "and by {sd:.1%} [between two]"),
    Claim(
        README,
        spread_of_persistent,
        (EARLIER, MATMULS),
        "{differing} of {cases} cases of `persistent` differ, one by {worst:.0%}",
    ),
    Claim(README, clocks, (MATMULS,), "the clock falls with M, from {high_1:.2f} to {low_8192:.1f} GHz"),
    Claim(
        README,
        sustained,
        (H200,),
        "ours have {sustained:.3f} on an H200, and {in_turns:.3f} in turns, on {shapes} shapes of M >= 4096",
    ),
    Claim(README, sizes, (MATMULS,), "All M are {m}, all N and K multiples of {divisor}"),
    Claim(
        README,
        row_block,
        (GATHERS,),
        "`row_block` hides {least_by_wire:.2f} to {most_by_wire:.2f} of the shorter of matmul and gather where the "
        "wire sets the pace, and is up to {gain:.2f} times as fast as `serial`. At the ridge it hides {of_ridge:.2f}. "
        "Where the matmul sets the pace it hides {least:.2f} to {most:.2f}, and {of_450:.2f} over 450 GB/s",
    ),
    Claim(README, row_block, (GATHERS,), "costs {by_matmul[lost_code_s]:.3f} of the shorter"),
    Claim(README, row_block, (GATHERS,), "{by_matmul[lost_contention_s]:.3f}, the rest {by_matmul[lost_rest_s]:.3f}"),
    Claim(README, prefetch, (PREFETCHES,), "to {hidden:.2f} [{low:.2f}, {high:.2f}]"),
    Claim(
        HOW,
        verdicts,
        (MATMULS, AGAIN),
        "in {undecided} cases, of which {again} are cuBLAS against itself",
    ),
    Claim(HOW, verdicts, (MATMULS, AGAIN), "Of two runs of an H100 it is {least:.1%}"),
    Claim(
        HOW,
        spread_between,
        (MATMULS, AGAIN),
        "| of one visit, all contenders | {cases} | {differing} | {sd:.2%} | {median:.2%} | {worst:.1%} |",
    ),
    Claim(
        HOW,
        spread_of_persistent,
        (EARLIER, MATMULS),
        "| of two visits, `persistent` | {cases} | {differing} | {sd:.2%} | {median:.2%} | {worst:.1%} |",
    ),
    Claim(HOW, at_256, (EARLIER,), "`persistent` had {persistent_up_1:.3f} of cuBLAS"),
    Claim(HOW, at_256, (MATMULS,), "and then {persistent_up_1:.3f}"),
    Claim(HOW, at_256, (MATMULS,), "With {intensity:.0f} FLOP a byte"),
    Claim(HOW, at_256, (MATMULS,), "kept {persistent_down_1:.3f}"),
    Claim(HOW, clocks, (EARLIER,), "behind cuBLAS fell from {up_tp1_256:.2f}"),
    Claim(HOW, clocks, (MATMULS,), "to {up_tp1_256:.2f} GHz. `down`"),
    Claim(
        HOW,
        clocks,
        (MATMULS,),
        "was {low_few:.2f} to {high_few:.2f} GHz up to 128 rows, {low_256:.2f} to {high_256:.2f} at 256, {low_512:.2f} "
        "to {high_512:.2f} at 512, {low_1024:.2f} to {high_1024:.2f} at 1024, {low_4096:.2f} to {high_4096:.2f} at "
        "4096 and {low_8192:.2f} to {high_8192:.2f} at 8192",
    ),
    Claim(
        HOW,
        same_clock,
        (MATMULS,),
        "within 0.5 % of cuBLAS's in {alike} of {shapes} shapes, and {most:.1%} off at most",
    ),
    Claim(
        HOW,
        sustained,
        (H200,),
        "on the {shapes} shapes of 4096 tokens and more ours had {in_turns:.3f} in turns and {sustained:.3f} sustained",
    ),
    Claim(
        HOW,
        row_block,
        (GATHERS,),
        "of the {cases} cases where the matmul sets the pace, the kernel that waits takes "
        "{by_matmul[lost_code_s]:.3f}, contention {by_matmul[lost_contention_s]:.3f} and the rest "
        "{by_matmul[lost_rest_s]:.3f}. At the ridge the schedule takes {at_ridge[lost_schedule_s]:.3f}, the rest "
        "{at_ridge[lost_rest_s]:.3f}, the kernel that waits {at_ridge[lost_code_s]:.3f} and contention "
        "{at_ridge[lost_contention_s]:.3f}",
    ),
    Claim(
        HOW,
        scatters,
        (SCATTERS,),
        "is {gain:.2f} times as fast as `serial`, which there takes {over:.1%} more than T_gemm + T_comm. Over "
        "their sum it is {gain_of_sum:.2f}",
    ),
    Claim(
        HOW,
        prefetch,
        (PREFETCHES,),
        "hides {hidden:.2f} [{low:.2f}, {high:.2f}], of which half of the {rounds} rounds lie outside {first:.2f} to "
        "{third:.2f}",
    ),
    Claim(HOW, late_links, (GATHERS,), "the link is up to {at_2750:.0%} late beside it, over 450 GB/s {at_450:.0%}"),
    Claim(WARPGROUP, steps, (MATMULS,), "{cycles:.0f} at up, tp 8, M = 256 on an H100"),
    Claim(WARPGROUP, steps, (H200,), "and {cycles:.0f} on an H200"),
]
"""Figures of the runs' own tables are not among them: README's is held by a test of its own."""


def main() -> int:
    for claim in CLAIMS:
        print(f"{claim.page}, of {', '.join(claim.runs)}:\n    {claim.text()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
