"""The records of a run, and its frame: a row for each case. Each part of a record is a function's, and a field is of
one part alone."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from roofline.analysis import decision, memory_roof, overlap
from roofline.analysis.fields import FIELDS, GROUPS, Field, MeasuredCase, by_name, fields_of, shown, with_ends
from roofline.analysis.memory_roof import intensity_of, once, rate_of
from roofline.store.run import FEWEST_ROUNDS, INTERRUPTED, Run, Shape
from roofline.store.stats import LEAST_ROUNDS, geometric_mean, lag1_correlation, ratio_of, student
from roofline.theory import chips
from roofline.theory.wires import HOW

if TYPE_CHECKING:
    from pandas import DataFrame

ANALYSES = {"throughput": (memory_roof.fields, GROUPS["every"]), "overlap": (overlap.fields, FIELDS)}
"""Analysis -> `fields(case)`, which hold a case against its roof: that of memory, or of a wire; and the fields that its
records have."""
DTYPES = {frozenset({int}): "Int64", frozenset({bool}): "boolean"}
"""Types of all values of a field -> dtype that knows missing values; of others it is float64 or object."""
TENSOR_PIPES = 4
"""An SM has one in each quarter. The counter of their busy cycles is the sum: on an H100 it came to 3.84 a cycle."""


@once
def records_of(run: Run) -> list[dict]:
    """A flat dict of scalars for every case, in the order of the run."""
    return [record_of(MeasuredCase(run, shape, name)) for shape, name in run.cases()]


def record_of(case: MeasuredCase) -> dict:
    """The record of a case, by the ceilings known so far: a flat dict of scalars, whose fields `fields.toml` explains.
    What was not measured, as the roof's fields without ceilings, is None."""
    of_roof, names = ANALYSES[case.shape.analysis]
    own_fields = by_name(shown(case.run, case.shape.op).fields)
    measured = dict(  # two parts with a field in common are a TypeError
        **_case_fields(case),
        **_time_fields(case),
        **of_roof(case),
        **decision.fields(case),
        **_steady_fields(case),
        **_counted_fields(case),
        **_computed_fields(case, own_fields),
    )
    record = dict.fromkeys([*names, *own_fields]) | _declared(case, own_fields) | measured
    record["notes"] = _notes(record, case.shape)
    return record


def _declared(case: MeasuredCase, own_fields: Mapping[str, Field]) -> dict:
    """Values that operation, contender and machine declared. What is measured stands in their place."""
    shape = case.shape
    costs = case.entrant.get("costs", {})
    fields = {**shape.params}
    for declared in (shape.facts, case.entrant, costs, shape.telemetry):
        for name, value in declared.items():
            if name in FIELDS or name in own_fields:
                fields[name] = value
    return fields


def _computed_fields(case: MeasuredCase, own_fields: Mapping[str, Field]) -> dict:
    """What the functions of an operation's own fields make of a case."""
    fields: dict[str, Any] = {}
    for name, field in own_fields.items():
        if callable(field.of):
            value = field.of(case)
            fields |= with_ends(name, value, own_fields) if field.ends else {name: value}
    return fields


def _case_fields(case: MeasuredCase) -> dict:
    """Identity, work and number of samples of a case."""
    shape = case.shape
    metadata = case.run.metadata
    return {
        "case": f"{shape.id}-{case.contender}",
        "shape": shape.id,
        "analysis": shape.analysis,
        "op": shape.op,
        "contender": case.contender,
        "dtype": shape.dtype,
        "flop": shape.work.flop,
        "device_bytes": shape.work.device_bytes,
        "device_intensity": intensity_of(case),
        "baseline": shape.baseline,
        "rival": case.contender in shape.rivals,
        "rounds": len(case.times_s),
        "passes": shape.passes,
        "processes": len({process for process, _ in shape.groups.values()}),
        "late": shape.late[case.contender],
        "cache": shape.cache,
        "stopped_by": shape.stopped_by,
        "waiting_share": _waiting_share(case),
        "source": metadata["machine"]["source"],
        "method_version": metadata["method_version"],
    }


def _time_fields(case: MeasuredCase) -> dict:
    """The time of a case, its rate, and the ratio to the baseline, which there is not where that was refused."""
    shape = case.shape
    tflops = rate_of(shape.work.flop / 1e12, case.time)
    fields = with_ends("time_s", case.time) | with_ends("tflops", tflops)
    fields["lag1_correlation"] = lag1_correlation(case.times_s.values())
    if anchor := shape.anchor:
        fields |= with_ends("ratio_to_baseline", ratio_of(anchor, case.times_s, shape.groups))
        fields["baseline_time_s"] = shape.time(shape.baseline).value
    return fields


def _waiting_share(case: MeasuredCase) -> float | None:
    """The fraction of samples in which threads waited for a core; None of a GPU."""
    if case.run.metadata["machine"]["source"] != "cpu":
        return None
    waits = case.shape.values(case.contender, "waited_s")
    return len(waits.keys() & case.times_s.keys()) / len(case.times_s)


def _counted_fields(case: MeasuredCase) -> dict:
    """Bytes and cycles that a profiler counted in one call; {} where it did not."""
    line = case.shape.counters.get(case.contender)
    if not line:
        return {}
    dram = line["dram_bytes"]
    source = line["counter_source"]
    metrics = [" + ".join(names) for names in source["metrics"].values()]
    fields = {
        "dram_bytes": dram,
        "l2_bytes": line["l2_bytes"],
        "counter_source": "; ".join([f"{source['tool']} {source['version']}", *metrics]),
    }
    if dram:
        fields["counted_intensity"] = case.shape.work.flop / dram
        fields["dram_of_device_bytes"] = dram / case.shape.work.device_bytes
    if line.get("tensor_cycles") is not None and line.get("sm_cycles"):
        fields["tensor_pipe_share"] = line["tensor_cycles"] / TENSOR_PIPES / line["sm_cycles"]
    return fields


def steady_ratios(shape: Shape, contender: str) -> dict[int, float]:
    """{alternation: the baseline's time over that of `contender`}, of blocks that followed one another."""
    of_baseline = shape.steady.get(shape.baseline, {})
    ratios = {}
    for index, block in shape.steady[contender].items():
        if index in of_baseline:
            ratios[index] = of_baseline[index]["time_s"] / block["time_s"]
    return ratios


def _steady_fields(case: MeasuredCase) -> dict:
    """The fields `steady_*`: medians over the blocks of `contender`; {} without blocks. Power is energy over time, of
    the counted part alone."""
    if case.contender not in case.shape.steady:
        return {}
    blocks = case.shape.steady[case.contender].values()
    time_s = median(block["time_s"] for block in blocks)
    ratios = list(steady_ratios(case.shape, case.contender).values())
    energies_j = [block["energy_j"] / block["calls"] for block in blocks if block["energy_j"] is not None]
    clocks_mhz = list(filter(None, (block.get("sm_clock_mhz") for block in blocks)))
    throttled = filter(None, (block.get("throttle_reasons") for block in blocks))
    fields = {"steady_time_s": time_s, "steady_throttled": ", ".join(dict.fromkeys(throttled))}
    fields |= with_ends("steady_ratio_to_baseline", student(geometric_mean(ratios), ratios))
    if energies_j:
        fields["steady_energy_j"] = median(energies_j)
        fields["steady_power_w"] = fields["steady_energy_j"] / time_s
    if clocks_mhz:
        fields["steady_sm_clock_mhz"] = median(clocks_mhz)
    return fields


def _notes(record: dict, shape: Shape) -> str:
    """Warnings for whoever reads the row. For `serial` another link gathers than for the arms where
    NCCL's is faster."""
    rounds = record["rounds"]
    late = record["late"]
    off_pace = record.get("link_off_pace")
    gather = shape.facts.get("gather")
    is_warm = shape.analysis == "throughput" and shape.cache.startswith("warm")
    notes = ["measured apart"] * bool(shape.apart) + ["cache warm"] * is_warm
    if record["throttled"]:
        notes.append(f"throttled: {record['throttle_reasons']}")
    if record["above_roof"]:
        notes.append("above its ideal" if shape.analysis == "overlap" else "above the measured roof")
    if off_pace:
        notes.append(f"void: link off its pace by {100 * off_pace:+.0f} %")
    if gather in HOW and gather != record["link"]:
        notes.append(f"serial by {HOW[gather]}")
    if record["tuned"]:
        notes.append("tuned on this shape")
    if record["stopped_by"] == INTERRUPTED:
        notes.append("cut short")
    if rounds < FEWEST_ROUNDS:
        notes.append(f"{rounds} rounds only")
    if late > max(0.1 * rounds, LEAST_ROUNDS - 1):
        notes.append(f"host late in {late}")
    return "; ".join(notes)


@once
def frame(run: Run) -> DataFrame:
    """A row for every case of `run`, and a column for each field. Its `attrs` have what a figure needs beside:
    `title`, `footer`, and {dtype: its roof, or None} `measured` and of the `datasheet`."""
    import pandas

    records = records_of(run)
    columns = {}
    for name, field in fields_of(run).items():
        values = [record.get(name) for record in records]
        types = frozenset(type(value) for value in values if value is not None)
        usual = "float64" if field.unit else "object"
        columns[name] = pandas.Series(values, dtype=DTYPES.get(types, usual))
    table = pandas.DataFrame(columns)
    source = run.metadata["machine"]["source"]
    measured, datasheet = {}, {}
    for dtype in table["dtype"].unique():
        measured[dtype] = memory_roof.roof_of(run, dtype)
        datasheet[dtype] = chips.roof_of(run.metadata["machine"]["datasheet"], dtype)
    table.attrs = {
        "title": f"{run.metadata['title']}, {source.upper()} run",
        "footer": run.metadata["footer"],
        "measured": measured,
        "datasheet": datasheet,
    }
    return table


class AnalysedRun(Run):
    """A run as `roofline.load` returns it: with the frame of its cases."""

    def frame(self) -> DataFrame:
        """A frame that is the caller's own."""
        return frame(self).copy()
