"""The words and files of a benchmark run: how far it is, its report, its JSON, and the tables at its end."""

import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from roofline.analysis.records import records_of
from roofline.host import device_errors
from roofline.operations.options import options_of, way_on
from roofline.report import html
from roofline.report.write import terminal, write
from roofline.store import journal

REDRAW = "python3 -m roofline report"

LOGGED_S = 10.0
"""Between two lines of progress."""

ENDS = "outside of all contenders, this ends the run"


def end_unread(error: OSError) -> None:
    """End with one line for an error, as of an output that nobody reads: pytest would write on, and raise."""
    print(f"{device_errors.reason(error)}: {ENDS}", file=sys.stderr, flush=True)
    os._exit(2)


class Narrator:
    """Says what the run does while it goes on, completes and saves pytest-benchmark's JSON, draws the report and sums
    up. Notes what interrupted the run.

    `state` is the plugin's: `run`, `folder`, and the `problems` and `interrupted` that are noted here.
    """

    def __init__(self, config, state):
        self._config = config
        self._state = state
        self._logged_s = 0.0

    def say(self, text: str) -> None:
        """Write `text` on a line of its own, now, wherever the terminal is piped to."""
        if reporter := self._config.pluginmanager.get_plugin("terminalreporter"):
            capture = self._config.pluginmanager.get_plugin("capturemanager")
            # A test may be running, whose output pytest keeps.
            with capture.global_and_fixture_disabled() if capture else nullcontext():
                reporter.write_line(text)
                reporter.flush()

    def progress(self, text: str) -> None:
        """Say how far the run is, now and then."""
        now = time.monotonic()
        if now - self._logged_s >= LOGGED_S:
            self._logged_s = now
            self.say(text)

    def report(self, session) -> None:
        """Draw the report, unless that is left for later: of the run, or where its end could not be journalled, of what
        the journal has. What fails is told at the end."""
        self.progress("report")
        if self._state.options.no_report:
            return
        run = self._state.run
        folder = self._state.folder
        try:
            write(folder, run if run.end else None)
            if html.LACKING:
                self._state.problems.append(html.LACKING)
        except Exception as error:  # whatever it was, the journal and the JSON are safe
            reason = device_errors.reason(error)
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
            self._state.problems.append(f"the report could not be drawn ({reason}); try again with: {REDRAW} {folder}")

    def closing_lines(self) -> list[str]:
        """The brief tables, the summary, the ceilings, what was not measured, and where everything lies."""
        return [*terminal(self._state.run), *self.ways_on()]

    def ways_on(self) -> list[str]:
        """The way to go on with the run, if something is left to measure, the problems that it had, and which files are
        in its folder."""
        run = self._state.run
        folder = self._state.folder
        shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        there = sorted(path.name for path in folder.glob("*") if path.is_file())
        lines = [*self._state.problems, f"saved in {shown}: {', '.join(there) or 'nothing is left of it'}"]
        if (run.unfinished or not run.end) and journal.NAME in there:
            lines.insert(0, f"go on with it: {way_on(shown, options_of(run.metadata['options']))}")
        return lines

    def pytest_benchmark_update_json(self, config, output_json):
        """Add fields by the final ceilings, and what was not measured, and save it in the run's folder, too. Runs for
        each file saved, with the same outcome.

        Samples are left out: the journal has them, and files of several times the size are not worth a second copy.
        """
        if not self._state.has_begun:  # the benchmarks are somebody else's
            return
        run = self._state.run
        records = {(record["shape"], record["contender"]): record for record in records_of(run)}
        for entry in output_json["benchmarks"]:
            if not config.option.benchmark_save_data:
                entry["stats"].pop("data", None)
            parameters = entry["params"] or {}
            case = parameters.get("shape"), parameters.get("contender")
            if case in records:
                entry["extra_info"] = records[case]
        machine = dict(run.metadata["machine"])
        machine.pop("empty_call_s", None)  # measured: by that no two runs would be of the same machine
        missing = list(map(vars, run.missing))
        output_json |= {"machine_info": machine, "not_measured": missing, "ceilings": run.ceilings}
        if run.void:
            output_json["benchmarks"] = []
        text = json.dumps(output_json, indent=4, default=str)
        (self._state.folder / "benchmark.json").write_text(text, encoding="utf-8")

    def pytest_sessionstart(self):
        if reporter := self._config.pluginmanager.get_plugin("terminalreporter"):
            reporter.showfspath = False

    def pytest_report_teststatus(self, report):
        """Print no dots or letters: what has a number is in the tables, what has none in the lines below them. pytest's
        own summary begins a line with the word."""
        word = "" if report.passed else report.outcome.upper()
        return (report.outcome, "", word) if report.when == "call" and hasattr(report, "is_of_ffn") else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excinfo):
        """End with one line in place of a traceback."""
        if isinstance(excinfo.value, OSError):
            end_unread(excinfo.value)
        pytest.exit(f"{device_errors.reason(excinfo.value)}: {ENDS}", returncode=2)

    def pytest_keyboard_interrupt(self, excinfo):
        self._state.interrupted = f"interrupted by {str(excinfo.value) or 'Ctrl-C'}"

    def pytest_sessionfinish(self, session):
        if self._state.has_begun:  # between pytest-benchmark's saving and the terminal's summary
            self.report(session)

    def pytest_terminal_summary(self, terminalreporter):
        if self._state.has_begun:
            terminalreporter.section(self._state.run.metadata["title"])
            for line in self.closing_lines():
                terminalreporter.write_line(line)
