"""The journal (`samples.jsonl`): everything a run measured, line by line, as soon as it is known.

It is the one source of tables and plots, so that a run that died can still be reported and gone on with. Lines are JSON
objects with a `kind`; results/README.md documents them. They hold primitives in SI units.

A run folder may be somebody else's: nothing that it names is executed, and nothing is written outside of it.
"""

import errno
import fcntl
import itertools
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from roofline.store import typed
from roofline.store.run import KINDS, Run

SCHEMA = 9
READ = 8, SCHEMA
"""The schemas that are read: before 9 nothing was made apart."""

NAME = "samples.jsonl"
PACKED = f"{NAME}.xz"
"""A run that was committed has its journal packed."""

OPENERS: dict[str, Callable] = {NAME: open, PACKED: lzma.open}
"""The function that opens a journal of that name."""

CHANGED = f"changed {NAME}, which was cut where our own last line ends"
"""What happens to the journal of a run that is measured when it is no longer as it was written."""

SUM = re.compile(r', "sum": "([0-9a-f]{8})"}\r?\n?$')
"""The checksum that a line ends with, in hexadecimal."""


def make_folder(folder: Path) -> Path:
    """Make `folder`, or `folder`-2 and so on where another run has that name; returns it. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    numbers = itertools.count(2)
    numbered = folder
    while True:
        with suppress(FileExistsError):
            numbered.mkdir()
            return numbered
        numbered = folder.with_name(f"{folder.name}-{next(numbers)}")


class Journal:
    """Appends to samples.jsonl in `folder`, which it makes, or goes on with.

    A write is whole or it is not there: one that fails (the disk is full, the file was deleted or cut) is taken back
    before OSError is raised, and nothing is left in a buffer for a later kill to lose. A line that a kill cut off is
    dropped before the next. Each line ends with a checksum (`sum`) of all up to it, so that one that is changed, lost
    or there twice is seen.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        journal = find(folder)
        if journal and journal.name != NAME:
            raise OSError(errno.EPERM, f"its {journal.name} is packed; unpack it with unxz to go on with it")
        self._path = path = folder / NAME
        text = path.read_bytes() if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        self._file = path.open("ab", buffering=0)
        self._size = self._file.truncate(len(whole))
        self._sum = 0
        """The checksum of the last line."""
        if last := SUM.search(whole.decode(errors="replace").rstrip()):
            self._sum = int(last[1], 16)

    def write(self, *lines: dict) -> None:
        """Append `lines`. Raises OSError where they are not there afterwards, and ValueError for one that `load` would
        refuse."""
        for line in lines:
            typed.read_line(KINDS, line)
        self._require_in_place()
        total = self._sum
        texts = []
        for line in lines:
            text = json.dumps(line, allow_nan=False)
            total = zlib.crc32(text.encode(), total)
            texts.append(f'{text[:-1]}, "sum": "{total:08x}"}}\n')
        rest = "".join(texts).encode()
        size = self._size + len(rest)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except BaseException:
            self._file.truncate(self._size)
            raise
        self._size = size
        self._sum = total

    def _require_in_place(self) -> None:
        """Raise OSError where the file at the path is no longer the one that is open, as the last write left it."""
        there = self._path.stat()
        ours = os.fstat(self._file.fileno())
        if not os.path.samestat(there, ours) or there.st_size != self._size:
            raise OSError(errno.ESTALE, f"something else replaced or {CHANGED}")

    def close(self) -> None:
        self._file.close()


def hold(folder: Path) -> BinaryIO | None:
    """The journal in `folder`, opened: no other process gets it until it is closed, or this one ends. None where
    there is none. Raises ValueError where another process holds it."""
    if not (path := find(folder)):
        return None
    file = path.open("ab")  # NFS wants what is held to be writable
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(f"{folder} is being measured by another process: wait for its end") from None
    except OSError:  # a file system without locks
        pass
    return file


def find(folder: Path) -> Path | None:
    """The journal in `folder`, packed or not."""
    for name in OPENERS:
        if (folder / name).is_file():
            return folder / name
    return None


def load(folder: Path, kind: type[Run] = Run) -> Run:
    """The run in `folder`, as a `kind`. A last line that was cut off is ignored. Raises ValueError if it is no journal
    of ours, or the folder holds a link, by which what is written there would leave it."""
    path = _path_of(Path(folder))
    run = None
    for number, (text, _) in enumerate(_summed(path), 1):
        try:
            line = typed.decoded(text)
            if run:
                run.apply(line)
            else:
                _require_schema(line, text)
                typed.read_line(KINDS, line)
                del line["kind"]
                run = kind(line)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}:{number} cannot be read: {error}") from None
    if not run:
        raise ValueError(f"{path} is empty: the run ended before it began")
    run.note_lost_rounds()
    return run


def _path_of(folder: Path) -> Path:
    path = find(folder)
    if not path:
        raise ValueError(f"{folder} is no run folder: it has no {NAME}; give one of results/local or results/reference")
    for entry in path.parent.iterdir():
        if entry.is_symlink():
            problem = "is a link: what a run folder holds must lie in it; put the file there, or remove it"
            raise ValueError(f"{entry} {problem}")
    return path


def _summed(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the whole lines of a journal without their sums, and where they end. Raises ValueError where it is no text,
    or its sums do not agree."""
    total = None
    number = 0
    end = 0
    try:
        with OPENERS[path.name](path, "rb") as file:
            for line in file:
                number += 1
                end += len(line)
                if line.endswith(b"\n"):  # else a kill cut it off while it was written
                    text, total = _checked(line[:-1].removesuffix(b"\r").decode(), total)
                    yield text, end
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no journal: it is not text in UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{path}:{number} {error}") from None
    except (EOFError, lzma.LZMAError):
        raise ValueError(f"{path} is no journal: it is damaged, or not packed as its name says") from None


def _checked(text: str, total: int | None) -> tuple[str, int | None]:
    """A line without its sum, and the sum up to it, which was `total` before. Raises ValueError where it is not."""
    checksum = SUM.search(text)
    if checksum:
        text = f"{text[: checksum.start()]}}}"
        total = zlib.crc32(text.encode(), total or 0)
    if total != (int(checksum[1], 16) if checksum else None):
        raise ValueError("was changed, or a line before it is lost or there twice: see its sum")
    return text, total


def cut(folder: Path) -> bool:
    """Cut a journal behind the last line that is as it was written, if more follows. Where none is, it stays."""
    path = folder / NAME
    size = 0
    with suppress(OSError, ValueError):
        for _, end in _summed(path):
            size = end
    if not size or size == path.stat().st_size:
        return False
    os.truncate(path, size)
    return True


def _require_schema(line: Any, text: str) -> None:
    """Raise ValueError unless the first line of a journal is of a run of a schema that is read."""
    if not isinstance(line, dict) or line.get("kind") != "run" or line.get("schema") not in READ:
        schemas = " or ".join(map(str, READ))
        way_out = "one of another schema is redrawn by the version that wrote it"
        raise ValueError(f"it is no journal of schema {schemas}: it begins with {text[:60]!r}; {way_out}")
