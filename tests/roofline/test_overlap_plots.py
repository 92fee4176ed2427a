"""The figures of runs that gather over a wire, drawn from a made-up journal, and the blocks of a timeline."""

import re
from importlib import import_module

import pytest
from made_up_gathers import (
    COMM_S,
    GEMM_S,
    HERE,
    LAYER,
    NAMES,
    ON_CPU,
    SWEEP,
    gather_matmul,
    gathering,
    layer,
    prefetch,
    timeline_line,
)
from made_up_run import HEAD


@pytest.fixture(scope="module")
def sweep(draw):
    return draw([HERE, *SWEEP])


def lines_of(axes):
    return {line.get_label(): line for line in axes.get_lines()}


def points_of(axes, arm):
    container = next(c for c in axes.containers if c.get_label() == arm)
    return list(zip(*container.lines[0].get_data(), strict=True))


def test_every_figure_names_link_source_and_run(sweep):
    for name in NAMES:
        text = "|".join(sweep.texts[name])
        for words in (f"{HEAD['title']}, CPU run", "paced (emulated) link", "P = 8 ranks", HEAD["footer"]):
            assert words in text, name
        assert "NVLink" not in text, name
    wire_bytes = gather_matmul().work.wire_bytes
    slow, fast = (f"{wire_bytes / seconds / 1e9:.3g}" for seconds in (GEMM_S, COMM_S))
    assert f"all_gather_matmul, paced (emulated) link, {slow} to {fast} GB/s, P = 8 ranks" in sweep.texts["overlap"]


def test_all_wires_meet_one_roof_and_serial_is_half_at_the_threshold(sweep):
    for axes, count in zip(sweep.figures["network_roofline"].axes, (4, 2), strict=True):
        for label, value in (("ideal", lambda x: min(1, x)), ("both", lambda x: x / (1 + x))):
            line = next(line for name, line in lines_of(axes).items() if name.startswith(label))
            assert line.get_ydata() == pytest.approx([value(x) for x in line.get_xdata()])
        serial = points_of(axes, "serial")
        assert len(serial) == count
        assert [y for _, y in serial] == pytest.approx([x / (1 + x) for x, _ in serial], rel=0.02)
    assert {"tp 4", "tp 16", "tp 64", "wire ridge", "M 64", "M 172"} <= {*sweep.texts["network_roofline"]}


def test_each_operation_has_a_panel_and_the_title_names_the_arm_that_gains_most(draw):
    drawn = draw([HERE, *LAYER, *gathering(prefetch(172), 18.1e-3)], "network_roofline")
    gather, scatter, both, prefetched = drawn.figures["network_roofline"].axes
    assert points_of(prefetched, "overlapped")
    assert [len(points_of(axes, "serial")) for axes in (gather, scatter, both)] == [3] * 3
    assert [
        len(points_of(axes, arm)) for axes, arm in ((gather, "row_block_launches"), (scatter, "block_launches"))
    ] == [3] * 2
    assert [len(points_of(both, arm)) for arm in ("all_reduce", "chained_launches")] == [3, 3]
    gain = (16.16 + 16) / (16.16 + 0.02 * 16)
    assert f"Overlapping buys {gain:.2f} x over serial in ffn" in drawn.texts["network_roofline"]


def test_title_claims_nothing_where_no_arm_is_faster(draw):
    lost = dict.fromkeys(("serial", "chunk_launches", "row_block_launches"), 1.0)
    texts = draw([HERE, *gathering(gather_matmul(16, "gloo"), link="gloo", lost=lost)], NAMES[0]).texts[NAMES[0]]
    assert "No arm is faster than serial beyond its interval" in texts
    assert any(re.search(r"gloo, point to point link, [\d.]+ GB/s, P = 8 ranks", text) for text in texts)


def test_overlap_has_a_row_for_each_shape_from_the_ideal_to_the_sum(sweep):
    gather, prefetched = sweep.figures["overlap"].axes
    # By T_gemm / T_comm: 6.1/16, 20/20, 20/16 and 80/16 of one operation, 7/16 and 18.1/16 of the other.
    for axes, sums, names in (
        (gather, [1 + 6.1 / 16, 2, 1.8, 1.2], ["tp 64", "wire ridge", "tp 16", "tp 4"]),
        (prefetched, [1 + 7 / 16, 1 + 16 / 18.1], ["M 64", "M 172"]),
    ):
        assert [bar.get_x() for bar in axes.patches] == [1] * len(sums)
        assert [bar.get_x() + bar.get_width() for bar in axes.patches] == pytest.approx(sums)
        assert [x for x, _ in points_of(axes, "serial")] == pytest.approx(sums)
        assert [label.get_text().partition(",")[0] for label in axes.get_yticklabels()] == names
    hidden = [text for text in sweep.texts["overlap"] if " hides " in text]
    assert hidden == ["chunk_launches hides 90 %"] * 4 + ["overlapped hides 95 %"] * 2


def test_shapes_that_cannot_be_compared_are_left_out_and_said_to_be(draw):
    void, unmeasured = gather_matmul(26), gather_matmul(32)
    lines = *gathering(gather_matmul()), *gathering(void, pace=0.8), *gathering(unmeasured, without=["link"])
    drawn = draw([HERE, *lines])
    for name in NAMES:
        words = " ".join(" ".join(drawn.texts[name]).split())
        assert f"left out, as T_gemm or T_comm is void or was not measured: {void.id}, {unmeasured.id}" in words
        assert not [text for text in drawn.texts[name] if text.startswith(("tp 26", "tp 32"))]
        (axes,) = drawn.figures[name].axes
        assert name == "timeline" or len(points_of(axes, "serial")) == 1


def preset_lines():
    lines = gathering(gather_matmul(wire="preset"), link="preset", without=("link",))
    return [line | {"arrivals_s": [0.0] * 7} if line["kind"] == "timeline" else line for line in lines]


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (preset_lines(), []),
        (gathering(gather_matmul(), without=("link",)), []),
        (gathering(gather_matmul(), pace=0.8), []),
        ([line for line in gathering(gather_matmul()) if line["kind"] != "timeline"], ["network_roofline", "overlap"]),
        (gathering(layer()), ["network_roofline", "overlap"]),
    ],
    ids=["preset link", "no link alone", "void", "no timelines", "a layer"],
)
def test_figures_that_lack_their_data_are_left_out(draw, lines, names):
    drawn = draw([HERE, *lines])
    assert [*drawn.figures] == names


def test_serial_on_all_cores_is_a_yardstick_and_no_best_arm(draw):
    case = gather_matmul()
    drawn = draw([HERE, *gathering(case, lost=ON_CPU | {"chunk_launches": 0.9, "row_block_launches": 0.8})], *NAMES[:2])
    texts = drawn.texts["overlap"]
    assert "row_block_launches hides 20 %" in texts
    (axes,) = drawn.figures["overlap"].axes
    assert [x for x, _ in points_of(axes, "serial_all_cores")] == pytest.approx([(GEMM_S + 0.4 * COMM_S) / GEMM_S])
    panels = drawn.figures["network_roofline"].axes  # whose roof is that of the others' cores
    assert not any(c.get_label() == "serial_all_cores" for axes in panels for c in axes.containers)


timelines = import_module("roofline.report.plots.timeline")  # whose package has the figure under that name


def link_blocks(line):
    return [block[:3] for block in timelines.link_blocks(line)]


def chip_blocks(arm, line):
    return [block[:3] for block in timelines.chip_blocks(arm, line) if block.end_s > block.start_s]


def test_blocks_of_a_timeline():
    case = gather_matmul(ranks=4)
    line = timeline_line(case, "chunk_launches", 4.0, 6.0, 0)
    assert link_blocks(line) == [(0, 2, 1), (2, 4, 2), (4, 6, 3)]
    assert chip_blocks("chunk_launches", line) == [(0, 1, None), (2, 3, 1), (4, 5, 2), (6, 7, 3)]
    on_gpu = line | {"waits": [[2, 1.0, 4.0], [3, 5.0, 6.0]]}  # no wait for what is at home; 1 and 2 together
    assert chip_blocks("chunk_launches", on_gpu) == [(0, 1, None), (4, 5, 2), (6, 7, 3)]
    rows = timeline_line(case, "row_block_launches", 4.0, 6.0, 0)
    assert chip_blocks("row_block_launches", rows) == [(1.5, 2.5, 0), (3, 4, 1), (4.5, 5.5, 2), (6, 7, 3)]
    # a kernel that waits on the chip is one block
    assert chip_blocks("row_block", line | {"waits": [], "end_s": 1.6}) == [(0, 1.6, None)]


def test_pieces_of_a_part_are_sent_together():
    """One kernel computes parts for ranks 1 and 2, in two row blocks each, and the own one, and tells of each piece."""
    line = {"transfers": [[2, 0], [2, 1], [1, 0], [1, 1]], "arrivals_s": [2, 3, 4, 6], "ready_s": [1, 2, 3, 5]}
    line |= {"waits": [[4, 7, 7]], "end_s": 8}
    assert link_blocks(line) == [(1, 3, 2), (3, 6, 1)]
    assert chip_blocks("signalled", line) == [(0, 1, 2), (1, 2, 2), (2, 3, 1), (3, 5, 1), (5, 7, None), (7, 8, None)]
    launch = {"transfers": [[1, 0], [2, 0]], "arrivals_s": [5, 7], "ready_s": [4, 4], "waits": [[2, 6, 7]], "end_s": 8}
    assert timelines.chip_blocks("block_launches", launch)[0] == (0, 4, 1, "1 2")  # parts of one launch
    assert chip_blocks("block_launches", launch) == [(0, 4, 1), (4, 6, None), (7, 8, None)]


def test_timeline_prefers_the_wire_that_was_asked_to_be_at_the_ridge(draw):
    nearer, ridge = gather_matmul(), gather_matmul(16, "ridge")
    drawn = draw([HERE, *gathering(nearer, comm_s=GEMM_S), *gathering(ridge, comm_s=GEMM_S / 1.1)], "timeline")
    assert "wire ridge, T_gemm / T_comm = 1.10" in drawn.texts["timeline"]
