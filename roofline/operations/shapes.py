"""The shapes of a file, a line each under a header, as cases of the operation `matmul`. Lines may be comments (#). Some
files come along, and are asked for by name."""

import csv
import re
from argparse import ArgumentTypeError
from pathlib import Path

from roofline.host.arguments import count
from roofline.operations.base import Names
from roofline.operations.matmul import SHAPE, Matmul

SIZES = ("m", "n", "k")
MORE = ("dtype", "label")
KNOWN = {path.stem: path for path in sorted(Path(__file__).with_name("known_shapes").glob("*.csv"))}
"""The files that come along, by name. The first line of each says what it has."""
HELP = "it begins with the line m,n,k or m,n,k,dtype,label, and each line behind that is a shape"


def read_file(place: str, dtypes: Names) -> list[Matmul]:
    """Read the matmuls of a file, or of the known one of that name, in its order, each once. A line without a dtype is
    one for each of `dtypes`.

    Raises ValueError that names line, value and way out.
    """
    try:
        text = KNOWN.get(place, Path(place)).read_text(encoding="utf-8-sig")
    except OSError as error:
        names = ", ".join(KNOWN)
        raise ValueError(f"{error}; give a file of comma-separated values, or a name of {names}") from None
    lines = list(filter(None, re.sub(r"#.*|[ \t]", "", text).splitlines()))
    rows = csv.DictReader(lines, restkey="behind the last")
    cases: list[Matmul] = []
    try:
        for row in rows:
            cases += _cases(row, dtypes)
    except (ValueError, ArgumentTypeError) as error:
        raise ValueError(f"line {lines[rows.line_num - 1]!r}: {error}; {HELP}") from None
    if not cases:
        raise ValueError(f"it has no shape; {HELP}")
    return list(dict.fromkeys(cases))


def shape_text(row) -> str:
    """The label of a file's shape, or its N and K; a model's layer at its tp; empty of what is neither. `row` is a row
    of a frame."""
    if row["layer"] != SHAPE:
        return f"{row['layer']} tp{row['tp']}" if isinstance(row["layer"], str) else ""
    label, separator, _ = str(row["model"]).rpartition("@")
    return label if separator else f"N={row['n']} K={row['k']}"


def _cases(row: dict, dtypes: Names) -> list[Matmul]:
    """The matmuls of a line, one for each dtype."""
    for column in row:
        if column not in SIZES + MORE:
            raise ValueError(f"column {column!r} is unknown")
    m, n, k = (count(row.get(size) or "") for size in SIZES)
    model = f"{k}x{n}"
    if label := row.get("label"):
        model = f"{label}@{model}"
    if dtype := row.get("dtype"):
        dtypes = (dtype,)
    return [Matmul(model, SHAPE, 1, m, dtype) for dtype in dtypes]
