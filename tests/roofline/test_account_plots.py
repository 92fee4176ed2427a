"""The three figures of `roofline account --plot`: what they draw, and what they say."""

import re
import shlex

import pytest

from roofline.cli import main
from roofline.report import theme

FIGURES = ["pace", "bound_map", "utilisation"]


class Drawn:
    """What `--plot` made of a question: paths, the texts and the axes of each figure. `endings`: of files that are
    written; without one nothing is rendered, which is quick, and texts are those that would be."""

    def __init__(self, line, folder, endings=()):
        from matplotlib.text import Text

        found, save = {}, theme.save

        def keep(figure, folder, name):
            found[name] = figure
            return save(figure, folder, name)

        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(theme, "save", keep)
            monkeypatch.setattr(theme, "ENDINGS", endings)
            assert main(["account", *shlex.split(line), "--plot", str(folder)]) == 0
        self.paths = sorted(folder.iterdir())
        self.axes = {name: figure.axes for name, figure in found.items()}
        self.texts = {
            name: " ".join(text.get_text() for text in figure.findobj(Text)).replace("\n", " ")
            for name, figure in found.items()
        }
        for path in self.paths:
            if path.suffix == ".svg":
                self.texts[path.stem] = " ".join(re.findall(r">([^<>]+)</text>", path.read_text()))

    def lines(self, panel=0):
        return {line.get_label(): line for line in self.axes["pace"][panel].get_lines()}

    def at(self, column, row):
        """(X, Y) of a cell of the map."""
        axes = self.axes["bound_map"][0]
        labels = axes.get_xticklabels()[int(column)], axes.get_yticklabels()[int(row)]
        return tuple(int(label.get_text().replace(",", "")) for label in labels)

    def cells(self):
        """{(X, Y): what the map says}."""
        marked = [t for t in self.axes["bound_map"][0].texts if re.fullmatch(r"wire|any|[\d,.]+", t.get_text())]
        return {self.at(*text.get_position()): text.get_text() for text in marked}

    def frames(self):
        """{line style: (X, Y)} of the frames on the map."""
        return {patch.get_linestyle(): self.at(*patch.get_xy()) for patch in self.axes["bound_map"][0].patches}


@pytest.fixture(scope="module")
def v5p(tmp_path_factory):
    line = "--chip tpuv5p --flops 4.6e14 --fsdp 16 --tp 4 --tokens 131072"
    return Drawn(line, tmp_path_factory.mktemp("v5p") / "new", theme.ENDINGS)


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    return Drawn("--fsdp 128 --tp 8 --step training --tokens 4e6", tmp_path_factory.mktemp("training"))


def test_three_figures_in_two_formats(v5p):
    assert [path.name for path in v5p.paths] == sorted(f"{name}.{e}" for name in FIGURES for e in ("svg", "png"))
    assert all(path.stat().st_size > 10_000 for path in v5p.paths)


def test_every_figure_names_its_source_and_what_was_given(v5p, training):
    for name in FIGURES:
        assert "Computed from Google Cloud TPU v5p documentation" in v5p.texts[name]
        assert "given: flops 4.6e+14" in v5p.texts[name]
        assert "Computed from NVIDIA H100 Tensor Core GPU Architecture whitepaper" in training.texts[name]
        assert "given" not in training.texts[name]


def test_the_crossing_is_marked_with_its_number(v5p, training):
    assert "319 tokens a device:" in v5p.texts["pace"]
    assert "from here on the chips set the pace" in v5p.texts["pace"]
    assert "xxl on 64 x TPU v5p: tp 4, fsdp 16" in v5p.texts["pace"]
    assert training.texts["pace"].count("2,454 tokens a device:") == 2
    marks = [line.get_data() for line in v5p.axes["pace"][0].get_lines() if line.get_marker() == "o"]
    assert [(x[0], y[0]) for x, y in marks] == [(pytest.approx(319.4444), pytest.approx(2.4233756))]


def test_lines_of_the_pace_are_times_of_a_block(v5p, training):
    lines = v5p.lines()
    tokens, math_ms = lines["matmuls"].get_data()
    assert tokens[0] < 319.4 < tokens[-1]
    assert math_ms == pytest.approx([4 * 16384 * 53248 * t / 4.6e14 * 1e3 for t in tokens])
    wires = [max(2.42337564, 2 * 1.13777778e-5 * t * 64) for t in tokens]
    assert lines["wires"].get_ydata() == pytest.approx(wires)
    serial = [m + 2.42337564 + 2 * 1.13777778e-5 * t * 64 for m, t in zip(math_ms, tokens, strict=True)]
    assert lines["one after the other"].get_ydata() == pytest.approx(serial)
    for both, math, wire in zip(lines["overlapped"].get_ydata(), math_ms, wires, strict=True):
        assert both >= max(math, wire) * (1 - 1e-9)
    backward, forward = (training.lines(panel)["matmuls"].get_ydata() for panel in (1, 0))
    assert backward == pytest.approx([2 * each for each in forward])


def test_the_map_has_the_bound_of_every_split(v5p, training):
    cells = v5p.cells()
    assert len(cells) == 7 * 7
    assert {cells[x, 1] for x in (2, 4, 64)} == {"852"}
    assert [cells[16, y] for y in (1, 2, 4, 8, 16, 32, 64)] == ["852", "639", "319", "160", "80", "wire", "wire"]
    assert (cells[1, 1], cells[1, 16], cells[1, 64]) == ("any", "any", "wire")
    assert v5p.frames() == {"-": (16, 4), "--": (4, 16)}
    assert "the least where X Y = 64" in v5p.texts["bound_map"]
    assert (training.cells()[1024, 1], training.cells()[64, 16]) == ("2,454", "1,937")
    assert training.frames() == {"-": (128, 8), "--": (64, 16)}


def test_utilisation_is_called_a_simulation_and_names_what_it_assumes(v5p, training):
    for drawn, tokens, flops in ((v5p, "131,072", "4.6e+14"), (training, "4,000,000", "9.894e+14")):
        text = drawn.texts["utilisation"]
        assert "Simulation: xxl on" in text
        assert "A simulation, nothing here was measured." in text
        assert f"the same {tokens} tokens a step on any number of chips" in text
        assert f"matmuls at {flops} FLOP/s; no latency, attention or" in text
        assert "memory not looked at" in text
    for name in ("pace", "bound_map"):
        assert "imulation" not in v5p.texts[name]


def test_utilisation_of_both_arms_over_chips(training):
    axes = training.axes["utilisation"][0]
    lines = {line.get_label(): line.get_data() for line in axes.get_lines()}
    (chips, serial), (_, overlapped) = (lines[f"{arm} gathers"] for arm in ("serial", "overlapped"))
    assert list(chips) == [2**i for i in range(3, 18)]
    assert all(0 < low <= high <= 100.001 for low, high in zip(serial, overlapped, strict=True))
    # FSDP of 8: gathers of 3 * 4 D F * 7/8 / 450e9 beside 12 B D F / 8 / C, 4e6 tokens a step.
    assert serial[0] == pytest.approx(100 / (1 + 7 / 8 * 989.4e12 / 450e9 * 8 / 4e6), rel=1e-6)
    assert {text.get_text() for text in axes.texts} >= {"1", "16", "32", "128"}  # tp


@pytest.mark.parametrize(
    ("line", "pace", "cell"),
    [
        ("--chip exercise --tp 8", "the chips set the pace at any number of tokens", (1, 8, "any")),
        ("--dp 8", "the chips set the pace at any number of tokens", (1, 1, "any")),
        # In the map the replicas stay: 8 more devices of FSDP make it 8 nodes.
        ("--dp 8 --step training", "1,924 tokens a device:", (8, 1, "2,164")),
        ("--chip exercise --fsdp 8", "2,750 tokens a device:", (8, 1, "2,750")),
        # 4 times the bound of a dense model, inside a node.
        ("--experts 8 --top-k 2 --fsdp 8 --tokens 1e6", "7,695 tokens a device:", (8, 1, "7,695")),
        ("--fsdp 8 --ep 8 --experts 8 --pp 2 --step training --saved checkpointed", "tokens a device:", (1, 1, "any")),
        ("--fsdp 8 --model 100,3000 --tokens 1", "1,924 tokens a device:", (8, 1, "1,924")),
        # 3 nodes of 8: 2 / 3 / 8 of V over the port.
        ("--fsdp 24", "1,924 tokens a device:", (16, 1, "1,924")),
    ],
)
def test_odd_questions_are_drawn_too(line, pace, cell, tmp_path):
    drawn = Drawn(line, tmp_path)
    assert list(drawn.axes) == FIGURES
    assert pace in drawn.texts["pace"]
    x, y, value = cell
    assert drawn.cells()[x, y] == value
    assert "nan" not in " ".join(drawn.texts.values())


def test_a_question_without_a_bound_is_drawn_and_rendered(tmp_path):
    drawn = Drawn("--chip exercise --tp 64 --step training", tmp_path, ("svg",))
    assert [path.name for path in drawn.paths] == sorted(f"{name}.svg" for name in FIGURES)
    assert drawn.texts["pace"].count("the wires set the pace") == 2
    assert drawn.cells()[1, 64] == "wire"
    assert drawn.frames() == {"-": (1, 64), "--": (8, 8)}
    assert "nan" not in " ".join(drawn.texts.values())
