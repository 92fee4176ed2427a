"""What a benchmark run says and saves: a line per case as it goes, its report, its JSON, and the table at its end."""

import json
from contextlib import nullcontext

import pytest

from roofline.analysis import tuning
from roofline.analysis.throughput.metrics import ratio_text
from roofline.pytest_plugin.signals import ways_on
from roofline.report import sections, tables
from roofline.report.format import time_text
from roofline.report.write import write
from roofline.store import journal

REDRAW = "python3 -m roofline report"


def live_line(case: str, record: dict) -> str:
    """One case, as soon as it is measured: what no later ceiling can change."""
    return f"{case:<48} {time_text(record['time_s']):>8}  ratio {ratio_text(record)}"


class Narrator:
    """Plugin that says what the run does while it goes on, completes pytest-benchmark's JSON, draws the report, and
    sums up. Notes what interrupted the run.

    `state` is the plugin's: `session`, `folder`, and the `problems` and `interrupted` that are noted here.
    """

    def __init__(self, config, state):
        self._config, self._state = config, state
        self._saved: dict | None = None
        """What pytest-benchmark saves, completed; it makes none where no case has a number."""

    def say(self, text: str) -> None:
        """A line of its own, now, wherever the terminal is piped to."""
        plugin = self._config.pluginmanager.get_plugin
        if reporter := plugin("terminalreporter"):
            with self.uncaptured():
                reporter.write_line(text)
                reporter.flush()

    def uncaptured(self):
        """A context in which stdout is the terminal's: a test may be running, whose output pytest keeps."""
        capture = self._config.pluginmanager.get_plugin("capturemanager")
        return capture.global_and_fixture_disabled() if capture else nullcontext()

    def report(self, session) -> None:
        """Save the JSON and draw the report. What fails is told at the end."""
        run, folder = self._state.session.run, self._state.folder
        path = folder / "benchmark.json"
        saved = self._saved or {"machine_info": run.metadata["machine"], "benchmarks": [], "not_measured": run.missing}
        try:
            if self._saved or not path.exists():
                path.write_text(json.dumps(saved, indent=4, default=str), encoding="utf-8")
        except OSError as error:
            self._state.problems.append(f"benchmark.json could not be written ({error}); {journal.NAME} has all of it")
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        try:
            write(folder)
        except (Exception, KeyboardInterrupt) as error:  # whatever it was, the journal and the JSON are safe
            said = f"{type(error).__name__}: {error}"
            if isinstance(error, KeyboardInterrupt):
                session.exitstatus = pytest.ExitCode.INTERRUPTED
                said = f"interrupted by {str(error) or 'Ctrl-C'}"
            self._state.problems.append(f"the report could not be drawn ({said}); try again with: {REDRAW} {folder}")

    def closing_lines(self) -> list[str]:
        """The brief tables, the summary, the ceilings, what was not measured, and where everything lies."""
        run, folder = self._state.session.run, self._state.folder
        records = run.records()
        lines = []
        for section in sections.sections(run, records):
            shown = tables.terminal(section.rows, section.columns) if section.rows and not section.long else []
            if body := [*shown, *section.lines]:
                lines += [section.title, *body, ""]
        lines += [*sections.ceilings(run), *run.notes, *sections.missing(run)]
        return [*lines, *ways_on(run, folder, *self._state.problems)]

    def pytest_benchmark_update_json(self, config, output_json):
        """Fields by the final ceilings, and what was not measured. Runs for each file saved, with the same outcome.

        Samples are left out: the journal has them, and files of several times the size are not worth a second copy.
        """
        session = self._state.session
        for entry in output_json["benchmarks"]:
            if not config.option.benchmark_save_data:
                entry["stats"].pop("data", None)
            parameters = entry["params"] or {}
            if session and (record := session.run.record(parameters.get("shape"), parameters.get("contender"))):
                entry["extra_info"] = record
        output_json["not_measured"] = session.run.missing if session else []
        self._saved = output_json

    def pytest_sessionstart(self):
        if reporter := self._config.pluginmanager.get_plugin("terminalreporter"):
            reporter.showfspath = False

    def pytest_report_teststatus(self, report):
        """A benchmark's progress is its own line, below, in place of a dot."""
        return ("passed", "", "") if report.when == "call" and report.passed else None

    def pytest_runtest_logreport(self, report):
        shape, contender = getattr(report, "ffn_case", (None, None))
        record = self._state.session and report.passed and shape and self._state.session.run.record(shape, contender)
        if record and not tuning.is_tuning(record["op"]):  # of those, a line for each shape is enough
            self.say(live_line(f"{shape}-{contender}", record))

    def pytest_keyboard_interrupt(self, excinfo):
        self._state.interrupted = f"interrupted by {str(excinfo.value) or 'Ctrl-C'}"

    def pytest_sessionfinish(self, session):
        if self._state.session:  # between pytest-benchmark's saving and the terminal's summary
            self.report(session)

    def pytest_terminal_summary(self, terminalreporter):
        if self._state.session:
            terminalreporter.section(self._state.session.run.metadata["title"])
            for line in self.closing_lines():
                terminalreporter.write_line(line)
