"""The shapes of a file, a line each under a header, as cases of the operation `matmul`. Lines may be comments (#). Some
files come along, and are asked for by name."""

import csv
import re
from pathlib import Path

from roofline.operations.base import Names
from roofline.operations.matmul import SHAPE, Matmul

SIZES = ("m", "n", "k")
MORE = ("dtype", "label")
KNOWN = {path.stem: path for path in sorted(Path(__file__).with_name("known_shapes").glob("*.csv"))}
"""The files that come along, by name. The first line of each says what it has."""
HELP = "begin it with the line m,n,k or m,n,k,dtype,label, and give a shape in each line behind it"


def read_file(place: str, dtypes: Names) -> list[Matmul]:
    """Read the matmuls of a file, or of the known one of that name, in its order, each once. A line without a dtype is
    one for each of `dtypes`.

    Raises ValueError that names line, value and way out.
    """
    try:
        text = KNOWN.get(place, Path(place)).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        names = ", ".join(KNOWN)
        raise ValueError(f"{error}; give a file of comma-separated values, or a name of {names}") from None
    rows = csv.reader(re.sub(r"(?m)^[ \t]*#.*", "", text).splitlines())
    cases: list[Matmul] = []
    columns: list[str] = []
    for number, row in enumerate(rows, 1):
        cells = list(map(str.strip, row))
        if not any(cells):
            continue
        try:
            if columns:
                cases += _cases(columns, cells, dtypes)
            else:
                columns = _header(cells)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    if not cases:
        raise ValueError(f"it has no header, or no shape; {HELP}")
    return list(dict.fromkeys(cases))


def shape_text(row) -> str:
    """The label of a file's shape, or its N and K; a model's layer at its tp; empty of what is neither. `row` is a row
    of a frame."""
    if row["layer"] != SHAPE:
        return f"{row['layer']} tp{row['tp']}" if isinstance(row["layer"], str) else ""
    label, separator, _ = str(row["model"]).rpartition("@")
    return label if separator else f"N={row['n']} K={row['k']}"


def _header(columns: list[str]) -> list[str]:
    for column in columns if {*SIZES} <= {*columns} else ():
        if column not in SIZES + MORE:
            raise ValueError(f"column {column!r} is unknown; columns are {', '.join(SIZES + MORE)}")
    if len({*columns}) < len(columns) or not {*SIZES} <= {*columns}:
        raise ValueError(f"{','.join(columns)!r} is no header; {HELP}")
    return columns


def _cases(columns: list[str], cells: list[str], dtypes: Names) -> list[Matmul]:
    """The matmuls of a line, one for each dtype."""
    if len(cells) != len(columns):
        raise ValueError(f"{len(cells)} values under {len(columns)} columns; give one for each of {','.join(columns)}")
    row = dict(zip(columns, cells, strict=True))
    for name in SIZES:
        if not row[name].isdecimal() or int(row[name]) < 1:
            raise ValueError(f"{name} is {row[name]!r}, which is no whole number above 0; write digits alone, as 4096")
    m, n, k = (int(row[name]) for name in SIZES)
    model = f"{k}x{n}"
    if label := row.get("label"):
        model = f"{label}@{model}"
    if dtype := row.get("dtype"):
        dtypes = (dtype,)
    return [Matmul(model, SHAPE, 1, m, dtype) for dtype in dtypes]
