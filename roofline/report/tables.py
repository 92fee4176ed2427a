"""Tables of a run: for the terminal and, as Markdown, for report.md. One list of columns serves both."""

from roofline.analysis.overlap import metrics
from roofline.profile import kernel_words
from roofline.report.format import LEFT, aligned, bytes_text, number_text, percent_text, rate_text, time_text
from roofline.stats import geometric_mean
from roofline.store.run import Run
from roofline.tuning import verdict

FEW_ROUNDS = 30
"""Below this many, a row says so: the plan asks for as many unless the time runs out."""

MOST_NAMED = 4
"""Cases named for one reason; the journal has them all."""


def ratio_text(record: dict, kind: str = "ratio") -> str:
    """Ratio to the vendor with its interval; the vendor itself is the yardstick. `kind` is its fields' prefix."""
    if record["contender"] == record["vendor"]:
        return "1 (yardstick)"
    if record[f"{kind}_to_vendor"] is None:
        return "-"
    return f"{record[f'{kind}_to_vendor']:.3f} [{record[f'{kind}_low']:.3f}, {record[f'{kind}_high']:.3f}]"


def notes_text(record: dict) -> str:
    """What a reader must know before trusting the row."""
    notes = []
    if record.get("throttled"):
        notes.append(f"throttled: {record['throttle_reasons']}")
    if record["above_roof"]:
        notes.append("above its ideal" if "ranks" in record else "above the measured roof")
    if record.get("link_off_pace"):
        notes.append(f"void: link off its pace by {100 * record['link_off_pace']:+.0f} %")
    if record["stopped_by"] == "interrupt":
        notes.append("cut short")
    if record["rounds"] < FEW_ROUNDS:
        notes.append(f"{record['rounds']} rounds only")
    if record["late"] > 0.1 * record["rounds"]:
        notes.append(f"host late in {record['late']}")
    return "; ".join(notes)


def hidden_text(record: dict, field: str = "hidden_fraction", ends: str = "hidden") -> str:
    """The hidden fraction with its interval, whose fields begin with `ends`."""
    if record[field] is None:
        return "-"
    return f"{record[field]:.2f} [{record[f'{ends}_low']:.2f}, {record[f'{ends}_high']:.2f}]"


def is_counted(record: dict) -> bool:
    """Whether a profiler counted a call of this case."""
    return record["counter_source"] is not None


COLUMNS = (
    ("shape", lambda r: r["case"].removesuffix("-" + r["contender"])),
    ("contender", lambda r: r["contender"]),
    ("time", lambda r: time_text(r["time_s"])),
    ("TFLOP/s", lambda r: rate_text(r["tflops"])),
    ("of roof", lambda r: percent_text(r["of_roof"])),
    ("ratio to vendor [95 %]", ratio_text),
    ("FLOP/byte", lambda r: f"{r['device_intensity']:.3g}"),
    ("FLOP/byte counted", lambda r: number_text(r["counted_intensity"])),
    ("bound", lambda r: r["bound"] or "-"),
    ("kernel", lambda r: kernel_words.words(r["kernel_name"]) if r["kernel_name"] else "-"),
    ("notes", notes_text),
)
GATHER_COLUMNS = (
    *COLUMNS[:3],
    ("T_gemm", lambda r: time_text(r["t_gemm_s"]) if r["t_gemm_s"] else "-"),
    ("T_comm", lambda r: time_text(r["t_comm_s"]) if r["t_comm_s"] else "-"),
    ("hidden [95 %]", hidden_text),
    ("hidden at equal clock", lambda r: hidden_text(r, *["hidden_clock_normalised"] * 2)),
    ("of ideal", lambda r: percent_text(r["of_ideal"])),
    ("of own ideal", lambda r: percent_text(r["of_own_ideal"])),
    ("TFLOP/s", lambda r: rate_text(r["tflops"])),
    ("FLOP/wire byte", lambda r: f"{r['wire_intensity']:.4g}"),
    ("spilled", lambda r: bytes_text(r["spilled_bytes"]) if r["spilled_bytes"] else "-"),
    ("error", lambda r: number_text(r["relative_error"], 2)),
    ("link", lambda r: r["link"] + (f" {r['link_bytes_per_s'] / 1e9:.3g} GB/s" if r["link_bytes_per_s"] else "")),
    ("bound", lambda r: r["bound"] or "-"),
    ("notes", notes_text),
)
CANDIDATE_COLUMNS = (
    *COLUMNS[:2],
    ("configuration", lambda r: r["config"]),
    *COLUMNS[2:5],
    ("ratio to incumbent [95 %]", ratio_text),
    ("notes", notes_text),
)
STEADY_COLUMNS = (
    *COLUMNS[:2],
    ("time", lambda r: time_text(r["steady_time_s"])),
    ("TFLOP/s", lambda r: rate_text(r["steady_tflops"])),
    ("of single calls", lambda r: percent_text(r["steady_of_single"])),
    ("ratio to vendor [range]", lambda r: ratio_text(r, "steady_ratio")),
    ("SM clock, MHz", lambda r: number_text(r["steady_sm_clock_mhz"], 4)),
    ("power, W", lambda r: number_text(r["steady_power_w"])),
    ("J/TFLOP", lambda r: number_text(r["steady_flop_per_joule"] and 1e12 / r["steady_flop_per_joule"])),
    ("notes", lambda r: r["steady_throttled"]),
)
OPTIONAL = {
    "FLOP/byte counted": is_counted,
    "kernel": lambda r: r["kernel_name"],
    "hidden at equal clock": lambda r: r["hidden_clock_normalised"] is not None,
    "spilled": lambda r: r["spilled_bytes"],
    "error": lambda r: r["own_fabric"],  # ours all sum in fp32 and round once, so that theirs says nothing by itself
}
"""Columns that are left out unless this holds of a record."""

Columns = tuple  # of (header, text of a record)


def rows(records: list, columns: Columns = COLUMNS) -> tuple[list[str], list[list[str]]]:
    """(headers, cells), all text; a column of notes that nobody filled is left out, and those of `OPTIONAL`."""
    needed = {"notes": dict(columns).get("notes")} | OPTIONAL
    columns = [(name, text) for name, text in columns if name not in needed or any(map(needed[name], records))]
    return [name for name, _ in columns], [[text(record) for _, text in columns] for record in records]


def terminal(records: list, columns: Columns = COLUMNS) -> list[str]:
    """Aligned lines; where rows share their first cell, a blank one between groups of them."""
    return aligned(*rows(records, columns))


def markdown(records: list, columns: Columns = COLUMNS) -> str:
    """The same table in Markdown."""
    header, cells = rows(records, columns)
    rule = [":--" if name in LEFT else "--:" for name in header]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *cells))


def plain_matmuls(records: list[dict]) -> list[dict]:
    """Those of `records` that neither gather over a wire nor are of a tuning."""
    return [record for record in records if "ranks" not in record and not verdict.is_tuning(record["op"])]


def by_kind(records: list[dict]) -> list[tuple[list[dict], Columns]]:
    """The records of plain matmuls and those that gather over a wire, each with the columns of their table."""
    plain = plain_matmuls(records)
    gathered = [record for record in records if "ranks" in record]
    return [(own, columns) for own, columns in ((plain, COLUMNS), (gathered, GATHER_COLUMNS)) if own]


def steady(records: list[dict]) -> list[dict]:
    """Those of `records` that have a steady state."""
    return [record for record in records if "steady_time_s" in record]


def energy(records: list[dict]) -> list[str]:
    """A line per contender: joules for 1e12 FLOP of its steady state, geometric mean over its shapes."""
    spent: dict[str, list[float]] = {}
    for record in records:
        if record.get("steady_flop_per_joule"):
            spent.setdefault(record["contender"], []).append(1e12 / record["steady_flop_per_joule"])
    return [
        f"{name}: {geometric_mean(own):.3g} J per TFLOP in the geometric mean over {len(own)} shapes"
        for name, own in spent.items()
    ]


def missing(run: Run) -> list[str]:
    """A line per reason for which cases failed or have no number, with the cases."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for entry in run.missing:
        reasons.setdefault((entry["outcome"].replace("_", " "), entry["reason"]), []).append(entry["case"])
    lines = []
    for (outcome, reason), cases in reasons.items():
        lines.append(f"{outcome}: {named(cases)}: {reason}")
    return lines


def named(cases: list[str]) -> str:
    """The first of `cases`, and how many more there are."""
    more = len(cases) - MOST_NAMED
    return ", ".join(cases[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def summary(records: list[dict]) -> list[str]:
    """A line per contender of the plain matmuls: geometric mean of its ratio to the vendor, over all tokens and over
    1024 and more. A line per arm: what it hid."""
    lines = metrics.summary(records)
    records = plain_matmuls(records)
    for name in dict.fromkeys(r["contender"] for r in records if r["contender"] != r["vendor"]):
        own = [r for r in records if r["contender"] == name and r["ratio_to_vendor"]]
        large = [r["ratio_to_vendor"] for r in own if r["m"] >= 1024]
        if own:
            text = f"{name}: {geometric_mean(r['ratio_to_vendor'] for r in own):.3f} of {own[0]['vendor']}'s speed"
            text += f" in the geometric mean over {len(own)} shapes"
            lines.append(text + (f", {geometric_mean(large):.3f} over M >= 1024 ({len(large)})" if large else ""))
    return lines


def ceilings(run: Run) -> list[str]:
    """A line per ceiling: the best measured, its drift from start to end, and the datasheet's figure."""
    datasheet = run.metadata["machine"]["datasheet"] or {}
    lines = []
    for kind, dtype in dict.fromkeys((c["ceiling"], c["dtype"]) for c in run.ceilings):
        own = [c for c in run.ceilings if (c["ceiling"], c["dtype"]) == (kind, dtype)]
        best = max(own, key=lambda c: c["value"])
        drift = ""
        ends = {c["when"]: c["value"] for c in own}
        if {"start", "end"} <= ends.keys():
            drift = f", {100 * (ends['end'] / ends['start'] - 1):+.1f} % from start to end"
        if kind == "matmul":
            value, sheet = f"{rate_text(best['value'] / 1e12)} TFLOP/s {dtype}", datasheet.get("flops", {}).get(dtype)
            sheet = sheet and f"{rate_text(sheet / 1e12)} TFLOP/s"
        else:
            value, sheet = f"{best['value'] / 1e9:.3g} GB/s", datasheet.get("memory_bandwidth_bytes_per_s")
            sheet = sheet and f"{sheet / 1e9:.4g} GB/s"
        lines.append(f"{kind}: {value} measured ({best['probe']}{drift}); datasheet: {sheet or 'none'}")
    return lines
