"""The tunings' own checks: what comes first, what is tried of it, and that a compiler out of order loses nothing."""

import dataclasses
import functools
import types
from pathlib import Path

import pytest
import torch

from kernels import CONTENDERS, configs, tuning
from kernels.bench import tune
from kernels.configs import Config, Pick
from roofline.measure.session import Session
from roofline.options import Options
from roofline.report.tuning import INCUMBENT
from roofline.store.run import Run
from roofline.theory.chips import find
from roofline.theory.waves import GpuSpec

H200 = GpuSpec.of_chip(find("H200"))
ASKED = Options("cuda", True, "xxl", ("up",), (64, 2048), (8,), ("bf16",), ("persistent",), 0, 1.0, Path("unused"))
ASKED = dataclasses.replace(ASKED, tune_s=1.0)
A, B = (("bf16", Config(128, 256, 64, 8, stages, subtile=stages - 2)) for stages in (3, 4))


@pytest.fixture(autouse=True)
def of_an_h200(monkeypatch):
    """The table without what tunings wrote. `add(pick)` adds a pick, and `add(case=..., sms=..., **changes)` an entry
    that was measured for a case, as the first one of `persistent` but for `changes`."""
    entries = tuple(entry for entry in configs.read(configs.FOLDER / "sm90.json").entries if not entry.measured)
    first = next(entry for entry in entries if entry.kernel == "persistent")
    planted = dataclasses.replace(configs.table("sm90"), entries=entries, picks=())

    def take(table):
        monkeypatch.setattr(configs, "table", functools.cache(lambda arch: table))

    def add(pick=None, case=None, sms=132, **changes):
        if pick:
            return take(dataclasses.replace(planted, picks=(pick,)))
        where = {"m_min": case.m, "m_max": case.m, "n": case.n, "k": case.k, "measured": {"sms": sms}}
        take(dataclasses.replace(planted, entries=(dataclasses.replace(first, **where, **changes), *entries)))

    monkeypatch.setattr(tune, "hardware", lambda: ("sm90", H200))
    take(planted)
    begin_anew()
    yield add
    begin_anew()


def begin_anew():
    """As in another process: what was proposed and compiled is forgotten."""
    for function in (tune.contenders, tune.plan, tune.compile_all):
        function.cache_clear()


def asked(*contenders):
    return dataclasses.replace(ASKED, contenders=contenders or None)


def test_there_are_tunings_only_where_they_were_asked_for():
    assert tune.cases(dataclasses.replace(ASKED, tune_s=0.0)) == []
    assert [case.id for case in tune.cases(ASKED)] == [f"tune_persistent-xxl-up-tp8-m{m}-bf16" for m in (64, 2048)]
    everything = dataclasses.replace(asked(), dtypes=("fp32",))
    assert {case.kernel for case in tune.cases(everything)} == {"tiled"}  # no other has an entry for fp32


def test_a_kernel_is_tuned_where_it_may_be_taken_or_where_it_is_asked_for():
    def tuned(*contenders):
        return [(case.kernel, case.m) for case in tune.cases(asked(*contenders))]

    assert tuned() == [
        ("decode", 64), ("persistent", 2048), ("warpgroup", 2048), ("matmul", 64), ("matmul", 2048),
    ]  # fmt: skip
    assert tuned("tiled", "decode") == [("decode", 64), ("tiled", 64), ("tiled", 2048)]


def matmul_case(m: int):
    return next(case for case in tune.cases(asked()) if (case.kernel, case.m) == ("matmul", m))


def test_of_matmul_what_is_tuned_is_which_kernel_it_takes(of_an_h200):
    few = {INCUMBENT: "decode", **{name: name for name in ("persistent", "tiled", "warpgroup")}}
    assert tune.contenders(matmul_case(64)) == few
    assert tune.contenders(matmul_case(2048))[INCUMBENT] == "persistent"
    of_an_h200(Pick("warpgroup", "bf16", 64, 6656, 16384, {"sms": 132}))
    begin_anew()
    found = tune.contenders(matmul_case(64))
    assert found[INCUMBENT] == "warpgroup"
    assert sorted(found) == ["decode", INCUMBENT, "persistent", "tiled"]
    assert [case.m for case in tune.cases(asked("matmul"))] == [2048, 64]  # what was measured comes last


def test_a_pick_of_a_kernel_that_is_gone_is_none(of_an_h200):
    of_an_h200(Pick("gone", "bf16", 64, 6656, 16384, {"sms": 132}))
    assert tune.contenders(matmul_case(64))[INCUMBENT] == "decode"
    assert [case.m for case in tune.cases(asked("matmul"))] == [64, 2048]  # as where nothing was measured


def test_a_kernel_is_compared_as_it_is_taken(monkeypatch):
    """By its own choice of a tile when it runs, which an earlier tuning of this run may have written."""
    entered = []
    monkeypatch.setattr(tune.matmul, "enter", lambda prepared, case, options, *found: entered.extend(found))
    tune.Runner(ASKED).prepare(matmul_case(64), ["warpgroup"])
    contenders, facts = entered
    assert {name: contender.run for name, contender in contenders.items()} == {
        INCUMBENT: CONTENDERS["decode"].run,
        "warpgroup": CONTENDERS["warpgroup"].run,
    }
    x, w = torch.empty((64, 128), dtype=torch.float16), torch.empty((256, 128), dtype=torch.float16)
    assert contenders[INCUMBENT].config(x, w).startswith("decode 64x128x128 warps4")
    assert facts == {INCUMBENT: {"kernel": "decode"}, "warpgroup": {"kernel": "warpgroup"}}


def test_what_has_a_measured_entry_comes_last(of_an_h200):
    case = tune.cases(ASKED)[0]
    for sms, order in ((132, [2048, 64]), (114, [64, 2048])):
        of_an_h200(case=case, sms=sms)
        assert [case.m for case in tune.cases(ASKED)] == order


def test_the_incumbent_is_no_candidate_of_its_own():
    found = tune.contenders(tune.cases(ASKED)[1])
    assert next(iter(found)) == INCUMBENT
    assert len(set(found.values())) == len(found)
    assert tuning.token(found[INCUMBENT]) not in found


def test_no_shape_is_begun_once_the_time_is_up():
    session, now, begun = Session.__new__(Session), [5.0], []
    session.options, session.run, session.planned = dataclasses.replace(ASKED, tune_s=10.0), Run({}), {"s": ["a"]}
    session.clock = types.SimpleNamespace(now=lambda: now[0], passes=1)
    session.over, session.closed, session._entries, session._closes = "", "", {}, float("inf")
    session.process, session.processes = 0, 1
    session.observers, session.prepare_s = [tune.Campaign(session)], 1.0
    session._enter, session._journal = begun.append, types.SimpleNamespace(write=lambda *lines: None)
    session._run_pass = lambda entered, pass_index: None
    session.expect = session.at = lambda *step: None
    session.begin(lambda: [], when="start")
    for now[0], count in ((14.9, 1), (15.0, 1)):
        session.measure("s", prepare=None)
        assert len(begun) == count
    assert session.closed == "the 10 s of --ffn-tune were over"


def test_nothing_that_runs_like_the_incumbent_is_timed_beside_it(of_an_h200):
    case = tune.cases(ASKED)[0]  # 64 rows are one tile: groups and rasters are all the same
    first = tune.contenders(case)[INCUMBENT]  # which is the first that the plan proposes
    alike = dataclasses.replace(first, group_m=first.group_m + 3, raster="n" if first.raster == "m" else "m")
    of_an_h200(case=case, config=alike)
    begin_anew()
    problem = tuning.Problem(case.m, case.n, case.k, 2, H200)
    found = tune.contenders(case)
    assert found[INCUMBENT] == alike
    schedules = [problem.schedule(config) for config in found.values()]
    assert len(set(schedules)) == len(schedules)


def test_incumbent_is_timed_whatever_the_compiler_says_of_it(monkeypatch):
    case, entered = tune.cases(ASKED)[1], []
    names = list(tune.contenders(case))
    monkeypatch.setattr(tuning, "unsound", lambda kernel, arch, wanted, workers: dict.fromkeys(wanted, "spills: 8"))
    monkeypatch.setattr(tune.matmul, "enter", lambda prepared, case, options, *found: entered.extend(found))
    found = tune.Runner(ASKED, {case.id: names}).prepare(case, names[1:])
    assert list(entered[0]) == list(entered[1]) == [INCUMBENT]
    assert found.rejected == dict.fromkeys(names[1:], ("skipped", "pruned, spills: 8"))


def test_candidates_are_compiled_once_though_saving_an_entry_changes_the_order(of_an_h200, monkeypatch):
    cases, compiled = tune.cases(ASKED), []
    selected = {case.id: list(tune.contenders(case)) for case in cases}
    monkeypatch.setattr(tuning, "unsound", lambda kernel, arch, wanted, workers: compiled.append(wanted) or {})
    monkeypatch.setattr(tune.matmul, "enter", lambda *found: None)
    for case in cases:
        tune.Runner(ASKED, selected).prepare(case, selected[case.id])
        of_an_h200(case=case)
    assert len(compiled) == 1


def test_candidates_that_a_changed_table_proposes_no_more_are_dropped_and_nothing_else(of_an_h200):
    case, other = tune.cases(ASKED)
    planned = [f"{one.id}-{name}" for one in (case, other) for name in tune.contenders(one)]
    run = Run({"cases": planned})
    assert tune.dropped(run, ASKED) == []
    best = list(tune.contenders(case).values())[1]
    of_an_h200(case=case, config=best)
    begin_anew()
    gone = tune.dropped(run, ASKED)
    assert f"{case.id}-{tuning.token(best)}" in gone
    assert all(name.startswith(case.id) and name in planned for name in gone)
    run.not_measured = [{"case": gone[0], "outcome": "skipped", "reason": "pruned"}]
    assert tune.dropped(run, ASKED) == gone[1:]


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        ({A: "spills: 8 bytes"}, ""),
        ({A: "spills: 8", B: "does not compile: x"}, ""),
        ({A: "does not compile: no nvdisasm", B: "does not compile: x"}, "does not compile: no nvdisasm"),
        (MemoryError("a worker was killed"), "out of memory: a worker was killed"),
    ],
)
def test_a_compiler_that_is_out_of_order_prunes_nothing(monkeypatch, answer, trouble):
    def compiled(*arguments):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(tuning, "unsound", compiled)
    assert tune.compile_all("persistent", (A, B)) == ({} if trouble else answer, trouble)
