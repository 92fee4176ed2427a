"""What disturbed a measurement: clocks, power, temperature and throttling on a GPU; stolen time on a virtual CPU."""

import time
from pathlib import Path
from statistics import median

# NVML's clock-event reasons that mean the chip ran slower than it could (nvml.h, nvmlClocksEventReasons). A power cap
# (0x4) is among them: it is how large matmuls run on these chips, and a reader must be able to see it.
THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}


class GpuTelemetry:
    """NVML readings taken while the device is busy, at most every `interval_s`; `summary()` ends a case."""

    def __init__(self, interval_s: float = 0.05):
        import pynvml
        import torch

        pynvml.nvmlInit()
        self._nvml = pynvml
        uuid = str(torch.cuda.get_device_properties(0).uuid)
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        self._interval_s = interval_s
        self.start()

    def start(self) -> None:
        self._readings: list[tuple[float, float, float, int]] = []
        self._last = 0.0

    def read(self) -> None:
        if time.perf_counter() - self._last < self._interval_s:
            return
        nvml, handle = self._nvml, self._handle
        self._readings.append(
            (
                nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                nvml.nvmlDeviceGetPowerUsage(handle) * 1e-3,
                nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
                nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
            )
        )
        self._last = time.perf_counter()

    def summary(self) -> dict:
        if not self._readings:
            return {"throttled": None}
        clocks, powers, temperatures, masks = zip(*self._readings, strict=True)
        seen = 0
        for mask in masks:
            seen |= mask
        reasons = [text for bit, text in THROTTLE_REASONS.items() if seen & bit]
        return {
            "sm_clock_mhz": median(clocks),
            "power_w": median(powers),
            "temperature_c": max(temperatures),
            "throttled": bool(reasons),
            "throttle_reasons": ", ".join(reasons),
            "other_processes": self._others(),
        }

    def _others(self) -> int | None:
        try:
            return max(0, len(self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)) - 1)
        except self._nvml.NVMLError:
            return None


class CpuTelemetry:
    """Share of CPU time that the hypervisor gave to others. Whether the clock was throttled is not known here: None."""

    def __init__(self):
        self.start()

    def start(self) -> None:
        self._before = self._stat()

    def read(self) -> None:
        """Nothing to read while busy: the counters are cumulative."""

    def summary(self) -> dict:
        steal, total = (after - before for after, before in zip(self._stat(), self._before, strict=True))
        return {"throttled": None, "stolen_share": steal / total if total else 0.0}

    @staticmethod
    def _stat() -> tuple[int, int]:
        """(stolen, all) jiffies since boot, from Linux's /proc/stat; zeros elsewhere."""
        try:
            fields = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return 0, 0
        return fields[7] if len(fields) > 7 else 0, sum(fields)


def for_device(device: str):
    """Telemetry of `device` (`cpu` or `cuda`)."""
    return GpuTelemetry() if device == "cuda" else CpuTelemetry()
