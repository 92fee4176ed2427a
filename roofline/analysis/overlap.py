"""The roof of a wire: the part of a gather that an arm hid, by the rounds in which all took turns."""

from __future__ import annotations

from collections.abc import Callable
from operator import truediv
from statistics import median
from typing import TYPE_CHECKING, Any

from roofline.analysis.fields import FIELDS, MeasuredCase, with_ends
from roofline.operations.gathering import OFF_PACE
from roofline.store.run import REQUESTED, Shape
from roofline.store.stats import Interval, ratio_of, time_of
from roofline.theory.arms import ALL_CORES, ARMS, BOTH, SCATTERED, SIMULATED, OverlapPlan, base_arm, is_serial
from roofline.theory.schedule import Grid
from roofline.theory.simulator import hidden_fraction

if TYPE_CHECKING:
    from pandas import DataFrame

LOST = "lost_schedule_s", "lost_split_s", "lost_code_s", "lost_contention_s", "lost_rest_s"
"""The parts of an arm's time above max(T_gemm, T_comm). Their headers name them."""

Series = dict[int, float]
"""{round: value}, empty where nothing was measured."""


def fields(case: MeasuredCase) -> dict:
    """The fields of an arm that hold it against matmul and wire. The baseline is the arm `serial`.

    T_gemm is the fastest unsplit matmul of the same rounds, T_comm the link alone. All times are told beside the
    baseline's, by their ratios within rounds, so that what is formed of them agrees with them.
    """
    samples = ArmSamples(case)
    fields = dict(
        **samples.case_fields(),
        **samples.ideal_fields(),
        **samples.hidden_fields(),
        **samples.clock_fields(),
        **samples.slowdown_fields(),
    )
    return dict(**fields, **samples.lost(fields)) if fields.get("of_roof") else fields


class ArmSamples:
    """The samples of an arm, and of the matmul and the link alone, from the rounds in which they took turns.

    A method gives one part of the fields.
    """

    def __init__(self, case: MeasuredCase):
        self.case = case
        self.shape = shape = case.shape
        self.arm = arm = case.contender
        self.own_fabric = bool(case.entrant.get("link"))
        """The arm has a link of its own: the shape's link, T_gemm and T_comm are not the arm's."""
        self.gemm_name, link_name = _unsplit(shape)
        self.gemm = shape.times_s(self.gemm_name)
        self.link = shape.times_s(link_name)
        self.preset = shape.times_s(next(iter(shape.of_role("preset")), None))
        self.arrival = shape.values(link_name, "last_arrival_s")
        self.plan: Any = None if self.own_fabric else plan_of(shape, arm)
        self.own_name, self.own_gemm = self._own_matmul()
        splitting = _splitting(shape, arm)
        self.ranks_per_launch = splitting.get("ranks_per_launch")
        self.split_slowdown = splitting.get("slowdowns", {}).get(str(self.ranks_per_launch))
        self.split = self.split_slowdown or 1
        """The time of so many launches, as a multiple of T_gemm."""
        self.requested = shape.requested_bytes_per_s
        self.bandwidth = self._bandwidth()
        self.off_pace = None
        """By how much of the request the link missed it, where that is too much."""
        if self.requested and self.bandwidth:
            missed = self.bandwidth / self.requested - 1
            if abs(missed) > OFF_PACE:
                self.off_pace = missed

    def _own_matmul(self) -> tuple[str, Series]:
        """The matmul that the arm runs: its name beside the link's traffic, and its times alone. It is the kernel with
        all flags up of an arm by its tables, `persistent` of one that is named for it, else the fastest."""
        if self.preset and self.arm in ARMS and ARMS[self.arm].table:
            return "preset beside link", self.preset
        if self.arm != base_arm(self.arm) and "gemm persistent beside link" in self.shape.late:
            return "gemm persistent beside link", self.shape.times_s("gemm persistent")
        return "gemm beside link", self.gemm

    def typical(self, series: Series) -> float | None:
        """The typical value of a series, told beside the baseline's."""
        time = self.shape.estimate(float, series)
        return time.value if time else None

    def estimate(self, value: Callable, gemm: Series, log: bool = True) -> Interval | None:
        """The interval of value(T_gemm, T_comm, the arm's time); None where they are not to be compared."""
        if not self.plan or self.off_pace:
            return None
        return self.shape.estimate(value, gemm, self.link, self.case.times_s, log=log)

    def ratio(self, numerator: Series, denominator: Series) -> float | None:
        ratio = ratio_of(numerator, denominator, self.shape.groups)
        return ratio.value if ratio else None

    def _bandwidth(self) -> float | None:
        """The link's bytes/s by its arrivals: T_comm is the time of a call, with the start and the wait."""
        wire_bytes = self.shape.work.wire_bytes
        requested = self.shape.requested_by_round
        paces = {}
        for index, arrival_s in self.arrival.items():
            if index in requested:
                paces[index] = wire_bytes / arrival_s / requested[index]
        pace = time_of(paces, self.shape.groups)
        if pace and self.requested:  # judged within rounds
            return self.requested * pace.value
        alone_s = self.typical(self.arrival)
        return wire_bytes / alone_s if alone_s else None

    def case_fields(self) -> dict:
        """The arm's cut, the spread of its ranks, and the bytes/s that the shape's link was asked for and reached: an
        arm over a fabric of its own has none."""
        shape = self.shape
        spec = ARMS.get(base_arm(self.arm))
        link = {
            REQUESTED: self.requested,
            "copier_programs": _declared(shape, self.arm, "copier_programs"),
            "link_bytes_per_s": self.bandwidth,
            "link_off_pace": self.off_pace,
        }
        return ({} if self.own_fabric else link) | {
            "own_fabric": self.own_fabric,
            "wire_bytes": shape.work.wire_bytes,
            "wire_intensity": shape.work.wire_intensity,
            "row_blocks": _declared(shape, self.arm, "row_blocks", 1) if spec and spec.by_block else None,
            "ranks_per_launch": self.ranks_per_launch,
            "split_slowdown": self.split_slowdown,
            "spilled_bytes": self.case.entrant.get("spilled_bytes", 0),
            "rank_spread": _rank_spread(shape, self.arm),
            "gemm_rank_spread": _rank_spread(shape, self.gemm_name),
        }

    def ideal_fields(self) -> dict:
        """T_gemm and T_comm, and what follows from these two alone."""
        work = self.shape.work
        t_gemm_s = self.typical(self.gemm)
        t_comm_s = self.typical(self.link)
        fields: dict[str, Any] = {"t_gemm_s": t_gemm_s, "t_comm_s": t_comm_s}
        if not (t_gemm_s and t_comm_s):
            return fields
        ideal_s = max(t_gemm_s, t_comm_s)
        fields["balance"] = work.wire_intensity * t_comm_s / t_gemm_s
        fields["ratio"] = t_gemm_s / t_comm_s
        fields["ideal_s"] = ideal_s
        if not self.own_fabric:
            fields["roof_tflops"] = work.flop / ideal_s / 1e12
            fields["bound"] = "compute" if t_gemm_s >= t_comm_s else "wire"
        if self.plan:
            fields["t_own_ideal_s"] = self.plan.end_s(t_gemm_s * self.split, t_comm_s)
        return fields

    def hidden_fields(self) -> dict:
        """The part of the shorter of matmul and wire that the arm hid, and the shares of its ideals that it reached."""
        hidden = self.estimate(hidden_fraction, self.gemm, log=False)
        all_cores = self.shape.estimate(truediv, self.shape.times_s(ALL_CORES), self.case.times_s)
        fields = with_ends("hidden_fraction", hidden)
        fields |= with_ends("gain_all_cores", all_cores)
        of_ideal = self.estimate(lambda gemm_s, comm_s, time_s: max(gemm_s, comm_s) / time_s, self.gemm)
        fields |= with_ends("of_roof", of_ideal)
        fields["above_roof"] = hidden is not None and hidden.low > 1
        of_own_ideal = self.estimate(
            lambda gemm_s, comm_s, time_s: self.plan.ideal_s(gemm_s * self.split, comm_s) / time_s, self.gemm
        )
        if of_own_ideal:
            fields["of_own_ideal"] = of_own_ideal.value
        return fields

    def clock_fields(self) -> dict:
        """The SM clocks of arm and matmul, and what the arm would have hidden had both run at the same clock.

        At equal clock, T_gemm is what it would be at the clock f_arm of the arm, T_gemm f_gemm / f_arm, in both places
        of (T_gemm + T_comm - T) / min(T_gemm, T_comm). In the upper one that is the same as to take the arm's T to be
        T + T_gemm (1 - f_gemm / f_arm): a clock scales what the chip computes, which is T_gemm, and neither the link,
        which a timer paces, nor the waiting for it. So T = T_comm hides all of a shorter matmul at any clock, T = the
        scaled T_gemm all of a shorter gather, and their sum nothing.
        """
        clock = self.shape.values(self.arm, "sm_clock_hz")
        gemm_clock = self.shape.values(self.gemm_name, "sm_clock_hz")
        scaled = {}
        for index in self.gemm.keys() & clock.keys() & gemm_clock.keys():
            scaled[index] = self.gemm[index] * gemm_clock[index] / clock[index]
        fields: dict[str, Any] = with_ends("hidden_clock_normalised", self.estimate(hidden_fraction, scaled, log=False))
        fields["sm_clock_hz"] = self.typical(clock)
        fields["gemm_sm_clock_hz"] = self.typical(gemm_clock)
        return fields

    def slowdown_fields(self) -> dict:
        """By how much matmul and link take longer side by side than alone; {} over a fabric of its own."""
        if self.own_fabric:
            return {}
        shape = self.shape
        link_slowdown = None  # of a scatter: its last part is late for being computed late, too
        if shape.op not in SCATTERED + BOTH:
            link_slowdown = self.ratio(shape.values(self.arm, "last_arrival_s"), self.arrival)
        return {
            "preset_slowdown": self.ratio(self.preset, self.gemm),
            "gemm_slowdown": self.ratio(shape.values(self.own_name, "first_wait_s"), self.own_gemm),
            "link_slowdown": link_slowdown,
        }

    def lost(self, fields: dict) -> dict:
        """The arm's time above max(T_gemm, T_comm), in parts that add up to it, and the largest of them in words.

        Each part is a counterfactual: by how much the own ideal grows when one more time is as the same rounds measured
        it. So what costs a matmul that hides behind the wire costs the arm nothing, and the other way round.
        """
        ideal_s = self.plan.ideal_s
        t_gemm_s = fields["t_gemm_s"]
        t_comm_s = fields["t_comm_s"]
        own_gemm_s = None if self.own_gemm is self.gemm else self.typical(self.own_gemm)
        gemm_s = self.split * (own_gemm_s or t_gemm_s)
        slower = fields["gemm_slowdown"] or 1
        later = fields["link_slowdown"] or 1
        ends_s = (
            ideal_s(t_gemm_s, t_comm_s),
            ideal_s(t_gemm_s * self.split, t_comm_s),
            ideal_s(gemm_s, t_comm_s),
            ideal_s(gemm_s * slower, t_comm_s * later),
            self.case.time.value,
        )
        lost: dict[str, Any] = {}
        before_s = fields["ideal_s"]
        for name, end_s in zip(LOST, ends_s, strict=True):
            lost[name] = end_s - before_s
            before_s = end_s
        diagnosis = FIELDS[max(lost, key=lost.__getitem__)].header
        if not self.split_slowdown:
            lost["lost_split_s"] = None
        if not own_gemm_s:
            lost["lost_code_s"] = None
        if not (fields["gemm_slowdown"] or fields["link_slowdown"]):
            lost["lost_contention_s"] = None
        lost["diagnosis"] = "undecided" if fields.get("of_roof_high", 1.0) >= 1 else diagnosis
        return lost


def _unsplit(shape: Shape) -> tuple[str | None, str | None]:
    """The names of the fastest unsplit matmul of `shape` and of its link alone."""
    gemms = filter(shape.times_s, shape.of_role("gemm"))
    fastest = min(gemms, key=shape.time, default=None)
    links = shape.of_role("link")
    return fastest, links[0] if links else None


def unsplit_times_s(shape: Shape) -> tuple[Series, Series]:
    """{round: seconds} of T_gemm and of T_comm."""
    gemm_name, link_name = _unsplit(shape)
    return shape.times_s(gemm_name), shape.times_s(link_name)


def _rank_spread(shape: Shape, entrant: str | None) -> float | None:
    """The first rank's lead over the last one, as a share of the last one's time, in the median round."""
    of_ranks = []
    for rank in range(shape.params["ranks"]):
        of_ranks.append(shape.values(entrant, f"rank{rank}_s").values())
    spreads = [1 - min(times_s) / max(times_s) for times_s in zip(*of_ranks, strict=True)]
    return median(spreads) if spreads else None


def valid(frame: DataFrame) -> DataFrame:
    """The rows of cases that are not void: their link kept its pace, or they have none."""
    return frame[frame["link_off_pace"].isna()]


def overlapping(frame: DataFrame) -> DataFrame:
    """The rows of arms that overlap: all but serial, on some cores or all."""
    return frame[~frame["contender"].map(is_serial).astype(bool)]


def _declared(shape: Shape, arm: str, name: str, default: int | None = None) -> Any:
    """A number of `arm`, or else of all arms of the shape."""
    return shape.entrants[arm].get(name, shape.get(name, default))


def plan_of(shape: Shape, arm: str) -> OverlapPlan | None:
    """The cut of `arm` as the journal has it; None of one that has no schedule."""
    plain_arm = base_arm(arm)
    if plain_arm not in SIMULATED:
        return None
    return OverlapPlan(
        plain_arm,
        Grid(_declared(shape, arm, "row_tiles", 1), _declared(shape, arm, "column_tiles", 1)),
        workers=shape.get("workers", 1),
        ranks=shape.params["ranks"],
        row_blocks=_declared(shape, arm, "row_blocks", 1),
        ranks_per_launch=_splitting(shape, arm).get("ranks_per_launch", 1),
        block_tiles=_declared(shape, arm, "block_tiles", 0),
        chunk_steps=_declared(shape, arm, "chunk_steps", 0),
    )


def _splitting(shape: Shape, arm: str) -> dict:
    """The split of a matmul by ranks in `arm`, and its measured cost; {} of one of which it is not known."""
    return shape.get("splits", {}).get(arm, {})
