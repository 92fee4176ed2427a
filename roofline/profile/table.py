"""What a profiler counted, as a table and in words: bytes against the least that must move, operations against FLOP."""

from roofline.report import tables

EXPLAINED = (
    "One call of each, counted by a profiler after the timed run. *Of least* is what was read and written over what "
    "had to be, each input read once and each output written once. Where operations are not the FLOP of the case, the "
    "lines below the table say so."
)
SLACK = 0.01
"""Beyond this, operations of the tensor cores are not the FLOP of the case."""

COLUMNS = (
    *tables.COLUMNS[:2],
    ("device memory", lambda r: _bytes(r["dram_bytes"])),
    ("of least", lambda r: tables.number_text(r["dram_of_device_bytes"])),
    ("FLOP/byte", lambda r: tables.number_text(r["counted_intensity"])),
    ("modelled", lambda r: f"{r['device_intensity']:.3g}"),
    ("L2 cache", lambda r: _bytes(r["l2_bytes"])),
    ("tensor operations/FLOP", lambda r: tables.number_text(r["tensor_ops_of_flop"])),
)


def of(records: list[dict]) -> list[dict]:
    """Those of `records` that were counted."""
    return [record for record in records if tables.is_counted(record)]


def checks(records: list[dict]) -> list[str]:
    """What the operations of the tensor cores say against the FLOP, a line for each way in which they differ."""
    found = {"not counted": [], "fewer": [], "more": []}
    for record in of(records):
        share = record["tensor_ops_of_flop"]
        kind = (
            "not counted" if share is None else "fewer" if share < 1 - SLACK else "more" if share > 1 + SLACK else None
        )
        if kind:
            found[kind].append(record["case"] + ("" if share is None else f" ({share:.3g})"))
    said = {
        "not counted": "tensor operations were not counted: this tool or chip has no such counter for the dtype, in",
        "fewer": "fewer tensor operations than FLOP: done on other units, or the counter misses some, in",
        "more": "more tensor operations than FLOP: tiles reach past the end of the matrices, in",
    }
    return [f"{said[kind]} {tables.named(cases)}" for kind, cases in found.items() if cases]


def sources(records: list[dict]) -> list[str]:
    """Tool, version and metrics of the counts, a line for each that differs."""
    return list(dict.fromkeys(f"counted by {record['counter_source']}" for record in of(records)))


def _bytes(count: int | None) -> str:
    return "-" if count is None else tables.bytes_text(count)
