"""The run and its journal: what is told is journalled, and then known."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from roofline.host.machine import anonymous
from roofline.store import journal
from roofline.store.lines import as_read, plain
from roofline.store.outcome import NOT_RUN, Outcome
from roofline.store.run import INTERRUPTED, Run, Shape


class RunWriter:
    """Journals lines and applies them to `run`. The run ends where one cannot be written: `end` is told why."""

    def __init__(self, folder: Path, run: dict | Run, end: Callable[[str], None]):
        """Begin the run whose first line is `run`, in a new folder, or go on with `run` in its own.

        Raises OSError for a folder that cannot be written, or has no room."""
        self._end = end
        if isinstance(run, Run):
            self.folder, self.run = folder, run
        else:
            self.folder, self.run = journal.make_folder(folder), Run(as_read(run))
        self._journal = journal.Journal(self.folder)
        if self.run is run:
            self.add({"kind": "resumed", "started": _now()})
        else:
            self._journal.write({"kind": "run"} | self.run.metadata)

    def add(self, *lines: dict) -> None:
        """Journal lines of plain values, and apply them to the run. If that fails, neither has any of them."""
        try:
            self._journal.write(*lines)
        except OSError as error:
            return self._end(f"the journal could not be written: {error.strerror}")
        for line in lines:
            self.run.apply(line)

    def note(self, about: str, text: str) -> None:
        """Tell in the report what is to be known `about` something, in place of what was told of it before."""
        self.add({"kind": "note", "about": about, "text": plain(anonymous(text))})

    def add_outcome(self, outcome: Outcome) -> None:
        """Journal that a case has no number, and why."""
        outcome = replace(outcome, reason=plain(anonymous(outcome.reason)))
        self.add({"kind": "not_measured"} | vars(outcome))

    def lose(self, shape: str, name: str, outcome: Outcome) -> None:
        """Take a contender out of a shape for good, with its samples."""
        case = f"{shape}-{name}"
        if case not in self.run.outcomes:
            self.add_outcome(replace(outcome, case=case))
        self.take_out(shape, name)
        self.take_out(shape, name, apart=name)

    def take_out(self, shape_id: str, name: str, apart: str = "") -> None:
        """Take a contender, with its samples, out of what all made together of a shape, or it made `apart`."""
        shape = self.run.made(shape_id, apart)
        if not (shape and shape.rounds):
            return
        late = dict(shape.late)
        late.pop(name, None)
        asked = [other for other in late if f"{shape.id}-{other}" in self.run.metadata["cases"]]
        is_over = name == shape.apart or not asked  # nobody is left to go on with
        stopped_by = "time" if is_over and shape.stopped_by == INTERRUPTED else shape.stopped_by
        if (late, stopped_by) != (shape.late, shape.stopped_by):
            self.add(pass_line(shape, late=late, stopped_by=stopped_by))

    def finish(self, cut_short: str, reasons: dict[str, str]) -> None:
        """End the run: each case that has no number, and never had its turn, gets its reason."""
        for outcome in self.run.missing:
            if outcome.outcome == NOT_RUN:
                self.add_outcome(replace(outcome, reason=reasons.get(outcome.case, "not selected")))
        self.add({"kind": "end", "finished": _now(), "cut_short": cut_short or None})
        self._journal.close()


def pass_line(shape: Shape, **changed) -> dict:
    """The line of the last pass over a shape, with some of it `changed`."""
    names = "passes", "processes", "stopped_by", "round_count", "telemetry", "late"
    line = {"kind": "pass", "shape": shape.id, "apart": shape.apart}
    return line | {name: getattr(shape, name) for name in names} | changed


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
