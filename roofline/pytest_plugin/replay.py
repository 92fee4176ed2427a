"""What pytest-benchmark is handed in place of its own: a timer that replays samples, and the file it saves to."""

import itertools
from collections.abc import Callable
from pathlib import Path


class ReplayTimer:
    """A timer whose readings are 0, s0, 0, s1, ...: round i of the benchmark lasts exactly samples[i] seconds."""

    def __init__(self):
        self.__name__ = "replay"
        self._readings = iter(())

    def load(self, name: str, samples: list[float]) -> None:
        self.__name__ = name
        self._readings = itertools.chain.from_iterable((0.0, sample) for sample in samples)

    def __call__(self) -> float:
        return next(self._readings)


class LaterFile:
    """A file to be made when it is written: a path for pytest-benchmark 5.3, an open file for those before it."""

    def __init__(self, path: Callable[[], Path]):
        self._path = path  # known by then

    def __fspath__(self) -> str:
        return str(self._path())

    __str__ = __fspath__

    def __enter__(self):
        self._file = self._path().open("wb")
        return self._file

    def __exit__(self, *failure) -> None:
        self._file.close()
