"""The shapes of a file, a line each under a header, as cases of the operation `matmul`. Lines may be comments (#)."""

import csv
from pathlib import Path

from roofline.operations.matmul import SHAPE, Matmul

SIZES = ("m", "n", "k")
MORE = ("dtype", "label")
HELP = "begin it with the line m,n,k or m,n,k,dtype,label, and give a shape in each line behind it"


def of_file(path: Path, dtypes: tuple[str, ...]) -> list[Matmul]:
    """Read the matmuls of a file, in its order. A line without a dtype is one matmul for each of `dtypes`.

    Raises ValueError that names line, value and way out.
    """
    columns, rows = _rows(path)
    line_of: dict[Matmul, int] = {}
    for number, cells in rows:
        try:
            for case in _cases(columns, cells, dtypes):
                if (first := line_of.setdefault(case, number)) != number:
                    raise ValueError(f"{case.id} is that of line {first}; remove one, or label them")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return list(line_of)


def _rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The columns of a file, and each line behind its header with its number."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{error}; give a file of comma-separated values") from None
    rows = []
    for number, cells in enumerate(csv.reader(map(_without_comment, lines)), 1):
        if any(cells):
            rows.append((number, [*map(str.strip, cells)]))
    if len(rows) < 2:
        raise ValueError(f"it has no header, or no shape; {HELP}")
    number, columns = rows.pop(0)
    if len({*columns}) < len(columns) or not {*SIZES} <= {*columns} <= {*SIZES, *MORE}:
        raise ValueError(f"line {number}: {','.join(columns)!r} is no header; {HELP}")
    return columns, rows


def _without_comment(line: str) -> str:
    return "" if line.lstrip().startswith("#") else line


def _cases(columns: list[str], cells: list[str], dtypes: tuple[str, ...]) -> list[Matmul]:
    """The matmuls of a line, one for each dtype."""
    if len(cells) != len(columns):
        raise ValueError(f"{len(cells)} values under {len(columns)} columns; give one for each of {','.join(columns)}")
    row = dict(zip(columns, cells, strict=True))
    sizes = []
    for name in SIZES:
        size = row[name]
        if not size.isdecimal() or int(size) < 1:
            raise ValueError(f"{name} is {size!r}, which is no whole number above 0; write digits alone, as 4096")
        sizes.append(int(size))
    m, n, k = sizes
    model = f"{k}x{n}"
    if label := row.get("label"):
        model = f"{label}@{model}"
    if dtype := row.get("dtype"):
        dtypes = (dtype,)
    return [Matmul(model, SHAPE, 1, m, dtype) for dtype in dtypes]
