"""How well a run's cases are predicted: constants fitted on its own times, and errors on token counts left out.

A case of M tokens is scored by a model that has seen no case of M tokens, of whatever operation. What is saved is
fitted on all of them.
"""

import math
import re
from dataclasses import dataclass, replace
from statistics import median
from types import SimpleNamespace

from roofline.analysis.base import grouped
from roofline.analysis.overlap import metrics
from roofline.analysis.prediction.cost_model import FITTED, PRIORS, USUAL, Constants, MachineSpec, Tile, roofline_s
from roofline.analysis.prediction.fit import fit, shrunk
from roofline.analysis.prediction.model import Family, Model
from roofline.analysis.throughput.metrics import roof_of, shape_of
from roofline.operations.matmul import Matmul
from roofline.store.run import Run, Shape
from roofline.theory.wires import parse as parse_wire

LOSS_SPREAD = 0.1
"""How far the loss of an arm may well lie from none, in logarithms."""

TIE = 1e-6
"""Tiles whose fits cost the same but for so much are equal: the first is taken."""

CONFIG = re.compile(r"^(\d+)x(\d+)x\d+ ")
"""How the config of our kernels begins: the tile."""

SHARES = re.compile(r"^1x| (tail|split)\d")
"""In the config of kernels that share work out along K, or row by row where there is but one, so that no SM idles."""


@dataclass(frozen=True)
class Point:
    """A measured matmul. `beside`: it is an unsplit one that arms are compared with."""

    contender: str
    case: Matmul
    time_s: float
    tile: Tile | None
    beside: bool


@dataclass(frozen=True)
class Found:
    """`model` is fitted on all cases. `scored` are records with `predicted_s`, without their token count; `roofline_s`,
    by the plain roofline; and `fitted_on`. `missing`: case -> why it is not predicted."""

    model: Model
    scored: list[dict]
    missing: dict[str, str]


def predict_run(run: Run, records: list[dict]) -> Found:
    """Fit and score the cases of `records`. Where there are no ceilings all cases are missing."""
    points = points_of(run)
    missing = {record["case"]: why for record in records if (why := why_not(run, points, record))}
    own = [record for record in records if record["case"] not in missing]
    models = {m: fit_run(run, points, own, without=m) for m in {record["m"] for record in own}}
    scored = [record | score(run, models[record["m"]], record) for record in own]
    return Found(fit_run(run, points, own), scored, missing)


def case_of(shape: Shape) -> SimpleNamespace:
    """Sizes and work of a matmul, as they were journalled: its operation need not be known here."""
    sizes = {name: shape.get(name) for name in ("m", "n", "k")}
    return SimpleNamespace(**sizes, dtype=shape.dtype, work=shape.work)


def points_of(run: Run) -> list[Point]:
    """The medians of all matmuls: contenders, and those beside a link."""
    found = []
    for shape in run.shapes.values():
        gathered = shape.analysis == "overlap"
        if shape.get("k") is None:
            continue
        for name, about in shape.entrants.items():
            times = shape.times_s(name)
            if name not in shape.late or not times or gathered != (about.get("role") == "gemm"):
                continue
            known = CONFIG.match(about.get("config") or "")
            tile = Tile(*map(int, known.groups()), shares=bool(SHARES.search(about["config"]))) if known else None
            found.append(
                Point(name.removeprefix("gemm "), case_of(shape), median(times.values()), tile, beside=gathered)
            )
    return found


def why_not(run: Run, points: list[Point], record: dict) -> str | None:
    """Why a case is not predicted; None if it is."""
    if not {"m", "n", "k"} <= record.keys():
        return f"the model is one of matmuls, and {record['op']} is none"
    if not roof_of(run.ceilings, record["dtype"]):
        return f"no ceilings of {record['dtype']} were measured"
    if not metrics.is_gathered(record):
        return None
    if record["own_fabric"]:
        return "it runs over a fabric of its own"
    if record["link_off_pace"]:
        return "its link was off its pace"
    if math.isnan(_bytes_per_s(record)):
        return f"nothing says beforehand how fast the link {record['link']} is"
    if not any(point.beside and point.case.dtype == record["dtype"] for point in points):
        return "no unsplit matmul was measured beside it"
    return None


def _bytes_per_s(record: dict) -> float:
    """Of the link: as requested, infinite where all is here before the start, NaN where nobody knows."""
    return record["link_bytes_per_s_requested"] or (math.inf if record["link"] == "preset" else math.nan)


def fit_run(run: Run, points: list[Point], records: list[dict], without: int | None = None) -> Model:
    """A model of the run's machine, fitted on what has another token count than `without`."""
    about = run.metadata["machine"]
    source, machines = about["source"], machines_of(run, points)
    of = grouped(((p.contender, p.case.dtype, p.beside), p) for p in points if p.case.dtype in machines)

    def family(name: str, dtype: str, prior: Constants, beside: bool = False) -> Family:
        """Its tiles are those of all its points: configs are no measurement."""
        points, machine = of.get((name, dtype, beside), []), machines[dtype]
        fitted = [point for point in points if point.case.m != without]
        known = {(point.case.m, point.case.n, point.tile) for point in points if point.tile}
        choices = [USUAL, *((tile,) for tile in USUAL)] if machine.workers > 1 and not known else [()]
        best = None
        for tiles in choices:
            found = Family(name, dtype, prior, len(fitted), tiles, tuple(sorted(known)))
            loads = [found.load(point.case, machine) for point in fitted]
            constants, cost = fit(loads, [point.time_s for point in fitted], prior, FITTED[source])
            if best is None or cost < best[1] * (1 - TIE):
                best = replace(found, constants=constants), cost
        return best[0]

    alone = {(name, dtype): family(name, dtype, PRIORS[source]) for name, dtype, beside in of if not beside}
    vendors = {(shape.baseline, shape.dtype) for shape in run.shapes.values()}
    # Where no unsplit matmul was measured beside a link, T_gemm is the vendor's.
    beside = [key[:2] for key in of if key[2]] or [key for key in alone if key in vendors]
    share = max(1, (threads := about.get("threads", 2)) - 1) / threads if source == "cpu" else 1.0
    gemms = []
    for key in beside:  # leans to what the same contender does alone; on a CPU, to its cores' share of both ceilings
        prior = alone[key].constants if key in alone else PRIORS[source]
        prior = replace(prior, compute=prior.compute * share, memory=prior.memory * share)
        found = family(*key, prior, beside=True)
        as_alone = key in alone and not found.fitted_on
        gemms.append(replace(alone[key], constants=prior, fitted_on=0) if as_alone else found)
    gathered = [record for record in records if metrics.is_gathered(record)]
    others = [record for record in gathered if record["m"] != without]
    arms = grouped((record["op"], record["arm"]) for record in gathered)
    return Model(
        source, machines, tuple(alone.values()), tuple(gemms), _latency_s(others), _losses(others),
        {op: list(dict.fromkeys(own)) for op, own in arms.items()}, _balance_flops(gathered),
    )  # fmt: skip


def machines_of(run: Run, points: list[Point]) -> dict[str, MachineSpec]:
    """By dtype, where its ceilings were measured."""
    about = run.metadata["machine"]
    workers = about.get("sms") or (about["datasheet"] or {}).get("sms") or 1
    roofs = {dtype: roof_of(run.ceilings, dtype) for dtype in dict.fromkeys(p.case.dtype for p in points)}
    return {dtype: MachineSpec(roof.flops, roof.read_bytes_per_s, workers) for dtype, roof in roofs.items() if roof}


def _latency_s(records: list[dict]) -> float:
    """What T_comm takes beyond the pace that was requested: the median, 0 or more."""
    extra = {
        shape_of(record): record["t_comm_s"] - record["wire_bytes"] / requested
        for record in records
        if record["t_comm_s"] and (requested := record["link_bytes_per_s_requested"])
    }
    return max(0.0, median(extra.values())) if extra else 0.0


def _losses(records: list[dict]) -> dict[str, float]:
    """By arm: its time over its own ideal, given T_gemm and T_comm as measured."""
    logs = grouped((r["arm"], math.log(r["time_s"] / r["t_own_ideal_s"])) for r in records if r["t_own_ideal_s"])
    return {arm: math.exp(max(0.0, shrunk(own, LOSS_SPREAD))) for arm, own in logs.items()}


def _balance_flops(records: list[dict]) -> dict[str, float]:
    """By dtype: what the bandwidths of wires named by a balance were made from, their median."""
    flops = grouped(
        (record["dtype"], requested * wire.value)
        for record in records
        if (requested := record["link_bytes_per_s_requested"])
        and (wire := parse_wire(record["wire"])).kind == "balance"
    )
    return {dtype: median(own) for dtype, own in flops.items()}


def score(run: Run, model: Model, record: dict) -> dict:
    """What `model` and the plain roofline say of `record`."""
    shape, speed = run.shapes[shape_of(record)], math.inf
    case = case_of(shape)
    if metrics.is_gathered(record):
        arm, speed = record["arm"], _bytes_per_s(record)

        def ideal_s(*times_s: float) -> float:
            return metrics.plan_of(shape, arm).simulate(*times_s).end_s

        found = model.gather(case, arm, speed, ideal_s, record["spilled_bytes"])
    else:
        found = model.matmul(case, record["contender"])
    plain_s = roofline_s(case.work, model.machines[case.dtype], speed)
    return {"predicted_s": found.time_s, "roofline_s": plain_s, "fitted_on": found.fitted_on}
