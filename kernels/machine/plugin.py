"""`pytest --machine`: a project's own GPU tests run on the machine, without a GPU; and a fixture `machine`.

A test fails where one of its launches is not exact. It is skipped, by name, where it asks for what the machine or the
CPU lacks.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .gpus import ARCHITECTURES

if TYPE_CHECKING:  # this imports torch and Triton, which take seconds
    from .intercept import Launch, launches

BLOCK = pytest.StashKey["launches"]()
PROPERTY = "machine"
"""The name of the property that a report has for each launch."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("machine", "kernels on a machine without a GPU")
    group.addoption("--machine", action="store_true", help="run every launch of every test on the machine")
    group.addoption("--machine-seeds", type=int, default=4, metavar="N", help="orders of events of a launch (4)")
    group.addoption("--machine-arch", default="sm_90a", choices=[*ARCHITECTURES], help="the GPU (sm_90a)")
    group.addoption("--machine-json", type=Path, metavar="FILE", help="write what was said of each launch")
    parser.addini("machine_accept", "lines whose races are known, as sort.py:214", "linelist")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Entries(config))
    if config.option.machine:  # before tests are imported, which ask for a GPU
        block = block_of(config)
        block.__enter__()
        config.add_cleanup(lambda: block.__exit__(None, None, None))


def block_of(config: pytest.Config) -> "launches":
    from .intercept import launches

    option = config.option
    accept = config.getini("machine_accept")
    return launches(seeds=option.machine_seeds, arch=option.machine_arch, accept=accept, raises=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator:
    if not item.config.option.machine:
        return (yield)
    with block_of(item.config) as item.stash[BLOCK]:
        return (yield)


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> "Iterator[launches]":
    """The launches of this test, which run on the machine, also without --machine."""
    if BLOCK in request.node.stash:
        yield request.node.stash[BLOCK]
        return
    with block_of(request.config) as request.node.stash[BLOCK]:
        yield request.node.stash[BLOCK]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator:
    try:
        return (yield)
    except Exception as error:
        if is_uncovered(item, error):
            pytest.skip(f"not on the machine: {error}")
        raise


def is_uncovered(item: pytest.Item, error: Exception | None) -> bool:
    """Whether a test that runs on the machine has asked for what the pretended GPU lacks."""
    if BLOCK not in item.stash:
        return False
    from .pretend import UncoveredError

    return isinstance(error, UncoveredError)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator:
    """Judge a test by its launches."""
    cause = result = None
    try:
        result = yield
    except Exception as error:
        cause = error
    block = item.stash.get(BLOCK, None)
    if block is None:
        if cause:
            raise cause
        return result
    for launch in block.verdicts:
        item.user_properties.append((PROPERTY, json.dumps(entry(item, launch))))
    unknown = [launch for launch in block.bad if launch.verdict.kind == "unknown"]
    if faults := [launch for launch in block.bad if launch not in unknown]:
        ends = [f"the test itself ends in {type(cause).__name__}"] * (cause is not None)
        raise pytest.fail.Exception("\n".join([*map(message, faults), *ends]), pytrace=False) from None
    if unknown:
        pytest.skip(f"the machine lacks something: {unknown[0].verdict.text.splitlines()[0]}")
    if isinstance(cause, NotImplementedError) or is_uncovered(item, cause):
        pytest.skip(f"not on the machine: {str(cause).splitlines()[0]}")
    if cause:
        raise cause
    return result


def message(launch: "Launch") -> str:
    file, line = launch.place
    return f"{os.path.relpath(file)}:{line}: {launch}"


def entry(item: pytest.Item, launch: "Launch") -> dict[str, Any]:
    file, line = launch.place
    return dict(
        test=item.nodeid,
        kernel=launch.kernel,
        kind=launch.verdict.kind,
        file=os.path.relpath(file),
        line=line,
        text=launch.verdict.text,
        instructions=launch.verdict.instructions,
    )


class Entries:
    """The verdicts on all launches: for the terminal, a file, and GitHub's annotations."""

    def __init__(self, config: pytest.Config):
        self.file = config.option.machine_json
        self.entries = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == PROPERTY:
                self.entries.append(json.loads(value))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.file:
            self.file.write_text(json.dumps(self.entries, indent=1))
        if not self.entries:
            return
        bad = [launch for launch in self.entries if launch["kind"] not in ("exact", "unknown")]
        kernels = len({launch["kernel"] for launch in self.entries})
        count = f"{len(self.entries)} launches of {kernels} kernels, {len(bad)} bad"
        terminalreporter.write_line(f"machine: {count}")
        for launch in bad if os.environ.get("GITHUB_ACTIONS") else ():
            place = f"file={launch['file']},line={launch['line']},title={launch['kernel']} is not exact"
            text = f"{launch['kind']}: {launch['text']}".replace("%", "%25").replace("\n", "%0A")
            terminalreporter.write_line(f"::error {place}::{text}")
