"""Fields of cases that gather over a wire: how much of it an arm hid, by the rounds in which all took turns."""

from functools import lru_cache
from statistics import median

from roofline.stats import Interval, median_interval, paired_ratio
from roofline.theory import overlap
from roofline.theory.schedule import Grid

OFF_PACE = 0.05
"""A link that missed the bandwidth it was asked for by more than this voids the case: it gets no hidden fraction."""

SIMULATED = {"row_block": "row_block_launches"}
"""Arms that the simulator knows by another name."""


def is_gathered(shape: dict) -> bool:
    """Whether a shape (or a record) is of an operation that gathers over a wire."""
    return "ranks" in shape


def fields(shape: dict, arm: str) -> dict:
    """The fields of `arm` on `shape`, times in seconds; None for what was not measured.

    T_gemm is the fastest unsplit matmul of the same rounds (by its median), T_comm the link alone, and the hidden
    fraction is formed within each round.
    """
    visits = shape.get("visit", 1)
    times = shape["times_s"]
    own = times[arm]
    gemm, link = fastest_gemm(shape), times.get(_of_role(shape, "link")[0], {}) if _of_role(shape, "link") else {}
    t_gemm_s = median(gemm.values()) if gemm else None
    t_comm_s = median(link.values()) if link else None
    hidden = _hidden(own, gemm, link, visits)
    time_s = median(own.values())
    requested, reached = shape["link_bytes_per_s_requested"], t_comm_s and shape["wire_bytes"] / t_comm_s
    void = bool(requested and reached and abs(reached / requested - 1) > OFF_PACE)
    ideal_s = max(t_gemm_s, t_comm_s) if t_gemm_s and t_comm_s else None
    own_ideal_s = simulate(shape, arm, t_gemm_s, t_comm_s).end_s if ideal_s else None
    intensity = shape["flop"] / shape["wire_bytes"]
    return {
        "arm": arm,
        **{key: shape[key] for key in ("ranks", "wire", "link", "link_bytes_per_s_requested", "wire_bytes")},
        "link_bytes_per_s": reached,
        "link_off_pace": reached / requested - 1 if void else None,
        "wire_intensity": intensity,
        "balance": ideal_s and shape["flop"] / t_gemm_s / reached,
        "row_blocks": shape.get("row_blocks") if arm == "row_block" else None,
        "t_gemm_s": t_gemm_s,
        "t_comm_s": t_comm_s,
        "t_serial_s": median(times["serial"].values()) if times.get("serial") else None,
        "t_ideal_s": ideal_s,
        "t_own_ideal_s": own_ideal_s,
        "hidden_fraction": None if void else hidden.median,
        "hidden_low": None if void else hidden.low,
        "hidden_high": None if void else hidden.high,
        "of_ideal": ideal_s and ideal_s / time_s,
        "of_own_ideal": own_ideal_s and own_ideal_s / time_s,
        "gemm_slowdown": _gemm_slowdown(shape, gemm, visits),
        "link_slowdown": _ratio(_noted(shape, arm, "last_arrival_s"), link, visits),
        "roof_tflops": ideal_s and shape["flop"] / ideal_s / 1e12,
        "of_roof": ideal_s and ideal_s / time_s,
        "above_roof": bool(ideal_s and not void and hidden.low > 1),
        "bound": ideal_s and ("compute" if t_gemm_s >= t_comm_s else "wire"),
    }


def _of_role(shape: dict, role: str) -> list[str]:
    return [name for name, about in shape["contenders"].items() if about.get("role") == role and name in shape["late"]]


def fastest_gemm(shape: dict) -> dict[int, float]:
    """{round: seconds} of the unsplit matmul with the least median; {} where none was measured."""
    found = [times for name in _of_role(shape, "gemm") if (times := shape["times_s"].get(name))]
    return min(found, key=lambda times: median(times.values()), default={})


def _hidden(own: dict, gemm: dict, link: dict, visits: int) -> Interval:
    rounds = sorted(own.keys() & gemm.keys() & link.keys())
    if not rounds:
        return Interval(*[None] * 3)
    return median_interval([overlap.hidden_fraction(gemm[r], link[r], own[r]) for r in rounds], visits=visits)


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
    grid = (shape.get("row_tiles", 1), shape.get("column_tiles", 1))
    blocks = shape.get("row_blocks", 1)
    return _simulate(arm, grid, shape.get("workers", 1), shape["ranks"], blocks, t_gemm_s, t_comm_s)


@lru_cache(maxsize=1024)
def _simulate(arm: str, grid: tuple[int, int], workers: int, ranks: int, blocks: int, t_gemm_s: float, t_comm_s: float):
    if arm == "overlapped":  # matmul and gather do not wait for one another
        end_s = max(t_gemm_s, t_comm_s)
        return overlap.Simulation(end_s, (overlap.Launch(0, ranks, None, 0.0, t_gemm_s),))
    return overlap.own_ideal(SIMULATED.get(arm, arm), Grid(*grid), workers, ranks, blocks, t_gemm_s, t_comm_s)


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
