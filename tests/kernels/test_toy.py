"""A kernel that a test registers is run, compiled and tuned as ours are."""

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch
from command import main
from toy import ENTRY, TOY

from kernels import inspect, tiles
from kernels.bench import matmul
from kernels.registry import CONTENDERS, Planner
from kernels.tiles import Config
from kernels.tune import as_text, candidates
from kernels.waves import GpuSpec
from roofline.operations.matmul import sweep
from roofline.options import Options
from roofline.theory.chips import find


@pytest.fixture
def toy(tables, monkeypatch):
    """`TOY`, registered, with an entry in each table."""
    for arch in ("interpreter", "sm90"):
        document = json.loads((tables / f"{arch}.json").read_text())
        document["entries"].append(ENTRY | ({"mma": None} if arch == "interpreter" else {}))
        (tables / f"{arch}.json").write_text(as_text(document))
    tiles.read_again()
    monkeypatch.setitem(CONTENDERS, TOY.name, TOY)


def test_it_is_called_benchmarked_and_tuned_by_its_name(toy, operands, device):
    case = operands(100, 200, 72, torch.float16)
    assert CONTENDERS["toy"].why_not(case.x, case.w) is None
    case.verify(CONTENDERS["toy"].load()(case.x, case.w, case.out))
    options = Options(device, False, "100x300", ("up",), (300,), (1,), ("fp16",), ("toy",), 0, 1.0, Path("unused"))
    (case,) = sweep(options)
    assert Planner(options).names(case) == ["toy"]
    entrant = matmul.Runner(options).prepare(case, ["toy"]).entrants["toy"]
    assert entrant.config == "64x128x64 warps4 stages3 group1"
    assert entrant.relative_error < 5e-4
    configs = candidates("toy", (2048, 6656, 16384), "fp16", "sm90", GpuSpec.of_chip(find("H200")))
    assert configs == [Config(64, 128, 64, 4, 3, 1), Config(64, 128, 64, 4, 4, 1)]  # 12 stages do not fit


def compiled(folder: str) -> list:
    """Return what `kernels.inspect` finds by the tables in `folder`, and `kernels.machine`: where Triton compiles."""
    CONTENDERS["toy"], tiles.FOLDER = TOY, Path(folder)
    (finding,) = map(inspect.inspect, inspect.jobs(["toy"]))
    with redirect_stdout(StringIO()) as out:
        status = main(["toy"])
    return [finding.mma, finding.problems(), status, out.getvalue()]


def test_it_is_compiled_and_the_machine_runs_it(toy, tables, printed_elsewhere):
    code = f"import json, test_toy; print(json.dumps(test_toy.compiled({str(tables)!r})))"
    mma, problems, status, text = printed_elsewhere(code)
    assert (mma, problems, status) == ("wgmma.m64n128k16", [], 0), text
    exact, *_, last = text.splitlines()
    assert exact.startswith("exact  toy  64x128x64")
    assert " instructions  " in exact
    assert "1 cases under 2 orders of events, 0 bad" in last
