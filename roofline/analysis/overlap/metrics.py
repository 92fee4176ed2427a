"""How much of a gather an arm hid, by the rounds in which all took turns, and the columns that show it."""

from dataclasses import replace
from itertools import pairwise
from statistics import median

from roofline.analysis.base import Column
from roofline.analysis.throughput import metrics as throughput
from roofline.operations.gathering import OFF_PACE
from roofline.report.format import bytes_text, interval_text, number_text, percent_text, time_text
from roofline.stats import Groups, Interval, estimate, ratio_of, time_of
from roofline.store.run import REQUESTED, Run, Shape
from roofline.theory.arms import ALL_CORES, ARMS, BOTH, SCATTERED, SIMULATED, OverlapPlan, base_arm
from roofline.theory.schedule import Grid
from roofline.theory.simulator import hidden_fraction
from roofline.theory.wires import HOW

OF_THE_LINK = (
    *("copier_programs", "link_bytes_per_s_requested", "link_bytes_per_s", "link_off_pace"),
    *("preset_slowdown", "gemm_slowdown", "link_slowdown", "roof_tflops", "bound"),
)
"""Fields that an arm over a fabric of its own has not: they are of the shape's link."""

HIDDEN = "hidden_fraction", "hidden_low", "hidden_high"
CLOCK_NORMALISED = tuple(f"hidden_clock_normalised{end}" for end in ("", "_low", "_high"))


GAIN = tuple(f"gain_all_cores{end}" for end in throughput.ENDS)

LOST = {
    "lost_schedule_s": "schedule", "lost_code_s": "waiting code", "lost_contention_s": "contention",
    "lost_rest_s": "the rest",
}  # fmt: skip
"""The parts of an arm's time above max(T_gemm, T_comm), in words."""


def link_text(record: dict) -> str:
    """Its kind and the bandwidth that it reached: `paced 0.4 GB/s`. What gathers for `serial`, where that is faster."""
    reached, gather = record["link_bytes_per_s"], record.get("gather")
    serial = f"; serial by {HOW[gather]}" if gather not in (None, record["link"]) and gather in HOW else ""
    speed = f" {reached / 1e9:.3g} GB/s" if reached else ""
    return HOW.get(record["link"], record["link"]) + speed + serial


def hidden_text(record: dict, names: tuple[str, str, str] = HIDDEN) -> str:
    """The hidden fraction with its interval."""
    return interval_text(*(record[name] for name in names), 2)


def notes_text(record: dict) -> str:
    """What a reader must know before trusting the row."""
    off = record["link_off_pace"]
    return throughput.notes_text(record, "its ideal", f"void: link off its pace by {100 * off:+.0f} %" if off else "")


THRESHOLD = Column("times_threshold", "`wire_intensity` over `balance`, which is T_gemm / T_comm: above 1 the matmul "
                   "sets the pace, below it the wire", "1", "x threshold", number_text)  # fmt: skip
OWN = (
    Column("t_gemm_s", "T_gemm: that of the fastest unsplit matmul of the same rounds", "s", "T_gemm", time_text),
    Column("t_comm_s", "T_comm: that of the link alone", "s", "T_comm", time_text),
    Column("hidden_fraction", "(T_gemm + T_comm - T) / min(T_gemm, T_comm), of times paired in rounds: 1 is perfect",
           "1", "hidden [95 %]", of_row=hidden_text),
    Column("hidden_clock_normalised", "the hidden fraction, with T_gemm taken in each round as it would be at the "
           "arm's clock: arms that wait run cooler and clock higher. What an arm waits for is paced by a timer and "
           "stays", "1", "hidden at equal clock", of_row=lambda r: hidden_text(r, CLOCK_NORMALISED),
           shown=lambda r: r["hidden_clock_normalised"] is not None),
    replace(throughput.RATIO, doc="", header="gain [95 %]"),
    Column("gain_all_cores", "the time of `serial_all_cores`, which overlaps nothing and has the link's core for its "
           "matmul, over this one's; null on a GPU", "1", "over all cores [95 %]",
           of_row=lambda r: interval_text(*(r[name] for name in GAIN)), shown=lambda r: r["gain_all_cores"]),
    Column("of_ideal", "max(T_gemm, T_comm) / T", "1", "of ideal", percent_text),
    Column("of_own_ideal", "own ideal / T", "1", "of own ideal", percent_text),
    throughput.TFLOPS,
    Column("wire_intensity", "FLOP per byte that one rank receives", "FLOP/byte", "FLOP/wire byte", "{:.4g}".format),
    THRESHOLD,
    Column("spilled_bytes", "of accumulators, written to device memory and read back", "bytes", "spilled",
           lambda count: bytes_text(count) if count else "-", shown=lambda r: r["spilled_bytes"]),
    Column(  # ours all sum in fp32 and round once, so that theirs says nothing by itself
        "relative_error", header="error", text=lambda error: number_text(error, 2), shown=lambda r: r["own_fabric"]
    ),
    Column("link", "what carries the chunks. A `paced` one is an emulation, whatever its bandwidth; an arm over a "
           "fabric of its own names that", header="link", of_row=link_text),
    replace(throughput.BOUND, doc="`compute` or `wire`: the longer of T_gemm and T_comm, which bounds the model. What "
            "an arm loses, and to what, is in `diagnosis`", header="model's bound"),
    Column("rank_spread", "of real ranks: by how much of the slowest one's time the fastest was done earlier, median "
           "over rounds, which all begin behind a barrier", "1", "spread over ranks", percent_text,
           shown=lambda r: r["rank_spread"] is not None),
    Column("gemm_rank_spread", "the same of T_gemm: skew that is not the wire's", "1", "T_gemm's spread", percent_text,
           shown=lambda r: r["gemm_rank_spread"] is not None),
    Column(header="notes", of_row=notes_text, right=False, shown=notes_text),
    Column("arm", "as the contender. `_persistent` at the end: by our persistent matmul"),
    Column("ranks", "P ranks that share the wire", "1"),
    Column("row_blocks", "into how many `row_block` and `row_block_launches` cut the rows", "1"),
    Column("copier_programs", "of the paced link on a GPU (`--ffn-copier-programs`); null elsewhere", "1"),
    Column("wire", "the word of the case id"),
    Column("gather", "what gathers for `serial`: the link, or between GPUs NCCL's all-gather where that is faster"),
    Column(REQUESTED, "bandwidth that the link was asked for; of the wire `ridge`, which keeps step with T_gemm from "
           "round to round, that of a typical one", "bytes/s"),
    Column("link_bytes_per_s", "what it reached alone", "bytes/s"),
    Column("own_fabric", "true of an arm that ran over a fabric of its own: it has a time, and no field that compares "
           "it with the shape's link"),
    Column("link_off_pace", "null, or by how much of the request the link missed it: more than 5 % voids the case, "
           "which gets no hidden fraction and no share of an ideal", "1"),
    Column("wire_bytes", "bytes that one rank receives", "bytes"),
    Column("balance", "FLOP per byte at which this case's unsplit matmul and this link take equally long", "FLOP/byte"),
    Column("t_serial_s", "that of the arm `serial`", "s"),
    Column("t_own_ideal_s", "own ideal: what the simulator (`roofline/theory/simulator.py`) says the arm "
           "could reach, from sizes and the two times alone", "s"),
    Column("hidden_low", "95 % interval of `hidden_fraction`", "1"),
    Column("hidden_high", "its other end", "1"),
    Column("sm_clock_hz", "the SM clock after this arm's samples; null on a CPU", "Hz"),
    Column("gemm_sm_clock_hz", "the same after those of T_gemm", "Hz"),
    Column("hidden_clock_normalised_low", "its 95 % interval", "1"),
    Column("hidden_clock_normalised_high", "its other end", "1"),
    Column("t_preset_s", "the kernel of the flagged arms with all flags up: its time", "s"),
    Column("preset_slowdown", "that over the fastest unsplit matmul: above 1 is what waiting code costs", "1"),
    Column("gemm_slowdown", "the matmul that the arm runs, while the link brings something else, over the same one "
           "alone: the kernel with all flags up of `chunk_outer` and `row_block`, `persistent` of arms named for it, "
           "else the fastest unsplit one", "1"),
    Column("link_slowdown", "the last arrival in this arm over the link alone; null of a scatter", "1"),
    Column("roof_tflops", "`flop` over the longer of T_gemm and T_comm", "1e12 FLOP/s"),
    Column("of_roof", "as `of_ideal`", "1"),
    Column("above_roof", "true where the whole interval of the hidden fraction lies above 1"),
    Column("gain_all_cores_low", "95 % interval of `gain_all_cores`", "1"),
    Column("gain_all_cores_high", "its other end", "1"),
    Column("lost_schedule_s", "own ideal less max(T_gemm, T_comm). The four parts add up to the arm's time less that",
           "s"),
    Column("lost_code_s", "what the own ideal grows by when the arm's own matmul, all data here, takes the place of "
           "T_gemm: the kernel with all flags up of an arm that waits on the device, `persistent` of one named for it; "
           "null of others, whose own is T_gemm", "s"),
    Column("lost_contention_s", "what it grows by further when the matmul takes `gemm_slowdown` of its time, and the "
           "gather `link_slowdown` of T_comm; null where neither was measured", "s"),
    Column("lost_rest_s", "the arm's time less all of that: launches, sums in memory, whatever was not measured", "s"),
    Column("diagnosis", "the largest part, in words; `undecided` where the interval of `of_ideal` reaches 1"),
)  # fmt: skip


def _part(name: str) -> Column:
    """The time that an arm loses to one thing, as a share of its time."""
    there = lambda r: r[name] is not None  # noqa: E731
    return Column(name, header=LOST[name], of_row=lambda r: _share(r[name], r) if there(r) else "-", shown=there)


def _share(lost_s: float, record: dict) -> str:
    return f"{100 * lost_s / record['time_s']:+.1f} %"


SPLIT = (
    *throughput.CASE,
    replace(THRESHOLD, doc=""),
    throughput.TIME,
    Column(header="ideal", of_row=lambda r: time_text(_ideal_s(r))),
    Column(header="above it", of_row=lambda r: _share(r["time_s"] - _ideal_s(r), r)),
    *map(_part, LOST),
    Column("diagnosis", header="diagnosis", right=False),
)
"""Where an arm's time goes."""

_SHOWN = (*throughput.CASE, throughput.TIME, *OWN)
COLUMNS = (*_SHOWN, *throughput.others(_SHOWN))


def is_gathered(record: dict) -> bool:
    """Whether a record is of an operation that gathers over a wire."""
    return "arm" in record


def metrics(run: Run, shape: Shape, arm: str) -> dict:
    """The record of `arm` on `shape`: the fields of any case, and those of `OWN`, None where not measured. The baseline
    is the arm `serial`, the roof that of matmul and wire.

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
        """Its typical value, over passes and processes."""
        return time_of(series, groups, shape.anchor).value if series else None

    gemm_name, link_name = _unsplit(shape)
    preset_name = next(iter(shape.of_role("preset")), None)
    own, gemm, link, preset = (shape.times_s(name) for name in (arm, gemm_name, link_name, preset_name))
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
        return estimate(value, gemm, link, own, groups=groups, anchor=shape.anchor, log=log)

    beside, alone = _own_matmul(shape, arm, preset, gemm)
    hidden = of_times(hidden_fraction, log=False)
    of_ideal = of_times(lambda t_gemm, t_comm, time: max(t_gemm, t_comm) / time)
    of_own_ideal = of_times(lambda t_gemm, t_comm, time: plan.ideal_s(t_gemm, t_comm) / time)
    found = {
        "arm": arm,
        **{key: shape.get(key) for key in ("ranks", "wire", "link", "gather", "copier_programs")},
        REQUESTED: requested,
        "wire_bytes": work.wire_bytes,
        "link_bytes_per_s": reached,
        "link_off_pace": reached / requested - 1 if void else None,
        "own_fabric": bool(fabric),
        "wire_intensity": work.wire_intensity,
        "balance": work.wire_intensity * t_comm_s / t_gemm_s if both else None,
        "times_threshold": t_gemm_s / t_comm_s if both else None,
        "row_blocks": _row_blocks(shape, arm) if (spec := ARMS.get(base_arm(arm))) and spec.by_block else None,
        "spilled_bytes": about.get("spilled_bytes", 0),
        "rank_spread": _rank_spread(shape, arm),
        "gemm_rank_spread": _rank_spread(shape, gemm_name),
        "t_gemm_s": t_gemm_s,
        "t_comm_s": t_comm_s,
        "t_serial_s": typical(shape.times_s("serial")),
        "t_preset_s": typical(preset),
        "t_own_ideal_s": plan.simulate(t_gemm_s, t_comm_s).end_s if both and plan else None,
        **throughput.with_ends(hidden, *HIDDEN),
        **throughput.with_ends(ratio_of(shape.times_s(ALL_CORES), own, groups, shape.anchor) if own else None, *GAIN),
        **throughput.with_ends(of_times(hidden_fraction, scaled, log=False), *CLOCK_NORMALISED),
        "sm_clock_hz": typical(clock),
        "gemm_sm_clock_hz": typical(gemm_clock),
        "of_ideal": of_ideal and of_ideal.value,
        "of_own_ideal": of_own_ideal and of_own_ideal.value,
        "preset_slowdown": _ratio(preset, gemm, groups),
        "gemm_slowdown": _ratio(shape.values(beside, "first_wait_s"), alone, groups),
        # The last part of a scatter is late for being computed late, too.
        "link_slowdown": None
        if shape.op in SCATTERED + BOTH
        else _ratio(shape.values(arm, "last_arrival_s"), arrival, groups),
        "roof_tflops": work.flop / max(t_gemm_s, t_comm_s) / 1e12 if both else None,
        **throughput.with_ends(of_ideal, "of_roof", "of_roof_low", "of_roof_high"),
        "above_roof": hidden is not None and hidden.low > 1,
        "bound": ("compute" if t_gemm_s >= t_comm_s else "wire") if both else None,
    }
    if fabric:
        found |= dict.fromkeys(OF_THE_LINK) | {"link": fabric}
    found = throughput.metrics(run, shape, arm) | found
    own_gemm_s = None if alone is gemm else typical(alone)
    return found | (_lost(found, plan, own_gemm_s) if of_ideal else dict.fromkeys((*LOST, "diagnosis")))


def _unsplit(shape: Shape) -> tuple[str | None, str | None]:
    """The names of the fastest unsplit matmul of `shape` and of its link alone."""
    times = {name: times_s for name in shape.of_role("gemm") if (times_s := shape.times_s(name))}
    typical_s = {name: time_of(times_s, shape.groups, shape.anchor).value for name, times_s in times.items()}
    return min(typical_s, key=typical_s.get, default=None), next(iter(shape.of_role("link")), None)


def unsplit_times_s(shape: Shape) -> tuple[dict[int, float], dict[int, float]]:
    """{round: seconds} of T_gemm and of T_comm."""
    return tuple(map(shape.times_s, _unsplit(shape)))


def _rank_spread(shape: Shape, entrant: str | None) -> float | None:
    ranks = range(shape.params["ranks"])
    each = zip(*(shape.values(entrant, f"rank{rank}_s").values() for rank in ranks), strict=True)
    return median([1 - min(times) / max(times) for times in each] or [None])


def _ideal_s(record: dict) -> float:
    return max(record["t_gemm_s"], record["t_comm_s"])


def _lost(record: dict, plan: OverlapPlan, own_gemm_s: float | None) -> dict:
    """What the arm takes above max(T_gemm, T_comm), in parts that add up to it, and the largest of them in words.

    Each part is a counterfactual: by how much the own ideal grows when one more time is as the same rounds measured it.
    So what costs a matmul that hides behind the wire costs the arm nothing, and the other way round. `own_gemm_s` is
    the arm's own matmul with all data here; None where that is T_gemm.
    """
    t_gemm_s, t_comm_s, slower = (record[name] for name in ("t_gemm_s", "t_comm_s", "gemm_slowdown"))
    gemm_s, later = own_gemm_s or t_gemm_s, record["link_slowdown"]
    ends_s = [
        _ideal_s(record),
        plan.ideal_s(t_gemm_s, t_comm_s),
        plan.ideal_s(gemm_s, t_comm_s),
        plan.ideal_s(gemm_s * (slower or 1), t_comm_s * (later or 1)),
        record["time_s"],
    ]
    parts = dict(zip(LOST, (after - before for before, after in pairwise(ends_s)), strict=True))
    largest = LOST[max(parts, key=parts.get)]
    measured = {"lost_code_s": own_gemm_s, "lost_contention_s": slower or later}
    unknown = {name: None for name, there in measured.items() if not there}
    return parts | unknown | {"diagnosis": "undecided" if record["of_roof_high"] >= 1 else largest}


def _row_blocks(shape: Shape, arm: str) -> int:
    return shape.entrants[arm].get("row_blocks", shape.get("row_blocks", 1))


def _own_matmul(shape: Shape, arm: str, preset: dict, gemm: dict) -> tuple[str, dict]:
    """The matmul that `arm` runs: its name beside the link's traffic, and its times alone. It is the kernel with all
    flags up of an arm by its tables, `persistent` of one that is named for it, else the fastest."""
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
    """How `arm` was cut, by what was journalled of it; None of one that has no schedule."""
    known_as = base_arm(arm)
    if known_as not in SIMULATED:
        return None
    grid = Grid(shape.get("row_tiles", 1), shape.get("column_tiles", 1))
    return OverlapPlan(known_as, grid, shape.get("workers", 1), shape.params["ranks"], _row_blocks(shape, arm))
