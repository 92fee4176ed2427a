"""The figure timeline: which shape it shows, and what it makes of arrivals and waits."""

import made_up_gathers as made_up
import pytest
from made_up_gathers import HERE, gather_matmul, gathering, timeline_line
from matplotlib.colors import to_hex

from roofline.report import timelines
from roofline.report.plots.timeline import COLOURS

HOME = timelines.HOME_UNIT


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
    assert chip_blocks("serial", timeline_line(case, "serial", 4.0, 6.0, 10.0)) == [(6, 10, None)]
    # a kernel that waits on the chip is one block
    assert chip_blocks("row_block", timeline_line(case, "row_block", 1.5, 1.5, 1.6)) == [(0, 1.6, None)]


def test_blocks_of_a_layer_that_gathers_and_scatters():
    """Three ranks: rows of 1 and 2 come, parts for 1 and 2 go, and those of 2 and 1 arrive meanwhile."""
    transfers = [[1, 0], [2, 0], [2, 1], [1, 1]]
    line = {"transfers": transfers, "arrivals_s": [1, 2, 5, 7], "ready_s": [0.0, 0.0, 4, 6], "end_s": 9.5}
    line["in_turn"] = True
    assert link_blocks(line) == [(0, 1, 1), (1, 2, 2), (4, 5, 1), (6, 7, 2)]
    by_layer = line | {"waits": [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 3, 3], [3, 7, 7], [4, 8, 9]]}
    behind = [(4, 6, 2), (6, 7, HOME), (7, 8, None), (9, 9.5, None)]
    assert chip_blocks("layer_launches", by_layer) == [(0, 1, HOME), (1, 2, 1), (2, 3, 2), (3, 4, 1), *behind]
    both = line | {"ready_s": [0.0, 0.0, 6, 6], "waits": [[2, 3, 3], [4, 8, 9]]}  # parts of one launch
    sent = timelines.chip_blocks("chained_launches", both)[1]
    assert sent == (3, 6, 1, "1 2")
    serial = line | {"ready_s": [0.0, 0.0, 4, 4], "waits": [[2, 0, 2], [3, 4, 5], [4, 5, 7]], "end_s": 7.5}
    assert chip_blocks("serial", serial) == [(2, 4, None), (7, 7.5, None)]
    reduced = {"transfers": [[2, 1], [1, 1], [1, 0], [2, 0]], "arrivals_s": [3, 4, 6, 7], "ready_s": [2, 2, 5, 5]}
    reduced |= {"waits": [[1, 2, 3], [2, 3.5, 4], [4, 5, 7]], "end_s": 7, "in_turn": True}
    assert chip_blocks("all_reduce", reduced) == [(0, 2, None), (3, 3.5, None), (4, 5, None)]


def test_pieces_of_a_part_are_sent_together():
    """One kernel computes parts for ranks 1 and 2, in two row blocks each, and the own one, and tells of each piece."""
    line = {"transfers": [[2, 0], [2, 1], [1, 0], [1, 1]], "arrivals_s": [2, 3, 4, 6], "ready_s": [1, 2, 3, 5]}
    line |= {"waits": [[4, 7, 7]], "end_s": 8}
    assert link_blocks(line) == [(1, 3, 2), (3, 6, 1)]
    assert chip_blocks("signalled", line) == [(0, 1, 2), (1, 2, 2), (2, 3, 1), (3, 5, 1), (5, 7, HOME), (7, 8, None)]
    rows = {"transfers": [[1, 0], [2, 0], [2, 1], [2, 2], [1, 1], [1, 2]], "ready_s": [0.0, 0.0, 4, 5, 6, 7]}
    rows |= {"arrivals_s": [1, 2, 5, 6, 7, 8], "waits": [[2, 3, 3], [6, 9, 9]], "end_s": 10}
    rows["in_turn"] = True
    assert link_blocks(rows) == [(0, 1, 1), (1, 2, 2), (4, 6, 1), (6, 8, 2)]
    chip = [(0, 3, None), (3, 4, 1), (4, 5, 1), (5, 6, 2), (6, 7, 2), (7, 9, HOME), (9, 10, None)]
    assert chip_blocks("layer_signalled", rows) == chip


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
    waits = COLOURS[timelines.WAITS]
    bars = [bar for bar in drawn.figures["timeline"].axes[0].patches if to_hex(bar.get_facecolor()) == waits]
    spans = [x for bar in bars for x in (bar.get_x(), bar.get_x() + bar.get_width())]
    assert spans == pytest.approx([0, 16, 7, 16])
