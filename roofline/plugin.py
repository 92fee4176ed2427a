"""The pytest plugin: plain pytest checks every case once, small; `--benchmark-only` measures, saves and reports.

pytest-benchmark has no hook for durations that a device measured. So a shape is measured first, all contenders in
turns (`session.Session`), and each test then replays its own samples through a timer of ours. Three ways in which that
fails in silence are closed here: a fixture that --benchmark-only would skip (`ffn_benchmark` names `benchmark`), a
marker that shadows the timer (merged at collection, checked after the replay), and an interpreted kernel that gets
timed (the interpreter is only ever switched on when nothing is timed, and `prepare` refuses an interpreted kernel).
"""

import os
import re
import shutil
from pathlib import Path

import pytest

from roofline import options as ffn_options
from roofline import terminal
from roofline.replay import LaterFile, ReplayTimer
from roofline.report.write import write


class State:
    """What the hooks of one pytest session share."""

    def __init__(self, options: ffn_options.Options, folder: Path | None):
        self.options = options
        self.folder = folder
        self.replay = ReplayTimer()
        self.selected: dict[str, list[str]] = {}
        self.session = None  # of roofline.session, once the first benchmark begins
        self.interrupted = False
        self.report_error: str | None = None


STATE = pytest.StashKey[State]()
CASE = pytest.StashKey[tuple[str, str]]()


def pytest_addoption(parser):
    ffn_options.add(parser)


def pytest_configure(config):
    # Before pytest-benchmark's own pytest_configure, which is marked trylast and reads what is set here.
    timed = config.option.benchmark_only
    if not timed:
        config.option.benchmark_disable = True
    device = _device(config.option.ffn_device, timed)
    try:
        options = ffn_options.resolve(config.getoption, device=device, timed=timed, root=config.rootpath)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    folder = None
    if timed and not config.option.collectonly:
        from roofline.session import folder_name

        folder = options.results / folder_name(device)
        config.option.benchmark_json = config.option.benchmark_json or LaterFile(folder / "benchmark.json")
        config.option.benchmark_quiet = True  # its table has no FLOP/s; ours stands in its place
    config.stash[STATE] = State(options, folder)


def _device(wanted: str, timed: bool) -> str:
    """`cuda` or `cpu`. A GPU that torch cannot use is an error, unless the CPU was asked for.

    Switches the interpreter on where Triton kernels can only be checked, never where anything is timed. That comes
    before torch is imported, since torch may import Triton, whose own helpers are decorated at import.
    """
    from roofline.measure.machine import gpu_driver, torch_sees_gpu, unusable_gpu

    interpreting = os.environ.get("TRITON_INTERPRET", "").lower() in {"1", "true", "yes", "on", "y"}
    if interpreting and (timed or wanted == "cuda"):
        raise pytest.UsageError(
            "TRITON_INTERPRET is set: interpreted kernels are never timed, nor run on a GPU; unset it"
        )
    if (
        wanted == "cpu"
        or interpreting
        or (wanted == "auto" and gpu_driver() is None and not (timed and torch_sees_gpu()))
    ):
        if not timed:
            os.environ["TRITON_INTERPRET"] = "1"
        return "cpu"
    if problem := unusable_gpu():
        raise pytest.UsageError(problem)
    if not torch_sees_gpu():
        raise pytest.UsageError("--ffn-device cuda: this machine has no NVIDIA GPU; leave it out to use the CPU")
    return "cuda"


def pytest_collection_modifyitems(config, items):
    """Give benchmarks the replay timer, merged with a marker of their own, which would otherwise shadow it.

    Where they are timed, everything else is deselected; pytest-benchmark would skip it, one by one.
    """
    if config.stash[STATE].options.timed:
        benchmarks = [item for item in items if "benchmark" in getattr(item, "fixturenames", ())]
        others = [item for item in items if item not in benchmarks]
        for item in others:
            if {"shape", "contender"} <= _parameters(item).keys():
                raise pytest.UsageError(
                    f"{item.nodeid} would be left out: pytest-benchmark sees a benchmark only where the test names its "
                    "fixture; make ffn_benchmark an argument of the test"
                )
        config.hook.pytest_deselected(items=others)
        items[:] = benchmarks
    for item in items:
        if "ffn_benchmark" in getattr(item, "fixturenames", ()):
            own = item.get_closest_marker("benchmark")
            merged = {**(own.kwargs if own else {}), "timer": config.stash[STATE].replay}
            item.add_marker(pytest.mark.benchmark(**merged), append=False)


def _parameters(item) -> dict:
    return getattr(getattr(item, "callspec", None), "params", {})


def pytest_collection_finish(session):
    """Which contenders of each shape were selected (by -k, by node id): those take turns, beside the vendor."""
    selected = session.config.stash[STATE].selected
    for item in session.items:
        parameters = _parameters(item)
        if "ffn_benchmark" in item.fixturenames and {"shape", "contender"} <= parameters.keys():
            selected.setdefault(parameters["shape"], []).append(parameters["contender"])
            item.stash[CASE] = parameters["shape"], parameters["contender"]


@pytest.fixture(scope="session")
def ffn_clock(request):
    """The clock that times the contenders. Tests of the harness put a fake one in its place."""
    from roofline.measure import clocks

    return clocks.for_device(request.config.stash[STATE].options.device)


@pytest.fixture(scope="session")
def ffn_session(request, ffn_clock, ffn_probes):
    """The run: its folder is made, and its ceilings measured, before the first shape and after the last."""
    from roofline.measure import telemetry
    from roofline.session import Session

    state = request.config.stash[STATE]
    try:
        session = Session(
            state.options,
            state.folder,
            ffn_clock,
            telemetry.for_device(state.options.device),
            ffn_probes,
            request.config.rootpath,
        )
    except OSError as error:
        pytest.exit(
            f"cannot write the run folder {state.folder}: {error.strerror}; choose another with --ffn-results", 4
        )
    state.session = session
    session.measure_ceilings("start")
    yield session
    if not state.interrupted:
        session.measure_ceilings("end")
        session.close()


@pytest.fixture
def ffn_benchmark(request, benchmark):
    """`ffn_benchmark(case, contender, prepare)`: one row of the benchmark; in plain pytest, its correctness test.

    `case` has `id`, `op`, `model`, `layer`, `tp`, `m`, `n`, `k`, `dtype` and `work`; `prepare(case, names)` returns a
    `roofline.measure.lineup.Lineup`. A contender that cannot run is skipped, a wrong one fails; neither gets a number.
    """
    state = request.config.stash[STATE]

    def run(case, contender: str, prepare) -> None:
        if state.options.timed:
            session = request.getfixturevalue("ffn_session")
            lineup = session.lineup(case, state.selected[case.id], prepare)
        else:
            session, lineup = None, prepare(case, [contender])
        case_id = f"{case.id}-{contender}"
        record = session and session.record(case.id, contender)
        reason = lineup.unable.get(contender) or lineup.wrong.get(contender)
        if session and not record and not reason:
            reason = f"{contender}: the host was late for every sample; close the programs that keep it busy"
        if reason:
            unable = contender in lineup.unable
            if session:
                session.not_measured(case_id, "skipped" if unable else "failed", reason)
            pytest.skip(reason) if unable else pytest.fail(reason, pytrace=False)
        if not session:
            benchmark.pedantic(lambda: None)
            return
        samples = list(session.run.shapes[case.id]["times_s"][contender].values())
        state.replay.load(session.clock.timer, samples)
        benchmark.extra_info.update(record)
        benchmark.pedantic(lambda: None, rounds=len(samples))
        if benchmark.stats.stats.data != samples:
            benchmark.has_error = True  # keeps the row out of the JSON
            pytest.fail("another timer shadows the replay timer: remove it from the test", pytrace=False)

    return run


def pytest_report_teststatus(report, config):
    """A benchmark's progress is its own line, below, in place of a dot."""
    if config.stash[STATE].options.timed and report.when == "call" and report.passed:
        return "passed", "", ""
    return None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call" and CASE in item.stash:
        report.ffn_case = item.stash[CASE]
        if not report.passed:  # else pytest-benchmark warns that its fixture was not used
            item.funcargs["benchmark"].skipped = True
    return report


class LiveLines:
    """One line per case while the run goes on. Also notes an interruption, after which no ceiling is measured."""

    def __init__(self, config, reporter):
        self._state, self._reporter = config.stash[STATE], reporter
        reporter.showfspath = False

    def pytest_runtest_logreport(self, report):
        shape, contender = getattr(report, "ffn_case", (None, None))
        record = self._state.session and report.passed and shape and self._state.session.record(shape, contender)
        if record:
            self._reporter.write_line(terminal.live_line(f"{shape}-{contender}", record))

    def pytest_keyboard_interrupt(self):
        self._state.interrupted = True


def pytest_sessionstart(session):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and session.config.stash[STATE].options.timed and not session.config.option.collectonly:
        session.config.pluginmanager.register(LiveLines(session.config, reporter), "ffn-live-lines")


def pytest_benchmark_update_machine_info(config, machine_info):
    """Chip, ceilings and versions in; the host's name out, and the name of a kernel built for that host's owner."""
    machine_info.pop("node", None)
    machine_info["release"] = re.match(r"[\d.]*", machine_info.get("release", ""))[0]
    session = config.stash[STATE].session
    if session:
        machine_info.update(session.run.head["machine"], ceilings=session.run.ceilings)


def pytest_benchmark_update_json(config, output_json):
    """Fields by the final ceilings, and what was not measured. Runs once for each file saved, with the same outcome."""
    session = config.stash[STATE].session
    if session is None:
        return
    for entry in output_json["benchmarks"]:
        parameters = entry["params"] or {}
        record = session.record(parameters.get("shape"), parameters.get("contender"))
        if record:
            entry["extra_info"] = record
    output_json["not_measured"] = session.run.not_measured


def pytest_sessionfinish(session):
    """Draw the report. A report that fails costs no data: the reason and the way to redraw it are printed."""
    state = session.config.stash[STATE]
    if state.session is None:
        return
    try:
        given = session.config.option.benchmark_json
        if not isinstance(given, LaterFile):  # the user's --benchmark-json took the place of ours
            shutil.copy(given if isinstance(given, Path) else given.name, state.folder / "benchmark.json")
        write(state.folder)
    except Exception as error:  # whatever it was, the journal and the JSON are safe
        state.report_error = f"the report could not be drawn ({type(error).__name__}: {error})"


def pytest_terminal_summary(terminalreporter, config):
    state = config.stash[STATE]
    if state.session:
        terminalreporter.section(state.session.run.head["title"])
        for line in terminal.closing_lines(state.session.run, state.folder, state.report_error):
            terminalreporter.write_line(line)
