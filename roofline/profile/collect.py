"""--ffn-counters: after the timed run, shares under Nsight Compute count bytes and tensor operations.

Nothing is timed under the tool, and nothing that is timed is counted. A case that fails or hangs costs no other case
its counts, and the run nothing: what could not be counted is told in a note. What has been counted is journalled at
once, and a run that is gone on with counts what it lacks.
"""

import math
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from roofline.measure import device_errors, share
from roofline.measure.jobs import Job
from roofline.measure.machine import anonymous
from roofline.measure.share import Request
from roofline.measure.supervisor import HUNG, Supervisor
from roofline.profile import ncu, parse
from roofline.stats import grouped
from roofline.store.run import Run

BOX_S = 480.0
"""For all of it: with its start and its report, a resumed run that only counts ends within ten minutes. What is counted
first is spread over the run, so that one cut short here still shows the whole."""

BATCH = 24
"""Cases that a process counts at most. Its start takes some 20 s, and what it had counted is lost with it."""

TRIES = 2
"""Processes in a row that may count nothing before anything was counted; one, where it hung: that costs minutes, and
the first is to count the baseline of one shape, which any tool that works can."""

LOG = "ncu.log"
"""In the run's folder: what the tool printed, from which any number can be read again."""
PRINTED_LINES = 60

GOLDEN = (5**0.5 - 1) / 2
TOPIC = "counters"
MOST_REASONS = 3

Case = tuple[str, str]
"""(shape, contender)."""


def chosen(run: Run, number: int | None) -> list[Case]:
    """Return which cases of `run` to count: `number` of its plain matmuls, all where it is 0, none where it is None.

    Shapes are spread over the run, and each brings all its contenders, which are to be compared with one another.
    """
    if number is None:
        return []
    shapes = [name for name, shape in run.shapes.items() if shape.analysis == "throughput" and shape.measured]
    cases = [(name, contender) for name in spread(shapes) for contender in run.measured(name)]
    return cases[: number or None]


def spread(items: list) -> list:
    """Return `items` in an order of which every beginning is spread over all of them: multiples of the golden ratio.

    >>> spread(list(range(8)))
    [0, 4, 1, 6, 3, 5, 2, 7]
    """
    steps = (int(len(items) * (step * GOLDEN % 1)) for step in range(8 * len(items)))
    return [items[index] for index in dict.fromkeys([*steps, *range(len(items))])]


def missing(run: Run, number: int | None) -> list[Case]:
    """Return those of `chosen` that were not counted yet."""
    return [(shape, name) for shape, name in chosen(run, number) if name not in run.shapes[shape].counters]


class Batch(Job):
    """One share that counts, under the tool."""

    kind = share.COUNTERS

    def __init__(self, supervisor: Supervisor, cases: list[Case], under: list[str], deadline: float):
        super().__init__(supervisor)
        self.cases, self.under, self._deadline = cases, tuple(under), deadline
        self.called: list[Case] = []
        """In the order of their calls, which is that of what the tool prints."""
        self.lost: dict[Case, str] = {}
        self.how = ""
        """How its share ended, where it did not end well."""
        self._is_asked = False

    def next_request(self) -> Request | None:
        if self._is_asked:
            return None
        self._is_asked = True
        return self.supervisor.request(self.kind, {shape: names for shape, names in grouped(self.cases).items()})

    @property
    def is_over(self) -> bool:
        """Return whether its time is."""
        return time.monotonic() >= self._deadline

    @property
    def left_s(self) -> float:
        return min(super().left_s, self._deadline - time.monotonic())

    def take_called(self, line: dict) -> None:
        self.called.append((line["shape"], line["name"]))

    def take_rejected(self, line: dict) -> None:
        self.lost[line["shape"], line["name"]] = line["reason"]

    def end(self, how: str, rank: str = "") -> None:
        self.how = how and ("its time was over" if self.is_over else how)
        if how and not self.is_over and (shape := self.at["shape"]):  # that was its end
            name = self.at.get("name") or next(name for of, name in self.cases if of == shape)
            self.lost.setdefault((shape, name), f"it {how}" if how == HUNG else how)


@dataclass
class Counting:
    """Counts what `session`'s run lacks."""

    session: Supervisor
    lost: dict[Case, str] = field(default_factory=dict)
    wanted: list[Case] = field(default_factory=list)

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
        self.session.say(
            f"counting {len(self.wanted)} cases with Nsight Compute {version}, for {BOX_S / 60:g} minutes at most"
        )
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
            if time.monotonic() >= deadline:
                return f"the {BOX_S:g} s that this may take were over"
            lost = dict(self.lost)
            with tempfile.TemporaryDirectory() as folder:
                log = Path(folder) / LOG
                batch = Batch(self.session, self.wanted[:size], ncu.command(tool, metrics, log), deadline)
                self.session.supervise([batch])
                printed = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
            complaint = ncu.complaint(printed, batch.printed, batch.how)
            counted = self._counts(batch, printed, complaint)
            for (shape, contender), counts in counted.items():
                source = {"tool": "ncu", "version": version, "cache": "flushed", "metrics": counts.pop("metrics")}
                about = {"kind": "counters", "shape": shape, "contender": contender}
                self.session.add(about | counts | {"counter_source": source})
            self._keep(printed, "" if counted else batch.printed)
            output = printed + batch.printed
            if not counted and (unknown := parse.refused(metrics, output)) and set(unknown) < set(metrics):
                metrics, self.lost = [name for name in metrics if name not in unknown], lost
                continue
            before, self.wanted = self.wanted, [c for c in self.wanted if c not in counted and c not in self.lost]
            if ncu.DENIED in output or (len(before) == len(self.wanted) and not batch.is_over):
                return complaint
            if counted:
                tries = math.inf
            elif tries < math.inf:
                tries = 0 if batch.how.startswith(HUNG) else tries - 1
            if tries <= 0 and not batch.is_over:
                return "so no other was tried"
            size = BATCH
        return None

    def _counts(self, batch: Batch, printed: str, complaint: str) -> dict[Case, dict]:
        """Return what was counted of a batch. What it lost is in `lost`."""
        self.lost |= {case: complaint if why == batch.how else why for case, why in batch.lost.items()}
        try:
            calls = parse.by_call(parse.parse(printed))
        except ValueError as error:
            calls = []
            self.lost |= {case: str(error) for case in batch.called if case not in self.lost}
        counts_of = {}
        for case, call in zip(batch.called, calls, strict=False):  # a tool that was stopped prints the first, or none
            if case not in self.lost:
                try:
                    counts_of[case] = parse.counts(call, self.session.run.shapes[case[0]].dtype)
                except ValueError as error:
                    self.lost[case] = str(error)
        return counts_of

    def _keep(self, printed: str, of_share: str) -> None:
        """Add what the tool printed to the log, but for paths, and the end of what the share printed."""
        lines = [line for line in printed.splitlines() if "==PROF== Connected" not in line]
        lines += of_share.splitlines()[-PRINTED_LINES:]
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
