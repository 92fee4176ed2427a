"""The tunings' own checks: what comes first, what is tried of it, and that a compiler out of order loses nothing."""

import dataclasses
import json
import shutil
import types
from pathlib import Path
from threading import Thread

import pytest
import tune_lineup

from kernels import configs, tuning
from kernels.configs import Config
from kernels.configs.saving import as_text, save
from roofline.options import Options
from roofline.report.journal import Run
from roofline.report.tuned import INCUMBENT
from roofline.session import Session
from roofline.theory.chips import find
from roofline.theory.waves import Machine

H200 = Machine.of_chip(find("H200"))
PERSISTENT = Options("cuda", True, "xxl", ("up",), (64, 2048), (8,), ("bf16",), ("persistent",), 0, 1.0, Path("unused"))
A, B = Config(128, 256, 64, 8, 3), Config(128, 256, 64, 8, 4, subtile=2)


@pytest.fixture(autouse=True)
def of_an_h200(monkeypatch):
    """The table without what tunings wrote; gives `add(entry)`."""
    entries = tuple(entry for entry in configs.read(configs.FOLDER / "sm90.json").entries if not entry.measured)
    planted = dataclasses.replace(configs.table("sm90"), entries=entries)
    monkeypatch.setattr(configs, "table", lambda arch: planted)
    monkeypatch.setattr(tune_lineup, "hardware", lambda: ("sm90", H200))
    cached = (tune_lineup.contenders, tune_lineup.plan, tune_lineup.compile_all)
    for function in cached:
        function.cache_clear()

    def add(entry):
        longer = dataclasses.replace(planted, entries=(entry, *entries))
        monkeypatch.setattr(configs, "table", lambda arch: longer)

    yield add
    for function in cached:
        function.cache_clear()


def test_there_are_tunings_only_where_they_were_asked_for():
    assert tune_lineup.cases(PERSISTENT) == []
    asked = dataclasses.replace(PERSISTENT, tune_s=1.0)
    assert [case.id for case in tune_lineup.cases(asked)] == [
        f"tune_persistent-xxl-up-tp8-m{m}-bf16" for m in (64, 2048)
    ]
    everything = dataclasses.replace(asked, contenders=None, dtypes=("fp32",))
    assert {case.kernel for case in tune_lineup.cases(everything)} == {"tiled"}  # the other has no entry for fp32


def test_what_has_a_measured_entry_comes_last(of_an_h200):
    entry = next(entry for entry in configs.table("sm90").entries if entry.kernel == "persistent")
    own = dataclasses.replace(entry, m_min=64, m_max=64, n=6656, k=16384, measured={"sms": 132})
    asked = dataclasses.replace(PERSISTENT, tune_s=1.0)
    for sms, order in ((132, [2048, 64]), (114, [64, 2048])):
        of_an_h200(dataclasses.replace(own, measured={"sms": sms}))
        assert [case.m for case in tune_lineup.cases(asked)] == order


def test_the_incumbent_is_no_candidate_of_its_own():
    case = tune_lineup.cases(dataclasses.replace(PERSISTENT, tune_s=1.0))[1]
    found = tune_lineup.contenders(case)
    assert next(iter(found)) == INCUMBENT
    assert len(set(found.values())) == len(found)
    assert tuning.token(found[INCUMBENT]) not in found


def test_no_shape_is_begun_once_the_time_is_up():
    session, now, begun = Session.__new__(Session), [5.0], []
    session.options, session.run, session.planned = dataclasses.replace(PERSISTENT, tune_s=10.0), Run({}), {"s": ["a"]}
    session.clock = types.SimpleNamespace(now=lambda: now[0], visits=1)
    session.over, session.closed, session._entries = "", "", {}
    session._enter = lambda shape, prepare: begun.append(shape)
    session._visit = lambda entered, visit: None
    session.begin(lambda: [], when="start")
    for now[0], count in ((14.9, 1), (15.0, 1)):
        session.measure("s", prepare=None)
        assert len(begun) == count
    assert session.closed == "the 10 s of --ffn-tune were over"


def test_nothing_that_runs_like_the_incumbent_is_timed_beside_it(of_an_h200):
    asked = dataclasses.replace(PERSISTENT, tune_s=1.0)
    case = tune_lineup.cases(asked)[0]  # 64 rows are one tile: groups and rasters are all the same
    first = tune_lineup.incumbent(case)  # which is the first that the plan proposes
    entry = next(entry for entry in configs.table("sm90").entries if entry.kernel == "persistent")
    alike = dataclasses.replace(first, group_m=first.group_m + 3, raster="n" if first.raster == "m" else "m")
    of_an_h200(dataclasses.replace(entry, config=alike, m_min=64, m_max=64, n=case.n, k=case.k, measured={"sms": 132}))
    for function in (tune_lineup.contenders, tune_lineup.plan):
        function.cache_clear()
    problem = tuning.Problem(case.m, case.n, case.k, 2, H200)
    found = tune_lineup.contenders(case)
    assert found[INCUMBENT] == alike
    schedules = [problem.schedule(config) for config in found.values()]
    assert len(set(schedules)) == len(schedules)


def test_incumbent_is_timed_whatever_the_compiler_says_of_it(monkeypatch):
    asked = dataclasses.replace(PERSISTENT, tune_s=1.0)
    case = tune_lineup.cases(asked)[1]
    names = list(tune_lineup.contenders(case))
    entered = {}
    monkeypatch.setattr(
        tuning, "unsound", lambda kernel, dtype, arch, wanted, workers: dict.fromkeys(wanted, "spills: 8")
    )
    monkeypatch.setattr(tune_lineup.matmul_lineup, "enter", lambda lineup, case, options, sound: entered.update(sound))
    lineup = tune_lineup.prepare(asked, case, names[1:], {case.id: names})
    assert list(entered) == [INCUMBENT]
    assert lineup.unable == dict.fromkeys(names[1:], "pruned, spills: 8")


def test_candidates_that_a_changed_table_proposes_no_more_are_dropped_and_nothing_else(of_an_h200):
    asked = dataclasses.replace(PERSISTENT, tune_s=1.0)
    case, other = tune_lineup.cases(asked)
    planned = [f"{one.id}-{name}" for one in (case, other) for name in tune_lineup.contenders(one)]
    run = Run({"cases": planned})
    assert tune_lineup.dropped(run, asked) == []
    best = list(tune_lineup.contenders(case).values())[1]
    entry = next(entry for entry in configs.table("sm90").entries if entry.kernel == "persistent")
    of_an_h200(dataclasses.replace(entry, config=best, m_min=64, m_max=64, n=case.n, k=case.k, measured={"sms": 132}))
    for function in (tune_lineup.contenders, tune_lineup.plan):
        function.cache_clear()
    gone = tune_lineup.dropped(run, asked)
    assert f"{case.id}-{tuning.token(best)}" in gone
    assert all(name.startswith(case.id) and name in planned for name in gone)
    run.not_measured = [{"case": gone[0], "outcome": "skipped", "reason": "pruned"}]
    assert tune_lineup.dropped(run, asked) == gone[1:]


@pytest.mark.parametrize(
    ("answer", "unsound", "trouble"),
    [
        ({A: "spills: 8 bytes"}, {("bf16", A): "spills: 8 bytes"}, ""),
        (
            {A: "spills: 8", B: "does not compile: x"},
            {("bf16", A): "spills: 8", ("bf16", B): "does not compile: x"},
            "",
        ),
        ({A: "does not compile: no nvdisasm", B: "does not compile: x"}, {}, "does not compile: no nvdisasm"),
        (MemoryError("a worker was killed"), {}, "out of memory: a worker was killed"),
    ],
)
def test_a_compiler_that_is_out_of_order_prunes_nothing(monkeypatch, answer, unsound, trouble):
    def compiled(*arguments):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(tuning, "unsound", compiled)
    assert tune_lineup.compile_all("persistent", (("bf16", A), ("bf16", B))) == (unsound, trouble)


@pytest.fixture
def finished():
    """A run in which B was a tenth faster than A, which was taken before."""
    case = "tune_persistent-xxl-up-tp8-m64-bf16"
    times = {INCUMBENT: dict.fromkeys(range(30), 1.1e-3), tuning.token(B): dict.fromkeys(range(30), 1e-3)}
    tiles = {INCUMBENT: A, tuning.token(B): B}
    shape = {"shape": case, "op": "tune_persistent", "table": "sm90", "stopped_by": "width", "rounds": 30}
    shape |= {"m": 64, "n": 6656, "k": 16384, "dtype": "bf16", "late": dict.fromkeys(times, 0), "times_s": times}
    shape["contenders"] = {n: {"config": str(c), "tile": dataclasses.asdict(c)} for n, c in tiles.items()}
    machine = {"chip": "NVIDIA H200", "sms": 132, "versions": {}}
    return case, Run({"machine": machine, "started": "2026-11-21T", "commit": "abc"}, shapes={case: shape})


def tell(run, case, folder) -> list[str]:
    """What is told of `case` by a session of `run` in `folder`, of which nothing but that is needed."""
    session, told = Session.__new__(Session), []
    session.run, session._entries, session._write = run, {}, lambda *lines: True
    session.measured = lambda shape: tune_lineup.keep(run, shape, folder)
    session.tell(case, told.append)
    return told


def test_a_choice_is_saved_once_and_again_only_where_it_was_not(finished, tmp_path, monkeypatch):
    case, run = finished
    path, folder = tmp_path / "sm90.json", tmp_path / "run"
    document = json.loads((configs.FOLDER / "sm90.json").read_text())
    path.write_text(as_text(document | {"entries": [row for row in document["entries"] if not row["measured"]]}))
    folder.mkdir()
    monkeypatch.setattr(tune_lineup, "table_path", lambda arch: path)
    told = tell(run, case, folder)
    assert f"-> {B}" in told[0]
    assert configs.read(path).entries[0].config == B
    assert (folder / "sm90.json").read_text() == path.read_text()
    # Somebody tunes again, before this run is gone on with: that choice is newer, whatever else this run saves.
    save(path, "persistent", (64, 6656, 16384, "bf16"), A, {"chip": "NVIDIA H200", "sms": 132})
    shutil.copy(path, folder / "sm90.json")  # as another shape of this run would
    assert tell(run, case, folder) == []
    assert configs.read(path).entries[0].config == A
    del run.shapes[case]["saved"]  # it was killed before it saved, and its copy is cut off
    (folder / "sm90.json").write_text('{"target": 90, "entr')
    assert tell(run, case, folder) == told
    assert configs.read(path).entries[0].config == B


def test_a_table_that_could_not_be_written_is_a_failure_until_it_was(finished, tmp_path, monkeypatch):
    case, run = finished
    path = tmp_path / "none" / "sm90.json"
    monkeypatch.setattr(tune_lineup, "table_path", lambda arch: path)
    assert tell(run, case, tmp_path) == []
    (entry,) = run.missing
    assert (entry["case"], entry["outcome"]) == (f"{case}-saved", "failed")
    assert run.unfinished  # else nobody could go on with it, to save it
    path.parent.mkdir()
    path.write_text((configs.FOLDER / "sm90.json").read_text())
    assert tell(run, case, tmp_path)
    assert run.missing == []
    assert not run.unfinished


def test_a_table_is_replaced_and_never_written_into(tmp_path):
    path, before = tmp_path / "sm90.json", (configs.FOLDER / "sm90.json").read_text()
    path.write_text(before)
    (tmp_path / "before").hardlink_to(path)
    save(path, "persistent", (80, 6656, 16384, "bf16"), B, {"chip": "NVIDIA H200", "sms": 132})
    assert (tmp_path / "before").read_text() == before
    assert configs.read(path).entries[0].config == B
    assert {file.name for file in tmp_path.iterdir()} == {"sm90.json", "before"}


def test_two_that_save_at_a_time_lose_nothing_of_one_another(tmp_path, monkeypatch):
    path, read, others = tmp_path / "sm90.json", configs.read, []
    path.write_text((configs.FOLDER / "sm90.json").read_text())

    def read_and_let_another_save(found):
        table = read(found)
        if not others:
            measured = {"chip": "NVIDIA H200", "sms": 132}
            others.append(Thread(target=save, args=(path, "persistent", (48, 6656, 16384, "bf16"), A, measured)))
            others[0].start()
            others[0].join(0.5)  # it has to wait
        return table

    monkeypatch.setattr(configs, "read", read_and_let_another_save)
    save(path, "persistent", (80, 6656, 16384, "bf16"), B, {"chip": "NVIDIA H200", "sms": 132})
    others[0].join()
    assert [entry.m_max for entry in read(path).entries[:2]] == [48, 80]


def test_a_shape_that_was_cut_short_is_not_saved(finished, tmp_path):
    case, run = finished
    run.shapes[case]["stopped_by"] = "interrupt"
    assert tune_lineup.keep(run, case, tmp_path) == ""
    assert not list(tmp_path.iterdir())
