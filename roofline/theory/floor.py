"""The least time that a chip can take for some work. A shorter one was not the time of that work.

The floor of a GPU comes from its datasheet: the FLOP of its SMs at the highest clock that the driver allows, and the
bytes that its last-level cache cannot have had, at the bandwidth of its memory. The floor of a CPU is `CPU_TIMES` times
as fast as the fastest probe of the run. A floor proves nothing about a time above it.
"""

from collections.abc import Iterable
from typing import NamedTuple

from roofline.theory.work import Work, peak_dtype

CPU_TIMES = 4
"""So many times the fastest probe: a library reaches a quarter of a CPU's peak on the shapes of the probes."""

NO_DATASHEET = "the chip is in no datasheet of the suite (roofline/theory/chips.toml)"
NO_CLOCK = "NVML does not tell the highest clock"
NO_PROBE = "no probe of matmuls and of memory was measured"


class Rates(NamedTuple):
    """What a chip cannot exceed, and by what that is known. A rate that nobody knows is None."""

    flops: float | None
    bytes_per_s: float | None
    cache_bytes: int
    source: str


class Floor(NamedTuple):
    """The least seconds that some work can take, and why."""

    seconds: float
    why: str


def _gpu_rates(machine: dict, dtype: str) -> Rates | str:
    """By the datasheet. FLOP of fp32 count as TF32's, since sums of its products may be as exact."""
    sheet = machine["datasheet"]
    if not sheet:
        return NO_DATASHEET
    clock_mhz = machine.get("max_sm_clock_mhz")
    if not clock_mhz:
        return NO_CLOCK
    of_sm = sheet.get("flop_per_cycle", {})
    per_cycle = of_sm.get(peak_dtype(dtype))
    if dtype == "fp32" and per_cycle:
        per_cycle = max(per_cycle, of_sm.get("tf32", 0))
    flops = None if per_cycle is None else machine["sms"] * per_cycle * clock_mhz * 1e6
    source = f"{machine['sms']} SMs of the {sheet['name']} at {clock_mhz:g} MHz, and its memory"
    return Rates(flops, sheet["memory_bandwidth_bytes_per_s"], machine["cache_bytes"], source)


def highest_of_kinds(ceilings: Iterable[dict]) -> dict[tuple[str, str | None], dict]:
    """{(kind, dtype): the highest of its ceilings}, as the journal has them."""
    highest: dict[tuple[str, str | None], dict] = {}
    for line in ceilings:
        kind = line["ceiling"], line["dtype"]
        if kind not in highest or line["value"] > highest[kind]["value"]:
            highest[kind] = line
    return highest


def rates(machine: dict, dtype: str, ceilings: Iterable[dict]) -> Rates | str:
    """What no kernel of `dtype` can exceed on `machine`, by its entry of a run's metadata; of a CPU what is taken to be
    impossible, by the `ceilings` of the run so far, as its journal has them. Or in words why that is not known."""
    if machine["source"] == "gpu":
        return _gpu_rates(machine, dtype)
    highest = highest_of_kinds(ceilings)
    matmul = highest.get(("matmul", dtype))
    read = highest.get(("read", None))
    if not (matmul and read):
        return NO_PROBE
    source = f"{CPU_TIMES} times the fastest probe of the run"
    return Rates(CPU_TIMES * matmul["value"], CPU_TIMES * read["value"], machine["cache_bytes"], source)


def floor(work: Work, limits: Rates) -> Floor:
    """The least time of `work`: of its FLOP, or of the bytes that cannot have come from the cache, if that is more."""
    candidates = [Floor(0.0, limits.source)]
    if limits.flops:
        why = f"{work.flop / 1e9:.3g} GFLOP at {limits.flops / 1e12:.4g} TFLOP/s ({limits.source})"
        candidates.append(Floor(work.flop / limits.flops, why))
    beyond_cache = max(0, work.device_bytes - limits.cache_bytes)
    if limits.bytes_per_s:
        why = f"{beyond_cache / 1e6:.3g} MB at {limits.bytes_per_s / 1e9:.4g} GB/s ({limits.source})"
        candidates.append(Floor(beyond_cache / limits.bytes_per_s, why))
    return max(candidates, key=lambda candidate: candidate.seconds)
