"""What a run says of its predictions: `prediction.json`, as results/README.md documents it, and a part of report.md."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from roofline.analysis.base import Column, Figure, Section, grouped
from roofline.analysis.prediction.model import SAVED, SCHEMA, Family
from roofline.analysis.prediction.score import Found
from roofline.report.format import error_text, number_text, percent_text, time_text
from roofline.report.tables import named
from roofline.store.run import Run

DIGITS = 6
"""Significant ones that are saved: what another machine's arithmetic would change lies beyond them."""

ABOUT = (
    "Each case is predicted from this run's ceilings and a few constants, fitted on its cases of other token counts "
    "alone. The error is |predicted / measured - 1|; the plain roofline is the longest of FLOP, device bytes and wire "
    "bytes, each at its measured ceiling or the link's requested pace. Each prediction has an interval that shall hold "
    "four of five, of a later run too."
)
LOST = (
    "Where matmuls' time beyond the plain roofline's goes, by the constants: of each contender and largest part the "
    "case that loses most. `packing`: operands moved more than once, or more slowly than the ceiling; `no overlap`: "
    "compute and memory in turns; `unexplained`: what was measured beside all that."
)
LEAST_NAMED = 0.05
"""Of the time: a part that a table names."""
CONSTANTS = (
    "The constants, fitted on all cases, by which `roofline predict --run` goes on from here (a matmul `beside a link` "
    "is T_gemm):"
)


def saved(run: Run, found: Found) -> dict:
    """Plain values, as they stand in `prediction.json`."""
    about = {key: run.metadata[key] for key in ("title", "method_version")}
    about |= {key: run.metadata["machine"].get(key) for key in ("chip", "source", "threads", "sms")}
    fields = {
        "case": "case", "predicted_s": "predicted_s", "predicted_low_s": "predicted_low_s",
        "predicted_high_s": "predicted_high_s", "measured_s": "time_s", "roofline_s": "roofline_s",
        "fitted_on": "fitted_on", "lost": "lost",
    }  # fmt: skip
    cases = [{field: record[own] for field, own in fields.items()} for record in found.scored]
    missing = [{"case": case, "reason": why} for case, why in found.missing.items()]
    body = {"model": asdict(found.model), "scores": scores(found.scored), "cases": cases, "not_predicted": missing}
    return {"schema": SCHEMA, **about, **rounded(body)}


def scores(scored: list[dict]) -> dict[str, dict]:
    """Median and 95th percentile of both errors, and the share that lies in its interval, of `all` cases and of each
    operation; {} of none."""
    groups = {"all": scored} if scored else {}
    groups |= grouped((record["op"], record) for record in sorted(scored, key=lambda r: (r["op"] != "matmul", r["op"])))
    return {name: _errors(own) for name, own in groups.items()}


def _errors(scored: list[dict]) -> dict:
    held = [one["predicted_low_s"] <= one["time_s"] <= one["predicted_high_s"] for one in scored]
    found = {"cases": len(scored), "coverage": sum(held) / len(held)}
    for field, prefix in (("predicted_s", ""), ("roofline_s", "roofline_")):
        errors = [abs(record[field] / record["time_s"] - 1) for record in scored]
        found |= {f"{prefix}median": float(np.median(errors)), f"{prefix}p95": float(np.quantile(errors, 0.95))}
    return found


def rounded(values):
    """Floats to DIGITS digits, however deep they stand."""
    match values:
        case float():
            return float(f"{values:.{DIGITS}g}")
        case dict():
            return {key: rounded(value) for key, value in values.items()}
        case list() | tuple():
            return [rounded(value) for value in values]
    return values


def write(run: Run, found: Found, folder: Path) -> Path:
    path = folder / SAVED
    path.write_text(json.dumps(saved(run, found), indent=1) + "\n", encoding="utf-8")
    return path


SCORES = (
    Column("case", header="case", text=lambda op: "matmul (FFN)" if op == "matmul" else op, right=False),
    Column("cases", header="cases"),
    Column("median", header="median error", text=error_text),
    Column("p95", header="95th percentile", text=error_text),
    Column("coverage", header="in the 80 % interval", text=percent_text),
    Column("roofline_median", header="plain roofline, median", text=error_text),
    Column("roofline_p95", header="plain roofline, 95th percentile", text=error_text),
)
FAMILIES = (
    Column("contender", header="contender", right=False),
    Column("dtype", header="dtype"),
    Column("fitted_on", header="cases"),
    Column("compute", header="of matmul ceiling", text=percent_text),
    Column("memory", header="of read ceiling", text=percent_text),
    Column("vector", header="of it, one row", text=percent_text),
    Column("extra_k", header="extra K", text="{:.0f}".format),
    Column("start_s", header="start", text=time_text),
    Column("p", header="p", text=lambda p: number_text(p, 2)),
    Column("tile", header="tile"),
    Column("scale", header="off by", text=percent_text),
)
LOSERS = (
    Column("case", header="case", right=False),
    Column("like", header="cases alike"),
    Column("time_s", header="time", text=time_text),
    Column("roofline_s", header="plain roofline", text=time_text),
    Column(header="lost, of the time", right=False, of_row=lambda row: ", ".join(
        f"{name} {percent_text(share)}" for name, share in falling(row["lost"]) if share >= LEAST_NAMED)),
    Column("diagnosis", header="diagnosis", right=False),
)  # fmt: skip


def falling(parts: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(parts.items(), key=lambda part: -part[1])


def losers(scored: list[dict]) -> list[dict]:
    """Of each contender and largest part of what is lost, the case that loses most."""
    own = [one | {"diagnosis": falling(one["lost"])[0][0]} for one in scored if one["lost"]]
    alike = grouped(((one["contender"], one["diagnosis"]), one) for one in own).values()
    return [max(ones, key=lambda one: sum(one["lost"].values())) | {"like": len(ones)} for ones in alike]


def _row(family: Family, where: str = "") -> dict:
    """Of the table of constants."""
    tiles = ", ".join(f"{tile.rows}x{tile.columns}" for tile in family.tiles) or "-"
    tiles = "by config" if family.tile_of else f"best of {tiles}" if len(family.tiles) > 1 else tiles
    return asdict(family) | asdict(family.constants) | {"contender": family.contender + where, "tile": tiles}


def sections(found: Found, figures: tuple[Figure, ...] = ()) -> list[Section]:
    """Of the report: what the prediction comes to, with its figures, its constants, and what is lost to what."""
    reasons = grouped((why, case) for case, why in found.missing.items())
    missing = [f"not predicted, {why}: {named(cases)}" for why, cases in reasons.items()]
    if not found.scored:
        return [Section("Prediction", ABOUT, lines=missing)]
    errors = scores(found.scored)
    both = {name: error_text(value) for name, value in errors["all"].items()}
    came_to = (
        f"Median error {both['median']}, 95th percentile {both['p95']}, over {len(found.scored)} cases; the plain "
        f"roofline's {both['roofline_median']} and {both['roofline_p95']}. In their interval of 80 % lie "
        f"{percent_text(errors['all']['coverage'])}."
    )
    rows = [_row(family) for family in found.model.families]
    rows += [_row(family, " beside a link") for family in found.model.gemms if family.fitted_on]
    losses = ", ".join(f"{arm} {loss:.3f}" for arm, loss in found.model.losses.items())
    lines = [
        f"an arm takes its own ideal times its loss: {losses}. T_comm is the gather at the link's pace and "
        f"{time_text(found.model.latency_s)}"
    ]
    return [
        Section("Prediction", ABOUT),
        Section(
            "", came_to, figures, [{"case": name} | own for name, own in errors.items()], SCORES, drawn=found.scored
        ),
        Section("", CONSTANTS, rows=rows, columns=FAMILIES),
        *([Section("", LOST, rows=lost, columns=LOSERS)] if (lost := losers(found.scored)) else []),
        Section(lines=[*(lines if losses else []), *missing]),
    ]
