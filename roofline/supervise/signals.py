"""SIGTERM (a batch system's limit) and SIGHUP (a closed terminal) end a run as Ctrl-C does: with all it measured."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roofline.operations.options import options_of, way_on
from roofline.protocol.messages import interrupt
from roofline.store import journal
from roofline.store.run import Run

ENDING = signal.SIGTERM, signal.SIGHUP
ALL = signal.SIGINT, *ENDING


def ways_on(run: Run, folder: Path, *problems: str) -> list[str]:
    """The ways to go on with `run`, if something is left to measure, `problems`, and which files are in `folder`."""
    shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    there = sorted(path.name for path in folder.glob("*") if path.is_file())
    lines = [*problems, f"saved in {shown}: {', '.join(there) or 'nothing is left of it'}"]
    if (run.unfinished or not run.end) and journal.NAME in there:
        lines.insert(0, f"go on with it: {way_on(shown, options_of(run.metadata['options']))}")
    return lines


def name_of(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def answer(handler) -> None:
    """Answer the signals, and Ctrl-C, by `handler` from here on, as `signal.signal` takes it."""
    for number in ALL:
        signal.signal(number, handler)


def ignore_signals() -> None:
    """Ignore the signals from here on: what ends now, ends whole."""
    answer(signal.SIG_IGN)


def install() -> None:
    """Turn the signals into KeyboardInterrupt. A signal that someone handles already, or ignores (nohup), stays as it
    is."""
    for number in ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, interrupt)


@contextmanager
def noted() -> Iterator[list[tuple[str, float]]]:
    """Note signals that ask for the end, (name, when) each, so that none cuts a line of the journal. A signal that is
    ignored stays so."""
    names: list[tuple[str, float]] = []
    before = {}

    def note(number: int, frame) -> None:
        names.append((name_of(number), time.monotonic()))

    for number in ALL:
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, note)
    try:
        yield names
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
