"""The least time that a chip can take for some work. A shorter one was not the time of that work.

A floor is what is known of the chip before the run, and never a rate that the run measured: on a busy machine those
accused the baseline. The floor of a GPU comes from its datasheet: the FLOP of its SMs at the highest clock that the
driver allows, and the bytes that its last-level cache cannot have had, at the bandwidth of its memory. The floor of a
CPU is the FLOP of all its cores at `CPU_HZ`, by the widest of their instruction sets; bytes set none, for nobody says
what its memory and its caches can. A chip of which that is unknown has no floor. A floor proves nothing about a time
above it.
"""

import math
from typing import NamedTuple

from roofline.theory.work import Work, peak_dtype

CPU_HZ = 6e9
"""No CPU multiplies on all its cores at a higher clock."""

CPU_FLOP_PER_CYCLE: dict[str, dict[str, int]] = {
    # Two units that multiply and add: 4, 8 or 16 elements in fp32. Those of 16 bits are converted, but for instructions
    # that take them.
    "sse2": {"fp32": 16, "bf16": 16, "fp16": 16},
    "avx": {"fp32": 32, "bf16": 32, "fp16": 32},
    "avx512f": {"fp32": 64, "bf16": 64, "fp16": 64},
    "avx512_bf16": {"bf16": 128},
    "avx512_fp16": {"fp16": 128},
    # Intel's optimization manual: 16 x 16 sums of two products a cycle. Three such products make one of fp32, or fp16.
    "amx_bf16": {"fp32": 342, "bf16": 1024, "fp16": 342},
    "amx_fp16": {"fp16": 1024},
    # Neoverse V2 and Apple's: four units of 128 bits. BFMMLA has 16 products.
    "asimd": {"fp32": 32, "bf16": 32, "fp16": 32},
    "asimdhp": {"fp16": 64},
    "bf16": {"fp32": 43, "bf16": 128, "fp16": 43},
    # Fujitsu's A64FX: two units of 512 bits.
    "sve": {"fp32": 64, "bf16": 64, "fp16": 128},
    # Arm's outer products: 16 x 16 sums a cycle, of two products in 16 bits.
    "sme": {"fp32": 512, "bf16": 1024, "fp16": 1024},
}
"""The most that a core does in a cycle by an instruction set, as /proc/cpuinfo calls it, and dtype."""


class Floor(NamedTuple):
    """The least seconds that some work can take, and why."""

    seconds: float
    why: str


def floor(work: Work, machine: dict, dtype: str) -> Floor:
    """The least time of `work` in `dtype` on `machine`, an entry of a run's metadata. Raises ValueError where it is not
    known, and says why."""
    return _of_gpu(work, machine, dtype) if machine["source"] == "gpu" else _of_cpu(work, machine, dtype)


def _of_gpu(work: Work, machine: dict, dtype: str) -> Floor:
    """By the datasheet: the time of the FLOP, or of the bytes that cannot have come from the cache, if that is more.
    FLOP of fp32 count as TF32's, since sums of its products may be as exact."""
    sheet = machine["datasheet"]
    if not sheet:
        raise ValueError("the chip is in no datasheet of the suite (roofline/theory/chips.toml)")
    clock_mhz = machine.get("max_sm_clock_mhz")
    if not clock_mhz:
        raise ValueError("NVML does not tell the highest clock")
    of_sm = sheet.get("flop_per_cycle", {})
    per_cycle = of_sm.get(peak_dtype(dtype), 0)
    if dtype == "fp32":
        per_cycle = max(per_cycle, of_sm.get("tf32", 0))
    source = f"{machine['sms']} SMs of the {sheet['name']} at {clock_mhz:g} MHz, and its memory"
    beyond_cache = max(0, work.device_bytes - machine["cache_bytes"])
    bytes_per_s = sheet["memory_bandwidth_bytes_per_s"] or math.inf  # which sets no floor
    why = f"{beyond_cache / 1e6:.3g} MB at {bytes_per_s / 1e9:.4g} GB/s ({source})"
    by_memory = Floor(beyond_cache / bytes_per_s, why)
    return max(by_memory, _of_flop(work, machine["sms"] * per_cycle * clock_mhz * 1e6, source))


def _of_cpu(work: Work, machine: dict, dtype: str) -> Floor:
    per_cycle = {}
    for name in machine.get("instruction_sets", ()):
        per_cycle[name] = CPU_FLOP_PER_CYCLE[name].get(dtype, 0)
    if not per_cycle:
        raise ValueError("/proc/cpuinfo names no instruction set of those in roofline/theory/floor.py")
    widest = max(per_cycle, key=per_cycle.__getitem__)
    cores = f"{machine['affinity']} core{'s' * (machine['affinity'] != 1)}"
    source = f"{cores} at {CPU_HZ / 1e9:g} GHz, {per_cycle[widest]} a cycle by {widest}"
    return _of_flop(work, machine["affinity"] * CPU_HZ * per_cycle[widest], source)


def _of_flop(work: Work, flops: float, source: str) -> Floor:
    if not flops:
        return Floor(0.0, source)
    return Floor(work.flop / flops, f"{work.flop / 1e9:.3g} GFLOP at {flops / 1e12:.4g} TFLOP/s ({source})")
