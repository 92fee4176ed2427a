"""The plan of a run: the seconds that it takes, before anything is timed."""

import math
from dataclasses import dataclass

from roofline import operations
from roofline.protocol.stop_rule import PATIENCE, StopRule

START_S = 4.5
"""The seconds of a process, with its imports. Seconds here are those of two cores of a Xeon, in runs of 1 and of 12
shapes, or where a GPU is named, of three visits to an H100."""
CHECK_S = {"throughput": 0.06, "overlap": 0.5}
"""{analysis: seconds of the first calls of a contender}."""
ENTER_S = {"throughput": 0.05, "overlap": 0.08}
"""The same in each process that measures, where nothing more is compiled."""
BESIDE_S = {"throughput": 0.3, "overlap": 4.5}
"""The seconds of a shape on a GPU beside its turns: compiling, and kernels that run alone in blocks."""
PASS_S = 0.012
"""The seconds of a pass beside its turns: telemetry, and messages."""
CEILINGS_S, KINDS = 5.0, 3
"""The seconds of the probes' checks, and the kinds of probes, each of which takes turns for `ceilings.STOP_RULE`'s
time."""
REPORT_S = {"throughput": 3.5, "overlap": 7.5}
"""{analysis: seconds of its tables and figures}."""
ROTATION, FILLED_BYTES_PER_S = 16, 0.5e9
"""A process fills so many times the last-level cache of a CPU with random operands of matmuls, and one that measures as
much again for its probes, at the pace of one core."""
UNSEEN = {"passes": 16, "processes": 6, "machine": {"source": "cpu", "cores": 2, "cache_bytes": 32 * 2**20}}
"""What a first worker tells of a CPU, where none was begun (--collect-only)."""
CORE_FLOPS, GPU_FLOPS = 5e10, 3e14
"""About the FLOP/s of matmuls on a core of a CPU, and on a GPU."""


@dataclass(frozen=True)
class Plan:
    """The seconds of a run by its plan: of all but the report, and of the report."""

    measure_s: float = 0.0
    report_s: float = 0.0
    short_shapes: int = 0
    """Those whose time is over before their fewest rounds."""

    @property
    def seconds(self) -> float:
        return self.measure_s + self.report_s


def flops_per_s(machine: dict) -> float:
    """About what a matmul reaches, by which a call is planned, and taken to hang."""
    return GPU_FLOPS if machine["source"] == "gpu" else CORE_FLOPS * machine["cores"]


def plan(shapes: dict[str, list[str]], options, hello: dict, *, done: dict[str, int]) -> Plan:
    """The plan of the `shapes` ({shape: contenders}) that are left, of some of which so many passes are `done`. `hello`
    is what the first worker told."""
    rule = StopRule.of_options(options)
    passes = hello["passes"]
    planned = passes * (options.processes or hello["processes"])
    check_s = begin_s = START_S
    turns_s = 0.0
    most_left = short_shapes = 0
    analyses = set()
    for name, contenders in shapes.items():
        case, _ = operations.parse(name)
        analysis = operations.find(case.op).analysis
        analyses.add(analysis)
        check_s += CHECK_S[analysis] * len(contenders)
        begin_s += ENTER_S[analysis] * len(contenders)
        left = planned - done.get(name, 0)
        most_left = max(most_left, left)
        call_s = case.work.flop / flops_per_s(hello["machine"])
        least_s = rule.min_rounds * (len(contenders) + 1) * call_s  # a reference takes turns beside them
        longest_s = PATIENCE * rule.max_seconds
        short_shapes += least_s > longest_s
        whole_s = min(max(rule.max_seconds, least_s), longest_s)
        turns_s += left * (whole_s / planned + PASS_S)
        if options.device == "cuda":
            turns_s += BESIDE_S[analysis]
    if options.device == "cpu" and "throughput" in analyses:
        fill_s = ROTATION * hello["machine"]["cache_bytes"] / FILLED_BYTES_PER_S
        check_s += fill_s
        begin_s += 2 * fill_s
    ceilings_s = CEILINGS_S + KINDS * min(2.0, options.max_seconds)
    measure_s = check_s + ceilings_s + math.ceil(most_left / passes) * begin_s + turns_s
    report_s = 0.0 if options.no_report else sum(map(REPORT_S.__getitem__, analyses))
    return Plan(measure_s, report_s, short_shapes)
