"""A run folder from somebody else: what its text says is shown and never done, its sizes are bounded, and nothing is
written beside it."""

import gzip
import json
import re
import tracemalloc
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from made_up_gathers import gather_matmul, gathering
from made_up_run import HEAD, LINES, save

from roofline.cli import main
from roofline.report import html, references
from roofline.report.write import write
from roofline.store import journal
from roofline.store.lines import LONGEST_TEXT

BAD = "<script>alert('x')</script>|`a`$\\frac{$ [b](javascript:c) ../../up\x1b[31m\x07\u202e\ud800\nend"
SHOWN = "<script>alert('x')</script>|`a`$\\frac{$ [b](javascript:c) ../../up\\x1b[31m\\x07\\u202e\\ud800 end"


def plant_text(lines, **head):
    """Return `lines` with BAD for the name of a contender and for every text that a reader is shown."""
    text = json.dumps(lines).replace("tiled", json.dumps(BAD)[1:-1])
    first, *others = json.loads(text)
    machine = first["machine"] | {"chip": BAD, "versions": {"torch": BAD}}
    first |= {"title": BAD, "footer": BAD, "notes": [BAD], "machine": machine, "commit": BAD} | head
    for line in others:
        if line["kind"] == "shape":
            line["entrants"]["cublas"] |= {"config": BAD, "kernel_name": BAD}
            line["telemetry"]["throttle_reasons"] = BAD
        if line["kind"] == "not_measured":
            line["reason"] = BAD
        if line["kind"] == "ceiling":
            line["probe"] = BAD
    return [first, *others]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = save(tmp_path_factory.mktemp("around") / "run", plant_text(LINES))
    assert {path.parent for path in write(folder)} == {folder}
    return folder


def test_nothing_is_written_beside_the_folder(folder):
    assert [path.name for path in folder.parent.iterdir()] == ["run"]


def test_no_text_of_any_file_commands_a_terminal(folder):
    for path in folder.iterdir():
        if path.suffix in (".md", ".html", ".svg", ".json"):
            assert all(c.isprintable() or c == "\n" for c in path.read_text(encoding="utf-8")), path.name


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


def test_page_shows_the_text_and_has_no_script_but_its_own(folder):
    page = Page((folder / "report.html").read_text())
    assert page.tags.count("script") == 1
    assert page.words.count((html.HERE / "page.js").read_text(encoding="utf-8")) == 1
    assert not [name for name, value in page.attributes if name.startswith("on") or "javascript:" in (value or "")]
    assert page.words.count(SHOWN) >= 4  # title, heading, conditions, cells
    assert any(word.endswith(f"other: {SHOWN}") for word in page.words)  # why it was not measured


def test_markdown_has_neither_html_nor_links_nor_further_cells(folder):
    report = (folder / "report.md").read_text()
    assert "<script" not in report
    assert not re.search(r"(?<!\\)\]\(javascript", report)
    assert not re.search(r"(?<!\\)\$", report)
    tables_ = [part.splitlines() for part in report.split("\n\n") if part.startswith("| ")]
    assert sum("script>" in row for rows in tables_ for row in rows) >= 3
    for rows in tables_:
        cells = [len(re.findall(r"(?<!\\)\|", row.replace("\\\\", ""))) for row in rows]
        assert len({*cells}) == 1, rows


def test_pictures_show_it_and_are_not_typeset(folder):
    pictures = [ElementTree.parse(path) for path in folder.glob("*.svg")]
    assert pictures
    for picture in pictures:
        words = "".join(picture.getroot().itertext())
        assert r"</script>|`a`$\frac{$ [b]" in words
        assert not [element for element in picture.iter() if element.tag.endswith(("}script", "}foreignObject"))]


@pytest.mark.parametrize(
    "command", ["compare RUN RUN2", "compare --markdown RUN RUN2", "predict --tokens 64 --run RUN"]
)
def test_commands_print_no_control_characters(command, tmp_path, capsys):
    runs = {name: str(save(tmp_path / name, plant_text(LINES))) for name in ("RUN", "RUN2")}
    main([runs.get(word, word) for word in command.split()])
    output = capsys.readouterr()
    assert SHOWN in output.out
    assert all(c.isprintable() or c == "\n" for c in output.out + output.err)


def test_copy_for_reference_stays_in_its_folder(tmp_path):
    outside, into = tmp_path / "a" / "results", tmp_path / "a" / "results" / "reference"
    into.mkdir(parents=True)
    (outside / "README.md").write_text(f"{references.START}\n{references.END}\n")
    run = save(tmp_path / "run", plant_text(LINES, started="../../../x", commit="abc"))
    assert references.add(run, into).parent == into
    assert {path.name for path in tmp_path.iterdir()} == {"a", "run"}
    assert sorted(path.name for path in outside.iterdir()) == ["README.md", "reference"]


@pytest.mark.parametrize("name", ["report.md", "report.html", "memory_roofline.svg", "extra"])
def test_links_are_refused_before_anything_is_written_through_them(name, tmp_path, refused):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    run = save(tmp_path / "run", LINES)
    (run / name).symlink_to(outside)
    assert f"{name} is a link" in refused("report", str(run))
    assert outside.read_text() == "mine"
    assert {path.name for path in run.iterdir()} == {"samples.jsonl", name}


@pytest.mark.parametrize(("packed", "end"), [(False, b""), (True, b"\n")])
def test_line_of_100_mb_is_refused_without_being_read_whole(packed, end, tmp_path, refused):
    path = tmp_path / (journal.PACKED if packed else journal.NAME)
    with gzip.open(path, "wb", 1) if packed else path.open("wb") as file:
        file.write(json.dumps(HEAD).encode() + b'\n{"kind": "')
        for _ in range(100):
            file.write(b"x" * 10**6)
        file.write(end)
    tracemalloc.start()
    message = refused("report", str(tmp_path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "has a line above 16 MiB" in message
    assert peak < 70e6


def test_journal_of_too_many_lines_is_refused(tmp_path, monkeypatch, refused):
    monkeypatch.setattr(journal, "MOST_BYTES", 3 * 2**20)
    run = save(tmp_path / "run", LINES[:1] + [{"kind": "note", "about": "a", "text": "b" * 1000}] * 3500)
    assert "more than 3 MiB in all" in refused("report", str(run))
    with pytest.raises(ValueError, match="more than 3 MiB"):
        journal.read(run / journal.NAME)


def test_long_texts_are_cut(tmp_path):
    run = journal.load(save(tmp_path / "run", [HEAD | {"title": "t" * 10**6}]))
    assert run.metadata["title"] == "t" * (LONGEST_TEXT - 3) + "..."


@pytest.mark.parametrize(
    "change",
    [
        lambda shape: shape["facts"].update(row_tiles=10**9),
        lambda shape: shape["params"].update(ranks="many"),
        lambda shape: shape["entrants"]["row_block_launches"].update(row_blocks=10**9),
    ],
)
def test_work_cut_into_absurdly_many_parts_is_refused(change, tmp_path):
    run = journal.load(save(tmp_path / "old", [HEAD, *gathering(gather_matmul())]))
    (shape,) = run.shapes.values()
    line = shape.line()
    change(line)
    with pytest.raises(ValueError, match="parts: the journal is damaged"):
        journal.load(save(tmp_path / "new", [HEAD, line]))


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1", "1e999", "9" * 5000])
def test_numbers_are_finite(value, tmp_path, refused):
    line = json.dumps(LINES[1]).replace("700000000000000.0", value)
    (save(tmp_path / "run", [HEAD]) / journal.NAME).open("a").write(line + "\n")
    message = refused("report", str(tmp_path / "run"))
    assert "no number above 0" in message or "is not JSON" in message
