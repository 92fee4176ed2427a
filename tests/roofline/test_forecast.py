"""Forecasts: sealed, of every default case of a GPU run, and scored against a run of their chip."""

import json
import math

import pytest

from roofline import operations
from roofline.analysis.prediction import forecast
from roofline.cli import main
from roofline.pytest_plugin.options import resolve
from roofline.store.run import Run

FILES = sorted(forecast.FOLDER.glob("*.json"))


@pytest.fixture(scope="module")
def asked():
    return resolve(lambda name: None, device="cuda", timed=True, root=forecast.FOLDER)


def test_both_chips_have_one():
    latest = [one for path in FILES if (one := json.loads(path.read_text()))["version"] == forecast.VERSION]
    assert {one["chip"] for one in latest} == {"H100 SXM", "H200"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_forecast_is_the_one_that_was_sealed(path):
    assert path.stem.endswith(forecast.digest(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_command_makes_it_again_while_its_priors_are_these(path, tmp_path, capsys):
    """A change of the model or its priors makes a new version, beside the old one."""
    sealed = json.loads(path.read_text(encoding="utf-8"))
    if sealed["version"] == forecast.VERSION:
        assert main(["forecast", "--chip", sealed["chip"], "--into", str(tmp_path)]) == 0
        assert capsys.readouterr().out.strip() == str(tmp_path / path.name)


def test_it_has_every_default_case_contender_and_arm(asked):
    default = set()
    of_wires = operations.all_gather_matmul, operations.matmul_reduce_scatter, operations.ffn
    for declared in (operations.matmul, *of_wires, operations.weight_prefetch):
        runner = declared.OPERATION.load_runner()(asked)
        default |= {f"{case.id}-{name}" for case in declared.OPERATION.sweep(asked) for name in runner.names(case)}
    for path in FILES:
        sealed = json.loads(path.read_text())
        known = {row["case"] for row in sealed["cases"]}
        assert known <= default
        if sealed["version"] < forecast.VERSION:  # there are more cases by now
            continue
        assert {case.rsplit("-", 1)[1] for case in default - known} == {"decode"}  # above 64 rows: it takes no more
        assert len(default - known) == 16


def test_intervals_hold_their_middle_and_hidden_is_at_most_all():
    for path in FILES:
        for row in json.loads(path.read_text())["cases"]:
            for name in {"time_s", "ratio_to_vendor", "hidden_fraction"} & row.keys():
                assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
            assert row.get("hidden_fraction_high", 0) <= 1


def row(case, time_s, **more):
    return {"case": case, "time_s": time_s, "time_s_low": 0.8 * time_s, "time_s_high": 1.25 * time_s} | more


MADE_UP = {
    "chip": "H100 SXM",
    "version": 7,
    "cases": [
        row("one", 1.0, ratio_to_vendor=1.1, ratio_to_vendor_low=1.0, ratio_to_vendor_high=1.2),
        row("two", 2.0),
        row("three", 3.0, hidden_fraction=0.9, hidden_fraction_low=0.8, hidden_fraction_high=1.0),
        row("never measured", 1.0),
    ],
}
RECORDS = [
    {"case": "one", "time_s": 1.1, "ratio_to_vendor": 1.3},
    {"case": "two", "time_s": 4.0, "ratio_to_vendor": 1.0, "hidden_fraction": None},
    {"case": "three", "time_s": 3.0, "hidden_fraction": 0.85},
    {"case": "not foreseen", "time_s": 1.0},
]


def test_score_counts_what_the_intervals_hold_and_names_the_worst():
    lines = forecast.score(MADE_UP, RECORDS)
    assert lines[0] == "time_s: 2 of 3 within the interval of 80 %, median error 10 %"
    assert lines[1] == "ratio_to_vendor: 0 of 1 within the interval of 80 %"
    assert lines[2] == "hidden_fraction: 1 of 1 within the interval of 80 %"
    assert lines[3] == "off by 100 %: two, 2 s forecast, 4 s measured"
    assert len(lines) == 6


@pytest.mark.parametrize(("chip", "there"), [("H100 SXM", True), ("H200", False), (None, False)])
def test_report_scores_the_forecast_of_its_own_chip(chip, there, tmp_path, monkeypatch):
    monkeypatch.setattr(forecast, "FOLDER", tmp_path)
    (tmp_path / "h100.json").write_text(json.dumps(MADE_UP))
    run = Run({"machine": {"datasheet": chip and {"name": chip}}})
    assert [one.title for one in forecast.sections(run, RECORDS)] == ["Forecast"] * there
    assert forecast.sections(run, RECORDS[3:]) == []


def test_chip_without_a_bandwidth_is_refused(asked):
    from dataclasses import replace

    from roofline.theory import chips

    with pytest.raises(ValueError, match="bandwidth"):
        forecast.make(replace(chips.find("H100 SXM"), memory_bandwidth_bytes_per_s=None), asked)
    assert math.isclose(forecast.SHARE, math.erf(forecast.Z / math.sqrt(2)), rel_tol=1e-3)
