"""Disturbances of a measurement: clocks, power, temperature and throttling on a GPU; on a CPU what others took of
it."""

import operator
import os
import time
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from statistics import median
from typing import Any

RENEWED_S = 0.2
"""NVML renews its energy counter some ten times a second: a reading waits for that, for so long at most."""
AT_MOST = 0.99
"""An SM whose clock NVML reads above this fraction of the highest is not held down, whatever reasons are given. Clocks
are 15 MHz apart."""
HIGHEST = {"temperature_c", "other_processes", "throttled"}
"""The highest reading of these stays where there are several passes."""

# NVML's clock-event reasons that mean the chip ran slower than it could (nvml.h, nvmlClocksEventReasons). A power cap
# (0x4) is among them: it is how large matmuls run on these chips, and a reader must be able to see it.
THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}


def nvml_handle():
    """NVML, and what it knows torch's current GPU by. Raises what NVML or torch raise."""
    import pynvml
    import torch

    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")


def highest_sm_clock_mhz() -> float | None:
    """The highest SM clock that NVML allows torch's current GPU; None where it does not tell."""
    try:
        nvml, handle = nvml_handle()
        return nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    except Exception:  # no package, no library, no permission: NVML has a type for each
        return None


class GpuTelemetry:
    """NVML readings taken while the device is busy, at most every `INTERVAL_S`; `summary()` ends a case.

    What NVML does not tell on this machine is None; where it tells nothing, `lacking` says why.
    """

    INTERVAL_S = 0.05

    def __init__(self):
        self._handle = None
        self.lacking = ""
        self.start()
        try:
            self._nvml, self._handle = nvml_handle()
        except Exception as error:  # no package, no library, no permission: NVML has a type for each
            self.lacking = f"No clock, power and temperature of the GPU: {type(error).__name__}: {error}."
        self._highest_mhz = highest_sm_clock_mhz()

    def start(self) -> None:
        self._readings: list[dict] = []
        self._last = 0.0

    def read(self) -> None:
        if self._handle is None or time.perf_counter() - self._last < self.INTERVAL_S:
            return
        nvml = self._nvml
        clock_mhz = self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM)
        power_mw = self._ask(nvml.nvmlDeviceGetPowerUsage)
        reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        if reasons and clock_mhz and self._highest_mhz and clock_mhz >= AT_MOST * self._highest_mhz:
            reasons = 0
        self._readings.append(
            {
                "sm_clock_mhz": clock_mhz,
                "power_w": power_mw and power_mw / 1e3,
                "temperature_c": self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
                "reasons": reasons,
            }
        )
        self._last = time.perf_counter()

    def _ask(self, question, *arguments):
        try:
            return question(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None

    def energy(self) -> tuple[float, float] | None:
        """(seconds, joules since the driver was loaded), when NVML has just renewed its counter. None where it has
        none."""
        before = self._energy_j()
        deadline = time.perf_counter() + RENEWED_S
        while (joules := self._energy_j()) == before is not None and time.perf_counter() < deadline:
            time.sleep(0.001)
        return None if joules is None else (time.perf_counter(), joules)

    def _energy_j(self) -> float | None:
        millijoules = self._handle and self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if millijoules is None else millijoules / 1e3

    def summary(self) -> dict:
        """Medians over the case (the highest for the temperature). `throttled` is whether NVML gave a reason while the
        clock was below its highest; None where NVML does not tell."""
        if not self._readings:
            return {"throttled": None}
        processes = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses)
        every_reason = self._of_readings(partial(reduce, operator.or_), "reasons")
        slows = [words for bit, words in THROTTLE_REASONS.items() if bit & (every_reason or 0)]
        return {
            "sm_clock_mhz": self._of_readings(median, "sm_clock_mhz"),
            "power_w": self._of_readings(median, "power_w"),
            "temperature_c": self._of_readings(max, "temperature_c"),
            "other_processes": None if processes is None else max(0, len(processes) - 1),
            "throttled": None if every_reason is None else bool(slows),
            "throttle_reasons": ", ".join(slows),
        }

    def _of_readings(self, statistic: Callable[[list], Any], name: str) -> Any:
        values = [reading[name] for reading in self._readings if reading[name] is not None]
        return statistic(values) if values else None


class CpuTelemetry:
    """Shares of CPU time that the hypervisor gave to other guests, and the system to other processes, and the load
    average. Whether the clock was throttled is not known here: None."""

    lacking = ""

    def start(self) -> None:
        self._before = self._stat()

    def read(self) -> None:
        """Read nothing while busy: the counters are cumulative."""

    def energy(self) -> None:
        """None: RAPL is closed to ordinary users, and to virtual machines."""

    def summary(self) -> dict:
        since = [now - before for now, before in zip(self._stat(), self._before, strict=True)]
        stolen, busy, total, of_run = since
        of_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1  # the others are ranks of this run
        return {
            "throttled": None,
            "stolen_share": stolen / total if total else 0.0,
            # Of a short pass ticks may say less than nothing: cut off, the mean over rounds would be too high.
            "others_share": None if of_ranks or not total else (busy - of_run) / total,
            "load_average": os.getloadavg()[0],
        }

    @staticmethod
    def _stat() -> tuple[float, float, float, float]:
        """(stolen, busy, all, this process's) jiffies since boot, from Linux's /proc/stat; zeros elsewhere."""
        try:
            line = Path("/proc/stat").read_text().split("\n", 1)[0]
            user, nice, system, idle, waiting, *interrupts, stolen = map(int, line.split()[1:9])
        except (OSError, ValueError):
            return 0, 0, 0, 0
        busy = user + nice + system + sum(interrupts)
        of_process = os.times()
        own_jiffies = (of_process.user + of_process.system) * os.sysconf("SC_CLK_TCK")
        return stolen, busy, busy + idle + waiting + stolen, own_jiffies


def merged(before: dict, rounds_before: int, now: dict, rounds: int) -> dict:
    """One summary of the passes before and of one more. Numbers are averaged over rounds: a pass that had none
    is too short to say anything. What disturbed any pass stays: a throttled clock, its reasons, the most of `HIGHEST`.

    >>> merged({"others_share": 0.1, "throttled": True}, 3, {"others_share": 0.5, "throttled": False}, 1)
    {'others_share': 0.2, 'throttled': True}
    """
    both = dict(before)
    for key, value in now.items() if rounds else ():
        old = before.get(key)
        if old is None or value is None:
            value = old if value is None else value
        elif isinstance(value, str):
            words = [*old.split(", "), *value.split(", ")]
            value = ", ".join(filter(None, dict.fromkeys(words)))
        elif key in HIGHEST:
            value = max(old, value)
        else:
            value = (rounds_before * old + rounds * value) / (rounds_before + rounds)
        both[key] = value
    return both
