"""How long a matmul takes on M rows that nobody measured, by a run's other M or by a datasheet.

between two measured M   a straight line between their times, of one contender, layer, tp and dtype
beyond them              the time at the nearest, and what the plain roofline grows by from there
by a datasheet           the longer of FLOP and bytes, each at the datasheet's rate times its EFFICIENCY
"""

from dataclasses import replace
from statistics import median
from typing import NamedTuple

from roofline.analysis.records import records_of
from roofline.analysis.throughput import Roof, roof_of
from roofline.operations import Case
from roofline.operations.matmul import Matmul
from roofline.stats import grouped
from roofline.store.run import Run
from roofline.theory.chips import Chip
from roofline.theory.wires import LINKS

EFFICIENCY = {"compute": 0.72, "memory": 0.83}
"""Of a datasheet's FLOP/s and bytes/s, by what bounds the matmul: what cuBLAS reached of an H200's 989 TFLOP/s in bf16
from 1024 rows on (12 shapes, 0.69 to 0.75), and of its 4.8 TB/s up to 16 rows (8 shapes, 0.76 to 0.89), in the
geometric mean (results/reference/nvidia-h200-2026-11-26)."""

ANY, T_GEMM = "any", "T_gemm"
"""Contenders: of a datasheet, which knows none, and the unsplit matmul beside a link, which leaves it a CPU's core."""

Place = tuple[str, str, int, str]
"""model, layer, tp, dtype: a matmul but for its M."""


class Estimate(NamedTuple):
    """A time, and its origin in words."""

    time_s: float
    origin: str


def place_of(case: Matmul) -> Place:
    return case.model, case.layer, case.tp, case.dtype


def roofline_s(case: Case, roof: Roof) -> float:
    """Return the plain roofline's time: the longer of FLOP and device bytes."""
    return max(case.work.flop / roof.flops, case.work.device_bytes / roof.read_bytes_per_s)


def on_curve(case: Matmul, curve: dict[int, float], roof: Roof | None) -> Estimate:
    """Return the time of `case` by `curve`, {M: seconds}. Raises ValueError beyond its ends where there is no
    `roof`."""
    if case.m in curve:
        return Estimate(curve[case.m], "measured")
    below, above = [m for m in curve if m < case.m], [m for m in curve if m > case.m]
    if below and above:
        low, high = max(below), min(above)
        slope_s = (curve[high] - curve[low]) / (high - low)
        return Estimate(curve[low] + slope_s * (case.m - low), f"interpolated, M={low} to {high}")
    if not roof:
        ends = f"{min(curve)} to {max(curve)}"
        raise ValueError(f"M={case.m} of {case.id} is beyond {ends}, and no ceilings were measured: choose M in {ends}")
    end = max(below) if below else min(above)
    here_s, end_s = roofline_s(case, roof), roofline_s(replace(case, m=end), roof)
    return Estimate(max(here_s, curve[end] + here_s - end_s), f"extrapolated from M={end}")


class RunTimes:
    """The typical times of the matmuls of `run`. Raises ValueError where it measured none."""

    def __init__(self, run: Run, name: str):
        machine, points = run.metadata["machine"], grouped(filter(None, map(_point, records_of(run))))
        gathered = (record["wire"] for record in records_of(run) if record.get("wire") not in (None, *LINKS))
        self.wire: str | None = next(gathered, None)
        """That of its first gather; None where it emulated none."""
        self.name, self.chip = name, machine["chip"]
        self.gpu, self.workers = machine["source"] == "gpu", machine.get("sms") or 1
        self.curves: dict[Place, dict[str, dict[int, float]]] = {}
        for (place, contender, m), times_s in points.items():
            self.curves.setdefault(place, {}).setdefault(contender, {})[m] = median(times_s)
        if not self.curves:
            raise ValueError(f"{name} measured no matmuls, which predictions go by: choose another run, or --chip")
        self._roofs = {dtype: roof_of(run, dtype) for *_, dtype in self.curves}
        threads = 1 if self.gpu else machine.get("threads") or 1
        self._share_of_cores = max(1, threads - 1) / threads

    def contenders(self, place: Place) -> list[str]:
        """Return those that were measured alone."""
        return [name for name in self.curves.get(place, {}) if name != T_GEMM]

    def matmul(self, case: Matmul, contender: str) -> Estimate:
        return on_curve(case, self.curves[place_of(case)][contender], self._roofs[case.dtype])

    def roof_beside_link(self, dtype: str) -> Roof | None:
        """Return what the cores that a link leaves can do of the ceilings."""
        roof = self._roofs[dtype]
        return roof and Roof(*(self._share_of_cores * rate for rate in roof))

    def beside_link(self, case: Matmul) -> Estimate:
        """Return T_gemm; where none was measured, the fastest contender."""
        if curve := self.curves[place_of(case)].get(T_GEMM):
            return on_curve(case, curve, self.roof_beside_link(case.dtype))
        return min(self.matmul(case, name) for name in self.contenders(place_of(case)))

    def errors(self) -> list[tuple[int, float, float]]:
        """Return (M, error, error of the plain roofline) of each matmul, predicted without its own M: abs(predicted /
        measured - 1). None of what was measured at a single M, or without ceilings."""
        rows = []
        for (model, layer, tp, dtype), curves in self.curves.items():
            roof = self._roofs[dtype]
            for curve in [curve for name, curve in curves.items() if roof and name != T_GEMM and len(curve) > 1]:
                for m, time_s in curve.items():
                    case, others = Matmul(model, layer, tp, m, dtype), {at: curve[at] for at in curve if at != m}
                    both_s = on_curve(case, others, roof).time_s, roofline_s(case, roof)
                    rows.append((m, *(abs(predicted_s / time_s - 1) for predicted_s in both_s)))
        return rows


def _point(record: dict) -> tuple | None:
    """Return ((place, contender, M), seconds) of a matmul's record, or of T_gemm in that of a case beside a link."""
    is_matmul = record["op"] == "matmul"
    name, time_s = (record["contender"], record["time_s"]) if is_matmul else (T_GEMM, record.get("t_gemm_s"))
    if not time_s or record.get("layer") not in Matmul.layers:
        return None
    return ((record["model"], record["layer"], record["tp"], record["dtype"]), name, record["m"]), time_s


class DatasheetTimes:
    """The times of `chip` by its datasheet, of any contender. Raises ValueError where no source tells its bandwidth."""

    def __init__(self, chip: Chip):
        if not chip.memory_bandwidth_bytes_per_s:
            raise ValueError(f"the source of {chip.name} gives no memory bandwidth: choose another chip, or a run")
        self.name, self.chip, self._sheet = chip.name, chip.name, chip
        self.gpu, self.workers = chip.sms is not None, chip.sms or 1

    def contenders(self, place: Place | None) -> list[str]:
        return [ANY]

    def roof_beside_link(self, dtype: str) -> Roof:
        """Return what matmuls reach of the datasheet."""
        rates = self._sheet.flops[dtype], self._sheet.memory_bandwidth_bytes_per_s
        return Roof(EFFICIENCY["compute"] * rates[0], EFFICIENCY["memory"] * rates[1])

    def matmul(self, case: Case, contender: str = ANY) -> Estimate:
        if case.dtype not in self._sheet.flops:
            raise ValueError(f"the source of {self.name} gives no FLOP/s of {case.dtype}: choose bf16")
        roof = self.roof_beside_link(case.dtype)
        bound = "memory" if case.work.device_intensity * roof.read_bytes_per_s < roof.flops else "compute"
        return Estimate(roofline_s(case, roof), f"datasheet, {bound}-bound")

    beside_link = matmul
