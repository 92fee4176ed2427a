"""Numbers as people read them, and aligned tables of them. Standard library only."""

TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))

LEFT = {"shape", "contender", "case", "bound", "kernel", "tuned kernel", "notes", "verdict"}
LEFT |= {"run", "chip", "model", "torch, triton", "commit", "configuration", "taken from now on", "was", "not timed"}
"""Columns of words; all others stand to the right."""


def time_text(seconds: float) -> str:
    """`seconds` to three digits with a unit, e.g. `1.23 ms`."""
    scale, unit = next((pair for pair in TIMES if seconds >= pair[0]), TIMES[-1])
    return f"{seconds / scale:.3g} {unit}"


def rate_text(tflops: float) -> str:
    """TFLOP/s to three significant digits, without exponents."""
    return f"{tflops:.0f}" if tflops >= 100 else f"{tflops:#.3g}".rstrip(".")


def percent_text(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def error_text(share: float) -> str:
    """An error in percent, to two digits."""
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def number_text(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def bytes_text(count: int) -> str:
    """`count` bytes in MB or GB, to three digits."""
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def aligned(header: list[str], cells: list[list[str]]) -> list[str]:
    """Lines of a table; where rows share their first cell, a blank one between groups of them."""
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = []
    grouped = len({row[0] for row in cells}) < len(cells)
    for previous, row in zip([header, *cells], cells, strict=False):
        if grouped and lines and row[0] != previous[0]:
            lines.append("")
        lines.append(_line(header, row, widths))
    return [_line(header, header, widths), *lines]


def _line(header: list[str], row: list[str], widths: list[int]) -> str:
    cells = (
        cell.ljust(width) if name in LEFT else cell.rjust(width)
        for name, cell, width in zip(header, row, widths, strict=True)
    )
    return "  ".join(cells).rstrip()
