"""SIGTERM (a batch system's limit) and SIGHUP (a closed terminal) end a run as Ctrl-C does: with all it measured."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from roofline.protocol.messages import interrupt

ENDING = signal.SIGTERM, signal.SIGHUP
ALL = signal.SIGINT, *ENDING


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
