"""The roof of a chip's memory and matmuls: the ceilings that a run measured, and the share of the roof that a case
reached."""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any, NamedTuple

from roofline.analysis.fields import MeasuredCase, with_ends
from roofline.store.run import PROBE, Run, Shape
from roofline.store.stats import Interval, time_of
from roofline.theory.bounds import Roof


class Ceiling(NamedTuple):
    """The highest rate of a kind that a run saw, with its interval, per second; NaN for ends that are unknown. `by` is
    what reached it, and where."""

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


def once(derive: Callable[[Run], Any]) -> Callable[[Run], Any]:
    """Have what is derived of a run made once, when the run is closed, and then kept beside it."""

    @wraps(derive)
    def derived(run: Run) -> Any:
        if run.end is None or derive not in run.derived:
            run.derived[derive] = derive(run)
        return run.derived[derive]

    return derived


@once
def ceilings_of(run: Run) -> list[Ceiling]:
    """The highest rate that something reached in `run`, for each kind and dtype of its probes: a probe alone or
    beside a shape, or where it counts FLOP, a contender of the suite on a shape. Among equals it is the first."""
    ceilings = [*_by_probes(run)]
    probed = {ceiling.dtype for ceiling in ceilings if ceiling.kind == "matmul"}
    ceilings += _by_contenders(run, probed)
    highest: dict[tuple, Ceiling] = {}
    for ceiling in ceilings:
        kind = ceiling.kind, ceiling.dtype
        if kind not in highest or ceiling.value > highest[kind].value:
            highest[kind] = ceiling
    return [*highest.values()]


def _by_probes(run: Run) -> Iterator[Ceiling]:
    """Rates of probes alone, and beside shapes."""
    for line in run.ceilings:
        rate = line["value"], line.get("low", math.nan), line.get("high", math.nan)
        yield Ceiling(line["ceiling"], line["dtype"], *rate, f"{line['probe']}, alone")
    for shape in run.shapes.values():
        if name := _probe(shape):
            probe = shape.entrants[name]
            dtype = shape.dtype if probe["ceiling"] == "matmul" else None
            rate = rate_of(probe["amount"], time_of(shape.times_s(name), shape.groups))
            yield Ceiling(probe["ceiling"], dtype, *rate, f"{probe['config']}, beside {shape.id}")


def _by_contenders(run: Run, dtypes: Collection[str | None]) -> Iterator[Ceiling]:
    """Rates of the suite's contenders from device memory, in dtypes of which a probe was measured."""
    for shape in run.shapes.values():
        if shape.dtype not in dtypes or shape.work.wire_bytes:
            continue
        for contender in shape.measured:
            if not shape.entrants[contender].get("of_user"):
                rate = rate_of(shape.work.flop, shape.time(contender))
                yield Ceiling("matmul", shape.dtype, *rate, f"{shape.id}-{contender}")


def _probe(shape: Shape) -> str | None:
    """The name of the probe that took turns on `shape`; None if none did."""
    return next(filter(shape.times_s, shape.of_role(PROBE)), None)


def rate_of(amount: float, time: Any) -> Interval:
    """`amount` per second: the typical rate and its interval, whose low end is that of the longest time."""
    return Interval(amount / time.value, amount / time.high, amount / time.low)


def intensity_of(case: MeasuredCase) -> float:
    """FLOP per byte of device memory. What a contender spills moves too."""
    spilled_bytes = case.entrant.get("spilled_bytes", 0)
    return replace(case.shape.work, spilled_bytes=spilled_bytes).device_intensity


def fields(case: MeasuredCase) -> dict:
    """The measured roof at the intensity of a case, and the share of it that was reached; {} without ceilings."""
    shape = case.shape
    roof = roof_of(case.run, shape.dtype)
    if not roof:
        return {}
    intensity = intensity_of(case)
    reached, probe = _reached(case, roof, intensity)
    fields: dict[str, Any] = with_ends("of_roof", reached)
    fields["bound"] = roof.bound(intensity)
    if reached:
        flop = shape.work.flop
        fields["roof_tflops"] = flop / case.time.value / reached.value / 1e12
        fields["above_roof"] = reached.low > 1 and flop / case.time.high > roof.at(intensity)
    if probe:
        fields["roof_probe"] = shape.entrants[probe]["config"]
    return fields


def _reached(case: MeasuredCase, roof: Roof, intensity: float) -> tuple[Interval | None, str | None]:
    """The fraction of the roof that a contender reached, and the probe that set it. Where a probe took turns with it,
    its ceiling is its rate in those rounds, which a contender may exceed. The other is the run's, and so are both
    without a probe. The roof is the lower one."""
    shape = case.shape
    flop = shape.work.flop
    name = _probe(shape)
    if not name:
        return shape.estimate(lambda own_s: flop / own_s / roof.at(intensity), case.times_s), None
    probe = shape.entrants[name]
    probe_flop = probe["amount"]
    other_flops = intensity * roof.read_bytes_per_s
    if probe["ceiling"] != "matmul":
        probe_flop *= intensity
        other_flops = roof.flops
    by_probe = shape.estimate(
        lambda probe_s, own_s: flop / own_s / (probe_flop / probe_s), shape.times_s(name), case.times_s
    )
    by_other = shape.estimate(lambda own_s: flop / own_s / other_flops, case.times_s)
    if by_probe and by_other and by_other.value > by_probe.value:
        return by_other, None
    return by_probe, name
