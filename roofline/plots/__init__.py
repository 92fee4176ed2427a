"""The figures of a report: functions from `run.frame()` to a matplotlib figure, for notebooks too; `timeline` is of the
run itself. Each is None where there is nothing to draw."""

from roofline.plots.attention import attention
from roofline.plots.buckets import buckets
from roofline.plots.memory_roofline import memory_roofline
from roofline.plots.network_roofline import network_roofline
from roofline.plots.overlap import overlap
from roofline.plots.timeline import timeline

FIGURES = {figure.__name__: figure for figure in (memory_roofline, network_roofline, overlap, buckets, attention)}
__all__ = [*FIGURES, "timeline"]
