"""How much of a gather an arm hid, by the rounds in which all took turns."""

from itertools import pairwise
from statistics import median

from roofline.analysis import throughput
from roofline.analysis.throughput import with_ends
from roofline.operations.gathering import OFF_PACE
from roofline.store.run import REQUESTED, Run, Shape
from roofline.store.stats import Groups, Interval, estimate, ratio_of, time_of
from roofline.theory.arms import ALL_CORES, ARMS, BOTH, SCATTERED, SIMULATED, OverlapPlan, base_arm
from roofline.theory.contention import EXPECTED, PIECE_S, Measured, slowdowns
from roofline.theory.schedule import Grid
from roofline.theory.simulator import hidden_fraction
from roofline.theory.wires import HOW, PACED

OF_THE_LINK = (
    *("copier_programs", "link_bytes_per_s_requested", "link_bytes_per_s", "link_off_pace"),
    *("preset_slowdown", "gemm_slowdown", "link_slowdown", "roof_tflops", "bound"),
)
"""Fields that an arm over a fabric of its own has not: they are of the shape's link."""


LOST = {
    "lost_schedule_s": "schedule", "lost_split_s": "split", "lost_code_s": "waiting code",
    "lost_contention_s": "contention", "lost_rest_s": "the rest",
}  # fmt: skip
"""The parts of an arm's time above max(T_gemm, T_comm), in words."""


def record(run: Run, shape: Shape, arm: str) -> dict:
    """The record of `arm` on `shape`: the fields of any case, and those of a wire, None where not measured. The
    baseline is the arm `serial`, the roof that of matmul and wire.

    T_gemm is the fastest unsplit matmul of the same rounds, T_comm the link alone. All times are told beside the
    baseline's, by their ratios within rounds, so that what is formed of them agrees with them.
    """
    samples = ArmSamples(shape, arm)
    fields = throughput.record(run, shape, arm)
    fields |= samples.case_fields()
    fields |= samples.link_fields()
    fields |= samples.ideal_fields()
    fields |= samples.hidden_fields(run)
    fields |= samples.clock_fields()
    fields |= samples.slowdown_fields()
    if samples.fabric:
        fields |= dict.fromkeys(OF_THE_LINK) | {"link": samples.fabric}
    if fields["of_roof"]:
        fields |= _lost(fields, samples.plan, samples.own_gemm_s)
    else:
        fields |= dict.fromkeys((*LOST, "diagnosis"))
    fields["notes"] = _notes(fields)
    return fields


class ArmSamples:
    """The samples of an arm, and of the matmul and the link alone, from the rounds in which they took turns.

    Each series is {round: value}, and empty where nothing was measured. A method gives one group of fields.
    """

    def __init__(self, shape: Shape, arm: str):
        self.shape, self.arm = shape, arm
        self.entrant = shape.entrants[arm]
        self.fabric = self.entrant.get("link")
        """Its own, whose T_gemm and T_comm are not those of the shape."""
        self.gemm_name, link_name = _unsplit(shape)
        self.times_s = shape.times_s(arm)
        self.gemm = shape.times_s(self.gemm_name)
        self.link = shape.times_s(link_name)
        self.preset = shape.times_s(next(iter(shape.of_role("preset")), None))
        self.arrival = shape.values(link_name, "last_arrival_s")
        self.plan = None if self.fabric else plan_of(shape, arm)
        self.own_matmul = _own_matmul(shape, arm, self.preset, self.gemm)
        self.ranks_per_launch = _splitting(shape, arm).get("ranks_per_launch")
        self.split = _splitting(shape, arm).get("slowdowns", {}).get(str(self.ranks_per_launch))
        """Of T_gemm, what so many launches take."""
        self.bandwidth = self._bandwidth()

    def typical(self, series: dict[int, float]) -> float | None:
        """Its typical value, over passes and processes."""
        return time_of(series, self.shape.groups, self.shape.anchor).value if series else None

    def estimate(self, value, gemm: dict[int, float], log: bool = True) -> Interval | None:
        """Of value(T_gemm, T_comm, the arm's time); None where they are not to be compared."""
        if not self.plan or self._is_off_pace():
            return None
        groups, anchor = self.shape.groups, self.shape.anchor
        return estimate(value, gemm, self.link, self.times_s, groups=groups, anchor=anchor, log=log)

    @property
    def own_gemm_s(self) -> float | None:
        """The arm's own matmul with all data here; None where that is T_gemm."""
        _, alone = self.own_matmul
        return None if alone is self.gemm else self.typical(alone)

    def _bandwidth(self) -> float | None:
        """What the link reached by its arrivals: T_comm is the time of a call, with the start and the wait."""
        wire_bytes, asked = self.shape.work.wire_bytes, self.shape.requested_by_round
        paces = {}
        for index, arrival_s in self.arrival.items():
            if index in asked:
                paces[index] = wire_bytes / arrival_s / asked[index]
        if paces:  # judged within rounds
            return self.shape.requested_bytes_per_s * time_of(paces, self.shape.groups).value
        return wire_bytes / self.typical(self.arrival) if self.arrival else None

    def _is_off_pace(self) -> bool:
        requested = self.shape.requested_bytes_per_s
        return bool(requested and self.bandwidth and abs(self.bandwidth / requested - 1) > OFF_PACE)

    def case_fields(self) -> dict:
        """What the arm is, how it was cut, and how far its ranks lay apart."""
        shape, arm, spec = self.shape, self.arm, ARMS.get(base_arm(self.arm))
        fields = {key: shape.get(key) for key in ("ranks", "wire", "link", "gather")}
        return fields | {
            "copier_programs": self.entrant.get("copier_programs", shape.get("copier_programs")),
            "own_fabric": bool(self.fabric),
            "wire_bytes": shape.work.wire_bytes,
            "wire_intensity": shape.work.wire_intensity,
            "row_blocks": _row_blocks(shape, arm) if spec and spec.by_block else None,
            "ranks_per_launch": self.ranks_per_launch,
            "split_slowdown": self.split,
            "spilled_bytes": self.entrant.get("spilled_bytes", 0),
            "rank_spread": _rank_spread(shape, arm),
            "gemm_rank_spread": _rank_spread(shape, self.gemm_name),
        }

    def link_fields(self) -> dict:
        requested, reached = self.shape.requested_bytes_per_s, self.bandwidth
        off_pace = reached / requested - 1 if self._is_off_pace() else None
        return {REQUESTED: requested, "link_bytes_per_s": reached, "link_off_pace": off_pace}

    def ideal_fields(self) -> dict:
        """T_gemm and T_comm, and what follows from these two alone."""
        work, t_gemm_s, t_comm_s = self.shape.work, self.typical(self.gemm), self.typical(self.link)
        fields = dict.fromkeys(("balance", "ratio", "ideal_s", "t_own_ideal_s", "roof_tflops", "bound"))
        fields |= {"t_gemm_s": t_gemm_s, "t_comm_s": t_comm_s}
        if not (self.gemm and self.link):
            return fields
        fields["balance"] = work.wire_intensity * t_comm_s / t_gemm_s
        fields["ratio"] = t_gemm_s / t_comm_s
        fields["ideal_s"] = max(t_gemm_s, t_comm_s)
        fields["roof_tflops"] = work.flop / fields["ideal_s"] / 1e12
        fields["bound"] = "compute" if t_gemm_s >= t_comm_s else "wire"
        if self.plan:
            fields["t_own_ideal_s"] = self.plan.end_s(t_gemm_s * (self.split or 1), t_comm_s)
        return fields

    def hidden_fields(self, run: Run) -> dict:
        """How much of the shorter of matmul and wire the arm hid, and how near it came to its ideals."""
        shape, split = self.shape, self.split or 1
        hidden = self.estimate(hidden_fraction, self.gemm, log=False)
        of_roof = self.estimate(lambda t_gemm, t_comm, time: max(t_gemm, t_comm) / time, self.gemm)
        of_own = self.estimate(lambda t_gemm, t_comm, time: self.plan.ideal_s(t_gemm * split, t_comm) / time, self.gemm)
        all_cores = self.times_s and ratio_of(shape.times_s(ALL_CORES), self.times_s, shape.groups, shape.anchor)
        return {
            **with_ends("hidden_fraction", hidden),
            "hidden_expected": hidden_expected(run, shape, self.arm, self.plan) if hidden else None,
            **with_ends("gain_all_cores", all_cores),
            "of_own_ideal": of_own and of_own.value,
            **with_ends("of_roof", of_roof),
            "above_roof": hidden is not None and hidden.low > 1,
        }

    def clock_fields(self) -> dict:
        """The SM clocks of arm and matmul, and what the arm would have hidden had both run at the same clock.

        At equal clock, T_gemm is what it would be at the clock f_arm of the arm, T_gemm f_gemm / f_arm, in both places
        of (T_gemm + T_comm - T) / min(T_gemm, T_comm). In the upper one that is the same as to take the arm's T to be
        T + T_gemm (1 - f_gemm / f_arm): a clock scales what the chip computes, which is T_gemm, and neither the link,
        which a timer paces, nor the waiting for it. So T = T_comm hides all of a shorter matmul at any clock, T = the
        scaled T_gemm all of a shorter gather, and their sum nothing.
        """
        clock, gemm_clock = (self.shape.values(name, "sm_clock_hz") for name in (self.arm, self.gemm_name))
        scaled = {}
        for index in self.gemm.keys() & clock.keys() & gemm_clock.keys():
            scaled[index] = self.gemm[index] * gemm_clock[index] / clock[index]
        return {
            **with_ends("hidden_clock_normalised", self.estimate(hidden_fraction, scaled, log=False)),
            "sm_clock_hz": self.typical(clock),
            "gemm_sm_clock_hz": self.typical(gemm_clock),
        }

    def slowdown_fields(self) -> dict:
        """By how much matmul and link take longer side by side than alone."""
        shape, groups, (beside, alone) = self.shape, self.shape.groups, self.own_matmul
        link_slowdown = None  # of a scatter: its last part is late for being computed late, too
        if shape.op not in SCATTERED + BOTH:
            link_slowdown = _ratio(shape.values(self.arm, "last_arrival_s"), self.arrival, groups)
        return {
            "preset_slowdown": _ratio(self.preset, self.gemm, groups),
            "gemm_slowdown": _ratio(shape.values(beside, "first_wait_s"), alone, groups),
            "link_slowdown": link_slowdown,
        }


def _notes(fields: dict) -> str:
    off_pace, gather, more = fields["link_off_pace"], fields["gather"], []
    if off_pace:
        more.append(f"void: link off its pace by {100 * off_pace:+.0f} %")
    if gather in HOW and gather != fields["link"]:
        more.append(f"serial by {HOW[gather]}")
    return throughput.notes(fields, "its ideal", "; ".join(more))


def hidden_expected(run: Run, shape: Shape, arm: str, plan: OverlapPlan) -> float | None:
    """Return what the simulator foresees that `arm` hides, from what was measured beside it; None of an arm that it
    does not foresee, and where that was not measured, as on a CPU.

    Matmul and link slow one another as they do where they do not wait for one another. Times are those between the
    link's start and the last arrival, or the end of the matmul.
    """
    if plan.arm not in EXPECTED:
        return None
    gemm_name, link_name = _unsplit(shape)
    gemm, preset = (shape.times_s(name) for name in (gemm_name, "preset"))
    read = [
        shape.times_s(link_name),
        shape.values(link_name, "last_arrival_s"),
        shape.values("preset beside link", "first_wait_s"),
        shape.values("preset beside link", "last_arrival_s"),
    ]
    if not (preset and all(read)):
        return None
    t_gemm_s, preset_s, t_comm_s, link_s, *beside_s = (_alone_s(shape, series) for series in (gemm, preset, *read))
    start_s = t_comm_s - link_s
    beside = slowdowns((preset_s, link_s), (beside_s[0] - start_s, beside_s[1]))
    copier_sms = 0
    if shape.get("link") == PACED and _is_beside_copier(shape, arm, plan):
        copier_sms = shape.entrants[arm].get("copier_programs", shape.get("copier_programs", 0))
        beside = beside._replace(link=1.0)
    asked = shape.get(REQUESTED)
    planned_comm_s = shape.work.wire_bytes / asked if asked else shape.get("t_comm_planned_s", t_comm_s)
    measured = Measured(
        own_s=_alone_s(shape, _own_matmul(shape, arm, preset, gemm)[1]),
        link_s=link_s,
        slowdowns=beside,
        planned_s=(shape.get("t_gemm_planned_s", t_gemm_s), planned_comm_s),
        copier_sms=copier_sms,
        piece_s=PIECE_S if shape.get("link") == PACED else 0.0,
        sums_s=_sums_s(run, shape),
    )
    end_s = EXPECTED[plan.arm](plan, measured)
    return end_s and hidden_fraction(t_gemm_s, t_comm_s, start_s + end_s)


def _is_beside_copier(shape: Shape, arm: str, plan: OverlapPlan) -> bool:
    """Whether a vendor's matmul is launched by the arm, which leaves the copier no room on its SMs."""
    is_ours = ARMS[plan.arm].table or arm != plan.arm or shape.get("unsplit") == "persistent"
    return arm == "chunk_launches" or not is_ours


def _sums_s(run: Run, shape: Shape) -> float | None:
    """The seconds in which out in fp32 passes through memory once; None where no copy was measured."""
    copies = [ceiling["value"] for ceiling in run.ceilings if ceiling["ceiling"] == "copy"]
    return 4 * shape.get("m") * shape.get("n") / max(copies) if copies else None


def _alone_s(shape: Shape, series: dict[int, float]) -> float:
    """Return the typical of a series, by itself."""
    return time_of(series, shape.groups).value


def _unsplit(shape: Shape) -> tuple[str | None, str | None]:
    """Return the names of the fastest unsplit matmul of `shape` and of its link alone."""
    times = {name: times_s for name in shape.of_role("gemm") if (times_s := shape.times_s(name))}
    typical_s = {name: time_of(times_s, shape.groups, shape.anchor).value for name, times_s in times.items()}
    return min(typical_s, key=typical_s.get, default=None), next(iter(shape.of_role("link")), None)


def unsplit_times_s(shape: Shape) -> tuple[dict[int, float], dict[int, float]]:
    """Return {round: seconds} of T_gemm and of T_comm."""
    return tuple(map(shape.times_s, _unsplit(shape)))


def _rank_spread(shape: Shape, entrant: str | None) -> float | None:
    ranks = range(shape.params["ranks"])
    each = zip(*(shape.values(entrant, f"rank{rank}_s").values() for rank in ranks), strict=True)
    return median([1 - min(times) / max(times) for times in each] or [None])


def _lost(record: dict, plan: OverlapPlan, own_gemm_s: float | None) -> dict:
    """Return what the arm takes above max(T_gemm, T_comm), in parts that add up to it, and the largest of them in
    words.

    Each part is a counterfactual: by how much the own ideal grows when one more time is as the same rounds measured it.
    So what costs a matmul that hides behind the wire costs the arm nothing, and the other way round. `own_gemm_s` is
    the arm's own matmul with all data here; None where that is T_gemm.
    """
    t_gemm_s, t_comm_s, slower = (record[name] for name in ("t_gemm_s", "t_comm_s", "gemm_slowdown"))
    split, later = record["split_slowdown"], record["link_slowdown"]
    gemm_s = (own_gemm_s or t_gemm_s) * (split or 1)
    ends_s = [
        record["ideal_s"],
        plan.ideal_s(t_gemm_s, t_comm_s),
        plan.ideal_s(t_gemm_s * (split or 1), t_comm_s),
        plan.ideal_s(gemm_s, t_comm_s),
        plan.ideal_s(gemm_s * (slower or 1), t_comm_s * (later or 1)),
        record["time_s"],
    ]
    parts = dict(zip(LOST, (after - before for before, after in pairwise(ends_s)), strict=True))
    largest = LOST[max(parts, key=parts.get)]
    measured = {"lost_split_s": split, "lost_code_s": own_gemm_s, "lost_contention_s": slower or later}
    unknown = {name: None for name, there in measured.items() if not there}
    return parts | unknown | {"diagnosis": "undecided" if record["of_roof_high"] >= 1 else largest}


def _row_blocks(shape: Shape, arm: str) -> int:
    return shape.entrants[arm].get("row_blocks", shape.get("row_blocks", 1))


def _own_matmul(shape: Shape, arm: str, preset: dict, gemm: dict) -> tuple[str, dict]:
    """Return the matmul that `arm` runs: its name beside the link's traffic, and its times alone. It is the kernel with
    all flags up of an arm by its tables, `persistent` of one that is named for it, else the fastest."""
    beside, alone = "gemm beside link", gemm
    if preset and arm in ARMS and ARMS[arm].table:
        beside, alone = "preset beside link", preset
    elif arm != base_arm(arm) and "gemm persistent beside link" in shape.late:
        beside, alone = "gemm persistent beside link", shape.times_s("gemm persistent")
    return beside, alone


def _ratio(numerator: dict, denominator: dict, groups: Groups) -> float | None:
    ratio = ratio_of(numerator, denominator, groups)
    return ratio and ratio.value


def plan_of(shape: Shape, arm: str) -> OverlapPlan | None:
    """Return how `arm` was cut, by what was journalled of it; None of one that has no schedule."""
    known_as = base_arm(arm)
    if known_as not in SIMULATED:
        return None
    tiles = (shape.entrants[arm].get(name, shape.get(name, 1)) for name in ("row_tiles", "column_tiles"))
    grid = Grid(*tiles)
    together = _splitting(shape, arm).get("ranks_per_launch", 1)
    cut = shape.get("workers", 1), shape.params["ranks"], _row_blocks(shape, arm), together
    return OverlapPlan(known_as, grid, *cut)


def _splitting(shape: Shape, arm: str) -> dict:
    """Return how `arm` splits a matmul by ranks, and what that was found to cost; {} of one of which it is not
    known."""
    return shape.get("splits", {}).get(arm, {})
