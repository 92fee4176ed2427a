"""A kernel's timeline as an image: a row for each program, over time. NumPy only; `timeline` draws it."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

Traced = Sequence[Sequence[int]]
"""The runs of a kernel, as a journal has them, times in ns: [program, m, n, chunk_from, chunk_to, look, start, end].

A program looked at the flags of tile (m, n), had to wait until `start`, and multiplied with the chunks at positions
[chunk_from, chunk_to) of the arrival order until `end`."""

RGB = tuple[float, float, float]
NOTHING: RGB = (1.0, 1.0, 1.0)
"""Neither waits nor multiplies: writes a tile, or has none left."""


def image(runs: Traced, unit: Callable[[int, int], int], colours: Mapping, idle: RGB, bins: int) -> np.ndarray:
    """What each program does from time 0 to the last end: float [programs, bins, 3], its colours from 0 to 1.

    A bin has the colour of what its middle meets: RGB `colours[unit(m, position)]` of a product with the chunk at
    `position`, `idle` while the program waits, NOTHING else. All chunks of one run are taken to last equally long.
    """
    pixels = np.full((1 + max(run[0] for run in runs), bins, 3), NOTHING)
    per_ns = bins / end_ns(runs)
    for program, m, _, chunk_from, chunk_to, look, start, end in runs:
        edges = np.linspace(start, end, chunk_to - chunk_from + 1)
        look_bin, *bounds = np.rint(np.array([look, *edges]) * per_ns).astype(int)
        pixels[program, look_bin : bounds[0]] = idle
        for index, position in enumerate(range(chunk_from, chunk_to)):
            pixels[program, bounds[index] : bounds[index + 1]] = colours[unit(m, position)]
    return pixels


def waited_share(runs: Traced) -> float:
    """The share of all programs' time, from 0 to the last end, that they waited."""
    programs = 1 + max(run[0] for run in runs)
    return sum(start - look for *_, look, start, _ in runs) / (programs * end_ns(runs))


def end_ns(runs: Traced) -> int:
    """When the last product was done."""
    return max(run[-1] for run in runs)
