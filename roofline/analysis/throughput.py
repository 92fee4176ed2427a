"""Rates, shares of the roof and ratios to the baseline: what every case is judged by."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from roofline.analysis.fields import FIELDS
from roofline.store.run import INTERRUPTED, PROBE, Run, Shape
from roofline.store.stats import (
    Interval,
    estimate,
    geometric_mean,
    grouped,
    lag1_correlation,
    ratio_of,
    student,
    time_of,
)
from roofline.theory.bounds import bound

FEW_ROUNDS = 30
"""Below this many, a row says so: the plan asks for as many unless the time runs out."""

TENSOR_PIPES = 4
"""Of an SM, one in each quarter. The counter of their busy cycles is the sum: on an H100 it came to 3.84 a cycle."""
WAITS_SINCE = 5
"""The method that notes, with a CPU's sample, for how long threads waited for a core."""


class Roof(NamedTuple):
    """The measured ceilings of one run, for one dtype."""

    flops: float
    read_bytes_per_s: float

    def at(self, intensity: float) -> float:
        """Attainable FLOP/s at `intensity`, the lower of the two bounds."""
        return min(self.flops, intensity * self.read_bytes_per_s)


class Ceiling(NamedTuple):
    """The highest rate of a kind that a run saw, with its interval, per second. `by` is what reached it, and where."""

    kind: str
    dtype: str | None
    value: float
    low: float
    high: float
    by: str


def roof_of(run: Run, dtype: str) -> Roof | None:
    """Return the roof that the ceilings of `run` make for `dtype`; None where one of them is missing."""
    highest = {(ceiling.kind, ceiling.dtype): ceiling.value for ceiling in ceilings_of(run)}
    matmul, read = highest.get(("matmul", dtype)), highest.get(("read", None))
    return Roof(matmul, read) if matmul and read else None


def datasheet_roof(run: Run, dtype: str) -> Roof | None:
    """Return the roof that the chip's datasheet has for `dtype`; None where it has none."""
    sheet = run.metadata["machine"]["datasheet"] or {}
    flops, bytes_per_s = sheet.get("flops", {}).get(dtype), sheet.get("memory_bandwidth_bytes_per_s")
    return Roof(flops, bytes_per_s) if flops and bytes_per_s else None


def ceilings_of(run: Run) -> list[Ceiling]:
    """Return the highest rate that something reached in `run`, for each kind and dtype of its probes: a probe alone or
    beside a shape, or, of FLOP, a contender of the suite on a shape."""
    if run.end is not None and (kept := run.derived.get("ceilings")):
        return kept
    highest = _highest([*_of_probes_alone(run), *_of_probes_beside(run)])
    probed = {ceiling.dtype for ceiling in highest if ceiling.kind == "matmul"}
    ceilings = _highest([*highest, *_of_contenders(run, probed)])
    if run.end is not None:
        run.derived["ceilings"] = ceilings
    return ceilings


def _highest(ceilings: Iterable[Ceiling]) -> list[Ceiling]:
    """The first of the highest of each kind and dtype."""
    highest: dict[tuple[str, str | None], Ceiling] = {}
    for ceiling in ceilings:
        key = ceiling.kind, ceiling.dtype
        if key not in highest or ceiling.value > highest[key].value:
            highest[key] = ceiling
    return list(highest.values())


def _of_probes_alone(run: Run) -> Iterator[Ceiling]:
    for line in run.ceilings:
        rate = line["value"], line["low"], line["high"]
        yield Ceiling(line["ceiling"], line["dtype"], *rate, f"{line['probe']}, alone")


def _of_probes_beside(run: Run) -> Iterator[Ceiling]:
    for shape in run.shapes.values():
        if probe := _probe(shape):
            name, entrant = probe
            dtype = shape.dtype if entrant["ceiling"] == "matmul" else None
            rate = _rate(entrant["amount"], time_of(shape.times_s(name), shape.groups))
            yield Ceiling(entrant["ceiling"], dtype, *rate, f"{entrant['config']}, beside {shape.id}")


def _of_contenders(run: Run, dtypes: Collection[str | None]) -> Iterator[Ceiling]:
    """What contenders of the suite reached from device memory, in dtypes of which a probe was measured."""
    for shape in run.shapes.values():
        if shape.dtype not in dtypes or shape.work.wire_bytes:
            continue
        for contender in shape.measured:
            if not shape.entrants[contender].get("of_user"):
                times = shape.times_s(contender)
                rate = _rate(shape.work.flop, time_of(times, shape.groups, shape.anchor or times))
                yield Ceiling("matmul", shape.dtype, *rate, f"{shape.id}-{contender}")


def _probe(shape: Shape) -> tuple[str, dict] | None:
    """Return the probe that took turns on `shape`, with its entry; None if none did."""
    return next(((name, shape.entrants[name]) for name in shape.of_role(PROBE) if shape.times_s(name)), None)


def of_roof(run: Run, shape: Shape, times: dict[int, float], intensity: float) -> Interval | None:
    """Return the share of the roof that `times` reached. Where a probe took turns with them, the roof is its rate in
    those rounds, which a contender may exceed; else the ceilings of the run. None where no ceiling was measured."""
    roof, flop = roof_of(run, shape.dtype), shape.work.flop
    if roof is None:
        return None
    if not (probe := _probe(shape)):
        return estimate(
            lambda own_s: flop / own_s / roof.at(intensity), times, groups=shape.groups, anchor=shape.anchor
        )
    name, entrant = probe
    probe_flop = entrant["amount"] * (1 if entrant["ceiling"] == "matmul" else intensity)
    return estimate(
        lambda probe_s, own_s: flop / own_s / (probe_flop / probe_s), shape.times_s(name), times,
        groups=shape.groups, anchor=shape.anchor,
    )  # fmt: skip


def with_ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    """Return the field `name` and those of its ends; all None without an interval."""
    return dict(zip((name, *FIELDS[name].ends), interval or [None] * 3, strict=True))


def _rate(amount: float, time: Interval) -> Interval:
    """Return `amount` per second: the typical rate and its interval, whose low end is that of the longest time."""
    return Interval(amount / time.value, amount / time.high, amount / time.low)


def record(run: Run, shape: Shape, contender: str) -> dict:
    """Return the record of `contender` on `shape`: a flat dict of scalars, whose fields `fields.toml` explains. Without
    ceilings the roof's fields are None."""
    times = shape.times_s(contender)
    baseline_times = shape.anchor or {}  # none where it was refused
    groups, entrant, work = shape.groups, shape.entrants[contender], shape.work
    time = time_of(times, groups, baseline_times or times)
    intensity = replace(work, spilled_bytes=entrant.get("spilled_bytes", 0)).device_intensity
    ratio = baseline_times and ratio_of(baseline_times, times, groups)
    facts = shape.facts | entrant | entrant.get("costs", {})
    fields = {
        "op": shape.op,
        "contender": contender,
        **shape.params,
        **{name: fact for name, fact in facts.items() if name in FIELDS},
        "dtype": shape.dtype,
        "flop": work.flop,
        "device_bytes": work.device_bytes,
        "device_intensity": intensity,
        **with_ends("time_s", time),
        "rounds": len(times),
        "passes": shape.passes,
        "processes": len({process for process, _ in groups.values()}),
        "lag1_correlation": lag1_correlation(times.values()),
        **with_ends("tflops", _rate(work.flop / 1e12, time)),
        "tokens_per_s": shape.facts["m"] / time.value if "m" in shape.facts else None,
        **_roof_fields(run, shape, contender, time, intensity),
        "baseline": shape.baseline,
        "rival": contender in shape.rivals,
        "baseline_time_s": time_of(baseline_times, groups).value if baseline_times else None,
        **with_ends("ratio_to_baseline", ratio or None),
        "relative_error": entrant["relative_error"],
        "config": entrant["config"],
        "kernel_name": entrant.get("kernel_name"),
        **_counted(shape, contender),
        "late": shape.late[contender],
        "cache": shape.cache,
        "stopped_by": shape.stopped_by,
        **shape.telemetry,
        "waiting_share": _waiting_share(run, shape, contender),
        **_steady(run, shape, contender),
        "source": run.metadata["machine"]["source"],
        "method_version": run.metadata["method_version"],
    }
    return fields | {"notes": notes(fields)}


def _roof_fields(run: Run, shape: Shape, contender: str, time: Interval, intensity: float) -> dict:
    """What the measured roof is at an intensity, and how much of it the contender reached."""
    roof, probe, flop = roof_of(run, shape.dtype), _probe(shape), shape.work.flop
    reached = of_roof(run, shape, shape.times_s(contender), intensity)
    return {
        "roof_tflops": reached and flop / time.value / reached.value / 1e12,
        **with_ends("of_roof", reached),
        "roof_probe": probe and probe[1]["config"],
        "above_roof": reached and reached.low > 1 and flop / time.high > roof.at(intensity),
        "bound": roof and bound(intensity, *roof),
    }


def notes(record: dict, roof: str = "the measured roof", more: str = "") -> str:
    """Return what a reader must know before trusting the row; `more` stands in the middle."""
    rounds, late = record["rounds"], record["late"]
    applies = {
        f"throttled: {record.get('throttle_reasons')}": record.get("throttled"),
        f"above {roof}": record["above_roof"],
        more: more,
        "cut short": record["stopped_by"] == INTERRUPTED,
        f"{rounds} rounds only": rounds < FEW_ROUNDS,
        f"host late in {late}": late > 0.1 * rounds,
    }
    return "; ".join(note for note, holds in applies.items() if holds)


def _waiting_share(run: Run, shape: Shape, contender: str) -> float | None:
    """Return the share of samples in which threads waited for a core. None of a GPU, and of runs that did not note
    it."""
    if run.metadata["machine"]["source"] != "cpu" or run.metadata["method_version"] < WAITS_SINCE:
        return None
    waits = ["waited_s" in round_.values.get(contender, {}) for round_ in shape.rounds if contender in round_.time_s]
    return sum(waits) / len(waits) if waits else None


def _counted(shape: Shape, contender: str) -> dict:
    """Return the fields of what a profiler counted in one call, all None where it did not."""
    line = shape.counters.get(contender, {})
    dram, source = line.get("dram_bytes"), line.get("counter_source")
    metrics_named = source and [" + ".join(names) for names in source["metrics"].values()]
    tensor_cycles, sm_cycles = line.get("tensor_cycles"), line.get("sm_cycles")
    share = None if tensor_cycles is None or not sm_cycles else tensor_cycles / TENSOR_PIPES / sm_cycles
    return {
        "dram_bytes": dram,
        "l2_bytes": line.get("l2_bytes"),
        "counted_intensity": shape.work.flop / dram if dram else None,
        "dram_of_device_bytes": None if dram is None else dram / shape.work.device_bytes,
        "tensor_pipe_share": share,
        "counter_source": source and "; ".join([f"{source['tool']} {source['version']}", *metrics_named]),
    }


def steady_ratios(run: Run, shape: Shape, contender: str) -> dict[int, float]:
    """Return {alternation: the baseline's time over that of `contender`}, of blocks that followed one another."""
    times_of: dict[str, dict[int, float]] = {shape.baseline: {}, contender: {}}
    for block in run.steady:
        if block["shape"] == shape.id and block["contender"] in times_of:
            times_of[block["contender"]][block["block"]] = block["time_s"]
    baseline_s, own_s = times_of[shape.baseline], times_of[contender]
    return {index: baseline_s[index] / own_s[index] for index in own_s if index in baseline_s}


def _steady(run: Run, shape: Shape, contender: str) -> dict:
    """Return the fields `steady_*`: medians over the blocks of `contender`, with the range over them; {} without
    blocks.

    `steady_of_single` is its FLOP/s over those of single calls in turns. Power is energy over time, of the counted part
    alone.
    """
    by_contender = grouped((block["contender"], block) for block in run.steady if block["shape"] == shape.id)
    if contender not in by_contender:
        return {}
    blocks = by_contender[contender]
    time = _range(block["time_s"] for block in blocks)
    ratios = [*steady_ratios(run, shape, contender).values()]
    ratio = student(geometric_mean(ratios), ratios) if ratios else None
    clocks_mhz = [b["sm_clock_mhz"] for b in blocks if b.get("sm_clock_mhz")]
    return {
        "steady_time_s": time.value,
        **with_ends("steady_tflops", _rate(shape.work.flop / 1e12, time)),
        "steady_blocks": len(blocks),
        "steady_of_single": time_of(shape.times_s(contender), shape.groups).value / time.value,
        **with_ends("steady_ratio_to_baseline", ratio),
        "steady_sm_clock_mhz": median(clocks_mhz) if clocks_mhz else None,
        **_energy(shape, blocks, time.value),
        "steady_idle_power_w": run.metadata["machine"].get("idle_power_w"),
        "steady_throttled": ", ".join(
            dict.fromkeys(b["throttle_reasons"] for b in blocks if b.get("throttle_reasons"))
        ),
    }


def _energy(shape: Shape, blocks: list[dict], time_s: float) -> dict:
    """The fields of energy and power, all None where no block has a count of energy."""
    counted = [b for b in blocks if b["energy_j"] is not None]
    joules = _range(b["energy_j"] / b["calls"] for b in counted) if counted else None
    return {
        **with_ends("steady_energy_j", joules),
        "steady_power_w": joules and joules.value / time_s,
        "steady_power_low_w": min((b["power_low_w"] for b in counted if "power_low_w" in b), default=None),
        "steady_power_high_w": max((b["power_high_w"] for b in counted if "power_high_w" in b), default=None),
        "steady_flop_per_joule": joules and shape.work.flop / joules.value,
    }


def _range(values: Iterable[float]) -> Interval:
    """Their median, the least and the greatest."""
    values = list(values)
    return Interval(median(values), min(values), max(values))
