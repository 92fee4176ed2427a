"""Forecasts: what every default case of a GPU run will take, said before any was run, and scored once one has.

A forecast is a prediction by a datasheet and constants of each contender and arm that the reports of others suggest,
each with its reason, with an interval that shall hold four cases of five. It is no result. The name of its file ends in
a hash of what is in it, so that nobody can improve it afterwards.
"""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from roofline import operations
from roofline.analysis.base import Section
from roofline.analysis.overlap.arms import ARMS, PERSISTENT, of_operation
from roofline.analysis.overlap.metrics import hidden_fraction
from roofline.analysis.prediction import command
from roofline.analysis.prediction.cost_model import PRIORS as CONSTANTS
from roofline.analysis.prediction.cost_model import USUAL, MachineSpec, Tile
from roofline.analysis.prediction.model import Family, Model
from roofline.analysis.prediction.text import rounded
from roofline.report.format import error_text, time_text
from roofline.store.conditions import slug
from roofline.theory.chips import Chip
from roofline.theory.wires import parse as parse_wire

FOLDER = Path(__file__).parents[3] / "results" / "forecasts"
SCHEMA, VERSION = 1, 3
"""Of the file, and of the priors below: a later forecast has a later version, the earlier ones stay."""

SHARE, Z = 0.8, 1.2816
"""Of cases that the interval shall hold, and the half-width of it in standard deviations."""

DTYPE = "bf16"
DATASHEET = CONSTANTS["datasheet"]
WORST = 5


class Prior(NamedTuple):
    """What a contender makes of the datasheet: shares of its FLOP/s and bytes/s, how far a time may well be off (in
    logarithms), how far a ratio to the vendor may, and why; the tiles it chooses from, and the most rows it takes."""

    compute: float
    memory: float
    spread: float
    ratio_spread: float
    why: str
    tiles: tuple[Tile, ...] = USUAL
    most_rows: int = 10**9


OURS = tuple(Tile(rows, columns, False, True) for rows, columns in ((128, 256), (128, 128), (64, 256), (64, 128)))

PRIORS = {
    "cublas": Prior(
        0.74, 0.80, 0.12, 0.0,
        "large bf16 matmuls of cuBLAS are reported at 665 to 795 of 989 TFLOP/s on Hopper (Gluon tutorial 07, "
        "ml-engineering's MAMF), the lower ones at the power limit; of few rows torch reads weights at 70 to 82 % of "
        "an H200's bandwidth (TileOPs 243 and 244)",
    ),
    "persistent": Prior(
        0.73, 0.72, 0.14, 0.06,
        "kernels of this design are reported at 0.97 to 1.03 of cuBLAS where K is large (Gluon tutorial 07: 670.0 "
        "against 665.5 TFLOP/s); a tile holds 64 rows or more, padding where there are few",
        OURS,
    ),
    "warpgroup": Prior(
        0.74, 0.72, 0.15, 0.07,
        "a producer warp is reckoned to be worth 0 to 2 % at such K over the same tile without one",
        OURS,
    ),
    "decode": Prior(
        0.50, 0.88, 0.14, 0.12,
        "kernels that swap operands and read ahead reach 75 to 89 % of an H200's bandwidth (TileOPs 243, 244, "
        "ef364bee), 1.07 to 1.13 of cuBLAS at 2 to 8 rows (ff491e71), and 1.08 to 2.48 at one (ef364bee)",
        most_rows=64,
    ),
    "tiled": Prior(
        0.50, 0.70, 0.18, 0.14,
        "Triton kernels on plain pointers are reported at 469 to 490 TFLOP/s where tuned ones reach 564 to 670 "
        "(TileOPs 1567)",
        tuple(Tile(*sizes) for sizes in ((128, 256), (128, 128), (64, 128), (64, 64))),
    ),
}  # fmt: skip
"""By contender, of a Hopper GPU in bf16."""


class Loss(NamedTuple):
    """What an arm takes beyond its own ideal, as a share of T_gemm; how far its time may well be off by that; why."""

    share: float
    spread: float
    why: str


LOSSES = {
    "serial": Loss(0.02, 0.03, "two things one after the other, with a launch between them"),
    "chunk_launches": Loss(0.10, 0.05, "eight products of K / 8 fill and drain their pipelines, and sum in fp32"),
    "row_block_launches": Loss(0.06, 0.04, "each launch ends with a wave that is not full, beside a copier"),
    "tile_outer": Loss(0.08, 0.05, "waiting code, and a copier on the same SMs"),
    "chunk_outer": Loss(0.14, 0.07, "as tile_outer, and sums that are written and read back"),
    "row_block": Loss(0.08, 0.05, "as tile_outer"),
    "block_launches": Loss(0.08, 0.05, "each launch ends with a wave that is not full, and parts are added in between"),
    "signalled": Loss(0.08, 0.05, "tiles that tell, a copier on the same SMs, and parts that are added in the end"),
    "all_reduce": Loss(0.04, 0.03, "as serial, and rows that are copied"),
    "layer_launches": Loss(
        0.13, 0.06, "a launch of up over 1,024 rows fills 0.8 of a wave at tp = 16, and a quarter at 64"
    ),
    "chained_launches": Loss(0.14, 0.06, "as layer_launches, and w of both layers is read again for each rank's rows"),
    "layer_signalled": Loss(0.08, 0.05, "up as tile_outer, down as signalled"),
    "overlapped": Loss(
        0.06, 0.04, "communication on SMs slows matmuls by 18.9 % on average elsewhere (arXiv 2507.03114); this copier "
        "takes few registers and no shared memory",
    ),
}  # fmt: skip
"""By arm. One that ends in `_persistent` is taken to lose as much: what cuBLAS wins alone it loses beside a copier."""


def make(chip: Chip, asked) -> dict:
    """The forecast of `chip`, of the cases that the options `asked` have: plain values. Raises ValueError for a chip
    whose SMs, bf16 FLOP/s or bandwidth no source tells."""
    if not (chip.sms and chip.memory_bandwidth_bytes_per_s and DTYPE in chip.flops):
        raise ValueError(f"{chip.name}: a forecast needs SMs, {DTYPE} FLOP/s and memory bandwidth; add their source")
    machine = MachineSpec(chip.flops[DTYPE], chip.memory_bandwidth_bytes_per_s, chip.sms)
    families = tuple(
        Family(one, DTYPE, replace(DATASHEET, compute=prior.compute, memory=prior.memory), tiles=prior.tiles)
        for one, prior in PRIORS.items()
    )
    unsplit = tuple(family for family in families if family.contender in ("cublas", "persistent"))
    model = Model("gpu", {DTYPE: machine}, families, unsplit, latency_s=2e-6)
    rows = [row for one in operations.OPERATIONS.values() if one.mode == "benchmark"
            for case in one.sweep(asked) for row in _rows(model, case, one.analysis)]  # fmt: skip
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "chip": chip.name,
        "dtype": DTYPE,
        "interval": SHARE,
        "contenders": {one: prior._asdict() for one, prior in PRIORS.items()},
        "arms": {arm: loss._asdict() for arm, loss in LOSSES.items()},
        "cases": rows,
    }


def _rows(model: Model, case, analysis: str) -> list[dict]:
    if analysis == "overlap":
        arms = of_operation(case.op, gpu=True)
        arms += [arm + PERSISTENT for arm in arms if not ARMS[arm].table]
        return [_of_arm(model, case, arm) for arm in arms]
    vendor = model.matmul(case, "cublas").time_s
    return [
        _row(case, name, found.time_s, prior.spread, "compute" if _computes(found.terms) else "memory")
        | _interval("ratio_to_vendor", vendor / found.time_s, prior.ratio_spread)
        for name, prior in PRIORS.items()
        if case.m <= prior.most_rows
        for found in [model.matmul(case, name)]
    ]


def _computes(terms: dict) -> bool:
    return terms["compute_s"] >= terms["memory_s"]


def _of_arm(model: Model, case, arm: str) -> dict:
    terms, loss = command.gather(model, case, arm).terms, LOSSES[arm.removesuffix(PERSISTENT)]
    gemm_s, comm_s = terms["t_gemm_s"], terms["t_comm_s"]
    time_s = terms["ideal_s"] + loss.share * gemm_s
    # A wire in bytes/s is exact; one in FLOP/byte is as uncertain as the matmul that it is made for.
    exact = parse_wire(case.wire).kind == "fixed" and comm_s > gemm_s
    spread = math.hypot(loss.spread, 0 if exact else PRIORS["cublas"].spread)
    row = _row(case, arm, time_s, spread, "compute" if gemm_s >= comm_s else "wire")
    ends = {"": 0, "_low": 1, "_high": -1}
    return row | {
        f"hidden_fraction{end}": min(1.0, hidden_fraction(gemm_s, comm_s, time_s * math.exp(sign * Z * loss.spread)))
        for end, sign in ends.items()
    }


def _row(case, name: str, time_s: float, spread: float, bound: str) -> dict:
    row = {"case": f"{case.id}-{name}", "bound": bound, "tflops": case.work.flop / time_s / 1e12}
    return row | _interval("time_s", time_s, spread)


def _interval(name: str, value: float, spread: float) -> dict[str, float]:
    ends = {"low": math.exp(-Z * spread), "high": math.exp(Z * spread)}
    return {name: value} | {f"{name}_{end}": value * factor for end, factor in ends.items()}


def seal(forecast: dict, folder: Path = FOLDER) -> Path:
    """Write `forecast` into `folder`, under the chip and the hash of its text; returns the path."""
    text = json.dumps(rounded(forecast), indent=1) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{slug(forecast['chip'])}-{digest(text)}.json"
    path.write_text(text, encoding="utf-8")
    return path


def digest(text: str) -> str:
    """What the name of a forecast ends in."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def of_chip(run) -> list[tuple[str, dict]]:
    """(file, forecast) of those that are of the run's chip."""
    chip = (run.metadata["machine"]["datasheet"] or {}).get("name")
    known = [(path.name, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(FOLDER.glob("*.json"))]
    return [(name, forecast) for name, forecast in known if forecast["chip"] == chip]


def sections(run, records: list[dict]) -> list[Section]:
    """Of the report: how well each forecast of the run's chip had it."""
    return [
        Section("Forecast", f"Of results/forecasts/{name}, version {forecast['version']}:", lines=lines)
        for name, forecast in of_chip(run)
        if (lines := score(forecast, records))
    ]


def held(forecast: dict, records: list[dict]) -> dict[str, tuple[int, int]]:
    """{field: (how many of the `records` its intervals hold, of how many)}."""
    measured, found = {record["case"]: record for record in records}, {}
    for name in ("time_s", "ratio_to_vendor", "hidden_fraction"):
        pairs = [(row, measured.get(row["case"], {}).get(name)) for row in forecast["cases"] if name in row]
        inside = [row[f"{name}_low"] <= value <= row[f"{name}_high"] for row, value in pairs if value is not None]
        found |= {name: (sum(inside), len(inside))} if inside else {}
    return found


def score(forecast: dict, records: list[dict]) -> list[str]:
    """How many of the `records` the intervals of `forecast` hold, how far off it was, and where most."""
    measured, counts = {record["case"]: record for record in records}, held(forecast, records).items()
    own = [(row, measured[row["case"]]) for row in forecast["cases"] if row["case"] in measured]
    lines = [
        f"{name}: {inside} of {count} within the interval of {100 * SHARE:.0f} %" for name, (inside, count) in counts
    ]
    if own:
        errors = [(abs(math.log(row["time_s"] / record["time_s"])), row, record) for row, record in own]
        lines[0] += f", median error {error_text(math.expm1(median(error for error, *_ in errors)))}"
        for error, row, record in sorted(errors, key=lambda one: -one[0])[:WORST]:
            said = f"{time_text(row['time_s'])} forecast, {time_text(record['time_s'])} measured"
            lines.append(f"off by {error_text(math.expm1(error))}: {row['case']}, {said}")
    return lines
