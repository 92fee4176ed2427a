"""How well a run's cases are predicted: constants fitted on its own times, and errors on token counts left out.

A case of M tokens is scored by a model that has seen no case of M tokens, of whatever operation. What is saved is
fitted on all of them.
"""

import math
import re
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median

from roofline.analysis.overlap import metrics
from roofline.analysis.prediction.cost_model import FITTED, PRIORS, USUAL, Machine, Tile, roofline_s
from roofline.analysis.prediction.fit import fit, shrunk
from roofline.analysis.prediction.model import Family, Model, Sizes
from roofline.analysis.throughput.metrics import roof_of
from roofline.store.run import Run
from roofline.theory.wires import parse as parse_wire
from roofline.theory.work import Work

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
    sizes: Sizes
    time_s: float
    tile: Tile | None
    beside: bool


@dataclass(frozen=True)
class Scored:
    """One case: seconds as predicted without its token count, as measured, and by the plain roofline; and of how many
    matmuls the constants come."""

    record: dict
    predicted_s: float
    roofline_s: float
    fitted_on: int

    @property
    def error(self) -> float:
        return abs(self.predicted_s / self.record["time_s"] - 1)

    @property
    def roofline_error(self) -> float:
        return abs(self.roofline_s / self.record["time_s"] - 1)


@dataclass(frozen=True)
class Found:
    """`model` is fitted on all cases. `missing`: case -> why it is not predicted."""

    model: Model
    scored: list[Scored]
    missing: dict[str, str]


def predict_run(run: Run, records: list[dict]) -> Found:
    """Fit and score the cases of `records`. Where there are no ceilings all cases are missing."""
    points = points_of(run)
    missing = {record["case"]: why for record in records if (why := why_not(run, points, record))}
    own = [record for record in records if record["case"] not in missing]
    scored = []
    for m, of_m in groupby(sorted(own, key=lambda r: r["m"]), key=lambda r: r["m"]):
        model = fit_run(run, points, own, without=m)
        scored += [score(run, model, record) for record in of_m]
    order = [record["case"] for record in records]
    scored.sort(key=lambda one: order.index(one.record["case"]))
    return Found(fit_run(run, points, own), scored, missing)


def points_of(run: Run) -> list[Point]:
    """The medians of all matmuls: contenders, and those beside a link."""
    found = []
    for shape in run.shapes.values():
        gathered = shape.analysis == "overlap"
        if shape.get("k") is None:
            continue
        for name, about in shape.entrants.items():
            times = shape.times_s(name)
            if not times or gathered != (about.get("role") == "gemm"):
                continue
            known = CONFIG.match(about.get("config") or "")
            tile = Tile(*map(int, known.groups()), shares=bool(SHARES.search(about["config"]))) if known else None
            sizes = Sizes(*map(shape.get, "mnk"), shape.dtype, shape.work)
            found.append(Point(name.removeprefix("gemm "), sizes, median(times.values()), tile, beside=gathered))
    return found


def sizes_of(record: dict) -> Sizes:
    work = Work(record["flop"], record["device_bytes"], record.get("wire_bytes", 0))
    return Sizes(record["m"], record["n"], record["k"], record["dtype"], work)


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
    if not any(point.beside and point.sizes.dtype == record["dtype"] for point in points):
        return "no unsplit matmul was measured beside it"
    return None


def _bytes_per_s(record: dict) -> float:
    """Of the link: as requested, infinite where all is here before the start, NaN where nobody knows."""
    return record["link_bytes_per_s_requested"] or (math.inf if record["link"] == "preset" else math.nan)


def fit_run(run: Run, points: list[Point], records: list[dict], without: int | None = None) -> Model:
    """A model of the run's machine, fitted on what has another token count than `without`."""
    source, machines = run.metadata["machine"]["source"], machines_of(run, points)
    points = [point for point in points if point.sizes.dtype in machines]
    seen = [point for point in points if point.sizes.m != without]
    kinds = dict.fromkeys((p.contender, p.sizes.dtype) for p in points if not p.beside)
    families = tuple(_family(source, machines[d], d, name, points, seen, PRIORS[source]) for name, d in kinds)
    gemms = tuple(_gemm(run, machines, name, d, points, seen, families) for name, d in _gemm_kinds(run, points))
    others = [record for record in records if record["m"] != without and metrics.is_gathered(record)]
    return Model(
        source, machines, families, gemms, _latency_s(others), _losses(others), _arms(records), _balance_flops(records)
    )


def machines_of(run: Run, points: list[Point]) -> dict[str, Machine]:
    """By dtype, where its ceilings were measured."""
    about = run.metadata["machine"]
    workers = about.get("sms") or (about["datasheet"] or {}).get("sms") or 1
    roofs = {dtype: roof_of(run.ceilings, dtype) for dtype in dict.fromkeys(p.sizes.dtype for p in points)}
    return {dtype: Machine(roof.flops, roof.read_bytes_per_s, workers) for dtype, roof in roofs.items() if roof}


def _family(source, machine, dtype, contender, points, seen, prior, beside=False) -> Family:
    """Of `contender`, fitted on those of `seen`. Its tiles are those of all its points: configs are no measurement."""

    def own(among: list[Point]) -> list[Point]:
        wanted = contender, dtype, beside
        return [p for p in among if (p.contender, p.sizes.dtype, p.beside) == wanted]

    fitted, known = own(seen), {(p.sizes.m, p.sizes.n, p.tile) for p in own(points) if p.tile}
    choices = [USUAL, *((tile,) for tile in USUAL)] if machine.workers > 1 and not known else [()]
    best = None
    for tiles in choices:
        family = Family(contender, dtype, prior, len(fitted), tiles, tuple(sorted(known)))
        loads = [family.load(point.sizes, machine) for point in fitted]
        constants, cost = fit(loads, [point.time_s for point in fitted], prior, FITTED[source])
        if best is None or cost < best[1] * (1 - TIE):
            best = replace(family, constants=constants), cost
    return best[0]


def _gemm_kinds(run: Run, points: list[Point]) -> dict:
    """(contender, dtype) of unsplit matmuls beside a link; where none was measured, the vendors'."""
    beside = dict.fromkeys((p.contender, p.sizes.dtype) for p in points if p.beside)
    vendors = {(shape.baseline, shape.dtype): None for shape in run.shapes.values()}
    return beside or {(p.contender, p.sizes.dtype): None for p in points if (p.contender, p.sizes.dtype) in vendors}


def _gemm(run: Run, machines, contender: str, dtype: str, points, seen, families) -> Family:
    """The unsplit matmul beside a link leans to what the same contender does alone; on a CPU, to its cores' share of
    both ceilings."""
    source, threads = run.metadata["machine"]["source"], run.metadata["machine"].get("threads", 2)
    share = max(1, threads - 1) / threads if source == "cpu" else 1.0
    alone = next((f for f in families if (f.contender, f.dtype) == (contender, dtype)), None)
    prior = alone.constants if alone else PRIORS[source]
    prior = replace(prior, compute=prior.compute * share, memory=prior.memory * share)
    found = _family(source, machines[dtype], dtype, contender, points, seen, prior, beside=True)
    return found if found.fitted_on or not alone else replace(alone, constants=prior, fitted_on=0)


def _latency_s(records: list[dict]) -> float:
    """What T_comm takes beyond the pace that was requested: the median, 0 or more."""
    extra = {
        record["case"].removesuffix(record["contender"]): record["t_comm_s"] - record["wire_bytes"] / requested
        for record in records
        if record["t_comm_s"] and (requested := record["link_bytes_per_s_requested"])
    }
    return max(0.0, median(extra.values())) if extra else 0.0


def _losses(records: list[dict]) -> dict[str, float]:
    """By arm: its time over its own ideal, given T_gemm and T_comm as measured."""
    logs: dict[str, list[float]] = {}
    for record in records:
        if record["t_own_ideal_s"]:
            logs.setdefault(record["arm"], []).append(math.log(record["time_s"] / record["t_own_ideal_s"]))
    return {arm: math.exp(max(0.0, shrunk(own, LOSS_SPREAD))) for arm, own in logs.items()}


def _arms(records: list[dict]) -> dict[str, list[str]]:
    found: dict[str, dict] = {}
    for record in filter(metrics.is_gathered, records):
        found.setdefault(record["op"], {})[record["arm"]] = None
    return {op: list(arms) for op, arms in found.items()}


def _balance_flops(records: list[dict]) -> dict[str, float]:
    """By dtype: what the bandwidths of wires named by a balance were made from, their median."""
    found: dict[str, list[float]] = {}
    for record in filter(metrics.is_gathered, records):
        wire, requested = parse_wire(record["wire"]), record["link_bytes_per_s_requested"]
        if requested and wire.kind == "balance":
            found.setdefault(record["dtype"], []).append(requested * wire.value)
    return {dtype: median(flops) for dtype, flops in found.items()}


def score(run: Run, model: Model, record: dict) -> Scored:
    """`record` predicted by `model`."""
    sizes, machine = sizes_of(record), model.machines[record["dtype"]]
    if not metrics.is_gathered(record):
        family = model.family(record["contender"], sizes.dtype)
        found = family.predict(sizes, machine)
        return Scored(record, found.time_s, roofline_s(sizes.work, machine), family.fitted_on)
    shape = run.shapes[record["case"].removesuffix("-" + record["contender"])]
    speed, arm = _bytes_per_s(record), record["arm"]
    found = model.gather(
        sizes, arm, speed, lambda *times: metrics.plan_of(shape, arm).simulate(*times).end_s, record["spilled_bytes"]
    )
    fitted_on = sum(family.fitted_on for family in model.gemms if family.dtype == sizes.dtype)
    return Scored(record, found.time_s, roofline_s(sizes.work, machine, speed), fitted_on)
