"""Writes the choice of a tuning into a table of tiles: one entry, or which kernel to take, for one shape, with what it
was measured under. A table that was read before is read again."""

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

    OSError where it cannot be written: then it is as it was. ValueError where it is no table or does not have the tile.
    """
    return _put(path, "entries", entry(configs.read(path), kernel, shape, config, measured))


def save_pick(path: Path, kernel: str, shape: Shape, measured: dict) -> dict:
    """Write that `kernel` is the one to take for exactly `shape`, as `save` does."""
    m, n, k, dtype = shape
    configs.read(path)
    return _put(path, "picks", {"kernel": kernel, "dtype": dtype, "m": m, "n": n, "k": k, "measured": measured})


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


def _put(path: Path, rows: str, row: dict) -> dict:
    """`row` on top of its like. The file is whole at any moment: a new one is written beside it, and takes its name.
    Two that save at a time take turns, or the later one would lose what the other wrote."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")  # no *.json: it is no table
    with _alone(path.parent):
        document = json.loads(path.read_text(encoding="utf-8"))
        document[rows] = [row, *(old for old in document.get(rows, ()) if not _replaces(row, old))]
        try:
            with beside.open("w", encoding="utf-8") as file:
                file.write(as_text(document))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    configs.table.cache_clear()
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
    """Whether both are for the same shape, on as many SMs: entries of one kernel, or picks of any."""
    names = ("kernel", "dtypes", "m_min", "m_max", "n", "k") if "dtypes" in new else ("dtype", "m", "n", "k")
    same = all(old.get(name) == new[name] for name in names)
    return bool(same and old["measured"] and old["measured"].get("sms") == new["measured"].get("sms"))


def as_text(document: dict) -> str:
    """A table as it is checked in: one entry, or pick, a line."""

    def text(value) -> str:
        rows = ",\n".join(f"    {json.dumps(row)}" for row in value) if isinstance(value, list) else ""
        return f"[\n{rows}\n  ]" if isinstance(value, list) else json.dumps(value)

    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {text(value)}" for key, value in document.items()) + "\n}\n"
