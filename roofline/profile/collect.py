"""--ffn-counters: after the timed run, workers under Nsight Compute count bytes and tensor operations.

Nothing is timed under the tool, and nothing that is timed is counted. A case that fails or hangs costs no other case
its counts, and the run nothing: what could not be counted is told in a note. What has been counted is journalled at
once, and a run that is gone on with counts what it lacks.
"""

import math
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from roofline import worker
from roofline.measure import device_errors
from roofline.measure.machine import anonymous
from roofline.measure.observer import Observer
from roofline.profile import ncu, parse
from roofline.stats import grouped
from roofline.store.run import Run

BOX_S = 480.0
"""For all of it: with its start and its report, a resumed run that only counts ends within ten minutes. What is counted
first is spread over the run, so that one cut short here still shows the whole."""

STALL_S = 180.0
"""Without a step forward for so long, a case is given up. The first takes longest: imports, a context, compilation."""

BATCH = 24
"""Cases that a process counts at most. Its start takes some 20 s, and what it had counted is lost with it."""

TRIES = 2
"""Processes in a row that may count nothing before anything was counted; one, where it hung: that costs minutes, and
the first is to count the baseline of one shape, which any tool that works can."""

LOG = "ncu.log"
"""In the run's folder: what the tool printed, from which any number can be read again."""
SAID_LINES = 60

GOLDEN = (5**0.5 - 1) / 2
TOPIC = "counters"
MOST_REASONS = 3

Case = tuple[str, str]
"""(shape, contender)."""


def chosen(run: Run, number: int | None) -> list[Case]:
    """Which cases of `run` to count: `number` of its plain matmuls, all where it is 0, none where it is None.

    Shapes are spread over the run, and each brings all its contenders, which are to be compared with one another.
    """
    if number is None:
        return []
    shapes = [name for name, shape in run.shapes.items() if shape.analysis == "throughput" and shape.measured]
    cases = [(name, contender) for name in spread(shapes) for contender in run.measured(name)]
    return cases[: number or None]


def spread(items: list) -> list:
    """`items` in an order of which every beginning is spread over all of them: multiples of the golden ratio.

    >>> spread(list(range(8)))
    [0, 4, 1, 6, 3, 5, 2, 7]
    """
    steps = (int(len(items) * (step * GOLDEN % 1)) for step in range(8 * len(items)))
    return [items[index] for index in dict.fromkeys([*steps, *range(len(items))])]


def missing(run: Run, number: int | None) -> list[Case]:
    """Those of `chosen` that were not counted yet."""
    return [(shape, name) for shape, name in chosen(run, number) if name not in run.shapes[shape].counters]


@dataclass
class Counting(Observer):
    """Counts what `session`'s run lacks. `root` is where pytest runs."""

    session: object
    root: Path
    say: Callable[[str], None]
    lost: dict[Case, str] = field(default_factory=dict)
    wanted: list[Case] = field(default_factory=list)

    lacking = "not all of the counters were read, --ffn-resume reads the rest"

    def finished(self) -> None:
        run, options = self.session.run, self.session.options
        self.wanted = missing(run, options.counters)
        if not self.wanted:
            return
        if reason := ncu.why_not(options.device):
            self.session.note(TOPIC, f"Counters: none were read: {reason}.")
            return
        tool = ncu.find()
        version = ncu.version(tool)
        self.say(f"counting {len(self.wanted)} cases with Nsight Compute {version}, for {BOX_S / 60:g} minutes at most")
        try:
            reason = self._all(tool, version)
        except KeyboardInterrupt:
            self.session.note(TOPIC, self._summary(version, "it was interrupted"))
            raise
        except Exception as error:  # a tool that cannot be started, for one: the run has its numbers
            reason = device_errors.reason(error)
        self.session.note(TOPIC, self._summary(version, reason))

    def _all(self, tool: str, version: str) -> str | None:
        """Batch after batch; returns what ended it early, or None."""
        deadline, size = time.monotonic() + BOX_S, 1  # the first case tells whether any can be counted
        tries = TRIES  # left, until something was counted
        dtypes = dict.fromkeys(self.session.run.shapes[shape].dtype for shape, _ in self.wanted)
        metrics = parse.known(parse.metrics(dtypes), ncu.ask(tool, "--query-metrics"))
        while self.wanted:
            if (left_s := deadline - time.monotonic()) <= 0:
                return f"the {BOX_S:g} s that this may take were over"
            lost = dict(self.lost)
            with tempfile.TemporaryDirectory() as folder:
                ended, found = self._batch(tool, metrics, self.wanted[:size], Path(folder), left_s)
                for (shape, contender), counts in found.items():
                    source = {"tool": "ncu", "version": version, "cache": "flushed", "metrics": counts.pop("metrics")}
                    about = {"kind": "counters", "shape": shape, "contender": contender}
                    self.session.add(about | counts | {"counter_source": source})
            self._keep(ended, bool(found))
            told = ended.printed + ended.said
            if not found and (unknown := parse.refused(metrics, told)) and set(unknown) < set(metrics):
                metrics, self.lost = [name for name in metrics if name not in unknown], lost
                continue
            before, self.wanted = self.wanted, [c for c in self.wanted if c not in found and c not in self.lost]
            if ncu.DENIED in told or (len(before) == len(self.wanted) and not ended.over):
                return ended.complaint
            if found:
                tries = math.inf
            elif tries < math.inf:
                tries = 0 if ended.why else tries - 1
            if tries <= 0 and not ended.over:
                return "so no other was tried"
            size = BATCH
        return None

    def _batch(
        self, tool: str, metrics: list[str], batch: list[Case], folder: Path, seconds: float
    ) -> tuple[ncu.Ended, dict[Case, dict]]:
        """Count `batch` in one process: how it ended, and what was counted. What it lost is in `lost`."""
        command = worker.request(folder, self.session.run.metadata.get("options", {}), batch)
        ended = ncu.run(
            tool, metrics, command, folder=folder, progress=folder / worker.PROGRESS, cwd=self.root, stall_s=STALL_S,
            seconds=seconds,
        )  # fmt: skip
        said = worker.progress(folder)
        for line in said:
            if line["step"] == worker.LOST:
                self.lost[tuple(line["case"])] = line["reason"]
        if said and said[-1]["step"] in (worker.PREPARE, worker.CALL) and not ended.over:  # that was its end
            self.lost[tuple(said[-1]["case"])] = ended.complaint
        called = [tuple(line["case"]) for line in said if line["step"] == worker.CALL]
        try:
            calls = parse.by_call(parse.parse(ended.printed))
        except ValueError as error:
            calls = []
            self.lost |= {case: str(error) for case in called if case not in self.lost}
        found = {}
        for case, call in zip(called, calls, strict=False):  # a tool that was stopped prints the first ones, or none
            if case not in self.lost:
                try:
                    found[case] = parse.counts(call, self.session.run.shapes[case[0]].dtype)
                except ValueError as error:
                    self.lost[case] = str(error)
        return ended, found

    def _keep(self, ended: ncu.Ended, fruitful: bool) -> None:
        """Add what the tool printed to the log, but for paths, and what the program said where nothing was counted."""
        lines = [line for line in ended.printed.splitlines() if "==PROF== Connected" not in line]
        lines += [] if fruitful else ended.said.splitlines()[-SAID_LINES:]
        with suppress(OSError), (self.session.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(anonymous("\n".join([*lines, ""])))

    def _summary(self, version: str, reason: str | None) -> str:
        run, number = self.session.run, self.session.options.counters
        cases = chosen(run, number)
        count = len(cases) - len(missing(run, number))
        text = f"Counters: Nsight Compute {version} counted {count} of {len(cases)} cases"
        if count:
            text += (
                ", one call each in processes of their own after the timed run, with the caches flushed before each "
                "kernel. What a kernel leaves in the L2 cache is written after its end: bytes of small outputs are "
                "missing"
            )
        parts = [
            f"{'-'.join(own[0])}{f' and {len(own) - 1} more' if own[1:] else ''}: {why}"
            for why, own in grouped((why, case) for case, why in self.lost.items()).items()
        ]
        more = [f"and for {len(parts) - MOST_REASONS} further reasons"] if len(parts) > MOST_REASONS else []
        return "; ".join([text, *parts[:MOST_REASONS], *more, *([reason] if reason else [])]) + "."
