"""What a card should show of `row_block`, whose kernel no card has run.

    python -m results.foretold          the table of docs/kernel.md, from the run of the older kernel
    python -m results.foretold RUN      what the page says, beside what RUN found

A time is foretold as the own ideal of today's plans, more what contention and the rest took of the older kernel, and
`CODE` of T_gemm. The run needs not be there to read the page: a visit to a card leaves it at home.
"""

import sys
from pathlib import Path

from pandas import DataFrame

import roofline
from roofline.report import tables
from roofline.theory.arms import TILE, row_block_plans
from roofline.theory.schedule import Grid
from roofline.theory.simulator import hidden_fraction

ROOT = Path(__file__).parents[1]
RUN = ROOT / "results/reference/nvidia-h100-80gb-hbm3-2026-11-26-2"
PAGE = ROOT / "docs/kernel.md"
SMS = 132
STEP_K = 64
CODE = 0.01
"""What the kernel's own code is taken to cost, of T_gemm."""


def gathers(run: Path) -> DataFrame:
    """The records of `row_block` of a run, and the words of each gather."""
    frame = roofline.load(run).frame().query("contender == 'row_block'")
    words = "P = " + frame["ranks"].map(str) + ", tp " + frame["tp"].map(str) + ", `" + frame["wire"] + "`"
    return frame.assign(gather=words)


def foretold(run: Path = RUN) -> DataFrame:
    """What was hidden, the own ideal of today, and what follows, of each gather of the run."""
    rows = []
    for row in gathers(run).itertuples():
        grid = Grid(-(-row.m // TILE[0]), -(-row.n // TILE[1]))
        plans = row_block_plans(grid, SMS, row.ranks, row.k // row.ranks // STEP_K)
        times = row.t_gemm_s, row.t_comm_s
        ideal_s = min(plan.end_s(*times) for plan in plans)
        kept_s = ideal_s + row.lost_contention_s + CODE * row.t_gemm_s
        ends_s = {"own ideal": ideal_s, "FORETOLD": kept_s + row.lost_rest_s, "with no rest": kept_s}
        hidden = {name: f"{hidden_fraction(*times, end_s):.3f}" for name, end_s in ends_s.items()}
        rows.append({"gather, M = 8192": row.gather, "by the older kernel": f"{row.hidden_fraction:.3f}"} | hidden)
    return DataFrame(rows)


def of_page() -> dict[str, str]:
    """{words of a gather: FORETOLD} by the page."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| P = ")]
    return {gather: told for gather, _, _, told, *_ in lines}


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments:
        print(tables.markdown(foretold()))
        return 0
    told = of_page()
    for row in gathers(Path(arguments[0])).itertuples():
        print(f"{row.gather}: hides {row.hidden_fraction:.3f}, foretold {told.get(row.gather, 'nothing')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
