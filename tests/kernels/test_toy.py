"""A kernel that a test registers is run, compiled and tuned as ours are."""

import json
from pathlib import Path

import pytest
import torch
from toy import ENTRY, TOY

from kernels import tiles
from kernels.bench import matmul
from kernels.registry import CONTENDERS, Planner
from kernels.tiles import Config
from kernels.tune import as_text, candidates
from kernels.waves import GpuSpec
from roofline.operations.matmul import sweep
from roofline.options import Options
from roofline.theory.chips import find

H200 = GpuSpec.of_chip(find("H200"))
SHAPE = (2048, 6656, 16384)


@pytest.fixture
def toy(tables, registered):
    """`TOY`, registered, with an entry in each table."""
    for arch in ("interpreter", "sm90"):
        document = json.loads((tables / f"{arch}.json").read_text())
        document["entries"].append(ENTRY | ({"mma": None} if arch == "interpreter" else {}))
        (tables / f"{arch}.json").write_text(as_text(document))
    tiles.table.cache_clear()
    registered(TOY)


def test_it_multiplies(toy, operands, device):
    case = operands(100, 200, 72, torch.float16)
    assert CONTENDERS["toy"].why_not(case.x, case.w) is None
    case.verify(CONTENDERS["toy"].load()(case.x, case.w, case.out))


def test_the_benchmark_runs_it_by_its_name(toy, device):
    options = Options(device, False, "100x300", ("up",), (300,), (1,), ("fp16",), ("toy",), 0, 1.0, Path("unused"))
    (case,) = sweep(options)
    assert Planner(options).names(case) == ["toy"]
    entrant = matmul.Runner(options).prepare(case, ["toy"]).entrants["toy"]
    assert entrant.config == "64x128x64 warps4 stages3 group1"
    assert entrant.relative_error < 5e-4


ELSEWHERE = """
import contextlib, io, json, sys
from pathlib import Path
sys.path[:0] = [{here!r}, "tests/machine"]
from toy import TOY
from kernels import tiles, registry
from kernels import inspect
from command import main

registry.CONTENDERS["toy"] = TOY
tiles.FOLDER = Path({tables!r})
(finding,) = map(inspect.inspect, inspect.jobs(["toy"]))
with contextlib.redirect_stdout(io.StringIO()) as said:
    status = main(["toy"])
print(json.dumps([finding.mma, finding.problems(), status, said.getvalue()]))
"""


def test_it_is_compiled_and_the_machine_runs_it(toy, tables, printed_elsewhere, request):
    code = ELSEWHERE.format(here=str(request.path.parent), tables=str(tables))
    mma, problems, status, message = printed_elsewhere(code)
    assert (mma, problems) == ("wgmma.m64n128k16", [])
    assert status == 0, message
    assert "exact  toy  64x128x64" in message


def test_it_is_tuned(toy):
    configs = candidates("toy", SHAPE, "fp16", "sm90", H200)
    assert configs == [Config(64, 128, 64, 4, 3, 1), Config(64, 128, 64, 4, 4, 1)]  # 12 stages do not fit
