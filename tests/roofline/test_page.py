"""The files of a report whose run folder came from somebody else: every figure is inside, what its text says is shown
and never done, its sizes are bounded, and nothing is written beside it. "A folder from somebody else" in
results/README.md says so."""

import contextlib
import csv
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import matplotlib
import numpy
import pandas
import pytest
from made_up_gathers import HERE, NAMES, SWEEP, gather_matmul, gathering
from made_up_run import END, HEAD, LINES, save
from PIL import Image

from results import references
from roofline.commands import cli
from roofline.commands.cli import main
from roofline.operations.options import wires_of
from roofline.report import tables
from roofline.report.plots import theme
from roofline.report.write import write
from roofline.store import journal
from roofline.store.lines import LONGEST_TEXT, plain

BAD = "=<script>alert('x')</script>|`a`$\\frac{$ [b](javascript:c) ../../up\x1b[31m\x07\u202e\ud800\nend"
SHOWN = "=<script>alert('x')</script>|`a`$\\frac{$ [b](javascript:c) ../../up\\x1b[31m\\x07\\u202e\\ud800 end"
FIGURES = {"memory_roofline", *NAMES}


def plant_text(lines, **head):
    """Return `lines` with BAD for the name of a contender and for every text that a reader is shown."""
    text = json.dumps(lines).replace("tiled", json.dumps(BAD)[1:-1])
    first, *others = json.loads(text)
    machine = first["machine"] | {"chip": BAD, "versions": {"torch": BAD}}
    first |= {"title": BAD, "footer": BAD, "notes": [BAD], "commit": BAD, "machine": machine} | head
    for line in others:
        if line["kind"] == "shape" and "cublas" in line["entrants"]:
            line["entrants"]["cublas"] |= {"config": BAD, "kernel_name": BAD}
            line["entrants"]["probe"] = {"config": BAD, "role": "probe", "amount": 1e9, "ceiling": "matmul"}
            line["late"]["probe"] = 0
            line["telemetry"]["throttle_reasons"] = BAD
        if line["kind"] == "round" and "cublas" in line["time_s"]:
            line["time_s"]["probe"] = 1e-6
        line |= {"not_measured": {"reason": BAD}, "ceiling": {"probe": BAD}}.get(line["kind"], {})
    return [first, *others]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a run with such text and every kind of figure."""
    folder = save(tmp_path_factory.mktemp("around") / "run", plant_text([HERE, *LINES[1:-1], *SWEEP, END]))
    with matplotlib.rc_context({"text.usetex": True}):  # of the reader's: TeX would read files
        assert {path.parent for path in write(folder)} == {folder}
    return folder


@pytest.fixture(scope="module")
def text(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


def test_files_of_a_report_are_all_in_the_folder_and_their_text_commands_no_terminal(folder):
    assert [path.name for path in folder.parent.iterdir()] == ["run"]
    figures = {f"{name}.{ending}" for name in FIGURES for ending in ("svg", "png")}
    assert {path.name for path in folder.iterdir()} == {"samples.jsonl", "report.md", "report.html"} | figures
    for path in folder.iterdir():
        if path.suffix == ".png":
            assert Image.open(path).mode == "P", path.name
        if path.suffix in (".md", ".html", ".svg"):
            assert all(c.isprintable() or c == "\n" for c in path.read_text(encoding="utf-8")), path.name


def test_areas_keep_their_colours_in_a_palette_and_others_are_near():
    down, right = numpy.mgrid[0:256, 0:256]
    pixels = numpy.stack([down, right, (down + right) // 2], axis=2).astype("uint8")  # 65,536 colours
    pixels[:40, :40] = grey = 0xF2, 0xF2, 0xF2
    pixels[200:240, 9:19] = green = 100, 150, 120
    drawn = numpy.asarray(theme.with_palette(Image.fromarray(pixels)).convert("RGB"))
    assert (drawn[:40, :40] == grey).all()
    assert (drawn[200:240, 9:19] == green).all()
    assert 0 < abs(drawn.astype(int) - pixels).max() < 48


@pytest.mark.slow
def test_second_report_is_the_same_to_the_byte(folder):
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    write(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first


class Page(HTMLParser):
    """`Page` holds what a browser would take for elements, the attributes of all, and the words."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.words.append(data)


def test_page_has_every_figure_shows_the_text_and_loads_and_runs_nothing(text):
    page = Page(text)
    labels = sorted(value for name, value in page.attributes if name == "aria-label")
    assert labels == sorted(name.replace("_", " ") for name in FIGURES)
    ids, links = (re.findall(pattern, text) for pattern in (r'\bid="([^"]+)"', r'href="#([^"]+)"|url\(#([^)]+)\)'))
    assert len(ids) == len({*ids})
    assert {link for pair in links for link in pair if link} <= {*ids}
    assert "script" not in page.tags
    assert not [name for name, value in page.attributes if name.startswith("on") or "javascript:" in (value or "")]
    assert "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\"" in text
    loaded = re.findall(r'\b(?:src|href)="([^"]*)"', text) + re.findall(r"url\(([^)]*)\)", text)
    assert all(link.startswith(("#", "data:image/png")) for link in loaded)
    assert "@import" not in text
    assert page.words.count(SHOWN) >= 4  # title, heading, conditions, cells
    assert any(word.endswith(f"other: {SHOWN}") for word in page.words)  # why it was not measured


def test_markdown_has_every_figure_and_neither_html_nor_links_nor_further_cells(folder):
    report = (folder / "report.md").read_text()
    assert all(f"]({name}.png)" in report for name in FIGURES)
    assert "<script" not in report
    assert not re.search(r"(?<!\\)\]\(javascript", report)
    assert not re.search(r"(?<!\\)\$", report)
    tables = [part.splitlines() for part in report.split("\n\n") if part.startswith("| ")]
    assert sum("script>" in row for rows in tables for row in rows) >= 3
    for rows in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row.replace("\\\\", ""))) for row in rows}) == 1, rows


def test_pictures_show_it_and_are_not_typeset(folder):
    for path in folder.glob("*.svg"):
        picture = ElementTree.parse(path)
        assert r"</script>|`a`$\frac{$ [b]" in "".join(picture.getroot().itertext())
        assert not [element for element in picture.iter() if element.tag.endswith(("}script", "}foreignObject"))]


def test_run_without_any_row_is_a_page(tmp_path):
    write(save(tmp_path / "run", [HEAD, END]))
    assert "nothing wrong" in (tmp_path / "run" / "report.html").read_text()


def test_compare_prints_no_control_characters(tmp_path, capsys):
    runs = {name: str(save(tmp_path / name, plant_text(LINES))) for name in ("RUN", "RUN2")}
    main(["compare", "--markdown", *runs.values()])
    output = capsys.readouterr()
    assert tables.escaped(SHOWN) in output.out
    assert "<script" not in output.out
    assert "](" not in output.out
    main(["compare", *runs.values()])
    shown = capsys.readouterr().out
    assert SHOWN in shown
    assert all(c.isprintable() or c == "\n" for c in output.out + output.err + shown)


def test_header_of_a_table_is_escaped_too():
    assert tables.markdown(pandas.DataFrame({"<a|": ["b"]})).startswith(r"| &lt;a\| |")


def test_a_spreadsheet_takes_no_text_for_a_formula(tmp_path, capsys):
    main(["csv", str(save(tmp_path / "run", plant_text(LINES)))])
    cells = [cell for row in csv.reader(capsys.readouterr().out.splitlines()) for cell in row]
    assert f"'{SHOWN}" in cells
    assert all(float(cell) for cell in cells if cell.startswith(cli.FORMULA))


def test_commands_that_read_a_run_execute_nothing_of_it_and_draw_its_report_anew(tmp_path, undrawn):
    code = {"users": [["mine.py::f", ""]], "operations": ["mine.py"], "baseline": "f"}
    run = save(tmp_path / "run", [HEAD | {"options": code}, *LINES[1:]])
    for name in ("mine.py", "report.md"):
        (run / name).write_text("raise SystemExit('it was run')")
    with contextlib.chdir(run):
        assert [main(words.split()) for words in ("report .", "csv .", "compare . .")] == [0, 0, 0]
        with pytest.raises(ValueError, match="no case over an emulated wire"):
            wires_of(run)
    assert "SystemExit" not in (run / "report.md").read_text()


def test_copy_for_reference_stays_in_its_folder(tmp_path):
    outside, into = tmp_path / "a" / "results", tmp_path / "a" / "results" / "reference"
    into.mkdir(parents=True)
    (outside / "README.md").write_text(f"{references.START}\n{references.END}\n")
    run = save(tmp_path / "run", plant_text(LINES, started="../../../x", commit="abc"))
    assert references.add(run, into).parent == into
    assert {row.count("|") - row.count(r"\|") for row in references.table(into).splitlines()} == {10}
    assert {path.name for path in tmp_path.iterdir()} == {"a", "run"}
    assert sorted(path.name for path in outside.iterdir()) == ["README.md", "reference"]


@pytest.mark.parametrize("name", ["report.md", "extra", "\x1b[31m"])
def test_links_are_refused_before_anything_is_written_through_them(name, tmp_path, refused):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    run = save(tmp_path / "run", LINES)
    (run / name).symlink_to(outside)
    assert f"{plain(name)} is a link" in refused("report", str(run))
    assert outside.read_text() == "mine"
    assert {path.name for path in run.iterdir()} == {"samples.jsonl", name}


@pytest.mark.parametrize("limit", ["MOST_BYTES", "LONGEST_LINE_BYTES"])
def test_journal_above_its_limits_is_refused(limit, tmp_path, monkeypatch, refused):
    monkeypatch.setattr(journal, limit, 3 * 2**20)
    assert "3 MiB" in refused("report", str(save(tmp_path / "run", [HEAD | {"title": "t" * 4 * 2**20}])))


def test_long_texts_are_cut(tmp_path):
    run = journal.load(save(tmp_path / "run", [HEAD | {"title": "t" * 10**6}]))
    assert run.metadata["title"] == "t" * (LONGEST_TEXT - 3) + "..."


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"row_tiles": 4', '"row_tiles": 1000000000', "into 1000000000 parts, not 1 to 2048: the journal is damaged"),
        ('"row_tiles": 4', '"row_tiles": 0', "into 0 parts, not 1 to 2048: the journal is damaged"),
        ("700000000000000.0", "NaN", "no number above 0|is not JSON"),
        ("700000000000000.0", "9" * 5000, "is not JSON"),
    ],
)
def test_absurd_numbers_are_refused(old, new, message, tmp_path):
    folder = save(tmp_path / "run", [HEAD, *LINES[1:2], *gathering(gather_matmul())])
    text = (folder / journal.NAME).read_text()
    assert old in text
    (folder / journal.NAME).write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=message):
        journal.load(folder)
