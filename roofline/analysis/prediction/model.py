"""All that is known of one machine for predictions, and what it says of a case, term by term. Standard library only.

A matmul is predicted by the constants of its contender (`cost_model`). A case that gathers over a wire takes

    time   = loss * ideal(T_gemm, T_comm)
    T_gemm = the unsplit matmul beside which a link runs; its constants are a family of their own, since on a CPU it
             leaves a core to the link. What an arm spills are device bytes of it
    T_comm = latency + wire bytes / bandwidth of the link
    ideal  = what the tile simulator says the arm could reach (`theory.overlap`); the longer of the two for `overlapped`

and the loss, 1 or more, is what an arm costs beyond that. A `Model` is read from and written to plain values, so that a
run can keep it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from roofline.analysis.prediction import cost_model
from roofline.analysis.prediction.cost_model import PRIORS, USUAL, Constants, Machine, Tile
from roofline.theory.chips import Chip
from roofline.theory.work import ITEMSIZE, Work

ANY = "any"
"""The contender of a datasheet, which knows none."""


@dataclass(frozen=True)
class Sizes:
    """One rank's matmul, and its work."""

    m: int
    n: int
    k: int
    dtype: str
    work: Work


@dataclass(frozen=True)
class Prediction:
    """Seconds, and the terms they are made of, so that they can be checked by hand: `_s` are seconds, `loss` a factor,
    `p` the exponent, `waves` (of a GPU) rounds of `tile`. What compute, memory and start make is T_gemm of a gather."""

    time_s: float
    terms: dict[str, float | str | None]


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

    def tiles_for(self, m: int, n: int) -> tuple[Tile, ...]:
        if not self.tile_of:
            return self.tiles
        return (min(self.tile_of, key=lambda known: abs(math.log(known[0] / m)) + abs(math.log(known[1] / n)))[2],)

    def load(self, sizes: Sizes, machine: Machine, spilled_bytes: int = 0) -> cost_model.Load:
        nbytes = sizes.work.device_bytes + spilled_bytes
        return cost_model.load(sizes.m, sizes.n, sizes.k, nbytes, machine, self.tiles_for(sizes.m, sizes.n))

    def predict(self, sizes: Sizes, machine: Machine, spilled_bytes: int = 0) -> Prediction:
        found = cost_model.terms(self.load(sizes, machine, spilled_bytes), self.constants)
        terms = found._asdict() | {"p": self.constants.p}
        terms.pop("time_s")
        if machine.workers > 1:
            shape = sizes.m, sizes.n, sizes.k
            tile = cost_model.best_tile(*shape, self.tiles_for(*shape[:2]), machine)
            terms |= {"waves": cost_model.cost(*shape, tile, machine).rounds, "tile": f"{tile.rows}x{tile.columns}"}
        return Prediction(found.time_s, terms)


@dataclass(frozen=True)
class Model:
    """What predictions of one machine stand on. `source`: a key of `cost_model.PRIORS`."""

    source: str
    machines: dict[str, Machine]
    """By dtype."""
    families: tuple[Family, ...]
    gemms: tuple[Family, ...]
    """Unsplit matmuls beside a link: the fastest is T_gemm."""
    latency_s: float = 0.0
    losses: dict[str, float] = field(default_factory=dict)
    """By arm; 1 of others."""
    arms: dict[str, list[str]] = field(default_factory=dict)
    """By operation: those that were measured."""
    balance_flops: dict[str, float] = field(default_factory=dict)
    """By dtype: FLOP/s that wires named by a balance are made for. Of others, `gather_flops` says it."""

    def family(self, contender: str, dtype: str) -> Family:
        """Raises KeyError where nothing is known of `contender` in `dtype`."""
        return {(family.contender, family.dtype): family for family in self.families}[contender, dtype]

    def matmul(self, sizes: Sizes, contender: str) -> Prediction:
        """Raises KeyError as `family` does."""
        return self.family(contender, sizes.dtype).predict(sizes, self.machines[sizes.dtype])

    def gemm(self, sizes: Sizes, spilled_bytes: int = 0) -> Prediction:
        """The fastest unsplit matmul beside a link."""
        own = [family for family in self.gemms if family.dtype == sizes.dtype]
        found = [family.predict(sizes, self.machines[sizes.dtype], spilled_bytes) for family in own]
        return min(found, key=lambda prediction: prediction.time_s)

    def t_comm_s(self, wire_bytes: int, bytes_per_s: float) -> float:
        """An infinite bandwidth is that of a link on which all is here before the start."""
        return 0.0 if math.isinf(bytes_per_s) else self.latency_s + wire_bytes / bytes_per_s

    def gather(
        self,
        sizes: Sizes,
        arm: str,
        bytes_per_s: float,
        ideal_s: Callable[[float, float], float],
        spilled_bytes: int = 0,
    ) -> Prediction:
        """`ideal_s(T_gemm, T_comm)` is what the arm could reach."""
        gemm = self.gemm(sizes, spilled_bytes)
        t_comm_s = self.t_comm_s(sizes.work.wire_bytes, bytes_per_s)
        ideal, loss = ideal_s(gemm.time_s, t_comm_s), self.losses.get(arm, 1.0)
        own = {"t_gemm_s": gemm.time_s, "t_comm_s": t_comm_s, "ideal_s": ideal, "loss": loss}
        own["link_bytes_per_s"] = None if math.isinf(bytes_per_s) else bytes_per_s
        return Prediction(loss * ideal, own | gemm.terms)

    def as_values(self) -> dict:
        """Plain values, ready for JSON; `of_values` reads them."""
        return {
            "source": self.source,
            "machines": {dtype: machine._asdict() for dtype, machine in self.machines.items()},
            "families": [_family_values(family) for family in self.families],
            "gemms": [_family_values(family) for family in self.gemms],
            **{name: getattr(self, name) for name in ("latency_s", "losses", "arms", "balance_flops")},
        }


def _family_values(family: Family) -> dict:
    return {
        "contender": family.contender,
        "dtype": family.dtype,
        "constants": family.constants.values(),
        "fitted_on": family.fitted_on,
        "tiles": [list(tile) for tile in family.tiles],
        "tile_of": [[m, n, list(tile)] for m, n, tile in family.tile_of],
    }


def _family(values: dict) -> Family:
    return Family(
        values["contender"],
        values["dtype"],
        Constants(**values["constants"]),
        values["fitted_on"],
        tuple(Tile(*tile) for tile in values["tiles"]),
        tuple((m, n, Tile(*tile)) for m, n, tile in values["tile_of"]),
    )


def of_values(values: dict) -> Model:
    """The model that `Model.as_values` wrote. Raises KeyError or TypeError for anything else."""
    return Model(
        values["source"],
        {dtype: Machine(**machine) for dtype, machine in values["machines"].items()},
        tuple(_family(family) for family in values["families"]),
        tuple(_family(family) for family in values["gemms"]),
        **{name: values[name] for name in ("latency_s", "losses", "arms", "balance_flops")},
    )


def of_chip(chip: Chip) -> Model:
    """Of a datasheet, with the constants of `cost_model.PRIORS`, the same for all contenders: one family, `ANY`.

    Raises ValueError for a chip whose memory bandwidth no source tells.
    """
    bandwidth = chip.memory_bandwidth_bytes_per_s
    if not bandwidth:
        raise ValueError(f"the source of {chip.name} gives no memory bandwidth: choose another chip, or a run")
    machines = {d: Machine(chip.flops[d], bandwidth, chip.sms or 1) for d in ITEMSIZE if d in chip.flops}
    families = tuple(Family(ANY, dtype, PRIORS["datasheet"]) for dtype in machines)
    return Model("datasheet", machines, families, families)
