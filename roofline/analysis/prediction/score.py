"""How well a run's cases are predicted: constants fitted on its own times, and errors on token counts left out.

A case of M tokens is scored by a model that has seen no case of M tokens, of whatever operation. What is saved is
fitted on all of them.
"""

import math
import re
from dataclasses import dataclass, replace
from statistics import fmean, median, variance
from types import SimpleNamespace

from roofline.analysis.base import grouped
from roofline.analysis.overlap import metrics
from roofline.analysis.overlap.arms import ALL_CORES
from roofline.analysis.prediction import cost_model, residual
from roofline.analysis.prediction.cost_model import FITTED, PRIORS, USUAL, Constants, MachineSpec, Tile, roofline_s
from roofline.analysis.prediction.fit import fit, shrunk
from roofline.analysis.prediction.model import DRIFT, LOSS_SPREAD, Family, Model
from roofline.analysis.throughput.metrics import roof_of, shape_of
from roofline.operations.matmul import Matmul
from roofline.stats import by_process, time_of
from roofline.store.run import Run, Shape
from roofline.theory.wires import parse as parse_wire

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
    """`model` is fitted on all cases. `scored` are records with what `score` says, without their token count, and what
    `lost` says by `model`. `missing`: case -> why it is not predicted."""

    model: Model
    scored: list[dict]
    missing: dict[str, str]


def predict_run(run: Run, records: list[dict]) -> Found:
    """Fit and score the cases of `records`. Where there are no ceilings all cases are missing."""
    points = points_of(run)
    missing = {record["case"]: why for record in records if (why := why_not(run, points, record))}
    own = [record for record in records if record["case"] not in missing]
    # At its own ceilings a run has not drifted.
    models = {m: replace(fit_run(run, points, own, m), drift=0.0) for m in {record["m"] for record in own}}
    scored = [record | score(run, models[record["m"]], record) for record in own]
    model = fit_run(run, points, own)
    return Found(model, [one | {"lost": lost(run, model, one)} for one in scored], missing)


def case_of(shape: Shape) -> SimpleNamespace:
    """Sizes and work of a matmul, as they were journalled: its operation need not be known here."""
    sizes = {name: shape.get(name) for name in ("m", "n", "k")}
    return SimpleNamespace(**sizes, dtype=shape.dtype, work=shape.work)


def sizes_of(case) -> tuple[int, int, int, int]:
    """m, n, k, device bytes."""
    return case.m, case.n, case.k, case.work.device_bytes


def points_of(run: Run) -> list[Point]:
    """The typical times of all matmuls: contenders, and those beside a link."""
    found = []
    for shape in run.shapes.values():
        gathered = shape.analysis == "overlap"
        if shape.get("k") is None:
            continue
        for name, about in shape.entrants.items():
            times = shape.times_s(name)
            if name not in shape.late or not times or about.get("role", "") != ("gemm" if gathered else ""):
                continue
            known = CONFIG.match(about.get("config") or "")
            tile = Tile(*map(int, known.groups()), shares=bool(SHARES.search(about["config"]))) if known else None
            found.append(
                Point(name.removeprefix("gemm "), case_of(shape), time_of(times, shape.groups).value, tile, gathered)
            )
    return found


def why_not(run: Run, points: list[Point], record: dict) -> str | None:
    """Why a case is not predicted; None if it is."""
    if not {"m", "n", "k"} <= record.keys():
        return f"the model is one of matmuls, and {record['op']} is none"
    if not roof_of(run, record["dtype"]):
        return f"no ceilings of {record['dtype']} were measured"
    if not metrics.is_gathered(record):
        return None
    if record["own_fabric"]:
        return "it runs over a fabric of its own"
    if record["arm"] == ALL_CORES:
        return "it multiplies on the link's core too"
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
        fits = []
        for tiles in choices:
            found = Family(name, dtype, prior, len(fitted), tiles, tuple(sorted(known)))
            loads = [found.load(*sizes_of(point.case), machine) for point in fitted]
            constants, cost = fit(loads, [point.time_s for point in fitted], prior, FITTED[source])
            said = [cost_model.terms(load, constants).time_s for load in loads]
            fits.append((cost, replace(found, constants=constants), said))
        found, said = next(own for cost, *own in fits if cost * (1 - TIE) <= min(cost for cost, *_ in fits))
        off = [math.log(point.time_s / time_s) for point, time_s in zip(fitted, said, strict=True)]
        places = [found.place(*sizes_of(point.case), machine) for point in fitted]
        residuals = tuple((*sizes_of(point.case), one) for point, one in zip(fitted, off, strict=True))
        return replace(found, residuals=residuals, scale=residual.best_scale(places, off))

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
        source, machines, tuple(alone.values()), tuple(gemms), _latency_s(others), *_losses(others), drift_of(run),
        {op: list(dict.fromkeys(own)) for op, own in arms.items()}, _balance_flops(gathered),
    )  # fmt: skip


def machines_of(run: Run, points: list[Point]) -> dict[str, MachineSpec]:
    """By dtype, where its ceilings were measured."""
    about = run.metadata["machine"]
    workers = about.get("sms") or (about["datasheet"] or {}).get("sms") or 1
    roofs = {dtype: roof_of(run, dtype) for dtype in dict.fromkeys(p.case.dtype for p in points)}
    return {dtype: MachineSpec(roof.flops, roof.read_bytes_per_s, workers) for dtype, roof in roofs.items() if roof}


def _latency_s(records: list[dict]) -> float:
    """What T_comm takes beyond the pace that was requested: the median, 0 or more."""
    extra = {
        shape_of(record): record["t_comm_s"] - record["wire_bytes"] / requested
        for record in records
        if record["t_comm_s"] and (requested := record["link_bytes_per_s_requested"])
    }
    return max(0.0, median(extra.values())) if extra else 0.0


def _losses(records: list[dict]) -> tuple[dict[str, float], float]:
    """By arm, its time over its own ideal, given T_gemm and T_comm as measured; and their spread, a standard deviation
    of logarithms about it, which one of LOSS_SPREAD counts in as much as a case."""
    logs = grouped((r["arm"], math.log(r["time_s"] / r["t_own_ideal_s"])) for r in records if r["t_own_ideal_s"])
    means = {arm: max(0.0, shrunk(own, LOSS_SPREAD)) for arm, own in logs.items()}
    squares = [(one - means[arm]) ** 2 for arm, own in logs.items() for one in own]
    return {arm: math.exp(mean) for arm, mean in means.items()}, math.sqrt(fmean([LOSS_SPREAD**2, *squares]))


def drift_of(run: Run) -> float:
    """What all times of the run together may well be off by in another, a standard deviation of logarithms: as much as
    two of its processes are apart."""
    found = grouped(
        (process, math.log(time_s) - fmean(map(math.log, own.values())))
        for shape in run.shapes.values()
        for name in shape.measured
        for own in [by_process(lambda time_s: time_s, shape.times_s(name), groups=shape.groups)]
        for process, time_s in own.items()
    )
    common = [median(logs) for logs in found.values()]
    return math.sqrt(2 * variance(common)) if len(common) > 1 else DRIFT


def _balance_flops(records: list[dict]) -> dict[str, float]:
    """By dtype: what the bandwidths of wires named by a balance were made from, their median."""
    flops = grouped(
        (record["dtype"], requested * wire.value)
        for record in records
        if (requested := record["link_bytes_per_s_requested"])
        and (wire := parse_wire(record["wire"])).kind == "balance"
    )
    return {dtype: median(own) for dtype, own in flops.items()}


def knows(model: Model, record: dict) -> bool:
    """Whether `model`, of another run, can predict what this run's can."""
    gathered, dtype = metrics.is_gathered(record), record["dtype"]
    known = [family.contender for family in (model.gemms if gathered else model.families) if family.dtype == dtype]
    return bool(known) if gathered else record["contender"] in known


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
    said = {"predicted_s": found.time_s, "predicted_low_s": found.low_s, "predicted_high_s": found.high_s}
    return said | {"roofline_s": plain_s, "fitted_on": found.fitted_on}


def lost(run: Run, model: Model, record: dict) -> dict[str, float] | None:
    """Where a matmul's time over the plain roofline's goes, as shares of the time: to each of `cost_model.losses`, and
    what is measured beside that. None of what gathers."""
    if metrics.is_gathered(record):
        return None
    case, machine = case_of(run.shapes[shape_of(record)]), model.machines[record["dtype"]]
    family = model.family(record["contender"], record["dtype"])
    parts = cost_model.losses(family.load(*sizes_of(case), machine), family.constants, case.work.flop / machine.flops)
    parts["unexplained"] = record["time_s"] - roofline_s(case.work, machine) - sum(parts.values())
    return {name: part_s / record["time_s"] for name, part_s in parts.items()}
