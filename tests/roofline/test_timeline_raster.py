"""The image of what each program of a kernel did: tiny cases by hand."""

import numpy as np
import pytest

from roofline.report.overlap import timeline_raster

COLOURS = {0: (0, 0, 0), 1: (1, 0, 0), 2: (0, 1, 0)}
IDLE = (0.5, 0.5, 0.5)
LETTERS = {colour: str(unit) for unit, colour in COLOURS.items()} | {IDLE: "w", timeline_raster.NOTHING: " "}
RUNS = [
    # program, m, n, from, to, look, start, end
    [0, 0, 0, 0, 1, 0, 0, 2],
    [0, 0, 0, 1, 3, 2, 4, 8],
    [1, 1, 0, 0, 3, 1, 4, 10],
]


def rows(runs, unit, bins):
    pixels = timeline_raster.image(runs, unit, COLOURS, IDLE, bins)
    assert pixels.shape == (2, bins, 3)
    return ["".join(LETTERS[tuple(pixel)] for pixel in row) for row in pixels]


def test_image_of_two_programs():
    assert rows(RUNS, lambda m, position: position, 10) == ["00ww1122  ", " www001122"]
    assert rows(RUNS, lambda m, position: m, 10) == ["00ww0000  ", " www111111"]


def test_bin_shows_what_its_middle_meets():
    assert rows(RUNS, lambda m, position: position, 5) == ["0w12 ", "ww012"]
    runs = [*RUNS, [0, 0, 1, 0, 1, 8, 9, 11], [1, 0, 1, 0, 1, 10, 100, 1000]]
    assert rows(runs, lambda m, position: position, 10) == ["          ", "w000000000"]


def test_waited_share_is_of_all_programs_until_the_last_end():
    assert timeline_raster.waited_share(RUNS) == pytest.approx((2 + 3) / (2 * 10))
    assert timeline_raster.waited_share([[1, 0, 0, 0, 1, 0, 4, 10]]) == pytest.approx(4 / 20)
    waiting = np.all(timeline_raster.image(RUNS, lambda m, p: p, COLOURS, IDLE, 10) == IDLE, axis=2)
    assert waiting.mean() == pytest.approx(timeline_raster.waited_share(RUNS))
