"""`pytest --machine` on a project's tests for a GPU: what passes, fails and is skipped, and what is written of it."""

import contextlib
import io
import json
import re
import tempfile
from pathlib import Path

import pytest

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def copy(x, out, n, B: tl.constexpr, RACES: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    if RACES:
        tl.store(out, 1.0)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)
"""
TESTS = """
import pytest
import torch
from project import copy

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def copies(races):
    x = torch.randn(100, device="cuda")
    out = torch.empty_like(x)
    copy[(2,)](x, out, 100, 64, races, num_warps=1)
    torch.cuda.synchronize()
    torch.testing.assert_close(out.cpu(), x.cpu())


@needs_gpu
def test_copy():
    copies(False)


@needs_gpu
def test_race():
    copies(True)


@needs_gpu
def test_graph():
    torch.cuda.CUDAGraph()


@needs_gpu
def test_sum():
    assert torch.ones(2, device="cuda").sum() == 3


@pytest.fixture
def timed():
    return torch.cuda.Event().elapsed_time(torch.cuda.Event())


@needs_gpu
def test_timed(timed):
    pass


def test_by_fixture(machine):
    copies(True)
"""


def ran(*words: str) -> dict:
    """How each test ends, with what is said of it."""
    import torch

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("project.py").write_text(KERNEL)
        Path("test_project.py").write_text(TESTS)
        files = ["--machine-json=out.json", "--junitxml=out.xml", "--machine-seeds=2"]
        plugins = ["-pno:xdist", "-pno:benchmark", "-pno:cacheprovider", "-pkernels.machine.plugin"]
        with contextlib.redirect_stdout(io.StringIO()) as out, pytest.MonkeyPatch.context() as patch:
            patch.setenv("GITHUB_ACTIONS", "true")
            code = pytest.main(["-rs", "--rootdir=.", *plugins, *files, *words])
        entries, junit = json.loads(Path("out.json").read_text()), Path("out.xml").read_text()
    return dict(code=int(code), out=out.getvalue(), entries=entries, junit=junit, left=torch.cuda.is_available())


def test_a_projects_tests_run_without_a_gpu(elsewhere):
    of = elsewhere(ran, "--machine")
    assert of["code"] == 1
    assert re.search(r"3 failed, 1 passed, 2 skipped", of["out"])
    assert "not on the machine: torch.cuda.CUDAGraph: the machine has none" in of["out"]
    assert "elapsed_time: the machine has no time" in of["out"]
    kinds = {entry["test"].partition("::")[2]: entry["kind"] for entry in of["entries"]}
    assert kinds == dict(test_copy="exact", test_race="race", test_by_fixture="race")
    line = next(number for number, text in enumerate(KERNEL.splitlines(), 1) if "tl.load" in text)
    assert [(entry["file"], entry["line"]) for entry in of["entries"] if entry["kind"] == "race"] == [
        ("project.py", line),
        ("project.py", line),
    ]
    annotation = f"::error file=project.py,line={line},title=copy is not exact::race: out[0] is written twice"
    assert of["out"].count(annotation) == 2
    assert of["junit"].count(f'message="Failed: project.py:{line}: copy') == 2
    assert not of["left"]


def test_a_line_of_pyproject_accepts_races(elsewhere):
    of = elsewhere(ran, "--machine", "-omachine_accept=project.py:10")
    _, *raced = of["entries"]
    assert {entry["kind"] for entry in raced} <= {"exact", "order"}
    for entry in raced:
        assert re.search(r"\n  accept  project.py:10: \d+ races? that count as ordered", entry["text"])


def test_without_the_option_only_the_fixture_takes_launches(elsewhere):
    of = elsewhere(ran)
    assert re.search(r"1 failed, 5 skipped", of["out"])
    assert [entry["kind"] for entry in of["entries"]] == ["race"]
