"""Fields of cases that gather over a wire: how much of it an arm hid, by the rounds in which all took turns."""

import math
from functools import lru_cache
from statistics import median

from roofline.analysis.overlap import simulator
from roofline.stats import Interval, median_interval, paired_ratio
from roofline.store.run import Shape
from roofline.theory.schedule import Grid

OFF_PACE = 0.05
"""A link that misses the bandwidth it is asked for by more than this voids the case: it gets no share of anything."""

BY_BLOCK = ("row_block", "row_block_launches")
"""Arms that cut the rows in blocks."""

TABLES = ("tile_outer", "chunk_outer", "row_block")
"""Arms of the flagged kernel, which the simulator runs tile by tile."""

STEP = 1.01

OF_THE_LINK = (
    *("copier_programs", "link_bytes_per_s_requested", "link_bytes_per_s", "link_off_pace"),
    *("preset_slowdown", "gemm_slowdown", "link_slowdown", "roof_tflops", "bound"),
)
"""Fields that an arm over a fabric of its own has not: they are of the shape's link."""


def is_gathered(record: dict) -> bool:
    """Whether a record is of an operation that gathers over a wire."""
    return "ranks" in record


def fields(shape: Shape, arm: str) -> dict:
    """The fields of `arm` on `shape`, times in seconds; None for what was not measured.

    T_gemm is the fastest unsplit matmul of the same rounds (by its median), T_comm the link alone. What compares an arm
    with them is formed within each round; its median over the rounds is given.

    At equal clock, T_gemm is what it would be at the clock f_arm of the arm, T_gemm f_gemm / f_arm, in both places of
    (T_gemm + T_comm - T) / min(T_gemm, T_comm). In the upper one that is the same as to take the arm's T to be
    T + T_gemm (1 - f_gemm / f_arm): a clock scales what the chip computes, which is T_gemm, and neither the link, which
    a timer paces, nor the waiting for it. So T = T_comm hides all of a shorter matmul at any clock, T = the scaled
    T_gemm all of a shorter gather, and their sum nothing.
    """
    visits, about, work = shape.passes, shape.entrants[arm], shape.work
    gemm_name = _fastest_gemm(shape)
    own, gemm, link = shape.times_s(arm), shape.times_s(gemm_name), link_alone(shape)
    t_gemm_s = median(gemm.values()) if gemm else None
    t_comm_s = median(link.values()) if link else None
    both, fabric = bool(gemm and link), about.get("link")
    # The link's own bandwidth is by its arrivals: T_comm is the time of a call, with the start and the wait.
    arrival = next((shape.values(name, "last_arrival_s") for name in shape.of_role("link")), {})
    requested = shape.facts["link_bytes_per_s_requested"]
    reached = work.wire_bytes / median(arrival.values()) if arrival else None
    void = bool(requested and reached and abs(reached / requested - 1) > OFF_PACE)
    clock, gemm_clock = (shape.values(name, "sm_clock_hz") for name in (arm, gemm_name))
    preset = next((shape.times_s(name) for name in shape.of_role("preset")), {})

    nothing = Interval(*[None] * 3)

    def over_rounds(value, gemm=gemm) -> Interval:
        """Of value(T_gemm, T_comm, the arm's time) in each round."""
        rounds = sorted(own.keys() & gemm.keys() & link.keys())
        found = [value(gemm[r], link[r], own[r]) for r in rounds]
        return median_interval(found, visits=visits) if found else nothing

    hidden = normalised = of_ideal = own_ideal = nothing
    if not void and not fabric:
        hidden = over_rounds(simulator.hidden_fraction)
        of_ideal = over_rounds(lambda t_gemm, t_comm, time: max(t_gemm, t_comm) / time)
        own_ideal = over_rounds(lambda t_gemm, t_comm, time: own_ideal_s(shape, arm, t_gemm, t_comm) / time)
        scaled = {r: gemm[r] * gemm_clock[r] / clock[r] for r in gemm.keys() & clock.keys() & gemm_clock.keys()}
        normalised = over_rounds(simulator.hidden_fraction, gemm=scaled)
    serial = shape.times_s("serial")
    ideal_s = max(t_gemm_s, t_comm_s) if both else None
    found = {
        "arm": arm,
        **{key: shape.get(key) for key in ("ranks", "wire", "link", "link_bytes_per_s_requested", "copier_programs")},
        "wire_bytes": work.wire_bytes,
        "link_bytes_per_s": reached,
        "link_off_pace": reached / requested - 1 if void else None,
        "own_fabric": bool(fabric),
        "wire_intensity": work.wire_intensity,
        "balance": work.wire_intensity * t_comm_s / t_gemm_s if both else None,
        "row_blocks": _row_blocks(shape, arm) if simulator.base_arm(arm) in BY_BLOCK else None,
        "spilled_bytes": about.get("spilled_bytes", 0),
        "t_gemm_s": t_gemm_s,
        "t_comm_s": t_comm_s,
        "t_serial_s": median(serial.values()) if serial else None,
        "t_preset_s": median(preset.values()) if preset else None,
        "t_own_ideal_s": simulate(shape, arm, t_gemm_s, t_comm_s).end_s if both and not fabric else None,
        "hidden_fraction": hidden.median,
        "hidden_low": hidden.low,
        "hidden_high": hidden.high,
        "hidden_clock_normalised": normalised.median,
        "hidden_clock_normalised_low": normalised.low,
        "hidden_clock_normalised_high": normalised.high,
        "sm_clock_hz": median(clock.values()) if clock else None,
        "gemm_sm_clock_hz": median(gemm_clock.values()) if gemm_clock else None,
        "of_ideal": of_ideal.median,
        "of_own_ideal": own_ideal.median,
        "preset_slowdown": _ratio(preset, gemm, visits),
        "gemm_slowdown": _gemm_slowdown(shape, arm, preset, gemm, visits),
        "link_slowdown": _ratio(shape.values(arm, "last_arrival_s"), arrival, visits),
        "roof_tflops": work.flop / ideal_s / 1e12 if both else None,
        "of_roof": of_ideal.median,
        "above_roof": hidden.low is not None and hidden.low > 1,
        "bound": ("compute" if t_gemm_s >= t_comm_s else "wire") if both else None,
    }
    return found | dict.fromkeys(OF_THE_LINK) | {"link": fabric} if fabric else found


def link_alone(shape: Shape) -> dict[int, float]:
    """{round: seconds} of the gather with nothing beside it; {} where it was not measured."""
    return next((shape.times_s(name) for name in shape.of_role("link")), {})


def fastest_gemm(shape: Shape) -> dict[int, float]:
    """{round: seconds} of the unsplit matmul with the least median; {} where none was measured."""
    return shape.times_s(_fastest_gemm(shape))


def _fastest_gemm(shape: Shape) -> str | None:
    found = [name for name in shape.of_role("gemm") if shape.times_s(name)]
    return min(found, key=lambda name: median(shape.times_s(name).values()), default=None)


def _row_blocks(shape: Shape, arm: str) -> int:
    return shape.entrants[arm].get("row_blocks", shape.get("row_blocks", 1))


def _gemm_slowdown(shape: Shape, arm: str, preset: dict, gemm: dict, visits: int) -> float | None:
    """The matmul that `arm` runs, beside the link's traffic over alone: the kernel with all flags up of an arm by its
    tables, `persistent` of one that is named for it, else the fastest. Where a weight prefetch has none beside other
    traffic (older journals), its own arm stands for it."""
    beside, alone = "gemm beside link" if "gemm beside link" in shape.late else "overlapped", gemm
    if preset and arm in TABLES:
        beside, alone = "preset beside link", preset
    elif arm != simulator.base_arm(arm) and "gemm persistent beside link" in shape.late:
        beside, alone = "gemm persistent beside link", shape.times_s("gemm persistent")
    return _ratio(shape.values(beside, "first_wait_s"), alone, visits)


def _ratio(numerator: dict, denominator: dict, visits: int) -> float | None:
    ratio = paired_ratio(numerator, denominator, visits=visits)
    return ratio and ratio.median


def simulate(shape: Shape, arm: str, t_gemm_s: float, t_comm_s: float) -> simulator.Simulation:
    """What `arm` could reach on `shape`: the simulator's word, from sizes and the two times alone."""
    if simulator.base_arm(arm) == "overlapped":  # matmul and gather do not wait for one another
        launch = simulator.Launch(0, shape.params["ranks"], 0, 1, 0.0, t_gemm_s)
        return simulator.Simulation(max(t_gemm_s, t_comm_s), (launch,))
    return simulator.own_ideal(*_simulated(shape, arm), t_gemm_s, t_comm_s)


def _simulated(shape: Shape, arm: str) -> tuple:
    """The arm as the simulator knows it, the grid, workers, ranks and row blocks."""
    known_as = shape.entrants[arm].get("simulated_as", simulator.base_arm(arm))
    grid = Grid(shape.get("row_tiles", 1), shape.get("column_tiles", 1))
    return known_as, grid, shape.get("workers", 1), shape.params["ranks"], _row_blocks(shape, arm)


def own_ideal_s(shape: Shape, arm: str, t_gemm_s: float, t_comm_s: float) -> float:
    """When `simulate` ends. Of the kernel's tables, hundreds of tiles each, it is interpolated between T_comm / T_gemm
    in steps of 1 %, so that it can be asked of every round."""
    case = _simulated(shape, arm)
    if case[0] not in TABLES:
        return simulate(shape, arm, t_gemm_s, t_comm_s).end_s
    at = math.log(t_comm_s / t_gemm_s) / math.log(STEP)
    low, part = math.floor(at), (STEP ** (at % 1) - 1) / (STEP - 1)
    return t_gemm_s * ((1 - part) * _unit_ideal(case, low) + part * _unit_ideal(case, low + 1))


@lru_cache(maxsize=4096)
def _unit_ideal(case: tuple, step: int) -> float:
    return simulator.own_ideal(*case, 1.0, STEP**step).end_s


def summary(records: list[dict]) -> list[str]:
    """A line per operation and arm: the median of what it hid; then, per operation, what waiting and traffic cost."""
    lines = []
    overlapping = [r for r in records if is_gathered(r) and simulator.base_arm(r["arm"]) != "serial"]
    gathered = [r for r in overlapping if r["hidden_fraction"] is not None]
    for op, arm in dict.fromkeys((r["op"], r["arm"]) for r in gathered):
        own = [r for r in gathered if (r["op"], r["arm"]) == (op, arm)]
        lines.append(
            f"{op}, {arm}: hides {median(r['hidden_fraction'] for r in own):.2f} of the shorter of matmul and gather, "
            f"reaches {median(r['of_own_ideal'] for r in own):.2f} of its own ideal (medians over {len(own)} cases)"
        )
    return [*lines, *(_costs(op, gathered) for op in dict.fromkeys(r["op"] for r in gathered if r["preset_slowdown"]))]


def _costs(op: str, records: list[dict]) -> str:
    """What waiting costs the kernel, and what it and the link take from one another, where the kernel was preset."""
    own = [r for r in records if r["op"] == op and r["preset_slowdown"]]
    own.sort(key=lambda r: r["arm"] in TABLES)  # theirs is what traffic does to the kernel
    shapes = {r["case"].removesuffix("-" + r["arm"]): r for r in own}.values()
    preset = median(r["preset_slowdown"] for r in shapes)
    text = f"{op}: with all flags up the kernel takes {preset:.2f} of the time of the fastest unsplit matmul"
    if beside := [r["gemm_slowdown"] for r in shapes if r["gemm_slowdown"]]:
        text += f", beside other traffic {median(beside):.2f} of that"
    arms = {arm: [r["link_slowdown"] for r in own if r["arm"] == arm] for arm in dict.fromkeys(r["arm"] for r in own)}
    under = [f"{median(found):.2f} ({arm})" for arm, every in arms.items() if (found := list(filter(None, every)))]
    if under:
        text += f"; the link takes {', '.join(under)} of its time alone"
    return f"{text} (medians over {len(shapes)} shapes)"
