"""Derived fields: rates, shares of the roof and ratios, written by one function from what the journal holds."""

from dataclasses import dataclass, replace
from statistics import median

from roofline.analysis.overlap import metrics
from roofline.stats import Interval, lag1_correlation, median_interval, paired_ratio
from roofline.store.run import Run, Shape
from roofline.theory.bounds import attainable_flops, bound


@dataclass(frozen=True)
class Roof:
    """The measured ceilings of one run, for one dtype: the best that any measurement of them reached."""

    flops: float
    read_bytes_per_s: float

    def at(self, intensity: float) -> float:
        """Attainable FLOP/s at `intensity`."""
        return attainable_flops(intensity, self.flops, self.read_bytes_per_s)


def roof_of(ceilings: list[dict], dtype: str) -> Roof | None:
    """The roof that `ceilings` (lines of the journal) make for `dtype`; None where one of them is missing."""

    def best(kind: str, wanted: str | None) -> dict | None:
        found = [c for c in ceilings if c["ceiling"] == kind and c["dtype"] == wanted]
        return max(found, key=lambda c: c["value"], default=None)

    matmul, read = best("matmul", dtype), best("read", None)
    if not matmul or not read:
        return None
    return Roof(matmul["value"], read["value"])


def derive(run: Run, shape: Shape, contender: str) -> dict:
    """One flat record, scalars only, of `contender` on `shape`: what goes into extra_info, tables and plots.

    Times in seconds, `tflops` in 1e12 FLOP/s (FLOP over the median time), `ratio_to_vendor` above 1 where the contender
    is faster (vendor's time over its time, median over paired rounds). Without ceilings the roof's fields are None.
    Cases that gather over a wire have the fields of `overlap.fields` too; their roof is that of matmul and wire.
    """
    times = shape.times_s(contender)
    samples = list(times.values())
    visits = shape.passes
    time = median_interval(samples, visits=visits)
    roof = roof_of(run.ceilings, shape.dtype)
    own = shape.entrants[contender]
    work = shape.work
    intensity = replace(work, spilled_bytes=own.get("spilled_bytes", 0)).device_intensity
    vendor_times = shape.times_s(shape.baseline)
    ratio = paired_ratio(vendor_times, times, visits=visits) or Interval(*[None] * 3)
    flops = {key: work.flop / getattr(time, key) for key in ("median", "low", "high")}
    return {
        "op": shape.op,
        "contender": contender,
        **shape.params,
        **{key: shape.facts[key] for key in ("n", "k") if key in shape.facts},
        "dtype": shape.dtype,
        "flop": work.flop,
        "device_bytes": work.device_bytes,
        "device_intensity": intensity,
        "time_s": time.median,
        "time_low_s": time.low,
        "time_high_s": time.high,
        "rounds": len(samples),
        "visits": visits,
        "lag1_correlation": lag1_correlation(samples),
        "tflops": flops["median"] / 1e12,
        "tflops_low": flops["high"] / 1e12,
        "tflops_high": flops["low"] / 1e12,
        "roof_tflops": roof and roof.at(intensity) / 1e12,
        "of_roof": roof and flops["median"] / roof.at(intensity),
        "above_roof": roof and flops["high"] > roof.at(intensity),
        "bound": roof and bound(intensity, roof.flops, roof.read_bytes_per_s),
        "vendor": shape.baseline,
        "vendor_time_s": median(vendor_times.values()) if vendor_times else None,
        "ratio_to_vendor": ratio.median,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "relative_error": own["relative_error"],
        "config": own["config"],
        "kernel_name": own.get("kernel_name"),
        **_counted(shape, contender),
        "late": shape.late[contender],
        "cache": shape.cache,
        "stopped_by": shape.stopped_by,
        **shape.telemetry,
        **_steady(run, shape, contender),
        **(metrics.fields(shape, contender) if shape.analysis == "overlap" else {}),
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
    """The fields `steady_*`: medians over the blocks of `contender`, with the interval over them; {} without blocks.

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
    time = median_interval(list(times[contender].values()))
    ratio = paired_ratio(times[shape.baseline], times[contender]) or Interval(*[None] * 3)
    joules = [block["energy_j"] / block["calls"] for block in own if block["energy_j"] is not None]
    clocks = [block["sm_clock_mhz"] for block in own if block.get("sm_clock_mhz")]
    joule = median(joules) if joules else None
    return {
        "steady_time_s": time.median,
        "steady_tflops": shape.work.flop / time.median / 1e12,
        "steady_tflops_low": shape.work.flop / time.high / 1e12,
        "steady_tflops_high": shape.work.flop / time.low / 1e12,
        "steady_blocks": len(own),
        "steady_of_single": median(shape.times_s(contender).values()) / time.median,
        "steady_ratio_to_vendor": ratio.median,
        "steady_ratio_low": ratio.low,
        "steady_ratio_high": ratio.high,
        "steady_sm_clock_mhz": median(clocks) if clocks else None,
        "steady_energy_j": joule,
        "steady_power_w": joule and joule / time.median,
        "steady_flop_per_joule": joule and shape.work.flop / joule,
        "steady_throttled": ", ".join(dict.fromkeys(b["throttle_reasons"] for b in own if b.get("throttle_reasons"))),
    }
