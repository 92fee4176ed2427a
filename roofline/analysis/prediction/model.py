"""All that is known of one machine for predictions, and what it says of a case, term by term. Standard library only.

A matmul is predicted by the constants of its contender (`cost_model`). A case that gathers over a wire takes

    time   = loss * ideal(T_gemm, T_comm)
    T_gemm = the unsplit matmul beside which a link runs; its constants are a family of their own, since on a CPU it
             leaves a core to the link. What an arm spills are device bytes of it
    T_comm = latency + wire bytes / bandwidth of the link
    ideal  = what the tile simulator says the arm could reach (`overlap.arms`); the longer of the two for `overlapped`

and the loss, 1 or more, is what an arm costs beyond that. A run keeps its `Model` in SAVED.

A prediction has an interval that shall hold four of five answers, of this run or another. It is made of what the
measured cases leave open (`residual`), of the losses' spread, and of `drift`: from run to run all times move.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from roofline.analysis.prediction import cost_model, residual
from roofline.analysis.prediction.cost_model import PRIORS, USUAL, Constants, MachineSpec, Tile
from roofline.operations.matmul import Matmul
from roofline.theory.chips import Chip
from roofline.theory.work import ITEMSIZE

SAVED, SCHEMA = "prediction.json", 2
"""The file of a run that has its model, and the file's schema. results/README.md documents it."""

ANY = "any"
"""The contender of a datasheet, which knows none."""

Z = 1.2816
"""Half of an interval that shall hold four of five answers, in standard deviations."""

LOSS_SPREAD = 0.1
"""How far the loss of an arm may well lie from none, in logarithms."""

DRIFT = 0.07
"""What all times of a run may well be off by in another one, in logarithms, where one process alone measured them."""


@dataclass(frozen=True)
class Prediction:
    """Seconds, and the terms they are made of, so that they can be checked by hand: `_s` are seconds, `loss` a factor,
    `p` the exponent, `waves` (of a GPU) rounds of `tile`, `correction` a factor: what the measured cases close by say
    beyond the constants. What they make is T_gemm of a gather. Those of two matmuls begin with `up_` and `down_`."""

    time_s: float
    terms: dict[str, float | str | None]
    fitted_on: int
    """Cases that the constants come of."""
    spread: float
    """Standard deviation of its logarithm."""

    @property
    def low_s(self) -> float:
        return self.time_s * math.exp(-Z * self.spread)

    @property
    def high_s(self) -> float:
        return self.time_s * math.exp(Z * self.spread)


def one_after_another(up: Prediction, down: Prediction) -> Prediction:
    """Of two matmuls of one family: what it is off by in one, it is in the other."""
    time_s = up.time_s + down.time_s
    spread = (up.spread * up.time_s + down.spread * down.time_s) / time_s
    terms = {f"{layer}_{name}": own for layer, one in (("up", up), ("down", down)) for name, own in one.terms.items()}
    return Prediction(time_s, terms, up.fitted_on, spread)


@dataclass(frozen=True)
class Family:
    """A contender in one dtype: its constants, the number of cases they were fitted on, and its tiles."""

    contender: str
    dtype: str
    constants: Constants
    fitted_on: int = 0
    tiles: tuple[Tile, ...] = USUAL
    """Of a library, which takes the best of them."""
    tile_of: tuple[tuple[int, int, Tile], ...] = ()
    """(m, n, tile) of shapes whose tile is known; others take that of the nearest."""
    residuals: tuple[tuple[int, int, int, int, float], ...] = ()
    """(m, n, k, device bytes, log(measured / said by the constants)) of the cases it was fitted on."""
    scale: float = residual.MODEL_ERROR
    """How far off the constants alone are, a standard deviation of logarithms."""

    def tiles_for(self, m: int, n: int) -> tuple[Tile, ...]:
        if not self.tile_of:
            return self.tiles
        return (min(self.tile_of, key=lambda known: abs(math.log(known[0] / m)) + abs(math.log(known[1] / n)))[2],)

    def load(self, m: int, n: int, k: int, device_bytes: int, machine: MachineSpec) -> cost_model.Load:
        return cost_model.load(m, n, k, device_bytes, machine, self.tiles_for(m, n))

    def place(self, m: int, n: int, k: int, device_bytes: int, machine: MachineSpec) -> residual.Place:
        slopes = cost_model.slopes(self.load(m, n, k, device_bytes, machine), self.constants)
        return residual.Place((math.log(m), math.log(n), math.log(k)), slopes)

    def predict(self, case: Matmul, machine: MachineSpec, spilled_bytes: int = 0) -> Prediction:
        sizes = case.m, case.n, case.k, case.work.device_bytes + spilled_bytes
        terms = cost_model.terms(self.load(*sizes, machine), self.constants)._asdict()
        mean, variance = _told(self, machine).at(self.place(*sizes, machine))
        time_s = terms.pop("time_s") * math.exp(mean)
        terms |= {"p": self.constants.p, "correction": math.exp(mean)}
        if machine.workers > 1:
            tile = cost_model.best_tile(*sizes[:3], self.tiles_for(case.m, case.n), machine)
            terms |= {"waves": cost_model.cost(*sizes[:3], tile, machine).rounds, "tile": f"{tile.rows}x{tile.columns}"}
        return Prediction(time_s, terms, self.fitted_on, math.sqrt(variance))


@lru_cache
def _told(family: Family, machine: MachineSpec) -> residual.Process:
    """What the cases tell that `family` was fitted on."""
    places = [family.place(*sizes, machine) for *sizes, _ in family.residuals]
    return residual.process(places, [off for *_, off in family.residuals], family.scale)


@dataclass(frozen=True)
class Model:
    """What predictions of one machine stand on. `source`: a key of `cost_model.PRIORS`."""

    source: str
    machines: dict[str, MachineSpec]
    """By dtype."""
    families: tuple[Family, ...]
    gemms: tuple[Family, ...]
    """Unsplit matmuls beside a link: the fastest is T_gemm."""
    latency_s: float = 0.0
    losses: dict[str, float] = field(default_factory=dict)
    """By arm; 1 of others."""
    loss_spread: float = LOSS_SPREAD
    """Of an arm's loss from case to case, in logarithms."""
    drift: float = DRIFT
    """Of all times together from run to run, in logarithms; 0 within a run."""
    arms: dict[str, list[str]] = field(default_factory=dict)
    """By operation: those that were measured."""
    balance_flops: dict[str, float] = field(default_factory=dict)
    """By dtype: FLOP/s that wires named by a balance are made for. Of others, T_gemm says it."""

    def matmul(self, case: Matmul, contender: str) -> Prediction:
        """Raises KeyError where nothing is known of `contender` in the dtype of `case`."""
        return self._drifted(self.family(contender, case.dtype).predict(case, self.machines[case.dtype]))

    def family(self, contender: str, dtype: str) -> Family:
        return {(family.contender, family.dtype): family for family in self.families}[contender, dtype]

    def _drifted(self, found: Prediction) -> Prediction:
        return replace(found, spread=math.hypot(found.spread, self.drift))

    def gemm(self, case: Matmul, spilled_bytes: int = 0) -> Prediction:
        """The fastest unsplit matmul beside a link; of a layer, both of its matmuls."""
        machine, matmuls = self.machines[case.dtype], getattr(case, "matmuls", (case,))
        own = [family for family in self.gemms if family.dtype == case.dtype]
        each = [[family.predict(one, machine, spilled_bytes) for one in matmuls] for family in own]
        found = [one_after_another(*both) if len(both) > 1 else both[0] for both in each]
        return self._drifted(min(found, key=lambda prediction: prediction.time_s))

    def at_ceilings_of(self, other: "Model") -> "Model":
        """On the other's machine. Its ceilings tell how two kinds of work moved: half of the drift may be left."""
        return replace(self, machines=other.machines, balance_flops=other.balance_flops, drift=self.drift / 2)

    def t_comm_s(self, wire_bytes: int, bytes_per_s: float) -> float:
        """An infinite bandwidth is that of a link on which all is here before the start."""
        return 0.0 if math.isinf(bytes_per_s) else self.latency_s + wire_bytes / bytes_per_s

    def gather(
        self, case: Matmul, arm: str, bytes_per_s: float, ideal_s: Callable[[float, float], float], spilled_bytes=0
    ) -> Prediction:
        """`arm` of what gathers for `case`; `ideal_s(T_gemm, T_comm)` is what it could reach."""
        gemm = self.gemm(case, spilled_bytes)
        t_comm_s = self.t_comm_s(case.work.wire_bytes, bytes_per_s)
        ideal, loss = ideal_s(gemm.time_s, t_comm_s), self.losses.get(arm, 1.0)
        own = {"t_gemm_s": gemm.time_s, "t_comm_s": t_comm_s, "ideal_s": ideal, "loss": loss}
        own["link_bytes_per_s"] = None if math.isinf(bytes_per_s) else bytes_per_s
        fitted_on = sum(family.fitted_on for family in self.gemms if family.dtype == case.dtype)
        # How far the ideal goes with T_gemm: not at all where it waits for the wire.
        by_gemm = math.log(ideal_s(gemm.time_s * math.exp(gemm.spread), t_comm_s) / ideal)
        return Prediction(loss * ideal, own | gemm.terms, fitted_on, math.hypot(by_gemm, self.loss_spread))


def of_values(values: dict) -> Model:
    """The model whose `dataclasses.asdict` went through JSON. Raises KeyError or TypeError for anything else."""

    def family(of: dict) -> Family:
        constants, tiles = Constants(**of["constants"]), tuple(Tile(*tile) for tile in of["tiles"])
        tile_of = tuple((m, n, Tile(*tile)) for m, n, tile in of["tile_of"])
        residuals = tuple(map(tuple, of["residuals"]))
        return Family(**of | {"constants": constants, "tiles": tiles, "tile_of": tile_of, "residuals": residuals})

    machines = {dtype: MachineSpec(**machine) for dtype, machine in values["machines"].items()}
    families, gemms = (tuple(map(family, values[name])) for name in ("families", "gemms"))
    return Model(**values | {"machines": machines, "families": families, "gemms": gemms})


def of_chip(chip: Chip) -> Model:
    """Of a datasheet, with the constants of `cost_model.PRIORS`, the same for all contenders: one family, `ANY`.

    Raises ValueError for a chip whose memory bandwidth no source tells.
    """
    bandwidth = chip.memory_bandwidth_bytes_per_s
    if not bandwidth:
        raise ValueError(f"the source of {chip.name} gives no memory bandwidth: choose another chip, or a run")
    machines = {d: MachineSpec(chip.flops[d], bandwidth, chip.sms or 1) for d in ITEMSIZE if d in chip.flops}
    families = tuple(Family(ANY, dtype, PRIORS["datasheet"]) for dtype in machines)
    return Model("datasheet", machines, families, families)
