"""Fields of cases that gather over a wire: how much of it an arm hid, by the rounds in which all took turns."""

from statistics import median

from roofline.stats import Interval, median_interval, paired_ratio
from roofline.theory import overlap
from roofline.theory.schedule import Grid

OFF_PACE = 0.05
"""A link that misses the bandwidth it is asked for by more than this voids the case: it gets no share of anything."""

SIMULATED = {"row_block": "row_block_launches"}
"""Arms that the simulator knows by another name."""


def is_gathered(shape: dict) -> bool:
    """Whether a shape (or a record) is of an operation that gathers over a wire."""
    return "ranks" in shape


def fields(shape: dict, arm: str) -> dict:
    """The fields of `arm` on `shape`, times in seconds; None for what was not measured.

    T_gemm is the fastest unsplit matmul of the same rounds (by its median), T_comm the link alone. What compares an arm
    with them is formed within each round; its median over the rounds is given.
    """
    visits = shape.get("visit", 1)
    times = shape["times_s"]
    own, gemm, link = times[arm], fastest_gemm(shape), link_alone(shape)
    t_gemm_s = median(gemm.values()) if gemm else None
    t_comm_s = median(link.values()) if link else None
    both = bool(gemm and link)
    # The link's own bandwidth is by its arrivals: T_comm is the time of a call, with the start and the wait.
    arrival = next((_noted(shape, name, "last_arrival_s") for name in _of_role(shape, "link")), {})
    requested = shape["link_bytes_per_s_requested"]
    reached = shape["wire_bytes"] / median(arrival.values()) if arrival else None
    void = bool(requested and reached and abs(reached / requested - 1) > OFF_PACE)

    nothing = Interval(*[None] * 3)

    def over_rounds(value) -> Interval:
        """Of value(T_gemm, T_comm, the arm's time) in each round."""
        rounds = sorted(own.keys() & gemm.keys() & link.keys())
        found = [value(gemm[r], link[r], own[r]) for r in rounds]
        return median_interval(found, visits=visits) if found else nothing

    hidden = of_ideal = own_ideal = nothing
    if not void:
        hidden = over_rounds(overlap.hidden_fraction)
        of_ideal = over_rounds(lambda t_gemm, t_comm, time: max(t_gemm, t_comm) / time)
        own_ideal = over_rounds(lambda t_gemm, t_comm, time: simulate(shape, arm, t_gemm, t_comm).end_s / time)
    ideal_s = max(t_gemm_s, t_comm_s) if both else None
    return {
        "arm": arm,
        **{key: shape[key] for key in ("ranks", "wire", "link", "link_bytes_per_s_requested", "wire_bytes")},
        "link_bytes_per_s": reached,
        "link_off_pace": reached / requested - 1 if void else None,
        "wire_intensity": shape["flop"] / shape["wire_bytes"],
        "balance": shape["flop"] / shape["wire_bytes"] * t_comm_s / t_gemm_s if both else None,
        "row_blocks": shape["row_blocks"] if arm == "row_block" else None,
        "t_gemm_s": t_gemm_s,
        "t_comm_s": t_comm_s,
        "t_serial_s": median(times["serial"].values()) if times.get("serial") else None,
        "t_own_ideal_s": simulate(shape, arm, t_gemm_s, t_comm_s).end_s if both else None,
        "hidden_fraction": hidden.median,
        "hidden_low": hidden.low,
        "hidden_high": hidden.high,
        "of_ideal": of_ideal.median,
        "of_own_ideal": own_ideal.median,
        "gemm_slowdown": _gemm_slowdown(shape, gemm, visits),
        "link_slowdown": _ratio(_noted(shape, arm, "last_arrival_s"), arrival, visits),
        "roof_tflops": shape["flop"] / ideal_s / 1e12 if both else None,
        "of_roof": of_ideal.median,
        "above_roof": hidden.low is not None and hidden.low > 1,
        "bound": ("compute" if t_gemm_s >= t_comm_s else "wire") if both else None,
    }


def link_alone(shape: dict) -> dict[int, float]:
    """{round: seconds} of the gather with nothing beside it; {} where it was not measured."""
    return next((shape["times_s"].get(name, {}) for name in _of_role(shape, "link")), {})


def _of_role(shape: dict, role: str) -> list[str]:
    return [name for name, about in shape["contenders"].items() if about.get("role") == role and name in shape["late"]]


def fastest_gemm(shape: dict) -> dict[int, float]:
    """{round: seconds} of the unsplit matmul with the least median; {} where none was measured."""
    found = [times for name in _of_role(shape, "gemm") if (times := shape["times_s"].get(name))]
    return min(found, key=lambda times: median(times.values()), default={})


def _noted(shape: dict, name: str, field: str) -> dict[int, float]:
    return {index: notes[field] for index, notes in shape["notes"].get(name, {}).items() if field in notes}


def _gemm_slowdown(shape: dict, gemm: dict, visits: int) -> float | None:
    """The unsplit matmul beside the link's traffic over the one alone; in the weight prefetch that is its own arm."""
    beside = (_of_role(shape, "contended") or ["overlapped"])[0]
    return _ratio(_noted(shape, beside, "first_wait_s"), gemm, visits)


def _ratio(numerator: dict, denominator: dict, visits: int) -> float | None:
    ratio = paired_ratio(numerator, denominator, visits=visits)
    return ratio and ratio.median


def simulate(shape: dict, arm: str, t_gemm_s: float, t_comm_s: float) -> overlap.Simulation:
    """What `arm` could reach on `shape`: the simulator's word, from sizes and the two times alone."""
    if arm == "overlapped":  # matmul and gather do not wait for one another
        launch = overlap.Launch(0, shape["ranks"], 0, 1, 0.0, t_gemm_s)
        return overlap.Simulation(max(t_gemm_s, t_comm_s), (launch,))
    grid = Grid(shape.get("row_tiles", 1), shape.get("column_tiles", 1))
    arm, workers, blocks = SIMULATED.get(arm, arm), shape.get("workers", 1), shape.get("row_blocks", 1)
    return overlap.own_ideal(arm, grid, workers, shape["ranks"], blocks, t_gemm_s, t_comm_s)


def summary(records: list[dict]) -> list[str]:
    """A line per operation and arm: the median of what it hid."""
    lines = []
    gathered = [r for r in records if is_gathered(r) and r["arm"] != "serial" and r["hidden_fraction"] is not None]
    for op, arm in dict.fromkeys((r["op"], r["arm"]) for r in gathered):
        own = [r for r in gathered if (r["op"], r["arm"]) == (op, arm)]
        lines.append(
            f"{op}, {arm}: hides {median(r['hidden_fraction'] for r in own):.2f} of the shorter of matmul and gather, "
            f"reaches {median(r['of_own_ideal'] for r in own):.2f} of its own ideal (medians over {len(own)} cases)"
        )
    return lines
