"""How what computes while a wire brings or takes is shown: how much of it an arm hides, and how much it could."""

from collections import Counter
from statistics import median

from roofline.analysis.throughput.metrics import shape_of
from roofline.operations.gathering import exercise, scaling
from roofline.report.format import number_text
from roofline.report.layout import Analysis, Column, Figure, Table
from roofline.report.overlap import chart, network_roofline, timeline
from roofline.report.overlap.columns import COLUMNS, OWN, SPLIT
from roofline.report.throughput import analysis as throughput
from roofline.stats import grouped
from roofline.store.run import Run
from roofline.theory.arms import ALL_REDUCE, ARMS, BOTH, is_serial


def summary(records: list[dict]) -> list[str]:
    """Return a line per operation and arm: the median of what it hid; what overlapping is worth for a layer; then, per
    operation, what waiting and traffic cost, and what its caches hold."""
    lines = []
    gathered = [r for r in records if not is_serial(r["arm"]) and r["hidden_fraction"] is not None]
    for (op, arm), rows in grouped(((r["op"], r["arm"]), r) for r in gathered).items():
        lines.append(
            f"{op}, {arm}: hides {median(r['hidden_fraction'] for r in rows):.2f} of the shorter of matmul and wire, "
            f"reaches {median(r['of_own_ideal'] for r in rows):.2f} of its own ideal (medians over {len(rows)} cases)"
        )
    layers = grouped((r["op"], r) for r in records if r["op"] in BOTH)
    lines += [line for op, rows in layers.items() for line in _layer(op, rows)]
    preset = grouped((r["op"], r) for r in gathered if r["preset_slowdown"])
    lines += [_costs(op, rows) for op, rows in preset.items()]
    caches = grouped(((r["op"], r["cache"]), shape_of(r)) for r in records if r["cache"])
    return lines + [f"{op}, cache {cache} ({len({*shapes})} shapes)" for (op, cache), shapes in caches.items()]


def _layer(op: str, records: list[dict]) -> list[str]:
    """Return what overlapping is worth for a layer over multiples of the threshold, and tokens that stay sharded
    without."""
    gains = [
        f"{r['ratio_to_vendor']:.2f} x at T_gemm / T_comm = {number_text(r['times_threshold'])}"
        for r in by_gather(None, records)
    ]
    lines = [f"{op}: overlapping is worth, over serial, {', '.join(gains)}"] if gains else []
    if plain := [r["ratio_to_vendor"] for r in records if r["arm"] == ALL_REDUCE and r["ratio_to_vendor"]]:
        text = f"{op}: serial, whose tokens are sharded between layers, takes {median(plain):.2f} of the time of plain "
        lines.append(f"{text}tensor parallelism with its all-reduce (median over {len(plain)} cases)")
    return lines


def _costs(op: str, rows: list[dict]) -> str:
    """Return what waiting costs the kernel, and what it and the link take from one another, where the kernel was
    preset."""
    rows.sort(key=lambda r: r["arm"] in ARMS and ARMS[r["arm"]].table)  # theirs is what traffic does to the kernel
    shapes = {shape_of(r): r for r in rows}.values()
    preset = median(r["preset_slowdown"] for r in shapes)
    text = f"{op}: with all flags up the kernel takes {preset:.2f} of the time of the fastest unsplit matmul"
    if beside := [r["gemm_slowdown"] for r in shapes if r["gemm_slowdown"]]:
        text += f", beside other traffic {median(beside):.2f} of that"
    slower = grouped((r["arm"], r["link_slowdown"]) for r in rows if r["link_slowdown"])
    if under := [f"{median(ratios):.2f} ({arm})" for arm, ratios in slower.items()]:
        text += f"; the link takes {', '.join(under)} of its time alone"
    return f"{text} (medians over {len(shapes)} shapes)"


def by_gather(run: Run, records: list[dict]) -> list[dict]:
    """Return a row for each shape whose link kept its pace: the record of the arm that hid the most."""
    overlapping = [r for r in records if not is_serial(r["arm"]) and r["hidden_fraction"] is not None]
    best = [
        max(rows, key=lambda r: r["hidden_fraction"])
        for rows in grouped((shape_of(r), r) for r in overlapping).values()
    ]
    return sorted(best, key=lambda r: (r["op"], r["times_threshold"]))


def balances(rows: list[dict]) -> list[str]:
    """Return a line for each wire whose name is a balance: what that is of the exercise's."""
    wires = dict.fromkeys((row["wire"], row["model"], row["dtype"]) for row in rows)
    of_exercise = [(wire, scaling(*case)) for wire, *case in wires if wire == exercise(*case)]
    return [f"{wire}: FLOP per byte that the wire is asked for, the exercise's: {how}" for wire, how in of_exercise]


SHOWN = {column.name: column for column in OWN}
BRIEF = Table(
    "Does the wire hide?",
    "One row for each gather, scatter or layer, with the arm that hides the most. *T_gemm / T_comm* is FLOP per "
    "byte received, in multiples of the balance at which matmul and link take equally long: above 1 the matmul sets "
    "the pace, below it the link. On the exercise's chip 1 is 2750 FLOP/byte.",
    (
        Column("op", header="operation", right=False),
        *(Column(name, header=header) for name, header in (("tp", "tp"), ("ranks", "P"), ("m", "M"))),
        Column("wire", header="wire", right=False),
        *(SHOWN[name] for name in ("times_threshold", "t_gemm_s", "t_comm_s")),
        Column("arm", header="best arm", right=False),
        *(SHOWN[name] for name in ("hidden_fraction", "ratio_to_vendor", "gain_all_cores", "of_own_ideal")),
    ),
    by_gather,
    balances,
)


def overlapped(run: Run, records: list[dict]) -> list[dict]:
    """Return the records whose loss is split: of arms that overlap."""
    return [record for record in records if record.get("diagnosis") and not is_serial(record["arm"])]


def diagnoses(records: list[dict]) -> list[str]:
    """Return a line per operation and arm: how often each diagnosis was made."""
    diagnoses_of = grouped(((r["op"], r["arm"]), r["diagnosis"]) for r in records)
    counts = {who: Counter(rows).most_common() for who, rows in diagnoses_of.items()}
    return [f"{op}, {arm}: {', '.join(f'{n} x {why}' for why, n in rows)}" for (op, arm), rows in counts.items()]


SPLITS = Table(
    "Where an arm's time goes",
    "*Ideal* is the longer of T_gemm and T_comm. What an arm takes above it is split by what the same rounds measured, "
    "in shares of the arm's time: *schedule* is what its order of work costs by the simulator; *waiting code* what its "
    "own matmul costs beyond the fastest; *contention* what matmul and link take from each other; the rest is what is "
    "left. Each is the growth of the simulated time when that is let in: what hides behind the other costs nothing.",
    SPLIT,
    overlapped,
    diagnoses,
    long=True,
)
TIMED = frozenset({"t_gemm_s", "t_comm_s"})
OVERLAP = Analysis(
    "overlap",
    COLUMNS,
    (
        Figure("network_roofline", TIMED, network_roofline.draw),
        Figure("overlap", TIMED, chart.draw),
        Figure("timeline", frozenset(), timeline.draw, timeline.is_there),
    ),
    BRIEF,
    summary,
    (SPLITS, *throughput.TABLES),
)
