"""How far a run is: one line that a terminal rewrites, and of a log one now and then."""

from types import SimpleNamespace

import pytest

from roofline.measure.plan import CEILINGS, MEASURE, REPORT, Plan, Step
from roofline.pytest_plugin import narrator

WIDTH = 40


class Reporter:
    """Stands in for pytest's, and keeps what is written."""

    _tw = SimpleNamespace(fullwidth=WIDTH)

    def __init__(self, live):
        self.live, self.text = live, ""

    def isatty(self):
        return self.live

    def write(self, text):
        self.text += text

    def write_line(self, text):
        self.text += f"{text}\n"

    def rewrite(self, text, erase=False):
        self.text += "\r" + text.ljust(WIDTH - 1 if erase else 0)

    def flush(self):
        pass


@pytest.fixture
def told(fake_time):
    """`told(live)`: a narrator of three shapes, its reporter, and the time that passes for both."""

    def make(live):
        time, reporter = fake_time(narrator), Reporter(live)
        get = {"terminalreporter": reporter}.get
        made = narrator.Narrator(SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=get)), None)
        time.seconds = 100.0
        seconds = {Step(CEILINGS): 10.0} | {Step(MEASURE, 0, name, 1): 20.0 for name in ("a", "b", "long" * 20)}
        made.plan = Plan(seconds | {Step(REPORT): 5.0}, time.monotonic)
        return made, reporter, time

    return make


def test_a_log_has_a_line_for_each_stage_and_one_every_ten_seconds(told):
    made, reporter, time = told(live=False)
    made.at(CEILINGS)
    time.sleep(5)
    made.at()  # too soon
    time.sleep(6)
    made.at(MEASURE, 0, "a", 1)
    made.at(MEASURE, 0, "b", 1)
    time.sleep(11)
    made.at()
    made.at(REPORT)
    lines = reporter.text.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["ceilings", "a", "b", "report"]
    assert lines[0] == "ceilings: 75 s left"
    assert all(line.endswith(" left") for line in lines)


def test_a_terminal_has_one_line_that_gives_way_to_what_is_said(told):
    made, reporter, time = told(live=True)
    made.at(CEILINGS)
    assert reporter.text == "ceilings: 75 s left"
    made.at()
    assert reporter.text == "ceilings: 75 s left"  # within half a second
    time.sleep(1)
    made.at(MEASURE, 0, "long" * 20, 1)
    shown = reporter.text.rpartition("\r")[2]
    assert shown.startswith("longlong")
    assert len(shown) == WIDTH - 1
    made.say("something\nof two lines")
    assert reporter.text.endswith("\r" + " " * (WIDTH - 1) + "\rsomething\nof two lines\n")
    made.say("more")
    assert reporter.text.endswith("lines\nmore\n")


def test_a_run_without_a_plan_says_nothing_of_it(told):
    made, reporter, _ = told(live=True)
    made.plan = None
    made.at(CEILINGS)
    assert reporter.text == ""
