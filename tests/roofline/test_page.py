"""The files of a report, whose run folder may be somebody else's: every figure is inside, what its text says is shown
and never done, and nothing is written beside it. "A folder from somebody else" in results/README.md says so."""

import contextlib
import json
import re
from html.parser import HTMLParser

import pytest
from made_up_gathers import HERE, NAMES, SWEEP
from made_up_run import END, HEAD, LINES, save

from roofline.commands.cli import main
from roofline.operations.options import wires_of
from roofline.report import html
from roofline.report.write import write

NAME = "<script>alert('x')</script>|`a`$\\frac{$"
"""Of a contender, and of the run."""
FIGURES = {"memory_roofline", "speedup", *NAMES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a run with such a contender and every kind of figure."""
    lines = json.dumps([HERE | {"title": NAME}, *LINES[1:-1], *SWEEP, END])
    folder = tmp_path_factory.mktemp("around") / "run"
    save(folder, json.loads(lines.replace("tiled", json.dumps(NAME)[1:-1])))
    assert {path.parent for path in write(folder)} == {folder}
    return folder


@pytest.fixture(scope="module")
def text(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


def test_files_of_a_report_are_all_in_the_folder(folder):
    figures = {f"{name}.{ending}" for name in FIGURES for ending in ("svg", "png")}
    assert {path.name for path in folder.iterdir()} == {"samples.jsonl", "report.md", "report.html"} | figures


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
    labels = sorted(value for name, value in page.attributes if name == "alt")
    assert labels == sorted(name.replace("_", " ") for name in FIGURES)
    assert "script" not in page.tags
    assert not [name for name, value in page.attributes if name.startswith("on") or "javascript:" in (value or "")]
    assert "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\"" in text
    loaded = re.findall(r'\b(?:src|href)="([^"]*)"', text) + re.findall(r"url\(([^)]*)\)", text)
    assert all(link.startswith("data:image/svg") for link in loaded)
    assert "@import" not in text
    assert page.words.count(NAME) >= 4  # title, heading, cells


def test_page_has_all_tables_and_numbers_of_the_markdown(folder, text):
    report = (folder / "report.md").read_text()
    page = Page(text)
    assert page.tags.count("table") == len(re.findall(r"^\| :?-", report, re.MULTILINE)) >= 5
    shown = " ".join(page.words)
    assert [number for number in re.findall(r"\d[\d.]*", report) if number not in shown] == []
    assert text.count('<td style="text-align:right">') > 100


def test_without_a_renderer_there_is_no_page_and_a_line_that_says_so(tmp_path, monkeypatch, capsys, undrawn):
    run = save(tmp_path / "run", LINES)
    (run / "report.html").write_text("of an earlier report")
    monkeypatch.setattr(html, "LACKING", "no page")
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().err == "no page\n"
    assert {path.name for path in run.iterdir()} == {"samples.jsonl", "report.md"}


def test_run_without_any_row_is_a_page(tmp_path):
    write(save(tmp_path / "run", [HEAD, END]))
    assert "nothing wrong" in (tmp_path / "run" / "report.html").read_text()


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


def test_nothing_is_written_through_a_link_out_of_the_folder(tmp_path, refused):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    run = save(tmp_path / "run", LINES)
    (run / "report.md").symlink_to(outside)
    assert "report.md is a link" in refused("report", str(run))
    assert outside.read_text() == "mine"


@pytest.mark.parametrize(("findings", "more"), [("abc", []), ("abcde", ["2", "more", "d", "e"])])
def test_findings_but_the_worst_three_are_folded(findings, more):
    text = html.page("", "## Findings\n\n" + "".join(f"- {letter}\n" for letter in findings) + "\n## Next\n", {})
    shown, _, folded = text.partition("<h2>Findings</h2>")[2].partition("<h2>")[0].partition("<details>")
    assert " ".join(Page(shown).words).split() == ["a", "b", "c"]
    assert " ".join(Page(folded).words).split() == more
