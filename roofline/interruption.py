"""SIGTERM (a batch system's limit) and SIGHUP (a closed terminal) end a run as Ctrl-C does: with all it measured."""

import signal
from collections.abc import Callable
from contextlib import suppress

NAMES = ("SIGTERM", "SIGHUP")


def _raise(number: int, frame) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def install() -> Callable[[], None]:
    """Turn the signals into KeyboardInterrupt; returns a function that undoes it.

    A signal that someone handles already, or ignores (nohup), stays as it is; so do all outside the main thread.
    """
    installed = []
    for name in NAMES:
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            with suppress(ValueError):  # not in the main thread
                signal.signal(number, _raise)
                installed.append(number)

    def restore() -> None:
        for number in installed:
            signal.signal(number, signal.SIG_DFL)

    return restore
