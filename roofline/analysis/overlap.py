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
    """Return the record of `arm` on `shape`: the fields of any case, and those of a wire, None where not measured. The
    baseline is the arm `serial`, the roof that of matmul and wire.

    T_gemm is the fastest unsplit matmul of the same rounds, T_comm the link alone. All times are told beside the
    baseline's, by their ratios within rounds, so that what is formed of them agrees with them.

    At equal clock, T_gemm is what it would be at the clock f_arm of the arm, T_gemm f_gemm / f_arm, in both places of
    (T_gemm + T_comm - T) / min(T_gemm, T_comm). In the upper one that is the same as to take the arm's T to be
    T + T_gemm (1 - f_gemm / f_arm): a clock scales what the chip computes, which is T_gemm, and neither the link, which
    a timer paces, nor the waiting for it. So T = T_comm hides all of a shorter matmul at any clock, T = the scaled
    T_gemm all of a shorter gather, and their sum nothing.
    """
    groups, about, work = shape.groups, shape.entrants[arm], shape.work

    def typical(series: dict[int, float]) -> float | None:
        """Return its typical value, over passes and processes."""
        return time_of(series, groups, shape.anchor).value if series else None

    gemm_name, link_name = _unsplit(shape)
    preset_name = next(iter(shape.of_role("preset")), None)
    times_s, gemm, link, preset = (shape.times_s(name) for name in (arm, gemm_name, link_name, preset_name))
    t_gemm_s, t_comm_s = typical(gemm), typical(link)
    both, fabric = bool(gemm and link), about.get("link")
    plan = None if fabric else plan_of(shape, arm)  # None of one whose T_gemm or T_comm is not that of the shape
    # The link's own bandwidth is by its arrivals: T_comm is the time of a call, with the start and the wait.
    arrival, requested = shape.values(link_name, "last_arrival_s"), shape.requested_bytes_per_s
    reached = work.wire_bytes / typical(arrival) if arrival else None
    asked = shape.requested_by_round
    if paces := {r: work.wire_bytes / at / asked[r] for r, at in arrival.items() if r in asked}:
        reached = requested * time_of(paces, groups).value  # judged within rounds
    void = bool(requested and reached and abs(reached / requested - 1) > OFF_PACE)
    clock, gemm_clock = (shape.values(name, "sm_clock_hz") for name in (arm, gemm_name))
    scaled = {r: gemm[r] * gemm_clock[r] / clock[r] for r in gemm.keys() & clock.keys() & gemm_clock.keys()}

    def of_times(value, gemm=gemm, log=True) -> Interval | None:
        """Of value(T_gemm, T_comm, the arm's time); None where they are not to be compared."""
        if not plan or void:
            return None
        return estimate(value, gemm, link, times_s, groups=groups, anchor=shape.anchor, log=log)

    beside, alone = _own_matmul(shape, arm, preset, gemm)
    hidden = of_times(hidden_fraction, log=False)
    of_roof = of_times(lambda t_gemm, t_comm, time: max(t_gemm, t_comm) / time)
    splitting = _splitting(shape, arm)
    together = splitting.get("ranks_per_launch")
    split = splitting.get("slowdowns", {}).get(str(together))  # of T_gemm, what so many launches take
    of_own_ideal = of_times(lambda t_gemm, t_comm, time: plan.ideal_s(t_gemm * (split or 1), t_comm) / time)
    fields = {
        **{key: shape.get(key) for key in ("ranks", "wire", "link", "gather")},
        "copier_programs": about.get("copier_programs", shape.get("copier_programs")),
        REQUESTED: requested,
        "wire_bytes": work.wire_bytes,
        "link_bytes_per_s": reached,
        "link_off_pace": reached / requested - 1 if void else None,
        "own_fabric": bool(fabric),
        "wire_intensity": work.wire_intensity,
        "balance": work.wire_intensity * t_comm_s / t_gemm_s if both else None,
        "ratio": t_gemm_s / t_comm_s if both else None,
        "row_blocks": _row_blocks(shape, arm) if (spec := ARMS.get(base_arm(arm))) and spec.by_block else None,
        "ranks_per_launch": together,
        "split_slowdown": split,
        "spilled_bytes": about.get("spilled_bytes", 0),
        "rank_spread": _rank_spread(shape, arm),
        "gemm_rank_spread": _rank_spread(shape, gemm_name),
        "t_gemm_s": t_gemm_s,
        "t_comm_s": t_comm_s,
        "ideal_s": max(t_gemm_s, t_comm_s) if both else None,
        "t_own_ideal_s": plan.end_s(t_gemm_s * (split or 1), t_comm_s) if both and plan else None,
        **with_ends("hidden_fraction", hidden),
        "hidden_expected": hidden_expected(run, shape, arm, plan) if hidden else None,
        **with_ends("gain_all_cores", times_s and ratio_of(shape.times_s(ALL_CORES), times_s, groups, shape.anchor)),
        **with_ends("hidden_clock_normalised", of_times(hidden_fraction, scaled, log=False)),
        "sm_clock_hz": typical(clock),
        "gemm_sm_clock_hz": typical(gemm_clock),
        "of_own_ideal": of_own_ideal and of_own_ideal.value,
        "preset_slowdown": _ratio(preset, gemm, groups),
        "gemm_slowdown": _ratio(shape.values(beside, "first_wait_s"), alone, groups),
        # The last part of a scatter is late for being computed late, too.
        "link_slowdown": None
        if shape.op in SCATTERED + BOTH
        else _ratio(shape.values(arm, "last_arrival_s"), arrival, groups),
        "roof_tflops": work.flop / max(t_gemm_s, t_comm_s) / 1e12 if both else None,
        **with_ends("of_roof", of_roof),
        "above_roof": hidden is not None and hidden.low > 1,
        "bound": ("compute" if t_gemm_s >= t_comm_s else "wire") if both else None,
    }
    if fabric:
        fields |= dict.fromkeys(OF_THE_LINK) | {"link": fabric}
    fields = throughput.record(run, shape, arm) | fields
    off, gather = fields["link_off_pace"], fields["gather"]
    more = [f"void: link off its pace by {100 * off:+.0f} %"] if off else []
    more += [f"serial by {HOW[gather]}"] if gather in HOW and gather != fields["link"] else []
    notes = throughput.notes(fields, "its ideal", "; ".join(more))
    own_gemm_s = None if alone is gemm else typical(alone)
    lost = _lost(fields, plan, own_gemm_s) if of_roof else dict.fromkeys((*LOST, "diagnosis"))
    return fields | lost | {"notes": notes}


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
    is_paced, copier_sms = shape.get("link") == PACED, 0
    is_ours = ARMS[plan.arm].table or arm != plan.arm or shape.get("unsplit") == "persistent"
    if is_paced and (arm == "chunk_launches" or not is_ours):  # a vendor's matmul, which leaves the copier no room
        copier_sms = shape.entrants[arm].get("copier_programs", shape.get("copier_programs", 0))
        beside = beside._replace(link=1.0)
    asked = shape.get(REQUESTED)
    planned_comm_s = shape.work.wire_bytes / asked if asked else shape.get("t_comm_planned_s", t_comm_s)
    copies = [ceiling["value"] for ceiling in run.ceilings if ceiling["ceiling"] == "copy"]
    measured = Measured(
        own_s=_alone_s(shape, _own_matmul(shape, arm, preset, gemm)[1]),
        link_s=link_s,
        slowdowns=beside,
        planned_s=(shape.get("t_gemm_planned_s", t_gemm_s), planned_comm_s),
        copier_sms=copier_sms,
        piece_s=PIECE_S if is_paced else 0.0,
        sums_s=4 * shape.get("m") * shape.get("n") / max(copies) if copies else None,
    )
    end_s = EXPECTED[plan.arm](plan, measured)
    return end_s and hidden_fraction(t_gemm_s, t_comm_s, start_s + end_s)


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
