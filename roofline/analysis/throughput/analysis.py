"""The analysis of what computes from device memory: FLOP/s against the roof and against the baseline."""

from roofline.analysis.base import Analysis, Figure, Table, grouped
from roofline.analysis.throughput import memory_roofline
from roofline.analysis.throughput.metrics import CASE, COLUMNS, COUNTED, STEADY, metrics
from roofline.report.format import rate_text
from roofline.report.tables import named
from roofline.stats import geometric_mean

SLACK = 0.01
"""Beyond this, operations of the tensor cores are not the FLOP of the case."""


def summary(records: list[dict]) -> list[str]:
    """A line per contender: geometric mean of its ratio to the baseline, over all tokens and over 1024 and more."""
    lines = []
    for name, own in beside_baseline(records).items():
        large = [r["ratio_to_vendor"] for r in own if r.get("m", 0) >= 1024]
        text = f"{name}: {geometric_mean(r['ratio_to_vendor'] for r in own):.3f} of {own[0]['vendor']}'s speed"
        text += f" in the geometric mean over {len(own)} shapes"
        lines.append(text + (f", {geometric_mean(large):.3f} over M >= 1024 ({len(large)})" if large else ""))
    return lines


def beside_baseline(records: list[dict]) -> dict[str, list[dict]]:
    """{contender: its records that have a ratio}, without the baseline's."""
    return grouped((r["contender"], r) for r in records if r["contender"] != r["vendor"] and r["ratio_to_vendor"])


def energy(records: list[dict]) -> list[str]:
    """A line per contender: joules for 1e12 FLOP of its steady state, geometric mean over its shapes; then what the
    device draws idle."""
    joules = ((r["contender"], 1e12 / r["steady_flop_per_joule"]) for r in records if r["steady_flop_per_joule"])
    idle = {r["steady_idle_power_w"] for r in records if r["steady_idle_power_w"]}
    return [
        f"{name}: {geometric_mean(own):.3g} J per TFLOP in the geometric mean over {len(own)} shapes"
        for name, own in grouped(joules).items()
    ] + [f"idle power: {rate_text(watts)} W, before anything was measured" for watts in idle]


def checks(records: list[dict]) -> list[str]:
    """What the operations of the tensor cores say against the FLOP, a line for each way in which they differ; then
    tool, version and metrics of the counts."""
    found = {
        "tensor operations were not counted: this tool or chip has no such counter for the dtype, in": [],
        "fewer tensor operations than FLOP: done on other units, or the counter misses some, in": [],
        "more tensor operations than FLOP: tiles reach past the end of the matrices, in": [],
    }
    uncounted, fewer, more = found.values()
    for record in records:
        share = record["tensor_ops_of_flop"]
        if share is None:
            uncounted.append(record["case"])
        elif abs(share - 1) > SLACK:
            (fewer if share < 1 else more).append(f"{record['case']} ({share:.3g})")
    sources = dict.fromkeys(f"counted by {record['counter_source']}" for record in records)
    return [*(f"{text} {named(cases)}" for text, cases in found.items() if cases), *sources]


TABLES = (
    Table(
        "Steady state",
        "Each kernel alone for 5 s, in blocks whose first half second is not counted; the rows above are single calls "
        "that take turns. Ranges are the least and the greatest: of power of any second, else of the blocks, where "
        "there are several. The energy counter is renewed ten times a second, and the sensor of an A100 or H100 sees a "
        "quarter of the time (arXiv 2312.02741): what they draw in the rest is taken to be the same.",
        (*CASE, *STEADY),
        lambda records: [record for record in records if "steady_time_s" in record],
        energy,
    ),
    Table(
        "Counted",
        "One call of each, counted by a profiler after the timed run. *Of least* is what was read and written over "
        "what had to be, each input read once and each output written once. Where operations are not the FLOP of the "
        "case, the lines below the table say so.",
        (*CASE, *COUNTED),
        lambda records: [record for record in records if record["counter_source"] is not None],
        checks,
    ),
)

THROUGHPUT = Analysis(
    "throughput",
    metrics,
    COLUMNS,
    (Figure("memory_roofline", frozenset({"device_intensity", "tflops"}), memory_roofline.draw),),
    summary,
    TABLES,
)
