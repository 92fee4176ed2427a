"""Forecasts: each is the text that was sealed, and that of a run's chip is scored in its report."""

import hashlib
import json

import pytest

from roofline.analysis.records import as_frame
from roofline.report import forecasts
from roofline.store.run import Run

FILES = sorted(forecasts.FOLDER.glob("*.json"))


def test_forecasts_of_two_chips_are_those_that_were_sealed():
    assert [json.loads(path.read_bytes())["chip"] for path in FILES] == ["H100 SXM", "H200"]
    for path in FILES:
        assert path.stem.endswith(hashlib.sha256(path.read_bytes()).hexdigest()[:12])


def row(case, time_s, **more):
    return {"case": case, "time_s": time_s, "time_s_low": 0.8 * time_s, "time_s_high": 1.25 * time_s} | more


FORECAST = {
    "chip": "H100 SXM",
    "interval": 0.8,
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


@pytest.fixture
def h100(tmp_path, monkeypatch):
    """Return a run of the chip of `FORECAST`, beside which another chip has a forecast."""
    monkeypatch.setattr(forecasts, "FOLDER", tmp_path)
    (tmp_path / "new.json").write_text(json.dumps(FORECAST))
    (tmp_path / "another.json").write_text(json.dumps(FORECAST | {"chip": "A100", "cases": []}))
    return Run({"machine": {"datasheet": {"name": "H100 SXM"}}})


def test_report_scores_the_forecast_of_the_chip(h100):
    (section,) = forecasts.sections(h100, as_frame(RECORDS))
    assert (section.title, "results/forecasts/new.json" in section.about) == ("Forecast", True)
    assert list(section.lines) == [
        "time_s: off by 9.1 % in the median of 3 cases",  # 9.1, 50 and 0
        "time_s: 2 of 3 within the interval of 80 %",
        "ratio_to_vendor: 0 of 1 within the interval of 80 %",
        "hidden_fraction: 1 of 1 within the interval of 80 %",
    ]


@pytest.mark.parametrize("sheet", [{"name": "H200"}, None])
def test_no_other_chip_is_scored_and_nothing_that_was_not_foreseen(h100, sheet):
    assert forecasts.sections(Run({"machine": {"datasheet": sheet}}), as_frame(RECORDS)) == []
    assert forecasts.sections(h100, as_frame(RECORDS[3:])) == []
