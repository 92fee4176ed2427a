"""`roofline clocks RUN [CASE...]`: the same kernels by three clocks, ours and two of somebody else's.

Ours is that of every run: device events behind a gate, one call a sample, operands in rotation. `do_bench` is Triton's:
events too, without a gate, and it writes the cache full before each call. CUPTI, through torch's profiler, stamps each
kernel's own begin and end, so that it sees no launch. The three take turns, and all are saved in the run's journal.
"""

from argparse import Namespace
from collections import defaultdict
from contextlib import closing, nullcontext
from statistics import median

from roofline import operations
from roofline.commands import counters, launcher
from roofline.operations.format import time_text
from roofline.store import journal
from roofline.store.stats import time_of
from roofline.worker import launches, runner
from roofline.worker.clocks import Call
from roofline.worker.rounds import StopRule, take_turns

REPEATS = 3
"""Turns of the three clocks at a case."""
RULE = StopRule(max_seconds=0.25, min_rounds=15, max_rounds=100, warmup_s=0.1)
WARMUP_MS = 50
REP_MS = 200
"""do_bench is called with these."""
TRACED = 15
"""Calls that the profiler sees at a time."""


def by_ours(call: Call, clock) -> float:
    return time_of(take_turns({"call": call}, clock, RULE, seed=0).times_s["call"]).value


def by_do_bench(call: Call, clock) -> float:
    from triton.testing import do_bench

    return do_bench(call, warmup=WARMUP_MS, rep=REP_MS, return_mode="median") * 1e-3


def by_cupti(call: Call, clock) -> float:
    def calls() -> None:
        for _ in range(TRACED):
            call()

    total_us = sum(event.time_range.elapsed_us() for event in launches.traced(calls))
    return total_us * 1e-6 / TRACED


TIMERS = {"clock_s": by_ours, "do_bench_s": by_do_bench, "cupti_s": by_cupti}
"""Field of a record -> what fills it: (call, clock of the run) -> seconds of a call."""


def run(options: Namespace) -> int:
    """Time the cases that were asked for by all clocks, journal and print the times. Returns the exit code: 1 where a
    case has none.

    Raises ValueError where nothing can be timed, and OSError where the journal cannot be written."""
    folder = options.folder
    measured = journal.load(folder)
    cases = counters.chosen(measured, options.cases)
    launcher.require_same_machine(measured.metadata)
    runners = launcher.runners_of(measured, options.contender)
    of_matmul = runners.of(operations.find("matmul"))
    clock = of_matmul.clock()
    runner.equip(clock, of_matmul.instruments())
    failures = 0
    with journal.hold(folder) or nullcontext(), closing(journal.Journal(folder)) as file:
        for case, (shape, contender) in cases.items():
            try:
                times_s = times_by_clock(launcher.call_of(runners, measured, case), clock)
            except Exception as error:
                failures += 1
                print(f"{case}: {launcher.reason(error)}", flush=True)
                continue
            file.write({"kind": "costs", "shape": shape.id, "contender": contender, "costs": times_s})
            clock_s, do_bench_s, cupti_s = map(time_text, times_s.values())
            print(f"{case}: clock {clock_s}, do_bench {do_bench_s}, cupti {cupti_s}", flush=True)
    print(f"`roofline report {folder}` has the table")
    return int(failures > 0)


def times_by_clock(call: Call, clock) -> dict[str, float]:
    """{field: seconds of a call}, the median of the clocks' turns."""
    turns_s = defaultdict(list)
    for _ in range(REPEATS):
        for field, timer in TIMERS.items():
            turns_s[field].append(timer(call, clock))
    return {field: median(times_s) for field, times_s in turns_s.items()}
