"""The figures of operations that gather over a wire: which a run has, and the door to them."""

from pathlib import Path

from roofline.analysis.overlap import chart, metrics, network_roofline, timeline
from roofline.store.run import Run


def names(run: Run) -> list[str]:
    """The stems of the figures that `draw` makes for `run`."""
    shapes = [shape for shape in run.shapes.values() if shape.analysis == "overlap" and shape.measured]
    timed = any(metrics.fastest_gemm(shape) and metrics.link_alone(shape) for shape in shapes)
    moved = any(timeline.arms_of(run, shape.id) for shape in shapes)
    return ["network_roofline", "overlap"] * timed + ["timeline"] * moved


def draw(run: Run, records: list[dict], folder: Path) -> list[Path]:
    """Write them as .svg and .png, from `run` and its `records`; returns their paths."""
    makers = {"network_roofline": network_roofline.draw, "overlap": chart.draw, "timeline": timeline.draw}
    return [path for name in names(run) for path in makers[name](run, records, folder)]
