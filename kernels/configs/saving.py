"""Writes the choice of a tuning into a table of tiles: one entry, for one shape, with what it was measured under."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path

from kernels import configs
from kernels.configs import Config, Table

Shape = tuple[int, int, int, str]
"""m, n, k and the dtype's name, as `bf16`."""


def save(path: Path, kernel: str, shape: Shape, config: Config, measured: dict) -> dict:
    """Write `config` as the measured entry for exactly `shape`, (m, n, k, dtype), at the top of the table at `path`, in
    the place of an earlier one from a device with as many SMs. Returns the row.

    The file is whole at any moment: a new one is written beside it, and takes its name. Two that save at a time take
    turns, or the later one would lose what the other wrote. OSError where it cannot be written, ValueError where it is
    no table or does not have the tile.
    """
    with _alone(path.parent):
        return _save(path, kernel, shape, config, measured)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let nobody else save in `folder` meanwhile, where its file system has locks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _save(path: Path, kernel: str, shape: Shape, config: Config, measured: dict) -> dict:
    table = configs.read(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    row = entry(table, kernel, shape, config, measured)
    document["entries"] = [row, *(old for old in document["entries"] if not _replaces(row, old))]
    beside = path.with_name(f".{path.name}.{os.getpid()}")  # no *.json: it is no table
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(as_text(document))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    return row


def entry(table: Table, kernel: str, shape: Shape, config: Config, measured: dict) -> dict:
    """The row of the table for exactly `shape`, (m, n, k, dtype). `measured`: the conditions, `chip`, `date`, `shape`
    and `triton` at least."""
    m, n, k, dtype = shape
    defaults = {f.name: f.default for f in fields(Config)}
    tile = {name: value for name, value in asdict(config).items() if name == "group_m" or value != defaults[name]}
    row = {"kernel": kernel, "dtypes": [dtype], "m_min": m, "m_max": m, "n": n, "k": k, "n_max": None}
    return row | tile | {"mma": mma_of(table, kernel, dtype, config), "measured": measured}


def mma_of(table: Table, kernel: str, dtype: str, config: Config) -> str | None:
    """The instruction that the table declares for `config`'s tile. ValueError where it has no such tile."""
    tile = (config.block_m, config.block_n)
    for known in table.entries:
        if known.kernel == kernel and dtype in known.dtypes and (known.config.block_m, known.config.block_n) == tile:
            return known.mma
    raise ValueError(f"no {kernel} tile of {tile[0]}x{tile[1]} in {dtype} in {table.arch}.json; add an entry for it")


def _replaces(new: dict, old: dict) -> bool:
    same = all(old.get(name) == new[name] for name in ("kernel", "dtypes", "m_min", "m_max", "n", "k"))
    return bool(same and old["measured"] and old["measured"].get("sms") == new["measured"].get("sms"))


def as_text(document: dict) -> str:
    """A table as it is checked in: one entry a line."""
    head = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in document.items() if key != "entries"]
    rows = ",\n".join(f"    {json.dumps(row)}" for row in document["entries"])
    return "\n".join(["{", *head, '  "entries": [', rows, "  ]", "}", ""])
