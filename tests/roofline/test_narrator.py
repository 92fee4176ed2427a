"""How far a run is: one line that a terminal rewrites, and of a log one now and then."""

from types import SimpleNamespace

import pytest

from roofline.pytest_plugin import narrator

WIDTH = 40


class Reporter:
    """Stands in for pytest's, and keeps what is written."""

    _tw, text, flush = SimpleNamespace(fullwidth=WIDTH), "", lambda self: None

    def __init__(self, live):
        self.isatty = lambda: live

    def write(self, text):
        self.text += text

    def write_line(self, text):
        self.text += f"{text}\n"

    def rewrite(self, text, erase=False):
        self.text += "\r" + text.ljust(WIDTH - 1 if erase else 0)


@pytest.fixture
def narrate(fake_time, monkeypatch):
    """`narrate(live)`: a narrator, its reporter, and the time that passes for it."""
    monkeypatch.delenv("TERM", raising=False)

    def make(live):
        clock, reporter = fake_time(narrator), Reporter(live)
        clock.seconds = 100.0
        get = {"terminalreporter": reporter}.get
        config = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=get))
        return narrator.Narrator(config, SimpleNamespace()), reporter, clock

    return make


def test_a_log_has_a_line_of_progress_every_ten_seconds(narrate):
    made, reporter, clock = narrate(live=False)
    for text in "first", "too soon", "third":
        made.progress(text)
        clock.sleep(6)
    assert reporter.text.splitlines() == ["first", "third"]


def test_a_terminal_has_one_line_that_gives_way_to_what_is_said(narrate):
    made, reporter, _ = narrate(live=True)
    made.progress("ceilings")
    assert reporter.text == "ceilings"
    made.progress("long" * 20)
    shown = reporter.text.rpartition("\r")[2]
    assert shown.startswith("longlong")
    assert len(shown) == WIDTH - 1
    made.say("something\nof two lines")
    assert reporter.text.endswith("\r" + " " * (WIDTH - 1) + "\rsomething\nof two lines\n")
    made.say("more")
    assert reporter.text.endswith("lines\nmore\n")
