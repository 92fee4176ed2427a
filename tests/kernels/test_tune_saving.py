"""What becomes of the choices of a tuning: each is saved once, whatever fails or saves beside it."""

import dataclasses
import os
import shutil
from threading import Thread
from types import SimpleNamespace

import pytest

from kernels import configs, tuning
from kernels.bench import tune
from kernels.configs import Config
from kernels.configs.table_writer import save
from roofline.measure.session import Session
from roofline.operations.tune import Tuning
from roofline.report.tuning import INCUMBENT
from roofline.store.run import Round, Run, Shape
from roofline.theory.chips import find
from roofline.theory.waves import GpuSpec

H200 = GpuSpec.of_chip(find("H200"))
A, B = Config(128, 256, 64, 8, 3), Config(128, 256, 64, 8, 4, subtile=2)
MEASURED = {"chip": "NVIDIA H200", "sms": 132}


def shape_of(case, entrants):
    """Of two entrants, the second a tenth faster."""
    times = dict(zip(entrants, (1.1e-3, 1e-3), strict=True))
    tuning, facts = Tuning("xxl", "up", 8, 64, "bf16", case.split("-")[0][5:]), {"table": "sm90", "n": 6656, "k": 16384}
    return Shape(
        case, tuning.op, "throughput", dataclasses.asdict(tuning), "bf16", tuning.work, INCUMBENT, "cold", entrants,
        facts=facts, stopped_by="width", round_count=30, late=dict.fromkeys(times, 0),
        rounds=[Round(index, list(times), times) for index in range(30)],
    )  # fmt: skip


@pytest.fixture
def finished():
    """A run in which B was a tenth faster than A, which was taken before."""
    case = "tune_persistent-xxl-up-tp8-m64-bf16"
    tiles = {INCUMBENT: A, tuning.token(B): B}
    entrants = {n: {"config": str(c), "tile": dataclasses.asdict(c)} for n, c in tiles.items()}
    shape = shape_of(case, entrants)
    machine = {"chip": "NVIDIA H200", "sms": 132, "versions": {}}
    return case, Run({"machine": machine, "started": "2026-11-21T", "commit": "abc"}, shapes={case: shape})


def tell(run, case, folder) -> list[str]:
    """What is told of `case` by a session of `run` in `folder`, of which nothing but that is needed."""
    session, told = Session.__new__(Session), []
    session.run, session.folder, session._entries = run, folder, {}
    session._journal = SimpleNamespace(write=lambda *lines: None)
    tune.Campaign(session).shape_done(case, told.append)
    return told


def test_a_choice_is_saved_once_and_again_only_where_it_was_not(finished, tables):
    case, run = finished
    path, folder = tables / "sm90.json", tables / "run"
    folder.mkdir()
    told = tell(run, case, folder)
    assert f"-> {B}" in told[0]
    assert configs.read(path).entries[0].config == B
    assert (folder / "sm90.json").read_text() == path.read_text()
    # Somebody tunes again, before this run is gone on with: that choice is newer, whatever else this run saves.
    save(path, "persistent", (64, 6656, 16384, "bf16"), A, MEASURED)
    shutil.copy(path, folder / "sm90.json")  # as another shape of this run would
    assert tell(run, case, folder) == []
    assert configs.read(path).entries[0].config == A
    run.shapes[case].saved = False  # it was killed before it saved, and its copy is cut off
    (folder / "sm90.json").write_text('{"target": 90, "entr')
    assert tell(run, case, folder) == told
    assert configs.read(path).entries[0].config == B


def test_the_kernel_that_is_the_fastest_is_picked(finished, tables):
    _, run = finished
    case = "tune_matmul-xxl-up-tp8-m64-bf16"
    kernels = {INCUMBENT: "decode", "warpgroup": "warpgroup"}
    entrants = {name: {"config": f"{kernel} 1x1x1", "kernel": kernel} for name, kernel in kernels.items()}
    run.shapes = {case: shape_of(case, entrants)}
    (tables / "run").mkdir()
    assert "decode 1x1x1 -> warpgroup 1x1x1" in tune.keep(run, case, tables / "run")
    assert configs.table("sm90").picked(64, 6656, 16384, "bf16", H200) == "warpgroup"


def test_a_table_that_could_not_be_written_is_a_failure_until_it_was(finished, tables, tmp_path_factory):
    case, run = finished
    folder = tmp_path_factory.mktemp("run")
    (tables / "sm90.json").rename(tables / "gone")
    assert tell(run, case, folder) == []
    (entry,) = run.missing
    assert (entry["case"], entry["outcome"]) == (f"{case}-saved", "failed")
    assert run.unfinished  # else nobody could go on with it, to save it
    (tables / "gone").rename(tables / "sm90.json")
    assert tell(run, case, folder)
    assert run.missing == []
    assert not run.unfinished


def test_two_that_save_at_a_time_lose_nothing_of_one_another(tables, monkeypatch):
    path, sync, others = tables / "sm90.json", os.fsync, []

    def let_another_save(file):
        sync(file)
        if not others:
            others.append(Thread(target=save, args=(path, "persistent", (48, 6656, 16384, "bf16"), A, MEASURED)))
            others[0].start()
            others[0].join(0.5)  # it has to wait

    monkeypatch.setattr(os, "fsync", let_another_save)
    save(path, "persistent", (80, 6656, 16384, "bf16"), B, MEASURED)
    others[0].join()
    assert [entry.m_max for entry in configs.read(path).entries[:2]] == [48, 80]


@pytest.mark.parametrize("why", ["cut short", "compared with nothing"])
def test_what_says_nothing_is_not_saved(finished, tables, why):
    """An incumbent alone may have been measured against others before, which stands in the table."""
    case, run = finished
    before = (tables / "sm90.json").read_text()
    if why == "cut short":
        run.shapes[case].stopped_by = "interrupt"
    else:
        for one in run.shapes[case].rounds:
            one.time_s = {INCUMBENT: one.time_s[INCUMBENT]}
    assert tell(run, case, tables / "none") == []
    assert not run.missing
    assert (tables / "sm90.json").read_text() == before
