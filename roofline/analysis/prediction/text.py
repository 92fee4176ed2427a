"""What a run says of its predictions: `prediction.json`, as results/README.md documents it, and a part of report.md."""

import json
from pathlib import Path

import numpy as np

from roofline.analysis.base import Column
from roofline.analysis.prediction.score import Found, Scored
from roofline.report.format import error_text, number_text, percent_text, time_text
from roofline.report.tables import markdown, named
from roofline.store.run import Run

NAME = "prediction.json"
SCHEMA = 1
DIGITS = 6
"""Significant ones that are saved: what another machine's arithmetic would change lies beyond them."""

ABOUT = (
    "Each case is predicted from this run's ceilings and a few constants, fitted on its cases of other token counts "
    "alone. The error is |predicted / measured - 1|; the plain roofline is the longest of FLOP, device bytes and wire "
    "bytes, each at its measured ceiling or the link's requested pace."
)
CONSTANTS = (
    "The constants, fitted on all cases, by which `roofline predict --run` goes on from here (a matmul `beside a link` "
    "is T_gemm):"
)


def saved(run: Run, found: Found) -> dict:
    """Plain values, as they stand in `prediction.json`."""
    machine = run.metadata["machine"]
    about = {key: run.metadata[key] for key in ("title", "method_version")} | {
        key: machine.get(key) for key in ("chip", "source", "threads", "sms")
    }
    cases = [
        {
            "case": one.record["case"],
            "predicted_s": one.predicted_s,
            "measured_s": one.record["time_s"],
            "roofline_s": one.roofline_s,
            "fitted_on": one.fitted_on,
        }
        for one in found.scored
    ]
    missing = [{"case": case, "reason": why} for case, why in found.missing.items()]
    body = {"model": found.model.as_values(), "scores": scores(found.scored), "cases": cases, "not_predicted": missing}
    return {"schema": SCHEMA, **about, **_rounded(body)}


def scores(scored: list[Scored]) -> dict[str, dict]:
    """Median and 95th percentile of both errors, of `all` cases and of each operation; {} of none."""
    groups = {"all": scored} | {op: [s for s in scored if s.record["op"] == op] for op in _ops(scored)}
    return {name: _errors(own) for name, own in groups.items() if own}


def _ops(scored: list[Scored]) -> list[str]:
    return sorted({one.record["op"] for one in scored}, key=lambda op: (op != "matmul", op))


def _errors(scored: list[Scored]) -> dict:
    ours, plain = ([getattr(one, name) for one in scored] for name in ("error", "roofline_error"))
    return {
        "cases": len(scored),
        "median": float(np.median(ours)),
        "p95": float(np.quantile(ours, 0.95)),
        "roofline_median": float(np.median(plain)),
        "roofline_p95": float(np.quantile(plain, 0.95)),
    }


def _rounded(values):
    """Floats to DIGITS digits, however deep they stand."""
    match values:
        case float():
            return float(f"{values:.{DIGITS}g}")
        case dict():
            return {key: _rounded(value) for key, value in values.items()}
        case list() | tuple():
            return [_rounded(value) for value in values]
    return values


def write(run: Run, found: Found, folder: Path) -> Path:
    path = folder / NAME
    path.write_text(json.dumps(saved(run, found), indent=1) + "\n", encoding="utf-8")
    return path


SCORES = (
    Column(header="case", of_row=lambda row: "matmul (FFN)" if row[0] == "matmul" else row[0], right=False),
    Column(header="cases", of_row=lambda row: str(row[1]["cases"])),
    Column(header="median error", of_row=lambda row: error_text(row[1]["median"])),
    Column(header="95th percentile", of_row=lambda row: error_text(row[1]["p95"])),
    Column(header="plain roofline, median", of_row=lambda row: error_text(row[1]["roofline_median"])),
    Column(header="plain roofline, 95th percentile", of_row=lambda row: error_text(row[1]["roofline_p95"])),
)
FAMILIES = (
    Column(header="contender", of_row=lambda row: row[0].contender + row[1], right=False),
    Column(header="dtype", of_row=lambda row: row[0].dtype),
    Column(header="cases", of_row=lambda row: str(row[0].fitted_on)),
    Column(header="of matmul ceiling", of_row=lambda row: percent_text(row[0].constants.compute)),
    Column(header="of read ceiling", of_row=lambda row: percent_text(row[0].constants.memory)),
    Column(header="of it, one row", of_row=lambda row: percent_text(row[0].constants.vector)),
    Column(header="extra K", of_row=lambda row: f"{row[0].constants.extra_k:.0f}"),
    Column(header="start", of_row=lambda row: time_text(row[0].constants.start_s)),
    Column(header="p", of_row=lambda row: number_text(row[0].constants.p, 2)),
    Column(header="tile", of_row=lambda row: _tiles(row[0])),
)


def _tiles(family) -> str:
    if family.tile_of:
        return "by config"
    named = [f"{tile.rows}x{tile.columns}" for tile in family.tiles]
    return named[0] if len(named) == 1 else "best of " + ", ".join(named) if named else "-"


def section(found: Found) -> list[str]:
    """The paragraphs of report.md under `## Prediction`."""
    parts = ["## Prediction", ABOUT]
    if found.scored:
        parts += [headline(found.scored), "![prediction](prediction.svg)"]
        parts.append(markdown(list(scores(found.scored).items()), SCORES))
        rows = [(family, "") for family in found.model.families]
        rows += [(family, " beside a link") for family in found.model.gemms if family.fitted_on]
        parts += [CONSTANTS, markdown(rows, FAMILIES)]
        if found.model.losses:
            losses = ", ".join(f"{arm} {loss:.3f}" for arm, loss in found.model.losses.items())
            parts.append(
                f"An arm takes its own ideal times its loss: {losses}. T_comm is the gather at the link's pace and "
                f"{time_text(found.model.latency_s)}."
            )
    reasons: dict[str, list[str]] = {}
    for case, why in found.missing.items():
        reasons.setdefault(why, []).append(case)
    lines = [f"- not predicted, {why}: {named(cases)}" for why, cases in reasons.items()]
    return [*parts, *(["\n".join(lines)] if lines else [])]


def headline(scored: list[Scored]) -> str:
    """Both errors in one line."""
    all_ = _errors(scored)
    text = (
        f"Median error {error_text(all_['median'])}, 95th percentile {error_text(all_['p95'])}, over {len(scored)} "
        f"cases; the plain roofline's {error_text(all_['roofline_median'])} and {error_text(all_['roofline_p95'])}."
    )
    return text
