"""What a step hides, by its trace: that of two ranks over gloo, as on the page, those written by hand, and none."""

import gzip
import json
import os
import re
from itertools import pairwise
from pathlib import Path

import numpy
import pytest
import torch
from pandas import DataFrame
from torch.distributed import TCPStore
from torch.multiprocessing import start_processes

import roofline
from conftest import ROOT
from roofline.report.plots import theme
from roofline.report.trace import COLOURS

PAGE = (ROOT / "docs" / "your-step.md").read_text()
STEP, LOOK = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TRACES = Path(__file__).parent / "traces"
GPU, OTHER_GPU, CPU = (TRACES / name for name in ("gpu_rank0.json", "gpu_rank1.json", "cpu.json"))
KINDS = [f"{kind}_s" for kind in COLOURS]


def rank_of_page(rank, port, folder):
    os.chdir(folder)
    about = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in about.items()}, TORCHELASTIC_USE_AGENT_STORE="True")
    torch.set_num_threads(1)  # a fork has no pool of threads
    exec(STEP, {})


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    start_processes(rank_of_page, (store.port, str(folder)), 2, start_method="fork")
    return folder


def spans(pattern):
    """(begin, end, thread) of the events of rank 0 whose names begin so."""
    events = json.loads(gzip.decompress(Path("rank0.json.gz").read_bytes()))["traceEvents"]
    chosen = [event for event in events if event["ph"] == "X" and re.match(pattern, event["name"])]
    return [(event["ts"], event["ts"] + event["dur"], event["tid"]) for event in chosen]


def lasting(*conditions):
    """The seconds for which all hold that any of the spans of each goes on: each moment is looked at by itself."""
    edges = sorted({edge for spans in conditions for span in spans for edge in span[:2]})
    sum_us = 0.0
    for begin, end in pairwise(edges):
        middle = (begin + end) / 2
        if all(any(first < middle < last for first, last, _ in spans) for spans in conditions):
            sum_us += end - begin
    return 1e-6 * sum_us


def test_two_ranks_of_gloo(two_ranks, monkeypatch, capsys):
    monkeypatch.chdir(two_ranks)
    (gather,) = spans("gloo:")
    computing = [span for span in spans("aten::") if span[2] != gather[2]]
    matmuls = spans("aten::addmm")
    assert len(matmuls) == 4
    sums = [lasting(computing) - lasting(computing, spans("c10d::")), lasting(matmuls), lasting([gather])]
    sums.append(lasting(computing, [gather]) - lasting(computing, spans("c10d::"), [gather]))
    exec(LOOK, of_page := {})
    step = of_page["step"]
    assert [getattr(step, kind) for kind in KINDS] == pytest.approx(sums, abs=20e-9)
    assert step.hidden == pytest.approx(sums[3] / min(sums[0], sums[2]), abs=1e-4)
    assert capsys.readouterr().out == f"{step}\n"
    assert Path("step.png").exists()


def test_kernels_and_copies_between_gpus_count_and_annotations_do_not():
    step = roofline.hidden(GPU)
    assert step.streams.mul(1e6).round(3).T.to_dict("list") == {
        "stream 20": [0, 0, 200, 130],
        "stream 24": [0, 0, 20, 20],
        "stream 7": [290, 200, 0, 140],
        "stream 9": [50, 40, 0, 20],
        "all streams": [320, 240, 220, 150],
    }
    assert step.hidden == pytest.approx((320 + 220 - 390) / 220)
    assert "| all streams | 320 us | 240 us | 220 us | 150 us |\n\nhidden 0.68: both" in str(step)


def test_the_timeline_shows_these_seconds(monkeypatch, tmp_path):
    figure = theme.new(9, 4, DataFrame(), "")
    monkeypatch.setattr(theme, "new", lambda *inches: figure)
    step = roofline.hidden(GPU)
    step.plot(tmp_path / "gpu.png")
    seconds = []
    for drawn in figure.axes[0].collections:
        x, y = drawn.get_paths()[0].vertices.T
        seconds.append(abs(numpy.trapezoid(y, x)) / 0.8)
    assert seconds == pytest.approx([*step.streams.to_numpy().T.ravel()])


def test_of_a_collective_the_least_over_the_ranks_counts():
    """The gather waits 40 us on this rank, the reduce-scatter on the other. A gather of another group has no part."""
    step = roofline.hidden(GPU, OTHER_GPU)
    assert [step.communication_s, step.both_s] == pytest.approx([180e-6, 110e-6])
    assert "as far as all traces have it (2 given)" in step.sentence


def test_a_cpu_computes_in_the_innermost_call_and_not_where_that_waits():
    """Nor in copies on a thread of gloo; and what gloo receives goes on after its call."""
    step = roofline.hidden(CPU)
    assert [getattr(step, kind) for kind in KINDS] == pytest.approx([50e-6, 40e-6, 85e-6, 35e-6])


def test_a_trace_without_communication_hides_nothing(tmp_path):
    (tmp_path / "idle.json").write_text(CPU.read_text().replace("gloo:", "my_"))
    step = roofline.hidden(tmp_path / "idle.json")
    assert (step.hidden, step.communication_s, step.both_s) == (None, 0, 0)
    assert "idle.json has no computing or no communication: of a GPU" in str(step)


NO_TRACES = [
    ("cut.json", b'{"traceEvents": ['),
    ("list.json", b"[1]"),
    ("plain.json.gz", b"{}"),
    ("cut.json.gz", gzip.compress(b"{}", mtime=0)[:-9]),
]


@pytest.mark.parametrize(("name", "content"), NO_TRACES)
def test_what_is_no_trace_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    for path in (tmp_path / name, tmp_path / "none"):
        with pytest.raises(ValueError, match=f"^{path} is no trace .*: give what .* export_chrome_trace wrote$"):
            roofline.hidden(path)


def test_traces_of_other_collectives_are_refused(tmp_path):
    one_more = tmp_path / "more.json"
    one_more.write_text(GPU.read_text().replace("AllGather", "ReduceScatter_Sum_bf16"))
    for traces in ((GPU, one_more), (GPU, CPU), (CPU, GPU, GPU)):
        with pytest.raises(ValueError, match=f"^{traces[0]}, {traces[1]}.* have not the same kernels of NCCL: give"):
            roofline.hidden(*traces)
