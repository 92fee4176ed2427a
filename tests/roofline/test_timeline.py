"""The figure timeline: which shape it shows, and what it makes of arrivals and waits."""

from importlib import import_module

import made_up_gathers as made_up
import pytest
from made_up_gathers import HERE, gather_matmul, gathering, timeline_line
from matplotlib.colors import to_hex

timelines = import_module("roofline.report.plots.timeline")  # whose package has the figure under that name

COLOURS, HOME, WAITS = timelines.COLOURS, timelines.HOME_UNIT, timelines.WAITS


def link_blocks(line):
    return [block[:3] for block in timelines.link_blocks(line)]


def chip_blocks(arm, line):
    return [block[:3] for block in timelines.chip_blocks(arm, line) if block.end_s > block.start_s]


def test_blocks_of_a_timeline():
    case = gather_matmul(ranks=4)
    line = timeline_line(case, "chunk_launches", 4.0, 6.0, 0)
    assert link_blocks(line) == [(0, 2, 1), (2, 4, 2), (4, 6, 3)]
    assert chip_blocks("chunk_launches", line) == [(0, 1, HOME), (2, 3, 1), (4, 5, 2), (6, 7, 3)]
    on_gpu = line | {"waits": [[2, 1.0, 4.0], [3, 5.0, 6.0]]}  # no wait for what is at home; 1 and 2 together
    assert chip_blocks("chunk_launches", on_gpu) == [(0, 1, HOME), (4, 5, 2), (6, 7, 3)]
    rows = timeline_line(case, "row_block_launches", 4.0, 6.0, 0)
    assert [block.unit for block in timelines.link_blocks(rows)] == [0, 1, 2, 3]
    assert chip_blocks("row_block_launches", rows) == [(1.5, 2.5, 0), (3, 4, 1), (4.5, 5.5, 2), (6, 7, 3)]
    # a kernel that waits on the chip is one block
    assert chip_blocks("row_block", timeline_line(case, "row_block", 1.5, 1.5, 1.6)) == [(0, 1.6, None)]


def test_pieces_of_a_part_are_sent_together():
    """One kernel computes parts for ranks 1 and 2, in two row blocks each, and the own one, and tells of each piece."""
    line = {"transfers": [[2, 0], [2, 1], [1, 0], [1, 1]], "arrivals_s": [2, 3, 4, 6], "ready_s": [1, 2, 3, 5]}
    line |= {"waits": [[4, 7, 7]], "end_s": 8}
    assert link_blocks(line) == [(1, 3, 2), (3, 6, 1)]
    assert chip_blocks("signalled", line) == [(0, 1, 2), (1, 2, 2), (2, 3, 1), (3, 5, 1), (5, 7, HOME), (7, 8, None)]
    launch = {"transfers": [[1, 0], [2, 0]], "arrivals_s": [5, 7], "ready_s": [4, 4], "waits": [[2, 6, 7]], "end_s": 8}
    assert timelines.chip_blocks("block_launches", launch)[0] == (0, 4, 1, "1 2")  # parts of one launch
    assert chip_blocks("block_launches", launch) == [(0, 4, 1), (4, 6, HOME), (7, 8, None)]


def test_timeline_prefers_the_wire_that_was_asked_to_be_at_the_ridge(draw):
    nearer, ridge = gather_matmul(), gather_matmul(16, "ridge")
    drawn = draw(
        [HERE, *gathering(nearer, comm_s=made_up.GEMM_S), *gathering(ridge, comm_s=made_up.GEMM_S / 1.1)], "timeline"
    )
    assert "all_gather_matmul, tp=16, wire ridge, T_gemm / T_comm = 1.10" in drawn.texts["timeline"]


def test_chip_that_has_done_before_the_link_waits(draw):
    drawn = draw(
        [HERE, *gathering(made_up.prefetch(64), 7e-3, 16e-3, lost={"serial": 1.0, "overlapped": 0.0})], "timeline"
    )
    bars = drawn.figures["timeline"].axes[0].patches
    (waits, lane) = (bar.get_width() for bar in bars if to_hex(bar.get_facecolor()) == WAITS)
    computing = [bar for bar in bars if to_hex(bar.get_facecolor()) == COLOURS[None] and bar.get_width()]
    assert (waits, lane) == pytest.approx((23e-3, 16e-3))
    assert [(bar.get_x(), bar.get_width()) for bar in computing] == [
        pytest.approx((16e-3, 7e-3)),
        pytest.approx((0, 7e-3)),
    ]
