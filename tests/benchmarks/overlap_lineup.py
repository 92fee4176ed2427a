"""Line-ups of the cases that gather over a wire: arms that were checked, and what to compare them with.

Beside the arms take turns: the unsplit matmul on data that is here (the vendor's and ours; the fastest is T_gemm), the
link alone (T_comm), and the unsplit matmul while the link brings something else, for what the two take from each other.
On a CPU all of them compute on all cores but one, which is the link's.
"""

import functools
from collections.abc import Callable
from statistics import median

import overlap_setting as settings
from overlap_operands import CALIBRATIONS, computing

from roofline.measure import faults
from roofline.measure.lineup import Lineup, verdict

OFF_PACE = 0.05
"""A link that misses its bandwidth by more than this voids the case."""

SETTINGS = {"all_gather_matmul": settings.AllGather, "weight_prefetch": settings.Prefetch}


def arms_of(op: str) -> dict[str, Callable]:
    """Name -> arm(operands, link) of `op`."""
    from collectives import all_gather_matmul, weight_prefetch

    return {"all_gather_matmul": all_gather_matmul, "weight_prefetch": weight_prefetch}[op].ARMS


def names_of(options, op: str) -> list[str]:
    """The arms of `op`: those asked for, else all."""
    return [name for name in arms_of(op) if name in (options.contenders or arms_of(op))]


class Call:
    """An arm, or what it is compared with, as a clock calls it: on each set of operands by turns."""

    long = True
    """Milliseconds: a clock need not call it once more to wake its threads."""

    def __init__(self, runs: list[Callable], device: str):
        self._runs, self._device, self._next = runs, device, 0

    def __call__(self):
        self._next = (self._next + 1) % len(self._runs)
        with computing(self._device):
            return self._runs[self._next]()


class LinkedCall(Call):
    """One that goes over a link, whose timeline is noted."""

    def __init__(self, runs: list[Callable], device: str, link):
        super().__init__(runs, device)
        self._link = link

    def notes(self) -> dict:
        timeline = self._link.timeline()
        first = {"first_wait_s": timeline.waits[0][1]} if timeline.waits else {}
        return {"last_arrival_s": max(timeline.arrivals_s), **first, "timeline": timeline.as_dict()}


def prepare(options, case, names: list[str]) -> Lineup:
    """Each arm of `names` checked; where timed, `serial` with them, and beside them what to compare with."""
    lineup = Lineup(case, "serial")
    names = list(dict.fromkeys(["serial", *names] if options.timed else names))
    if options.device == "cpu" and case.dtype != "fp32":
        reason = f"on a CPU the arms take fp32, not {case.dtype}: torch's CPU matmul does not sum it in fp32"
        lineup.unable |= dict.fromkeys(names, reason)
        return lineup
    setting = SETTINGS[case.op](options, case)
    lineup.about = setting.about
    if options.timed and (reason := off_pace(setting)):
        lineup.unable |= dict.fromkeys(names, reason)
        return lineup
    for name in names:
        if not lineup.lost:
            _check(lineup, setting, name)
    if options.timed and not lineup.lost:
        _add_beside(lineup, setting)
    lineup.cache = f"cold: {len(setting.sets)} sets of operands in rotation" if len(setting.sets) > 1 else "two layers"
    return lineup


def off_pace(setting) -> str | None:
    """Why the link voids the case: it misses the bandwidth that it is asked for. None if it keeps it."""
    if not setting.bytes_per_s:
        return None
    link, transfers = setting.link(), setting.transfers(setting.sets[0])
    arrivals_s = []
    for _ in range(CALIBRATIONS):
        settings.alone(link, transfers)
        arrivals_s.append(max(link.timeline().arrivals_s))
    reached = setting.case.work.wire_bytes / median(arrivals_s)
    if abs(reached / setting.bytes_per_s - 1) <= OFF_PACE:
        return None
    return (
        f"the {link.kind} link reaches {reached / 1e9:.3g} GB/s alone, asked for are {setting.bytes_per_s / 1e9:.3g}, "
        f"and {100 * OFF_PACE:.0f} % is the limit: choose another with --ffn-link-bandwidth"
    )


def _check(lineup: Lineup, setting, name: str) -> None:
    """Take the arm `name` in if its result is right, twice on each set of operands."""
    try:
        arm, link = arms_of(lineup.case.op)[name], setting.link()
        error = max(setting.relative_error(arm, link, operands) for operands in 2 * setting.sets)
    except Exception as failure:  # whatever it dies of, the other arms still get their numbers
        lineup.refuse(name, failure)
        if faults.device_lost(setting.device):
            lineup.ready.clear()
            lineup.lost = f"{name}: {faults.reason(failure)}"
        return
    if reason := verdict(name, error, lineup.case.dtype):
        lineup.wrong[name] = reason
        return
    lineup.relative_error[name], lineup.config[name] = error, setting.config(name)
    runs = [functools.partial(arm, operands, link) for operands in setting.sets]
    lineup.ready[name] = LinkedCall(runs, setting.device, link)


def _add_beside(lineup: Lineup, setting) -> None:
    for name, (role, runs, link) in setting.beside().items():
        if role == "link" and link.kind == "preset":
            continue  # it takes no time
        lineup.beside[name] = LinkedCall(runs, setting.device, link) if link else Call(runs, setting.device)
        lineup.role[name], lineup.config[name] = role, setting.config("serial")
