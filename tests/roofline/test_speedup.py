"""The fastest library in a report's first line, and the figure of who wins where."""

import pytest
from made_up_run import END, HEAD, ceiling, save, shape

from roofline.analysis.records import frame
from roofline.commands.cli import main
from roofline.report.plots import speedup
from roofline.report.throughput import first_line
from roofline.report.write import terminal, write

LIBRARY = {"of_library": True}
LIBRARIES = {"quack": LIBRARY, "quack_tuned": LIBRARY, "deep_gemm": LIBRARY}
TILED, QUACK = {1: 2.0e-6, 16: 1.6e-6, 8192: 5.0e-6}, {1: 1.6e-6, 16: 1.6e-6, 8192: 4.0e-6}
"""{M: seconds}, beside cuBLAS, which takes 2, 2 and 4."""


def lines_of(without=(), **more):
    """Return lines of a run of three M. At M = 1 the tuned quack ties with tiled, and its guess is the fastest."""
    lines = []
    for m, tiled_s in TILED.items():
        cublas_s = 4e-6 if m == 8192 else 2e-6
        times = {"cublas": cublas_s, "cublas_again": cublas_s / 3, "tiled": tiled_s, "quack_tuned": QUACK[m]}
        times |= {"quack": 1e-6} | ({"deep_gemm": 1e-7} if m == 1 else {})
        times = {name: time_s for name, time_s in times.items() if name not in without}
        about = {name: about for name, about in LIBRARIES.items() if name in times}
        lines += shape(m, times, about=about, dispatched="tiled", **more)
    return [HEAD, ceiling("matmul", 700e12, dtype="bf16"), ceiling("read", 4e12), *lines, END]


@pytest.mark.parametrize(
    ("without", "words"),
    [
        # Over the tuned quack at M = 1, 16 and 8192: 0.8, 1 and 0.8
        ((), "quack_tuned. The fastest of ours and the user's over it: 0.862 ["),
        # Over its guess 0.5, 0.625 and 0.2
        (("quack_tuned",), "quack. The fastest of ours and the user's over it: 0.397 ["),
        # Over cuBLAS 1, 1.25 and 0.8
        (("quack_tuned", "quack"), "cublas. The fastest of ours and the user's over it: 1.000 ["),
    ],
)
def test_the_first_line_names_the_fastest_library_of_all_shapes(without, words, loaded):
    run = loaded(lines_of(without))
    line = first_line(run, frame(run))
    assert line.startswith(f"Fastest library: {words}")
    assert line.endswith("in the geometric mean over 3 shapes.")
    assert terminal(run)[0] == line


def test_there_is_no_first_line_where_none_of_ours_ran_or_rounds_are_too_few(loaded, tmp_path):
    few = loaded(lines_of(rounds=2))
    assert first_line(few, frame(few)) == ""
    run = loaded(lines_of(("tiled",)))
    assert first_line(run, frame(run)) == ""
    write(tmp_path / "run")
    assert "Fastest library" not in (tmp_path / "run" / "report.md").read_text()


def points(line):
    return [(x, round(float(y), 6)) for x, y in line.get_xydata()]


def drawn(axes, label):
    return [line for line in axes.get_lines() if line.get_label() == label]


def test_a_line_a_contender_says_how_fast_it_is_over_m(loaded):
    rows = frame(loaded(lines_of()))
    figure = speedup(rows)
    above, below = figure.axes[:2]
    ratios = {}
    for bars in above.containers:
        ratios[bars.get_label()] = points(bars[0]), bars[0].get_linestyle()
    assert ratios == {
        "tiled": ([(1, 1), (16, 1.25), (8192, 0.8)], "-"),
        "quack_tuned": ([(1, 1.25), (16, 1.25), (8192, 1)], ":"),
        "quack": ([(1, 2), (16, 2), (8192, 4)], ":"),
        "deep_gemm": ([(1, 20)], ":"),
    }
    assert [line.get_ydata()[0] for line in drawn(above, "cublas")] == [1]
    (rings,) = drawn(above, "what kernels.matmul takes")
    assert points(rings) == [(1, 1), (16, 1.25), (8192, 0.8)]
    assert above.get_title("left") == "up tp1, bf16"
    assert [text.get_text() for text in below.get_xticklabels()] == ["1", "16", "8192"]
    title = figure.get_suptitle().strip()
    assert title == "The fastest beats cublas on 1 of 3 shapes; least 0.800, up tp1, M 8192"
    shares = rows[rows["contender"].eq("tiled")].sort_values("m")["of_roof"]
    assert [*below.get_lines()[0].get_ydata()] == pytest.approx([*100 * shares])


def test_one_m_has_no_figure(loaded):
    assert speedup(frame(loaded([HEAD, *shape(16, {"cublas": 2e-6, "tiled": 1e-6}), END]))) is None


def test_two_runs_are_drawn_with_their_machines(loaded):
    head, *lines = lines_of()
    other = head | {"footer": "another chip, made up"}
    base, new = loaded([head, *lines]), loaded([other, *lines])
    figure = speedup(frame(base), frame(new))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"made up for a test", "another chip", "tiled"} <= {*labels}
    fills = [bars[0].get_markerfacecolor() for bars in figure.axes[0].containers if bars.get_label() == "tiled"]
    assert fills[1] == "white" != fills[0]
    assert len(labels) == len({*labels})


def test_compare_draws_two_runs_and_says_where_it_cannot(tmp_path, capsys):
    folders = [str(save(tmp_path / name, lines_of(rounds=12))) for name in ("a", "b", "c")]
    main(["compare", *folders[:2], "--figure", str(tmp_path / "drawn")])
    assert capsys.readouterr().out.splitlines()[0] == str(tmp_path / "drawn" / "speedup.png")
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == {"speedup.png", "speedup.svg"}
    assert main(["compare", *folders[:2], "--new", folders[2], "--figure", str(tmp_path / "other")]) == 2
    assert "--figure draws one run a side" in capsys.readouterr().err
