"""Line-ups of the cases that gather over a wire: arms that were checked, and what to compare them with.

Beside the arms take turns: the unsplit matmul on data that is here (the vendor's and ours; the fastest is T_gemm), the
link alone (T_comm), and the unsplit matmul while the link brings something else, for what the two take from each other.
On a CPU all of them compute on all cores but one, which is the link's.
"""

import functools
import math
from collections.abc import Callable
from statistics import median

from collectives.bench import all_gather, symm_mem
from collectives.bench import setting as settings
from collectives.bench.operands import CALIBRATIONS, computing, host_ahead
from roofline.analysis.overlap.metrics import OFF_PACE
from roofline.measure import device_errors
from roofline.measure.prepared import Lineup, untold, verdict

LONGEST_GATHER_S = 2.0

SETTINGS = {"all_gather_matmul": all_gather.AllGather, "weight_prefetch": settings.Prefetch}


def arms_of(op: str, device: str = "cuda") -> dict[str, Callable]:
    """Name -> arm(operands, link) of `op` on `device`. Those that wait on the device are compiled kernels."""
    from collectives import all_gather_matmul, weight_prefetch

    found = {"all_gather_matmul": all_gather_matmul, "weight_prefetch": weight_prefetch}[op].ARMS
    found = found | settings.persistent_arms(found, device)
    return found | all_gather.flagged_arms(device) if op == "all_gather_matmul" else found


def names_of(options, op: str) -> list[str]:
    """The arms of `op`: those asked for, else all."""
    known = arms_of(op, options.device)
    found = [name for name in known if name in (options.contenders or known)]
    return found + (symm_mem.names(options) if op == "all_gather_matmul" else [])


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


def prepare(options, case, names: list[str], trying=untold) -> Lineup:
    """Each arm of `names` checked; where timed, `serial` with them, and beside them what to compare with."""
    lineup = Lineup(case, "serial", trying=trying)
    names = list(dict.fromkeys(["serial", *names] if options.timed else names))
    if options.device == "cpu" and case.dtype != "fp32":
        reason = f"on a CPU the arms take fp32, not {case.dtype}: torch's CPU matmul does not sum it in fp32"
        lineup.unable |= dict.fromkeys(names, reason)
        return lineup
    setting = SETTINGS[case.op](options, case)
    lineup.about = setting.about
    if options.timed and (reason := too_slow(setting) or off_pace(setting)):
        lineup.unable |= dict.fromkeys(names, reason)
        return lineup
    for name in names:
        if name == symm_mem.NAME:
            symm_mem.add(lineup, setting.seed)
        elif not lineup.lost:
            _check(lineup, setting, name)
    if options.timed and not lineup.lost:
        _add_beside(lineup, setting)
    setting.restore()  # what a wrong arm left
    lineup.cache = setting.cache
    return lineup


def too_slow(setting) -> str | None:
    """Why nothing is run: one gather would take longer than anybody means it to. None if it does not."""
    expected_s = setting.case.work.wire_bytes / (setting.bytes_per_s or math.inf)
    if expected_s <= LONGEST_GATHER_S:
        return None
    return (
        f"one gather at {setting.bytes_per_s / 1e9:.3g} GB/s takes {expected_s:.3g} s, and {LONGEST_GATHER_S:g} s is "
        "the limit: choose another bandwidth with --ffn-link-bandwidth"
    )


def off_pace(setting) -> str | None:
    """Why the link voids the case: it misses the bandwidth that it is asked for. None if it keeps it."""
    if not setting.bytes_per_s:
        return None
    link, transfers = setting.link(), setting.transfers(setting.sets[0])
    arrivals_s = []
    for _ in range(CALIBRATIONS):
        host_ahead(setting.device)
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
        lineup.trying(name)
        if reason := setting.why_not(name):
            lineup.unable[name] = f"{name}: {reason}"
            return
        arm, link = arms_of(lineup.case.op)[name], setting.link()
        errors = [setting.relative_error(arm, link, operands) for operands in 2 * setting.sets]
        error = math.nan if any(map(math.isnan, errors)) else max(errors)
    except Exception as failure:  # whatever it dies of, the other arms still get their numbers
        lineup.refuse(name, failure)
        if device_errors.device_lost(setting.device):
            lineup.ready.clear()
            lineup.lost = f"{name}: {device_errors.reason(failure)}"
        return
    if reason := verdict(name, error, lineup.case.dtype):
        lineup.wrong[name] = reason
        return
    lineup.relative_error[name], lineup.config[name] = error, setting.config(name)
    lineup.details[name] = setting.details(name)
    _trace(lineup, setting, name, link)
    lineup.ready[name] = _call([functools.partial(arm, operands, link) for operands in setting.sets], setting, link)


def _trace(lineup: Lineup, setting, name: str, link) -> None:
    """The timeline of an arm whose samples have none. That it failed is told, and the arm keeps its numbers."""
    try:
        if traced := setting.trace(name, link):
            lineup.traced[name] = traced
    except Exception as failure:
        lineup.unable[f"{name}-timeline"] = f"{name}: {device_errors.reason(failure)}"


def _call(runs: list[Callable], setting, link) -> Call:
    """A link on which nothing moves has no timeline: on a GPU it knows only when the host enqueued."""
    return LinkedCall(runs, setting.device, link) if link and link.kind != "preset" else Call(runs, setting.device)


def _add_beside(lineup: Lineup, setting) -> None:
    for name, (role, runs, link) in setting.beside().items():
        if link and link.kind == "preset":
            continue  # it takes no time, and brings nothing
        lineup.beside[name] = _call(runs, setting, link)
        lineup.role[name], lineup.config[name] = role, setting.config("serial")
