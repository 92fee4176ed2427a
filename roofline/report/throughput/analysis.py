"""How what computes from device memory is shown: FLOP/s against the roof and against the baseline."""

from dataclasses import astuple

from roofline.analysis.throughput.metrics import shape_of
from roofline.report.format import flops_text, number_text, percent_text, range_text, rate_text
from roofline.report.layout import Analysis, Column, Figure, Table
from roofline.report.tables import named
from roofline.report.throughput import memory_roofline
from roofline.report.throughput.columns import CASE, COLUMNS, COUNTED, STEADY
from roofline.stats import by_process, geometric_mean, grouped, student
from roofline.store.run import Run

SLACK = 0.01
"""Beyond this, operations of the tensor cores are not the FLOP of the case."""


def summary(records: list[dict]) -> list[str]:
    """Return a line per contender: geometric mean of its ratio to the baseline, over all tokens and over 1024 and
    more."""
    lines = []
    for name, rows in beside_baseline(records).items():
        large = [r["ratio_to_vendor"] for r in rows if r.get("m", 0) >= 1024]
        text = f"{name}: {geometric_mean(r['ratio_to_vendor'] for r in rows):.3f} of {rows[0]['vendor']}'s speed"
        text += f" in the geometric mean over {len(rows)} shapes"
        lines.append(text + (f", {geometric_mean(large):.3f} over M >= 1024 ({len(large)})" if large else ""))
    return lines


def beside_baseline(records: list[dict]) -> dict[str, list[dict]]:
    """Return {contender: its records that have a ratio}, without the baseline's."""
    return grouped((r["contender"], r) for r in records if r["contender"] != r["vendor"] and r["ratio_to_vendor"])


def by_tokens(run: Run, records: list[dict]) -> list[dict]:
    """Return a row for each dtype and M: the baseline, and on each shape the fastest beside it, in the geometric mean.
    The interval is Student's over processes, each of which says the mean over all shapes; a single one says none."""
    best: dict[tuple, list[dict]] = {}
    for rows in grouped((shape_of(r), r) for r in records if r["ratio_to_vendor"] and "m" in r).values():
        if beside := [record for record in rows if record["contender"] != record["vendor"]]:
            fastest = max(beside, key=lambda record: record["ratio_to_vendor"])
            best.setdefault((fastest["dtype"], fastest["m"]), []).append(fastest)
    return [_of_tokens(run, *key, rows) for key, rows in sorted(best.items())]


def _of_tokens(run: Run, dtype: str, m: int, best: list[dict]) -> dict:
    ratio = geometric_mean(record["ratio_to_vendor"] for record in best)
    of_process: dict[int, list[float]] = {}
    for record in best:
        shape = run.shapes[shape_of(record)]
        times = shape.anchor, shape.times_s(record["contender"])
        for process, ratios in by_process(lambda a, b: a / b, *times, groups=shape.groups).items():
            of_process.setdefault(process, []).append(ratios)
    whole = [geometric_mean(ratios) for ratios in of_process.values() if len(ratios) == len(best)]
    shares = [record["of_roof"] for record in best if record["of_roof"]]
    return {
        "m": m,
        "dtype": dtype,
        "shapes": len(best),
        "baseline": best[0]["vendor"],
        "baseline_flops": geometric_mean(record["flop"] / record["vendor_time_s"] for record in best),
        "fastest": ", ".join(dict.fromkeys(record["contender"] for record in best)),
        "flops": geometric_mean(record["flop"] / record["time_s"] for record in best),
        "ratio": student(ratio, whole),
        "least": min(best, key=lambda record: record["ratio_to_vendor"]),
        "of_roof": geometric_mean(shares) if shares else None,
    }


def _least(record: dict) -> str:
    where = f" {record['layer']} tp{record['tp']}" if "layer" in record else ""
    return number_text(record["ratio_to_vendor"]) + where


BRIEF = Table(
    "Against the baseline",
    "Each row has all shapes of so many tokens, M: the baseline, and on each shape the fastest beside it, in the "
    "geometric mean. *Least* is the shape where that does worst.",
    (
        Column("m", header="M"),
        Column("dtype", header="dtype", right=False),
        Column("shapes", header="shapes"),
        Column("baseline", header="baseline", right=False),
        Column("baseline_flops", header="its rate", text=flops_text),
        Column("fastest", header="fastest beside it", right=False),
        Column("flops", header="rate", text=flops_text),
        Column("ratio", header="ratio [95 %]", text=lambda ratio: range_text(*astuple(ratio))),
        Column("least", header="least", text=_least),
        Column("of_roof", header="of roof", text=percent_text),
    ),
    by_tokens,
)


def energy(records: list[dict]) -> list[str]:
    """Return a line per contender: joules for 1e12 FLOP of its steady state, geometric mean over its shapes; then what
    the device draws idle."""
    joules = ((r["contender"], 1e12 / r["steady_flop_per_joule"]) for r in records if r["steady_flop_per_joule"])
    idle = {r["steady_idle_power_w"] for r in records if r["steady_idle_power_w"]}
    return [
        f"{name}: {geometric_mean(joules_of):.3g} J per TFLOP in the geometric mean over {len(joules_of)} shapes"
        for name, joules_of in grouped(joules).items()
    ] + [f"idle power: {rate_text(watts)} W, before anything was measured" for watts in idle]


def checks(records: list[dict]) -> list[str]:
    """Return what the operations of the tensor cores say against the FLOP, a line for each way in which they differ;
    then tool, version and metrics of the counts."""
    cases_of = {
        "tensor operations were not counted: this tool or chip has no such counter for the dtype, in": [],
        "fewer tensor operations than FLOP: done on other units, or the counter misses some, in": [],
        "more tensor operations than FLOP: tiles reach past the end of the matrices, in": [],
    }
    uncounted, fewer, more = cases_of.values()
    for record in records:
        share = record["tensor_ops_of_flop"]
        if share is None:
            uncounted.append(record["case"])
        elif abs(share - 1) > SLACK:
            (fewer if share < 1 else more).append(f"{record['case']} ({share:.3g})")
    sources = dict.fromkeys(f"counted by {record['counter_source']}" for record in records)
    return [*(f"{text} {named(cases)}" for text, cases in cases_of.items() if cases), *sources]


TABLES = (
    Table(
        "Steady state",
        "Each kernel alone for 5 s, in blocks whose first half second is not counted; the rows above are single calls "
        "that take turns. Ranges are the least and the greatest: of power of any second, else of the blocks, where "
        "there are several. The energy counter is renewed ten times a second, and the sensor of an A100 or H100 sees a "
        "quarter of the time (arXiv 2312.02741): what they draw in the rest is taken to be the same.",
        (*CASE, *STEADY),
        lambda run, records: [record for record in records if "steady_time_s" in record],
        energy,
    ),
    Table(
        "Counted",
        "One call of each, counted by a profiler after the timed run. *Of least* is what was read and written over "
        "what had to be, each input read once and each output written once. Where operations are not the FLOP of the "
        "case, the lines below the table say so.",
        (*CASE, *COUNTED),
        lambda run, records: [record for record in records if record["counter_source"] is not None],
        checks,
    ),
)

THROUGHPUT = Analysis(
    "throughput",
    COLUMNS,
    (Figure("memory_roofline", frozenset({"device_intensity", "tflops"}), memory_roofline.draw),),
    BRIEF,
    summary,
    TABLES,
)
