"""timeline.json: Chrome's trace format, of what the figure shows."""

import json
from itertools import pairwise

import pytest
from made_up_gathers import HERE, SWEEP, gather_matmul, prefetch
from made_up_run import save

from roofline.report import trace
from roofline.store.journal import load


def write_trace(folder, lines):
    run = load(save(folder, lines))
    path = trace.write(run, folder)
    assert path.name == "timeline.json"
    return json.loads(path.read_text(encoding="utf-8"))


def read_processes(trace_json):
    """Return {name of a process: (names of its threads, its spans)}."""
    names = {e["pid"]: e["args"]["name"] for e in trace_json["traceEvents"] if e["name"] == "process_name"}
    lanes = {pid: {} for pid in names}
    spans = {pid: [] for pid in names}
    for event in trace_json["traceEvents"]:
        if event["name"] == "thread_name":
            lanes[event["pid"]][event["tid"]] = event["args"]["name"]
        if event["ph"] == "X":
            spans[event["pid"]].append(event)
    return {name: (lanes[pid], spans[pid]) for pid, name in names.items()}


def assert_valid(trace_json):
    assert isinstance(trace_json["traceEvents"], list)
    for event in trace_json["traceEvents"]:
        assert event["ph"] in "MX"
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        assert isinstance(event["name"], str)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert event["cat"] in ("transfer", "matmul", "wait")
    for name, (lanes, spans) in read_processes(trace_json).items():
        assert lanes[0] == "link"
        assert {span["tid"] for span in spans} <= {*lanes}, name
        for lane in lanes:  # what a lane does never overlaps
            intervals = sorted((span["ts"], span["ts"] + span["dur"]) for span in spans if span["tid"] == lane)
            assert all(end <= start + 2e-3 for (_, end), (start, _) in pairwise(intervals)), name


def test_each_arm_is_a_process_with_a_link_and_a_chip(tmp_path):
    trace_json = write_trace(tmp_path / "run", [HERE, *SWEEP])
    assert_valid(trace_json)
    by_name = read_processes(trace_json)
    ridge, small = gather_matmul(16, "ridge").id, prefetch(172).id
    arms = [f"{arm}, {ridge}" for arm in ("serial", "chunk_launches", "row_block_launches")]
    assert [*by_name] == [*arms, f"serial, {small}", f"overlapped, {small}"]
    lanes, spans = by_name[f"chunk_launches, {ridge}"]
    assert lanes == {0: "link", 1: "chip"}
    link = [span for span in spans if span["tid"] == 0]
    assert [span["name"] for span in link] == [f"chunk {chunk}" for chunk in range(1, 8)]
    assert [span["ts"] for span in link] == pytest.approx([20e3 * chunk / 7 for chunk in range(7)], abs=1e-3)
    chip = [(span["cat"], span["name"]) for span in spans if span["tid"] == 1]
    assert chip[:4] == [("matmul", "own"), ("wait", "waits"), ("matmul", "with chunk 1"), ("wait", "waits")]
    assert trace_json["otherData"] == {"title": HERE["title"], "left_out": 0}


def test_size_is_bounded_and_what_is_left_out_is_counted(tmp_path, monkeypatch):
    whole = len(write_trace(tmp_path / "whole", [HERE, *SWEEP])["traceEvents"])
    monkeypatch.setattr(trace, "MOST_EVENTS", 20)
    trace_json = write_trace(tmp_path / "run", [HERE, *SWEEP])
    assert len(trace_json["traceEvents"]) == 20
    assert trace_json["otherData"]["left_out"] == whole - 20
