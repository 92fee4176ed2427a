"""A small benchmark project on a fake clock, run by a real pytest in a process of its own."""

import functools
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_devices import fake_cuda, fake_nvml, fake_time  # noqa: F401 fixtures
from fake_ncu import ncu  # noqa: F401 a fixture
from hypothesis import HealthCheck, settings
from made_up_run import save
from outcome import Outcome
from zygote import ROOT, Zygote, environment

from roofline.commands.cli import main
from roofline.store import journal

# A busy machine can stall any example.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

CONFTEST = (Path(__file__).parent / "small_project.py").read_text()
"""Of a project of its own, with fakes in the place of kernels and devices."""

TESTS = """
import pytest

SHAPE = "matmul-xxl/16-up-tp8-m64-fp32"


@pytest.mark.benchmark(group="ffn")
@pytest.mark.parametrize("contender", ["torch", "numpy", "wrong", "unable"])
@pytest.mark.parametrize("shape", [SHAPE])
def test_matmul(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)
"""

THREE_SHAPES = TESTS.replace("[SHAPE]", "[f'matmul-xxl/16-up-tp8-m{m}-fp32' for m in (64, 128, 256)]").replace(
    ', "wrong", "unable"', ""
)


@pytest.fixture
def refused(capsys):
    """`refused(*words)`: what the `roofline` command refuses them with: one line, and exit code 2."""

    def run(*words: str) -> str:
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code
        out, error = capsys.readouterr()
        assert (code, out, error.count("\n")) == (2, "", 1)
        return error

    return run


HEAVY = {"torch", "triton", "pandas", "matplotlib", "seaborn"}


@pytest.fixture
def light():
    """`light(cpu_s, *words)`: what `python -m` prints of these words, in so many seconds and without any heavy package.

    In CPU seconds, of one in three: the machine may be busy, and the program is not slower for that.
    """

    def run(cpu_s: float, *words: str) -> str:
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-X", "importtime", "-m", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment())
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if (took_s := after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) < cpu_s:
                break
        imported = re.findall(r"^import time: .*\| +(\w+)$", done.stderr, re.MULTILINE)
        assert len(imported) > 20
        assert not HEAVY & {*imported}
        assert took_s < cpu_s
        return done.stdout

    return run


@pytest.fixture(scope="session")
def zygote():
    made = Zygote()
    yield made
    made.close()


@pytest.fixture(scope="session")
def run_project(tmp_path_factory, zygote):
    """`run_project(*arguments)` runs pytest on the small project, in `root` or a new folder, and returns its Outcome.

    `more` follows its conftest. `file_bytes` limits the size of the files that may be written, as a full disk would.
    What else is named is a variable of the environment, as `fault`, `passes`, `processes` and `slower`. Shares run in
    the process of pytest itself, unless `shares` has them be "forks" of it, or "new" processes.
    """

    def run(
        *arguments, tests=TESTS, conftest=CONFTEST, more="", root=None, cwd=None, file_bytes=None, **variables,
    ) -> Outcome:  # fmt: skip
        root = root or tmp_path_factory.mktemp("project")
        (root / "conftest.py").write_text(conftest + more)
        (root / "test_small.py").write_text(tests)
        (root / "pytest.ini").write_text("[pytest]\n")
        words = "--ffn-device", "cpu", *arguments
        code, text = zygote.run(*words, cwd=cwd or root, file_bytes=file_bytes, **variables)
        assert "the run in memory is not its journal" not in text
        folder = max((root / "results" / "local").glob("*"), default=None)

        def go_on(*arguments, **about) -> Outcome:
            copy = shutil.copytree(root, tmp_path_factory.mktemp("resumed"), dirs_exist_ok=True)
            resume = f"--ffn-resume={copy / folder.relative_to(root)}"
            about = {"tests": tests, "conftest": conftest} | variables | {"fault": ""} | about
            return run("--benchmark-only", resume, *arguments, root=copy, **about)

        return Outcome(code, text, folder, go_on, root)

    return run


@pytest.fixture(scope="session")
def three_shapes(run_project):
    """`run_project` on three shapes of two contenders, timed unless told."""
    return lambda *arguments, timed=True, **about: run_project(
        *["--benchmark-only"] * timed, *arguments, tests=THREE_SHAPES, **about
    )


@pytest.fixture(scope="session")
def by_forks(three_shapes):
    """`three_shapes`, whose shares are forks."""
    return functools.partial(three_shapes, shares="forks")


@pytest.fixture
def loaded(tmp_path):
    """`loaded(lines, folder="run")`: the run of a journal of these lines."""
    return lambda lines, folder="run": journal.load(save(tmp_path / folder, lines))


@pytest.fixture
def undrawn(monkeypatch):
    """Reports have no figures, which take most of their time."""
    from roofline.report import plots

    monkeypatch.setattr(plots, "FIGURES", {})
    monkeypatch.setattr(plots, "timeline", lambda run: None)


@pytest.fixture(scope="session")
def draw(tmp_path_factory):
    """`draw(lines, name...)`: the figures of those names, or all, as SVG."""
    from made_up_gathers import Drawn

    return lambda lines, *only: Drawn(tmp_path_factory.mktemp("drawn") / "run", lines, only)
