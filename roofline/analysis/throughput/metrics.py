"""Rates, shares of the roof and ratios to the baseline: what every case is judged by, and the columns that show it."""

from collections.abc import Iterable
from dataclasses import astuple, replace
from statistics import median
from typing import NamedTuple

from roofline.analysis.base import Column
from roofline.report import kernel_words
from roofline.report.format import (
    bytes_text,
    interval_text,
    number_text,
    percent_text,
    range_text,
    rate_text,
    share_text,
    time_text,
)
from roofline.stats import Interval, estimate, lag1_correlation, ratio_of, time_of
from roofline.store.run import INTERRUPTED, PROBE, Run, Shape
from roofline.theory.bounds import attainable_flops, bound

FEW_ROUNDS = 30
"""Below this many, a row says so: the plan asks for as many unless the time runs out."""


class Roof(NamedTuple):
    """The measured ceilings of one run, for one dtype."""

    flops: float
    read_bytes_per_s: float

    def at(self, intensity: float) -> float:
        """Attainable FLOP/s at `intensity`."""
        return attainable_flops(intensity, *self)


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
    known = {(one.kind, one.dtype): one.value for one in ceilings_of(run)}
    matmul, read = known.get(("matmul", dtype)), known.get(("read", None))
    return Roof(matmul, read) if matmul and read else None


def ceilings_of(run: Run) -> list[Ceiling]:
    """The highest rate that something reached in `run`, for each kind and dtype of its probes: a probe alone or beside
    a shape, or, of FLOP, a contender on a shape."""
    if run.end is not None and (known := run.derived.get("ceilings")):
        return known
    highest: dict[tuple[str, str | None], Ceiling] = {}

    def reach(kind: str, dtype: str | None, rate: Interval, by: str) -> None:
        if (kind, dtype) not in highest or rate.value > highest[kind, dtype].value:
            highest[kind, dtype] = Ceiling(kind, dtype, *astuple(rate), by)

    for line in run.ceilings:
        rate = Interval(line["value"], line["low"], line["high"])
        reach(line["ceiling"], line["dtype"], rate, f"{line['probe']}, alone")
    for shape in run.shapes.values():
        if probe := _probe(shape):
            name, entrant = probe
            dtype = shape.dtype if entrant["ceiling"] == "matmul" else None
            rate = _rate(entrant["amount"], time_of(shape.times_s(name), shape.groups))
            reach(entrant["ceiling"], dtype, rate, f"{entrant['config']}, beside {shape.id}")
    for shape in run.shapes.values():
        for contender in shape.measured if ("matmul", shape.dtype) in highest and not shape.work.wire_bytes else ():
            times = shape.times_s(contender)
            rate = _rate(shape.work.flop, time_of(times, shape.groups, shape.anchor or times))
            reach("matmul", shape.dtype, rate, f"{shape.id}-{contender}")
    if run.end is not None:
        run.derived["ceilings"] = list(highest.values())
    return list(highest.values())


def _probe(shape: Shape) -> tuple[str, dict] | None:
    """The probe that took turns on `shape`, with its entry; None if none did."""
    return next(((name, shape.entrants[name]) for name in shape.of_role(PROBE) if shape.times_s(name)), None)


def of_roof(run: Run, shape: Shape, times: dict[int, float], intensity: float) -> Interval | None:
    """The share of the roof that `times` reached. Where a probe took turns with them, the roof is its rate in those
    rounds, which a contender may exceed; else the ceilings of the run. None where no ceiling was measured."""
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


def _median(values: dict[int, float]) -> float | None:
    """The median of {round: value}; None of none."""
    return median(values.values()) if values else None


def with_ends(interval: Interval | None, *names: str) -> dict[str, float | None]:
    """Three fields: the value and its interval."""
    return dict(zip(names, astuple(interval) if interval else [None] * 3, strict=True))


def _rate(amount: float, time: Interval) -> Interval:
    """`amount` per second: the typical rate and its interval, whose low end is that of the longest time."""
    return Interval(amount / time.value, amount / time.high, amount / time.low)


def metrics(run: Run, shape: Shape, contender: str) -> dict:
    """One flat record, scalars only, of `contender` on `shape`: what goes into extra_info, tables and plots.

    `COLUMNS` says what each field means. Without ceilings the roof's fields are None.
    """
    times = shape.times_s(contender)
    vendor_times = shape.anchor or {}  # none where it was refused
    groups, own, work = shape.groups, shape.entrants[contender], shape.work
    time, roof = time_of(times, groups, vendor_times or times), roof_of(run, shape.dtype)
    intensity = replace(work, spilled_bytes=own.get("spilled_bytes", 0)).device_intensity
    ratio, reached = vendor_times and ratio_of(vendor_times, times, groups), of_roof(run, shape, times, intensity)
    return {
        "op": shape.op,
        "contender": contender,
        **shape.params,
        **{key: shape.facts[key] for key in ("n", "k") if key in shape.facts},
        "dtype": shape.dtype,
        "flop": work.flop,
        "device_bytes": work.device_bytes,
        "device_intensity": intensity,
        **with_ends(time, "time_s", "time_low_s", "time_high_s"),
        "rounds": len(times),
        "visits": shape.passes,
        "processes": len({process for process, _ in groups.values()}),
        "lag1_correlation": lag1_correlation(times.values()),
        **with_ends(_rate(work.flop / 1e12, time), "tflops", "tflops_low", "tflops_high"),
        "roof_tflops": reached and work.flop / time.value / reached.value / 1e12,
        **with_ends(reached, "of_roof", "of_roof_low", "of_roof_high"),
        "above_roof": reached and reached.low > 1 and work.flop / time.high > roof.at(intensity),
        "bound": roof and bound(intensity, *roof),
        "vendor": shape.baseline,
        "vendor_time_s": time_of(vendor_times, groups).value if vendor_times else None,
        **with_ends(ratio or None, "ratio_to_vendor", "ratio_low", "ratio_high"),
        "relative_error": own["relative_error"],
        "config": own["config"],
        "kernel_name": own.get("kernel_name"),
        **_counted(shape, contender),
        "late": shape.late[contender],
        "cache": shape.cache,
        "stopped_by": shape.stopped_by,
        **shape.telemetry,
        **_steady(run, shape, contender),
        "source": run.metadata["machine"]["source"],
        "method_version": run.metadata["method_version"],
    }


def _counted(shape: Shape, contender: str) -> dict:
    """The fields of what a profiler counted in one call, all None where it did not."""
    line = shape.counters.get(contender, {})
    dram, tensor, source = (line.get(key) for key in ("dram_bytes", "tensor_ops", "counter_source"))
    said = source and [" + ".join(names) for names in source["metrics"].values()]
    return {
        "dram_bytes": dram,
        "l2_bytes": line.get("l2_bytes"),
        "tensor_ops": tensor,
        "counted_intensity": shape.work.flop / dram if dram else None,
        "dram_of_device_bytes": None if dram is None else dram / shape.work.device_bytes,
        "tensor_ops_of_flop": None if tensor is None else tensor / shape.work.flop,
        "counter_source": source and "; ".join([f"{source['tool']} {source['version']}", *said]),
    }


def _steady(run: Run, shape: Shape, contender: str) -> dict:
    """The fields `steady_*`: medians over the blocks of `contender`, with the range over them; {} without blocks.

    `steady_ratio_to_vendor` pairs the blocks of one alternation, `steady_of_single` is its FLOP/s over those of single
    calls in turns. Power is energy over time, of the counted part alone.
    """
    blocks = [block for block in run.steady if block["shape"] == shape.id]
    times = {
        name: {block["block"]: block["time_s"] for block in blocks if block["contender"] == name}
        for name in (shape.baseline, contender)
    }
    own = [block for block in blocks if block["contender"] == contender]
    if not own:
        return {}
    time, ratio = _range(times[contender].values()), None
    if both := times[shape.baseline].keys() & times[contender].keys():
        ratio = _range(times[shape.baseline][block] / times[contender][block] for block in both)
    counted = [b for b in own if b["energy_j"] is not None]
    joules = _range(b["energy_j"] / b["calls"] for b in counted) if counted else None
    return {
        "steady_time_s": time.value,
        **with_ends(_rate(shape.work.flop / 1e12, time), "steady_tflops", "steady_tflops_low", "steady_tflops_high"),
        "steady_blocks": len(own),
        "steady_of_single": time_of(shape.times_s(contender), shape.groups).value / time.value,
        **with_ends(ratio, "steady_ratio_to_vendor", "steady_ratio_low", "steady_ratio_high"),
        "steady_sm_clock_mhz": _median({b["block"]: b["sm_clock_mhz"] for b in own if b.get("sm_clock_mhz")}),
        **with_ends(joules, *(f"steady_energy{end}_j" for end in ENDS)),
        "steady_power_w": joules and joules.value / time.value,
        "steady_power_low_w": min((b["power_low_w"] for b in counted if "power_low_w" in b), default=None),
        "steady_power_high_w": max((b["power_high_w"] for b in counted if "power_high_w" in b), default=None),
        "steady_flop_per_joule": joules and shape.work.flop / joules.value,
        "steady_idle_power_w": run.metadata["machine"].get("idle_power_w"),
        "steady_throttled": ", ".join(dict.fromkeys(b["throttle_reasons"] for b in own if b.get("throttle_reasons"))),
    }


def _range(values: Iterable[float]) -> Interval:
    """Their median, the least and the greatest."""
    values = list(values)
    return Interval(median(values), min(values), max(values))


def ratio_text(record: dict, kind: str = "ratio", text=interval_text) -> str:
    """Ratio to the baseline with its interval, written by `text`; or that it is the baseline. `kind` is the prefix of
    its fields."""
    if record["contender"] == record["vendor"]:
        return "1 (baseline)"
    return text(*(record[f"{kind}_{end}"] for end in ("to_vendor", "low", "high")))


def _joules_text(record: dict) -> str:
    """Of 1e12 FLOP."""
    joules = [record[f"steady_energy{end}_j"] for end in ENDS]
    return "-" if None in joules else range_text(*(1e12 * one / record["flop"] for one in joules), number_text)


def notes_text(record: dict, roof: str = "the measured roof", more: str = "") -> str:
    """What a reader must know before trusting the row; `more` stands in the middle."""
    rounds, late = record["rounds"], record["late"]
    notes = {
        f"throttled: {record.get('throttle_reasons')}": record.get("throttled"),
        f"above {roof}": record["above_roof"],
        more: more,
        "cut short": record["stopped_by"] == INTERRUPTED,
        f"{rounds} rounds only": rounds < FEW_ROUNDS,
        f"host late in {late}": late > 0.1 * rounds,
    }
    return "; ".join(note for note, holds in notes.items() if holds)


def shape_of(record: dict) -> str:
    """The id of its shape."""
    return record["case"].removesuffix("-" + record["contender"])


CASE = (
    Column("case", "shape and contender: the id of the benchmark", header="shape", of_row=shape_of, right=False),
    Column("contender", "the implementation, or the arm", header="contender", right=False),
)
"""What says, in every table, of which case a row is."""

ENDS = "", "_low", "_high"
"""Of the names of a field with its interval."""

TIME = Column("time_s", "typical time: the mean of the middle half of logarithms, over processes", "s", "time",
              time_text)  # fmt: skip
TFLOPS = Column("tflops", "`flop` over `time_s`", "1e12 FLOP/s", "TFLOP/s", rate_text)
OF_ROOF = Column("of_roof", "share of the roof that was reached: of what a probe reached in the same rounds", "1",
                 "of roof [95 %]", of_row=lambda r: share_text(*(r[f"of_roof{end}"] for end in ENDS)))  # fmt: skip
RATIO = Column("ratio_to_vendor", "the baseline's time over this one's: above 1 is faster",
               "1", "ratio to baseline [95 %]", of_row=ratio_text)  # fmt: skip
INTENSITY = Column("device_intensity", "FLOP per byte of device memory; what is spilled counts too", "FLOP/byte",
                   "FLOP/byte", "{:.3g}".format)  # fmt: skip
COUNTED_INTENSITY = Column("counted_intensity", "`flop` over `dram_bytes`", "FLOP/byte", "FLOP/byte", number_text)
BOUND = Column("bound", "which bound of the roof it is under: `compute`, `memory`. It is the model's, of the intensity "
               "alone, and no diagnosis of what holds it up", header="model's bound", right=False)  # fmt: skip
KERNEL = Column("kernel_name", "what one call launches, by torch's profiler after all timing, several joined by ` + `; "
                "null on a CPU. Tables have names of cuBLAS in words: of its tile the first size lies along n, since "
                "it counts by columns", header="kernel", text=kernel_words.words, right=False,
                shown=lambda r: r["kernel_name"])  # fmt: skip
NOTES = Column(header="notes", of_row=notes_text, right=False, shown=notes_text)
"""`notes_text`, left out where no row has any."""
CONFIG = Column("config", "the tile choice, or the library and version")

COUNTED = (
    Column("dram_bytes", "with `--ffn-counters`: what one call read from and wrote to device memory", "bytes",
           "device memory", bytes_text),
    Column("dram_of_device_bytes", "`dram_bytes` over `device_bytes`: below 1 where an output was still in the L2 "
           "cache when its kernel ended", "1", "of least", number_text),
    COUNTED_INTENSITY,
    replace(INTENSITY, doc="", header="modelled"),
    Column("l2_bytes", "what it moved through the L2 cache", "bytes", "L2 cache", bytes_text),
    Column("tensor_ops", "what it did on the tensor cores", "FLOP"),
    Column("tensor_ops_of_flop", "`tensor_ops` over `flop`: 1, more where tiles are padded, 0 where other units "
           "multiply. Anything else is an error of the counter", "1", "tensor operations/FLOP", number_text),
    Column("counter_source", "the tool that counted, its version and its metrics; null where not counted"),
)  # fmt: skip
"""What a profiler counted in one call."""

STEADY = (
    Column("steady_time_s", "median over blocks of 5 s in which a kernel runs alone: with `--ffn-steady`, and by "
           "default on a GPU from 1024 tokens and 2 ms on, the baseline and the fastest other", "s", "time", time_text),
    Column("steady_tflops", "`flop` over it", "1e12 FLOP/s", "TFLOP/s", rate_text),
    Column("steady_tflops_low", "of the slowest block", "1e12 FLOP/s"),
    Column("steady_tflops_high", "of the fastest block", "1e12 FLOP/s"),
    Column("steady_blocks", "how many there were", "1"),
    Column("steady_of_single", "its speed over that of single calls in turns", "1", "of single calls", percent_text),
    Column("steady_ratio_to_vendor", "the baseline's time over this one's, in blocks of one alternation", "1",
           "ratio to baseline [range]", of_row=lambda r: ratio_text(r, "steady_ratio", range_text)),
    Column("steady_ratio_low", "the least of the blocks", "1"),
    Column("steady_ratio_high", "the greatest of the blocks", "1"),
    Column("steady_sm_clock_mhz", "SM clock in the blocks", "MHz", "SM clock, MHz", "{:.4g}".format),
    Column("steady_energy_j", "of a call; of the counted part of a block alone", "J"),
    Column("steady_energy_low_j", "the least of the blocks", "J"),
    Column("steady_energy_high_j", "the greatest of the blocks", "J"),
    Column("steady_power_w", "energy over time", "W", "power, W [range]",
           of_row=lambda r: range_text(*(r[f"steady_power{end}_w"] for end in ENDS), rate_text)),
    Column("steady_power_low_w", "the least of any second of the blocks", "W"),
    Column("steady_power_high_w", "the greatest", "W"),
    Column("steady_flop_per_joule", "`flop` over `steady_energy_j`", "FLOP/J", "J/TFLOP [range]", of_row=_joules_text),
    Column("steady_idle_power_w", "what the device drew before the run, when nothing ran on it", "W"),
    Column("steady_throttled", "why the clock was held down, in words", header="notes", right=False,
           shown=lambda r: r["steady_throttled"]),
)  # fmt: skip
"""Of blocks in which a kernel runs alone."""

COLUMNS = (
    *CASE,
    TIME,
    TFLOPS,
    OF_ROOF,
    RATIO,
    INTENSITY,
    replace(COUNTED_INTENSITY, doc="", header="FLOP/byte counted", shown=lambda r: r["counter_source"] is not None),
    BOUND,
    KERNEL,
    NOTES,
    Column("op", "the operation"),
    Column("model", "sizes of the FFN"),
    Column("layer", "`up` or `down`"),
    Column("tp", "over how many chips a layer is split", "1"),
    Column("m", "rows of x and out, tokens: out[m, n] = x[m, k] @ w[n, k].T", "1"),
    Column("n", "columns of out", "1"),
    Column("k", "the summed dimension", "1"),
    Column("dtype", "of the operands and of out"),
    Column("flop", "its work; a multiply-add is 2", "FLOP"),
    Column("device_bytes", "each input read once and each output written once", "bytes"),
    Column("time_low_s", "95 % interval: Student's over processes; of a single one, over its passes", "s"),
    Column("time_high_s", "its other end", "s"),
    Column("rounds", "samples", "1"),
    Column("visits", "returns to the shape", "1"),
    Column("processes", "that measured it", "1"),
    Column("of_roof_low", "95 % interval of `of_roof`", "1"),
    Column("of_roof_high", "its other end", "1"),
    Column("lag1_correlation", "of neighbouring samples", "1"),
    Column("tflops_low", "over `time_high_s`", "1e12 FLOP/s"),
    Column("tflops_high", "over `time_low_s`", "1e12 FLOP/s"),
    Column("roof_tflops", "the measured roof at this intensity, at the pace of the case's own rounds", "1e12 FLOP/s"),
    Column("above_roof", "true where the whole interval of `of_roof` lies above 1, and that of the rate above the "
           "ceilings of the run"),
    Column("vendor", "the baseline: what the others are compared with"),
    Column("vendor_time_s", "its time on this shape", "s"),
    Column("ratio_low", "95 % interval of `ratio_to_vendor`", "1"),
    Column("ratio_high", "its other end", "1"),
    Column("relative_error", "Frobenius norm against float64 (or a tenth of the largest error, if that is more), "
           "before timing, on an output poisoned with NaN. At most 3e-3 in bf16, 5e-4 in fp16, 1e-5 in fp32; of the "
           "vendor 1e-2 and 2e-3, since cuBLAS may add up parts of K that are rounded", "1"),
    CONFIG,
    Column("late", "samples dropped because the host enqueued the work too late, or of real ranks one lacked its core",
           "1"),
    Column("cache", "its state before every sample"),
    Column("stopped_by", "what ended the rounds: `width`, `time`, `rounds`; `interrupt` where they were cut short"),
    Column("throttled", "whether the clock was held down; null on a CPU: unknown"),
    Column("throttle_reasons", "why, in words; on a GPU, as the next four"),
    Column("sm_clock_mhz", "SM clock", "MHz"),
    Column("power_w", "NVML averages it over about a second, which may reach into the case before", "W"),
    Column("temperature_c", "of the chip", "C"),
    Column("other_processes", "on the card", "1"),
    Column("stolen_share", "of a CPU: time that the hypervisor gave to others", "1"),
    Column("others_share", "of a CPU: time that other processes of the system took; null between real ranks", "1"),
    Column("load_average", "of a CPU: processes that ran or waited to, over the last minute", "1"),
    Column("telemetry_error", "why nothing was read"),
    *(replace(column, header="") for column in (*COUNTED, *STEADY)),
    Column("source", "`gpu` or `cpu`"),
    Column("method_version", "of the measuring method", "1"),
)  # fmt: skip


def others(known: Iterable[Column], *left_out: str) -> list[Column]:
    """The columns that any case has, for records alone, but for those that are `known` already or `left_out`."""
    there = {*left_out, *(column.name for column in known if column.doc)}
    return [replace(column, header="") for column in COLUMNS if column.doc and column.name not in there]
