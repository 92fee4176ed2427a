"""The pytest plugin: plain pytest checks every case once, small; `--benchmark-only` measures, saves and reports.

pytest-benchmark has no hook for durations that a device measured. So all is measured first, in processes of its own
(`supervise.stages`), and each test then replays its samples through a timer of ours. Three ways in which that
fails in silence are closed here: a fixture that --benchmark-only would skip (`ffn_benchmark` names `benchmark`), a
timer that pytest-benchmark takes from elsewhere, as from a marker (checked after the replay), and an interpreted kernel
that gets timed (the interpreter is only ever switched on when nothing is timed, and `prepare` refuses an interpreted
kernel).
"""

import io
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from roofline import operations
from roofline.analysis import decision
from roofline.analysis.fields import refuse_taken
from roofline.host import machine
from roofline.host.container import settle
from roofline.operations import contenders
from roofline.operations import options as ffn_options
from roofline.protocol.messages import Broken
from roofline.protocol.stop_rule import StopRule
from roofline.pytest_plugin import metadata
from roofline.pytest_plugin.command_line import identity, ranks_of_environment, refuse_selection, session_of
from roofline.pytest_plugin.narrator import REDRAW, Narrator, end_unread
from roofline.report import throughput
from roofline.store import conditions, journal
from roofline.store.lines import plain
from roofline.store.outcome import FAILED, Outcome
from roofline.supervise import measuring, plan, signals, stages
from roofline.supervise.epochs import Epochs, follow
from roofline.supervise.session import Session
from roofline.theory.words import duration

THEIR_TABLE = (
    *("--benchmark-columns", "--benchmark-compare", "--benchmark-group-by"),
    *("--benchmark-histogram", "--benchmark-name", "--benchmark-sort"),
)
"""Options that say how pytest-benchmark's table is to be."""
THEIR_STORAGE = "file://./.benchmarks"
"""Where pytest-benchmark saves runs, unless told."""
OF_CACHE = ("--lf", "--ff", "--nf", "--sw", "--sw-skip", "--cache-show", "--cache-clear")
"""pytest's options that take its cache of earlier tests."""
BAD_INPUT = 2
"""Exit code of whatever is refused before anything is measured."""

STATE = pytest.StashKey[Session]()


def refuse(message: str) -> None:
    """End pytest with one line and exit code 2."""
    pytest.exit(plain(message), returncode=BAD_INPUT)


def replay(name: str, samples: list[float]) -> Callable[[], float]:
    """A timer of that name whose readings are 0, s0, 0, s1, ...: round i of the benchmark lasts exactly samples[i]
    seconds."""
    readings = itertools.chain.from_iterable((0.0, sample) for sample in samples)

    def timer() -> float:
        return next(readings)

    timer.__name__ = name
    return timer


class Nowhere(io.BytesIO):
    """A file that keeps nothing: a path for pytest-benchmark 5.3, an open file for those before it."""

    def __fspath__(self) -> str:
        return os.devnull

    def __str__(self) -> str:
        return "the run's folder"


def pytest_addoption(parser, pluginmanager):
    ffn_options.add(parser)
    if problem := ffn_options.misspelt(pluginmanager.get_plugin("pytestconfig").invocation_params.args):
        print(problem, file=sys.stderr)
        raise SystemExit(BAD_INPUT)  # pytest's own answer to an unknown option is a page long


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Run the workers of a rank that torchrun started, in place of pytest. Rank 0 runs pytest."""
    if os.environ.get("RANK", "0") == "0":
        return None
    try:
        ranks = ranks_of_environment()
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    if not ranks:
        return None
    return follow(ranks, config.rootpath, identity(config.rootpath, config.invocation_params.args))


def pytest_configure(config):
    # Before pytest-benchmark's own pytest_configure, which is marked trylast and reads what is set here.
    timed = config.option.benchmark_only
    for flag in OF_CACHE:
        if config.getoption(flag, None) and not config.pluginmanager.has_plugin("cacheprovider"):
            refuse(f"{flag}: no cache of earlier tests is kept here; name tests, or go on with a run by --ffn-resume")
    try:
        settle()
        if ranks := ranks_of_environment():
            config.add_cleanup(ranks.close)
        state = config.stash[STATE] = session_of(config, ranks)
    except (ValueError, OSError) as error:
        refuse(str(error))
    if state.options.device == "cpu" and not timed:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton, which decorates its helpers at import
    if state.options.operations:
        config.args = _files_of(config, state.options.operations)
    _set_up_benchmark(config)
    if timed:
        state.narrator = Narrator(config, state)
        config.pluginmanager.register(state.narrator)
        config.option.maxfail = 0  # all is measured in the first test: what stopped here would lose rows, and no time
        signals.install()


def _files_of(config, chosen: tuple[str, ...]) -> list[str]:
    """The tests of the operations that were chosen, beside those that the command line names."""
    benchmarks = config.rootpath / "tests" / "benchmarks"  # what `roofline_pytest` names from another folder
    files = []
    if config.args_source == config.ArgsSource.ARGS:
        files = [word for word in config.args if word != str(benchmarks)]
    for name in chosen:
        file = benchmarks / f"test_{name}.py" if name in operations.OPERATIONS else Path(name).expanduser()
        files.append(str(file))
    return files


def _set_up_benchmark(config) -> None:
    """Set pytest-benchmark's options: it saves and prints what it was asked for, and nothing else."""
    option = config.option
    uses_storage = option.benchmark_save or option.benchmark_autosave or option.benchmark_compare
    if option.benchmark_storage == THEIR_STORAGE and not uses_storage:
        option.benchmark_storage = os.devnull  # else it makes the folder at once
    if not option.benchmark_only:
        option.benchmark_disable = True
    elif not option.collectonly:
        # It makes its JSON for a file only; where the run folder will be is not known yet (`Narrator`).
        option.benchmark_json = option.benchmark_json or Nowhere()
        # Its table has no FLOP/s; ours stands in its place.
        option.benchmark_quiet = not any(str(word).startswith(THEIR_TABLE) for word in config.invocation_params.args)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Import a file as its own program: what reads a command line at its head is not given pytest's."""
    words, sys.argv = sys.argv, [str(collector.path)]
    try:
        return (yield)
    except SystemExit as error:
        refuse(f"{collector.path}: its import failed: SystemExit: {error}{contenders.ENDS}")
    finally:
        sys.argv = words


def pytest_generate_tests(metafunc):
    """Give `test_<operation>(ffn_benchmark, shape, contender)` the cases of the operation, unless it has its own."""
    marker = metafunc.definition.get_closest_marker("parametrize")
    if marker or not {"ffn_benchmark", "shape", "contender"} <= set(metafunc.fixturenames):
        return
    state = metafunc.config.stash[STATE]
    operation = operations.find(metafunc.function.__name__.removeprefix("test_"))
    planner = state.runners.planner(operation)
    pairs = []
    for case in _sweep(operation, metafunc.config, state):
        pairs += itertools.product([case.id], planner.names(case))
    metafunc.parametrize("shape, contender", pairs, ids=map("-".join, pairs))


def _sweep(operation: operations.Operation, config, state: Session) -> list:
    """The cases of `operation` in a run. What it refuses is noted, unless -k names the tests of others alone."""
    if not _is_run(operation, config, state):
        return []
    try:
        return ffn_options.read("ranks" if operation.between_ranks else "tp", state.options, operation.sweep)
    except ValueError as error:
        keyword = config.option.keyword
        tests = re.findall(r"\btest_\w+", keyword)
        if "not " in keyword or not tests or any(test in f"test_{operation.name}" for test in tests):
            state.refusals.append(str(error))
        return []


def _is_run(operation: operations.Operation, config, state: Session) -> bool:
    """True where a run has cases of `operation`."""
    options = state.options
    if options.users and not options.contenders:  # a user's contender is a matmul
        return operation.analysis == "throughput" and operation.default
    if not options.timed:
        return True
    if state.epochs and not operation.between_ranks:
        return False
    words = " ".join([config.option.keyword, *config.args])
    return operation.default or bool(state.resumed) or operation.name in words


def pytest_collection_modifyitems(config, items):
    """Where benchmarks are timed, deselect everything else; pytest-benchmark would skip it, one by one. So it is, in a
    resumed run, with what the run had not planned."""
    state = config.stash[STATE]
    kept = []
    dropped = []
    for item in items:
        (kept if _is_selected(item, state) else dropped).append(item)
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


def _is_selected(item, state: Session) -> bool:
    """True where `item` stays: where benchmarks are timed, it is one, and in a resumed run it was planned."""
    if "NOTSET" in item.name:  # pytest makes an item of an empty list of cases too
        return False
    if not state.options.timed:
        return True
    case = _case(item)
    if "benchmark" not in item.fixturenames:
        if case:
            refuse(
                f"{item.nodeid} would be left out: pytest-benchmark sees a benchmark only where the test names its "
                "fixture; make ffn_benchmark an argument of the test"
            )
        return False
    if not state.resumed:
        return True
    return "-".join(case or ()) in state.resumed.metadata.get("cases", ())


def _case(item) -> tuple[str, str] | None:
    """(shape, contender) of a benchmark that has both as parameters."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return (parameters["shape"], parameters["contender"]) if {"shape", "contender"} <= parameters.keys() else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session):
    """Note which contenders of each shape were selected. Refuses a selection that cannot be measured."""
    config = session.config
    state = config.stash[STATE]
    try:
        _select(session, state)
        if config.option.benchmark_compare_fail:
            _require_saved(config._benchmarksession)
        if state.planned and not config.option.collectonly:
            _start(config, state)
        state.plan = _plan(state)
    except ValueError as error:
        refuse(str(error))


def _require_saved(benchmarks) -> None:
    """Refuse a comparison that ends in failure after all is measured. Raises ValueError."""
    if not benchmarks.compare:
        raise ValueError("--benchmark-compare-fail needs --benchmark-compare; name a saved run by it")
    which = [] if benchmarks.compare is True else [benchmarks.compare]
    if not benchmarks.storage.query(*which):
        raise ValueError(f"--benchmark-compare: {benchmarks.storage} has no such run; save one by --benchmark-autosave")


def _select(session, state: Session) -> None:
    """Note the contenders of each shape. Raises ValueError where they cannot be measured."""
    for refusal in state.refusals:
        raise ValueError(refusal)
    for item in session.items:
        case = _case(item) if "ffn_benchmark" in item.fixturenames else None
        if case and state.is_of_workers(case[0]):
            state.planned.setdefault(case[0], []).append(case[1])
    for shape in state.planned:
        operation = operations.find(shape)
        refuse_taken(operation)
        state.runners.planner(operation)
    refuse_selection(state.options, state.runners, state.cases_left)


def _start(config, state: Session) -> None:
    """Ask a first worker what the machine is."""
    state.root = None if runs_here(config) and not state.epochs else config.rootpath
    stages.greet(state)
    if state.options.decide and not state.resumed:
        _make_time_for_decisions(config, state)


def _make_time_for_decisions(config, state: Session) -> None:
    """Have decisions be made on several processes, and unless they were chosen, on seconds enough in each."""
    options = state.options
    processes = max(decision.LEAST, state.processes)
    min_s = 0 if config.option.ffn_max_seconds else processes * decision.VISITS_S / len(state.planned)
    state.options = replace(options, processes=processes, max_seconds=max(options.max_seconds, min_s))


def pytest_report_collectionfinish(config):
    """Say what will be timed, and for how long."""
    state = config.stash[STATE]
    if not (state.options.timed and state.planned):
        return None
    counts = f"{len(state.cases)} cases on {len(state.planned)} shapes"
    options = state.options
    is_default = [operations.find(case.op).default for case in state.cases_left]
    bound = "about" if all(is_default) else "at least"  # others compile, and are called for longer
    text = f"{counts}, {bound} {duration(state.plan.seconds)}"
    if options.decide:
        text += ", for decisions up to three times that"
    if short := state.plan.short_shapes:
        fewest = StopRule.of_options(options).min_rounds
        few = f"fewer than {fewest} rounds, as their calls are long: a larger --ffn-max-seconds makes more"
        text += f"\n{short} of {len(state.planned)} shapes get {few}"
    if state.hello:
        text += f"\na worker may take {state.hello['share_bytes'] / 1e9:.1f} GB of memory"
    return text


def _plan(state: Session) -> plan.Plan:
    shapes = {case.id: state.planned[case.id] for case in state.cases_left}
    measured = state.resumed.shapes if state.resumed else {}
    done = {name: shape.passes for name, shape in measured.items()}
    return plan.plan(shapes, state.options, state.hello or plan.UNSEEN, done=done)


@pytest.fixture(scope="session")
def ffn_session(request):
    """The run, once all is measured in its folder, or in plain pytest checked."""
    state = request.config.stash[STATE]
    _begin(request.config, state)
    if not state.options.timed:
        stages.check(state)
        return
    measuring.measure(state)
    if not state.end_reason:
        stages.name_kernels(state)


def runs_here(config) -> bool:
    """True where workers run in this process, for somebody who looks around in it by a debugger."""
    return bool(config.option.usepdb or config.option.trace or sys.gettrace())


def _begin(config, state: Session) -> None:
    """Make the run's folder, or open that of the run to go on with."""
    now = metadata.make(state, config.rootpath)
    if state.resumed and (changes := conditions.changes_text(state.resumed.metadata, now)):
        refuse(f"--ffn-resume {state.resume}: {changes}; go back to what it was, or start a new run")
    results = state.options.results
    if not state.options.timed:  # a journal that nobody reads
        made = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        config.add_cleanup(made.cleanup)
        results = Path(made.name)
    folder = state.resume or results / metadata.folder_name(state.hello["machine"]["chip"])
    try:
        state.open(folder, state.resumed or now)
    except OSError as error:
        refuse(f"cannot write the run folder {folder}: {error.strerror}; choose another with --ffn-results=DIR")
    if state.options.timed:
        state.held = state.held or journal.hold(state.folder)


@pytest.fixture
def ffn_benchmark(request, benchmark):
    """`ffn_benchmark(shape, contender)` makes a row of the benchmark. In plain pytest it checks the contender.

    Both are the test's parameters. A contender that cannot run is skipped, a wrong one fails; neither gets a number.
    """
    state = request.config.stash[STATE]

    def run(shape: str, contender: str) -> None:
        if state.is_of_workers(shape):
            request.getfixturevalue("ffn_session")
            outcome = state.outcome(shape, contender)
        else:
            outcome = _check_here(state, shape, contender)
        if outcome and outcome.outcome == FAILED:
            pytest.fail(outcome.reason, pytrace=False)
        if outcome:
            pytest.skip(outcome.reason)
        if not state.options.timed:
            benchmark.pedantic(lambda: None)
            return
        samples = list(state.run.rows[shape, contender].times_s(contender).values())
        benchmark._timer = replay(state.hello["timer"], samples)
        benchmark.pedantic(lambda: None, rounds=len(samples))
        if benchmark.stats.stats.data != samples:
            benchmark.has_error = True  # keeps the row out of the JSON
            pytest.fail("pytest-benchmark took another timer than the one that replays samples", pytrace=False)

    return run


def _check_here(state: Session, shape: str, contender: str) -> Outcome | None:
    """Check a contender in this process; why it is refused, or None."""
    try:
        prepared = state.runners.prepare(operations.parse(shape)[0], [contender])
    except Broken as broken:
        return replace(broken.args[1], reason=f"{contender}: {broken.args[1].reason}")
    return prepared.rejected.get(contender)


def pytest_benchmark_update_machine_info(config, machine_info):
    """Say what the machine is as the journal does, without the host's name and that of a kernel built for its owner."""
    machine_info.clear()
    state = config.stash[STATE]
    if state.options.timed:  # --benchmark-compare asks before there is a worker
        machine_info.update(state.hello.get("machine") or machine.describe(state.options.device))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call" and "ffn_benchmark" in item.fixturenames:
        report.is_of_ffn = True
        if not report.passed:  # else pytest-benchmark warns that its fixture was not used
            item.funcargs["benchmark"].skipped = True
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    """End the run before pytest-benchmark saves it. A file that cannot be saved costs no data: the journal has all."""
    state = session.config.stash[STATE]
    if state.epochs:
        _leave_ranks(state, state.epochs)
    is_timed = state.options.timed and state.has_begun
    if is_timed:
        finish_run(session, state)
        session.exitstatus = exit_status(session.exitstatus, state)
    try:
        return (yield)
    except BrokenPipeError as error:
        end_unread(error)
    except OSError as error:  # of pytest-benchmark, after which nobody else is called
        if not is_timed:
            raise
        state.problems.append(f"pytest-benchmark could not save what it was asked for: {error}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        state.narrator.report(session)
        print("\n".join(state.narrator.closing_lines()))
    except KeyboardInterrupt as signal:  # while it was saved, drawn or summed up
        if not is_timed:
            raise
        name = str(signal) or "Ctrl-C"
        state.problems.append(f"interrupted by {name} at its end; draw the report with: {REDRAW} {state.folder}")
        session.exitstatus = pytest.ExitCode.INTERRUPTED
        print("", *state.narrator.ways_on(), sep="\n")


def _leave_ranks(state: Session, epochs: Epochs) -> None:
    """End the other ranks, and name those that do not leave."""
    signals.ignore_signals()  # torchrun sends SIGTERM where another rank ends with an exit code
    silence = epochs.close()
    if silence and not state.end_reason:
        state.problems.append(silence)


def finish_run(session, state: Session) -> None:
    """Write the end of the run into its journal, and note what ended it early."""
    state.finish(state.interrupted or str(session.shouldfail or session.shouldstop or ""))
    reason = state.end_reason
    # Every case may have its rounds of the first process, and none this reason.
    if reason and reason not in [outcome.reason for outcome in state.run.missing]:
        state.problems.append(f"the run ended early: {reason}")


def exit_status(status: int, state: Session) -> int:
    """The exit code of a finished run: it fails where a case failed, or is slower than it may be, where the run ended
    early, and where nothing could be measured."""
    failed = bool(state.end_reason) or FAILED in [outcome.outcome for outcome in state.run.missing]
    if state.options.fail_slower:
        slower = throughput.slower(state.run)
        state.problems += slower
        failed = failed or bool(slower)
    if not any(name in state.planned.get(shape, ()) for shape, name in state.run.rows):
        state.problems.append(
            "nothing that was asked for could be measured, for the reasons above: that counts as a failure"
        )
        failed = True
    if failed and status == pytest.ExitCode.OK:
        return pytest.ExitCode.TESTS_FAILED
    return status
