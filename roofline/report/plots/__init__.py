"""The figures of a report: functions from `run.frame()` to a matplotlib figure, for notebooks too; `timeline` is of the
run itself. Each is None where there is nothing to draw."""

from roofline.report.plots.memory_roofline import memory_roofline
from roofline.report.plots.network_roofline import network_roofline
from roofline.report.plots.overlap import overlap
from roofline.report.plots.speedup import speedup
from roofline.report.plots.timeline import timeline

FIGURES = {
    "speedup": speedup,
    "memory_roofline": memory_roofline,
    "network_roofline": network_roofline,
    "overlap": overlap,
}
__all__ = [*FIGURES, "timeline"]
