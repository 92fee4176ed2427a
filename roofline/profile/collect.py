"""--ffn-counters: after the timed run, shares under Nsight Compute count bytes and tensor operations.

Nothing is timed under the tool, and nothing that is timed is counted. A case that fails or hangs costs no other case
its counts, and the run nothing: a note tells what could not be counted. Counts are journalled after each share, and a
run that is gone on with counts what it lacks.
"""

import tempfile
import time
from contextlib import suppress
from pathlib import Path

from roofline.measure import device_errors
from roofline.measure.jobs import Job
from roofline.measure.machine import anonymous
from roofline.measure.request import Kind, Request
from roofline.measure.supervisor import HUNG, Supervisor
from roofline.profile import ncu, parse
from roofline.stats import grouped
from roofline.store.run import Run

BOX_S = 480.0
"""For all of it: with its start and its report, a resumed run that only counts ends within ten minutes. What is counted
first is spread over the run, so that one cut short here still shows the whole."""

BATCH = 24
"""Cases that a share counts at most. Its start takes some 20 s, and what it had counted is lost with it."""

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
    """Return `items` in an order of which every beginning is spread over all of them: by multiples of the golden ratio.

    >>> spread(list(range(8)))
    [0, 5, 2, 7, 4, 1, 6, 3]
    """
    return [item for _, item in sorted((index * GOLDEN % 1, item) for index, item in enumerate(items))]


def missing(run: Run, number: int | None) -> list[Case]:
    """Return those of `chosen` that were not counted yet."""
    return [(shape, name) for shape, name in chosen(run, number) if name not in run.shapes[shape].counters]


def count(supervisor: Supervisor) -> None:
    """Count what the run of `supervisor` lacks, and note how that went."""
    run, options = supervisor.run, supervisor.options
    if not missing(run, options.counters):
        return
    if reason := ncu.why_not(options.device):
        supervisor.note(TOPIC, f"Counters: none were read: {reason}.")
        return
    with tempfile.TemporaryDirectory() as folder:
        counting = Counting(supervisor, ncu.find(), Path(folder) / LOG)
        about = f"counting {len(counting.cases_left)} cases with Nsight Compute {counting.version}"
        supervisor.say(f"{about}, for {BOX_S / 60:g} minutes at most")
        try:
            supervisor.supervise([counting])
        except KeyboardInterrupt:
            counting.ended_by = "it was interrupted"
            raise
        except Exception as error:  # a tool that cannot be started, for one: the run has its numbers
            counting.ended_by = device_errors.reason(error)
        finally:
            supervisor.note(TOPIC, counting.summary())


class Counting(Job):
    """Counts in shares under the tool."""

    kind = Kind.COUNTERS

    def __init__(self, supervisor: Supervisor, tool: str, log: Path):
        super().__init__(supervisor)
        run = supervisor.run
        self.cases_left = missing(run, supervisor.options.counters)
        self.version, self.ended_by = ncu.version(tool), ""
        self.rejections: dict[Case, str] = {}
        """Why cases have no counts."""
        metrics = parse.metrics(dict.fromkeys(run.shapes[shape].dtype for shape, _ in self.cases_left))
        self.under = tuple(ncu.command(tool, parse.available(metrics, ncu.ask(tool, "--query-metrics")), log))
        self._log, self._deadline = log, time.monotonic() + BOX_S
        self._size = 1
        """Cases that the next share counts: the first one tells whether any can be counted."""

    def next_request(self) -> Request | None:
        if self.ended_by or not self.cases_left:
            return None
        self._batch, self._called = self.cases_left[: self._size], []
        self._log.unlink(missing_ok=True)
        return self.supervisor.request(self.kind, dict(grouped(self._batch)))

    @property
    def left_s(self) -> float:
        return min(super().left_s, self._deadline - time.monotonic())

    def take_called(self, line: dict) -> None:
        self._called.append((line["shape"], line["name"]))

    def take_rejected(self, line: dict) -> None:
        self.rejections[line["shape"], line["name"]] = line["reason"]

    def end(self, how: str, rank: str = "") -> None:
        printed = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
        complaint, is_over = ncu.complaint(printed, self.printed, how), time.monotonic() >= self._deadline
        is_blamed = (how or self.broke) and not (is_over or self.supervisor.signals)
        if is_blamed and (shape := self.at["shape"]):
            name = self.at.get("name") or next(name for of, name in self._batch if of == shape)
            why = self.broke["reason"] if self.broke else f"it {how}" if how == HUNG else complaint
            self.rejections.setdefault((shape, name), why)
        counts = self._counts(printed)
        for (shape, contender), of_case in counts.items():
            source = {"tool": "ncu", "version": self.version, "cache": "flushed", "metrics": of_case.pop("metrics")}
            about = {"kind": "counters", "shape": shape, "contender": contender}
            self.supervisor.add(about | of_case | {"counter_source": source})
        self._keep(printed, "" if counts else self.printed)
        before = self.cases_left
        self.cases_left = [case for case in before if case not in counts and case not in self.rejections]
        if is_over and self.cases_left:
            self.ended_by = f"the {BOX_S:g} s that this may take were over"
        elif len(before) == len(self.cases_left):
            self.ended_by = complaint
        elif self._size == 1 and not counts:
            self.ended_by = "so no other was tried"
        self._size = BATCH

    def _counts(self, printed: str) -> dict[Case, dict]:
        """Return what the tool counted of each case. Cases that it cannot be read of are rejected."""
        try:
            calls = parse.by_call(parse.parse(printed))
        except ValueError as error:
            self.rejections |= {case: str(error) for case in self._called if case not in self.rejections}
            return {}
        counts = {}
        for case, call in zip(self._called, calls, strict=False):  # a tool that was stopped prints the first, or none
            if case not in self.rejections:
                try:
                    counts[case] = parse.counts(call, self.supervisor.run.shapes[case[0]].dtype)
                except ValueError as error:
                    self.rejections[case] = str(error)
        return counts

    def _keep(self, printed: str, of_share: str) -> None:
        """Add what the tool printed to the log, but for paths, and the end of what the share printed."""
        lines = [line for line in printed.splitlines() if "==PROF== Connected" not in line]
        lines += of_share.splitlines()[-PRINTED_LINES:]
        with suppress(OSError), (self.supervisor.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(anonymous("\n".join([*lines, ""])))

    def summary(self) -> str:
        """Return what was counted, and why the rest was not."""
        run, number = self.supervisor.run, self.supervisor.options.counters
        cases = chosen(run, number)
        count = len(cases) - len(missing(run, number))
        text = f"Counters: Nsight Compute {self.version} counted {count} of {len(cases)} cases"
        if count:
            text += (
                ", one call each in processes of their own after the timed run, with the caches flushed before each "
                "kernel. What a kernel leaves in the L2 cache is written after its end: bytes of small outputs are "
                "missing"
            )
        parts = [
            f"{'-'.join(of[0])}{f' and {len(of) - 1} more' if of[1:] else ''}: {why}"
            for why, of in grouped((why, case) for case, why in self.rejections.items()).items()
        ]
        more = [f"and for {len(parts) - MOST_REASONS} further reasons"] if len(parts) > MOST_REASONS else []
        ended_by = [self.ended_by] if self.ended_by else []
        return "; ".join([text, *parts[:MOST_REASONS], *more, *ended_by]) + "."
