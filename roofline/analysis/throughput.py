"""Rates, shares of the roof and ratios to the baseline: what every case is judged by."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import wraps
from statistics import median
from typing import Any, NamedTuple

from roofline.analysis.fields import FIELDS, GROUPS
from roofline.store.run import INTERRUPTED, PROBE, Run, Shape
from roofline.store.stats import Interval, estimate, geometric_mean, lag1_correlation, ratio_of, student, time_of
from roofline.theory import chips
from roofline.theory.bounds import bound

FEW_ROUNDS = 30
"""Below this many, a row says so: the plan asks for as many unless the time runs out."""

TENSOR_PIPES = 4
"""An SM has one in each quarter. The counter of their busy cycles is the sum: on an H100 it came to 3.84 a cycle."""
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
    """The roof that the ceilings of `run` make for `dtype`; None where one of them is missing."""
    rates = {(ceiling.kind, ceiling.dtype): ceiling.value for ceiling in ceilings_of(run)}
    matmul = rates.get(("matmul", dtype))
    read = rates.get(("read", None))
    return Roof(matmul, read) if matmul and read else None


def datasheet_roof(run: Run, dtype: str) -> Roof | None:
    """The roof that the chip's datasheet has for `dtype`; None where it has none."""
    peaks = chips.peaks(run.metadata["machine"]["datasheet"], dtype)
    return Roof(*peaks) if peaks else None


def once(derive: Callable[[Run], Any]) -> Callable[[Run], Any]:
    """Have what is derived of a run made once, when the run is closed, and then kept beside it."""

    @wraps(derive)
    def derived(run: Run) -> Any:
        if run.end is None:
            return derive(run)
        if derive not in run.derived:
            run.derived[derive] = derive(run)
        return run.derived[derive]

    return derived


@once
def ceilings_of(run: Run) -> list[Ceiling]:
    """The highest rate that something reached in `run`, for each kind and dtype of its probes: a probe alone or
    beside a shape, or where it counts FLOP, a contender of the suite on a shape. Among equals it is the first."""
    ceilings = [*_of_probes_alone(run), *_of_probes_beside(run)]
    probed = {ceiling.dtype for ceiling in ceilings if ceiling.kind == "matmul"}
    highest: dict[tuple[str, str | None], Ceiling] = {}
    for ceiling in (*ceilings, *_of_contenders(run, probed)):
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
        if name := _probe(shape):
            entrant = shape.entrants[name]
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
                rate = _rate(shape.work.flop, shape.time(contender))
                yield Ceiling("matmul", shape.dtype, *rate, f"{shape.id}-{contender}")


def _probe(shape: Shape) -> str | None:
    """The name of the probe that took turns on `shape`; None if none did."""
    for name in shape.of_role(PROBE):
        if shape.times_s(name):
            return name
    return None


def _of_roof(roof: Roof, shape: Shape, times: dict[int, float], intensity: float) -> tuple[Interval | None, str | None]:
    """The fraction of the roof that `times` reached, and the probe that set it. Where a probe took turns with them, its
    ceiling is its rate in those rounds, which a contender may exceed. The other is the run's, and so are both without a
    probe. The roof is the lower one."""
    flop = shape.work.flop
    beside = {"groups": shape.groups, "anchor": shape.anchor}
    name = _probe(shape)
    if not name:
        return estimate(lambda own_s: flop / own_s / roof.at(intensity), times, **beside), None
    probe = shape.entrants[name]
    probe_flop = probe["amount"]
    other_flops = intensity * roof.read_bytes_per_s
    if probe["ceiling"] != "matmul":
        probe_flop *= intensity
        other_flops = roof.flops
    probe_s = shape.times_s(name)
    of_probe = estimate(lambda probe_s, own_s: flop / own_s / (probe_flop / probe_s), probe_s, times, **beside)
    of_other = estimate(lambda own_s: flop / own_s / other_flops, times, **beside)
    if of_probe and of_other.value > of_probe.value:
        return of_other, None
    return of_probe, name


def with_ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    """The field `name` and those of its ends; all None without an interval."""
    names = name, *FIELDS[name].ends
    return dict(zip(names, interval, strict=True)) if interval else dict.fromkeys(names)


def _rate(amount: float, time: Interval) -> Interval:
    """`amount` per second: the typical rate and its interval, whose low end is that of the longest time."""
    return Interval(amount / time.value, amount / time.high, amount / time.low)


def record(run: Run, shape: Shape, contender: str) -> dict:
    """The record of `contender` on `shape`: a flat dict of scalars, whose fields `fields.toml` explains. What was not
    measured, as the roof's fields without ceilings, is None."""
    times = shape.times_s(contender)
    anchor = shape.anchor  # none where the baseline was refused
    groups = shape.groups
    entrant = shape.entrants[contender]
    time = shape.time(contender)
    fields = dict.fromkeys(GROUPS["every"])
    fields |= {"op": shape.op, "contender": contender, **shape.params}
    for known in (shape.facts, entrant, entrant.get("costs", {}), shape.telemetry):
        for name, value in known.items():
            if name in FIELDS:
                fields[name] = value
    fields |= _work_fields(shape, entrant)
    fields |= with_ends("time_s", time)
    fields |= {
        "rounds": len(times),
        "passes": shape.passes,
        "processes": len({process for process, _ in groups.values()}),
        "lag1_correlation": lag1_correlation(times.values()),
    }
    fields |= with_ends("tflops", _rate(shape.work.flop / 1e12, time))
    if "m" in shape.facts:
        fields["tokens_per_s"] = shape.facts["m"] / time.value
    fields |= _roof_fields(run, shape, contender, time, fields["device_intensity"])
    fields |= {"baseline": shape.baseline, "rival": contender in shape.rivals}
    if anchor:
        fields |= with_ends("ratio_to_baseline", ratio_of(anchor, times, groups))
        fields["baseline_time_s"] = time_of(anchor, groups).value
    fields |= _counted(shape, contender)
    fields |= {"late": shape.late[contender], "cache": shape.cache, "stopped_by": shape.stopped_by}
    fields["waiting_share"] = _waiting_share(run, shape, contender)
    fields |= _steady(run, shape, contender)
    fields["source"] = run.metadata["machine"]["source"]
    fields["method_version"] = run.metadata["method_version"]
    fields["notes"] = notes(fields)
    return fields


def _work_fields(shape: Shape, entrant: dict) -> dict:
    """The work of a case, as its FLOP and bytes are declared. What a contender spills moves too."""
    work = shape.work
    moved = replace(work, spilled_bytes=entrant.get("spilled_bytes", 0))
    return {
        "dtype": shape.dtype,
        "flop": work.flop,
        "device_bytes": work.device_bytes,
        "device_intensity": moved.device_intensity,
    }


def _roof_fields(run: Run, shape: Shape, contender: str, time: Interval, intensity: float) -> dict:
    """What the measured roof is at an intensity, and how much of it the contender reached; {} without ceilings."""
    flop = shape.work.flop
    roof = roof_of(run, shape.dtype)
    if not roof:
        return {}
    reached, probe = _of_roof(roof, shape, shape.times_s(contender), intensity)
    fields = with_ends("of_roof", reached)
    fields["bound"] = bound(intensity, *roof)
    if reached:
        fields["roof_tflops"] = flop / time.value / reached.value / 1e12
        fields["above_roof"] = reached.low > 1 and flop / time.high > roof.at(intensity)
    if probe:
        fields["roof_probe"] = shape.entrants[probe]["config"]
    return fields


def notes(record: dict, roof: str = "the measured roof", more: str = "") -> str:
    """What a reader must know before trusting the row; `more` stands in the middle."""
    rounds = record["rounds"]
    late = record["late"]
    notes = []
    if record.get("throttled"):
        notes.append(f"throttled: {record.get('throttle_reasons')}")
    if record["above_roof"]:
        notes.append(f"above {roof}")
    if more:
        notes.append(more)
    if record["tuned"]:
        notes.append("tuned on this shape")
    if record["stopped_by"] == INTERRUPTED:
        notes.append("cut short")
    if rounds < FEW_ROUNDS:
        notes.append(f"{rounds} rounds only")
    if late > 0.1 * rounds:
        notes.append(f"host late in {late}")
    return "; ".join(notes)


def _waiting_share(run: Run, shape: Shape, contender: str) -> float | None:
    """The fraction of samples in which threads waited for a core. None of a GPU, and of runs that did not note
    it."""
    if run.metadata["machine"]["source"] != "cpu" or run.metadata["method_version"] < WAITS_SINCE:
        return None
    times_s = shape.times_s(contender)
    waits = shape.values(contender, "waited_s")
    return len(waits.keys() & times_s.keys()) / len(times_s)


def _counted(shape: Shape, contender: str) -> dict:
    """The fields of what a profiler counted in one call; {} where it did not."""
    line = shape.counters.get(contender)
    if not line:
        return {}
    dram = line["dram_bytes"]
    source = line["counter_source"]
    metrics = [" + ".join(names) for names in source["metrics"].values()]
    fields = {
        "dram_bytes": dram,
        "l2_bytes": line.get("l2_bytes"),
        "counter_source": "; ".join([f"{source['tool']} {source['version']}", *metrics]),
    }
    if dram:
        fields["counted_intensity"] = shape.work.flop / dram
        fields["dram_of_device_bytes"] = dram / shape.work.device_bytes
    if line.get("tensor_cycles") is not None and line.get("sm_cycles"):
        fields["tensor_pipe_share"] = line["tensor_cycles"] / TENSOR_PIPES / line["sm_cycles"]
    return fields


def steady_ratios(run: Run, shape: Shape, contender: str) -> dict[int, float]:
    """{alternation: the baseline's time over that of `contender`}, of blocks that followed one another."""
    baseline_s = {block["block"]: block["time_s"] for block in _blocks(run, shape, shape.baseline)}
    ratios = {}
    for block in _blocks(run, shape, contender):
        index = block["block"]
        if index in baseline_s:
            ratios[index] = baseline_s[index] / block["time_s"]
    return ratios


def _blocks(run: Run, shape: Shape, contender: str) -> list[dict]:
    """The blocks of seconds in which a contender ran alone."""
    return [block for block in run.steady if (block["shape"], block["contender"]) == (shape.id, contender)]


def _steady(run: Run, shape: Shape, contender: str) -> dict:
    """The fields `steady_*`: medians over the blocks of `contender`; {} without blocks. Power is energy over time, of
    the counted part alone."""
    blocks = _blocks(run, shape, contender)
    if not blocks:
        return {}
    time_s = median(block["time_s"] for block in blocks)
    ratios = list(steady_ratios(run, shape, contender).values())
    energies_j = [block["energy_j"] / block["calls"] for block in blocks if block["energy_j"] is not None]
    clocks_mhz = list(filter(None, (block.get("sm_clock_mhz") for block in blocks)))
    throttled = filter(None, (block.get("throttle_reasons") for block in blocks))
    fields = {"steady_time_s": time_s, "steady_throttled": ", ".join(dict.fromkeys(throttled))}
    if ratios:
        fields |= with_ends("steady_ratio_to_baseline", student(geometric_mean(ratios), ratios))
    if energies_j:
        fields["steady_energy_j"] = median(energies_j)
        fields["steady_power_w"] = fields["steady_energy_j"] / time_s
    if clocks_mhz:
        fields["steady_sm_clock_mhz"] = median(clocks_mhz)
    return fields
