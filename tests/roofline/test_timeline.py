"""The figure timeline: which shape it shows, and what it makes of arrivals and waits."""

from made_up_gathers import GEMM_S, HERE, gather_matmul, gathering, timeline_line

from roofline.report import overlap_plots, timeline


def test_blocks_of_a_timeline():
    case = gather_matmul(ranks=4)
    line = timeline_line(case, "chunk_launches", 4.0, 6.0, 0)
    assert [block[:3] for block in timeline.link_blocks(line)] == [(0, 2, 1), (2, 4, 2), (4, 6, 3)]
    home = timeline.HOME_UNIT
    chip = [block[:3] for block in timeline.chip_blocks("chunk_launches", line) if block.end_s > block.start_s]
    assert chip == [(0, 1, home), (2, 3, 1), (4, 5, 2), (6, 7, 3)]
    on_gpu = line | {"waits": [[2, 1.0, 4.0], [3, 5.0, 6.0]]}  # no wait for what is at home; 1 and 2 together
    chip = [block[:3] for block in timeline.chip_blocks("chunk_launches", on_gpu)]
    assert chip == [(0, 1, home), (4, 5, 2), (6, 7, 3)]
    rows = timeline_line(case, "row_block", 4.0, 6.0, 0)
    assert [block.unit for block in timeline.link_blocks(rows)] == [0, 1, 2, 3]
    assert [block[:3] for block in timeline.chip_blocks("row_block", rows)] == [
        (1.5, 2.5, 0), (3, 4, 1), (4.5, 5.5, 2), (6, 7, 3)
    ]  # fmt: skip
    serial = timeline.chip_blocks("serial", timeline_line(case, "serial", 4.0, 6.0, 10.0))
    assert [block[:3] for block in serial if block.end_s > block.start_s] == [(6, 10, None)]


def test_without_timelines_the_other_two_are_left(draw):
    drawn = draw([HERE, *gathering(gather_matmul(), timelines=False)])
    assert overlap_plots.names(drawn.run) == [*drawn.texts] == ["network_roofline", "overlap"]


def test_arm_without_a_timeline_is_named(draw):
    lines = gathering(gather_matmul())
    kept = [line for line in lines if (line["kind"], line.get("contender")) != ("timeline", "row_block")]
    texts = draw([HERE, *kept], "timeline").texts["timeline"]
    assert "no timeline of row_block" in texts
    assert "row_block" not in texts


def test_timeline_prefers_the_wire_that_was_asked_to_be_at_the_ridge(draw):
    nearer, ridge = gather_matmul(), gather_matmul(16, "ridge")
    drawn = draw([HERE, *gathering(nearer, comm_s=GEMM_S), *gathering(ridge, comm_s=GEMM_S / 1.1)], "timeline")
    assert "all_gather_matmul, tp=16, wire ridge, T_gemm / T_comm = 1.10" in drawn.texts["timeline"]
