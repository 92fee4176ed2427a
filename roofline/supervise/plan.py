"""How long a run takes: by its plan, before anything is timed, and then by what was timed of it."""

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean

from roofline import operations
from roofline.worker.messages import Step, StepBegan
from roofline.worker.rounds import PATIENCE, StopRule

START_S = 4.5
"""Of a process, with its imports, where none of this machine was timed yet (--collect-only). Seconds here are of two
cores of a Xeon, in runs of 1 and of 12 shapes, or where a GPU is named, of three visits to an H100."""
CHECK_S = {"throughput": 0.06, "overlap": 0.5}
"""Of the first calls of a contender, by what judges it."""
ENTER_S = {"throughput": 0.05, "overlap": 0.08}
"""Of the same in each process that measures, where it compiles nothing more."""
BESIDE_S = {"throughput": 0.3, "overlap": 4.5}
"""Of a shape on a GPU, beside its turns: what compiles, and what runs alone in blocks."""
PASS_S = 0.012
"""Of a pass beside its turns: telemetry, and what it tells."""
CEILINGS_S, KINDS = 5.0, 3
"""Of the probes' checks, and the kinds of probes, each of which takes turns for `ceilings.STOP_RULE`'s time."""
REPORT_S = {"throughput": 3.5, "overlap": 7.5}
"""Of the tables and figures of what each analysis judges."""
ROTATION, PROBE_PART, FILLED_BYTES_PER_S = 8, 24, 0.5e9
"""A process fills so many times the last-level cache of a CPU with random operands, and each of two matrices for its
probes with as much, but no more than one part in so many of the memory, at the pace of one core."""
UNSEEN = {"passes": 16, "processes": 6, "machine": {"cache_bytes": 32 * 2**20, "memory_bytes": 16 * 2**30}}
"""What a first worker tells of a CPU, where none was begun (--collect-only), and the FLOP/s of its matmuls."""
UNSEEN_FLOPS_PER_S = 1e11


@dataclass(frozen=True)
class Plan:
    """What the parts of a run take by its plan."""

    check_s: float
    ceilings_s: float
    begin_s: float
    """Of each process, before its first turn."""
    turns_s: float
    processes: int
    report_s: float
    passes: int = 1
    """Of a shape, by all processes."""

    @property
    def seconds(self) -> float:
        return self.check_s + self.ceilings_s + self.processes * self.begin_s + self.turns_s + self.report_s

    @property
    def first_estimate_s(self) -> float:
        """When each shape had a pass, from the first process that measures on."""
        return self.begin_s + self.ceilings_s + self.turns_s / self.passes


def plan(
    shapes: dict[str, list[str]], options, hello: dict, *, done: dict[str, int], start_s: float, flops_per_s: float
) -> Plan:
    """The plan of the `shapes` ({shape: contenders}) that are left, of some of which so many passes are `done`. `hello`
    is what the first worker told, and `start_s` what it took to begin."""
    passes = hello["passes"]
    planned = passes * (options.processes or hello["processes"])
    counts = dict.fromkeys(CHECK_S, 0)
    turns_s, most_left = 0.0, 0
    matmuls = []
    for name, contenders in shapes.items():
        case, _ = operations.parse(name)
        analysis = operations.find(case.op).analysis
        left = planned - done.get(name, 0)
        most_left = max(most_left, left)
        counts[analysis] += len(contenders)
        whole_s = turns_of_shape_s(case.work.flop / flops_per_s, len(contenders), options)
        turns_s += left * (whole_s / planned + PASS_S)
        if options.device == "cuda":
            turns_s += BESIDE_S[analysis]
        if case.op == "matmul":
            matmuls.append(case)
    operands_s = probes_s = 0.0
    if options.device == "cpu":
        fill_s = ROTATION * hello["machine"]["cache_bytes"] / FILLED_BYTES_PER_S
        operands_s = fill_s * longest(matmuls)
        probes_s = 2 * min(fill_s, hello["machine"]["memory_bytes"] / PROBE_PART / FILLED_BYTES_PER_S)
    check_s = enter_s = report_s = 0.0
    for analysis, count in counts.items():
        check_s += CHECK_S[analysis] * count
        enter_s += ENTER_S[analysis] * count
        report_s += REPORT_S[analysis] * bool(count)
    return Plan(
        check_s=start_s + operands_s + check_s,
        ceilings_s=CEILINGS_S + KINDS * min(2.0, options.max_seconds),
        begin_s=start_s + operands_s + probes_s + enter_s,
        turns_s=turns_s,
        processes=-(-most_left // passes),
        report_s=0.0 if options.no_report else report_s,
        passes=max(most_left, 1),
    )


def longest(matmuls: list) -> float:
    """The memory of the operands of all `matmuls`, over that of a shape alone: all are cut from the same x, w
    and out, each of which is as long as the longest that a shape needs."""
    x = w = out = 0.0
    for case in matmuls:
        sizes = case.m * case.k + case.n * case.k + case.m * case.n
        x = max(x, case.m * case.k / sizes)
        w = max(w, case.n * case.k / sizes)
        out = max(out, case.m * case.n / sizes)
    return x + w + out


def turns_of_shape_s(call_s: float, contenders: int, options) -> float:
    """The seconds of all turns of a shape: its cap, or for long calls what the fewest rounds take. References
    take turns beside the contenders."""
    least_s = StopRule.min_rounds * (contenders + 1) * call_s
    return min(max(options.max_seconds, least_s), PATIENCE * options.max_seconds)


class Timed:
    """What the steps of the processes that measure have taken, and what is left by that."""

    def __init__(self):
        self._passes_s: dict[str, list[float]] = defaultdict(list)
        """Shape -> seconds of each of its passes."""
        self._beside_s: list[float] = []
        """Of each process: the seconds beside passes, but for what only the first one does."""
        self._step, self._since = StepBegan(Step.START), 0.0

    def begin_process(self, now: float) -> None:
        if self._beside_s:
            self.begin_step(StepBegan(Step.START), now)
        self._beside_s.append(0.0)
        self._step, self._since = StepBegan(Step.START), now

    def begin_step(self, step: StepBegan, now: float) -> None:
        """A worker begins a `step`, which ends the one before."""
        seconds = now - self._since
        if self._step.step == Step.TURNS:
            self._passes_s[self._step.shape].append(seconds)
        elif not self._step.once:
            self._beside_s[-1] += seconds
        self._step, self._since = step, now

    def left_s(self, passes_left: dict[str, int], passes: int) -> float | None:
        """The seconds until all passes are made, `passes` of a shape by each process; None before each shape has
        had one."""
        turns_s = 0.0
        for shape, count in passes_left.items():
            if not self._passes_s[shape]:
                return None
            turns_s += count * fmean(self._passes_s[shape])
        processes = math.ceil(max(passes_left.values(), default=0) / passes)
        if not processes:
            return turns_s
        *earlier_s, spent_s = self._beside_s
        each_s = fmean(earlier_s) if earlier_s else spent_s
        return turns_s + max(0.0, each_s - spent_s) + (processes - 1) * each_s


def duration(seconds: float) -> str:
    """`seconds` in words, rounded as a person would.

    >>> duration(3.2), duration(47), duration(309), duration(4000)
    ('5 s', '45 s', '5 min 10 s', '67 min')
    """
    if seconds < 97.5:
        return f"{5 * math.ceil(seconds / 5 - 0.5) or 5} s"
    minutes, rest = divmod(10 * round(seconds / 10), 60)
    return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{round(seconds / 60)} min"
