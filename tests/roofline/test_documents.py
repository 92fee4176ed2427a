"""The documents: commands and Python print what is shown, pages say what their runs say, links lead somewhere."""

import doctest
import re
import shlex
from pathlib import Path

import pytest

from conftest import ROOT
from kernels.registry import CONTENDERS
from results import claims, foretold
from roofline.commands.cli import main
from roofline.operations.options import FLAGS
from roofline.theory.arms import ARMS, PERSISTENT

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "results/README.md")]
FOLDERS = "kernels/attention/", "kernels/step/", "kernels/gated/"
TAKEN_OUT = [folder for folder in FOLDERS if not (ROOT / folder).is_dir()]
"""Folders of operations, to which a page may go on to link."""
PAGES += sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "kernels").glob("[!m]*/README.md"))


def blocks(language: str):
    """Return a parameter for each block of `language` in the documents."""
    return [
        pytest.param(block, id=f"{page.name}-{number}")
        for page in PAGES
        for number, block in enumerate(re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S))
    ]


@pytest.mark.parametrize("block", blocks("console"))
def test_commands_print_what_the_documents_show(block, capsys, monkeypatch):
    """`...` alone on a line stands for any lines."""
    monkeypatch.chdir(ROOT)
    commands = re.split(r"^\$ roofline ", block, flags=re.MULTILINE)
    assert commands.pop(0) == ""
    for command, _, shown in (part.partition("\n") for part in commands):
        assert main(shlex.split(command)) == 0
        printed = capsys.readouterr().out
        assert [line for line in shown.splitlines() if line not in [*printed.splitlines(), "..."]] == []
        pattern = "(?:.*\n)*?".join(re.escape(part) for part in re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE))
        assert re.fullmatch(pattern, printed), f"{command}: in another order, or more than is shown"


@pytest.mark.parametrize("block", blocks("pycon"))
def test_python_prints_what_the_documents_show(block):
    examples = doctest.DocTestParser().get_doctest(block, {}, "block", None, 0)
    assert examples.examples
    assert doctest.DocTestRunner().run(examples).failed == 0


def test_readme_is_short_and_its_six_pages_lead_to_every_other():
    text, pages = (ROOT / "README.md").read_text(), [*(ROOT / "docs").glob("*.md")]
    assert len(text.splitlines()) <= 100
    assert len(pages) <= 11
    table = text.partition("## Pages")[2]
    listed = re.findall(r"^\| \[[^]]+\]\(docs/([^)]+)\)", table, re.M)
    assert len(listed) == 6
    linked = {page for name in listed for page in re.findall(r"\]\(([\w-]+\.md)", (ROOT / "docs" / name).read_text())}
    assert {page.name for page in pages} <= {*listed, *linked}


def words_of(file: str) -> set[str]:
    return set(re.findall(r"\w+", (ROOT / file).read_text()))


def test_diagram_of_contributing_is_that_of_the_code():
    """The file of a box has its name, and the names that its arrows lead to; both ends of a dashed one its message."""
    (diagram,) = re.findall(r"```mermaid\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    boxes = {box: (file, name) for box, file, name in re.findall(r'^ *(\w+)\["(\S+): (\S+)"\]', diagram, re.M)}
    arrows = re.findall(r"^ *(\w+) (-->|-\.->)(?:\|(.*)\|)? (\w+)$", diagram, re.M)
    assert len(boxes) >= 20
    assert len(arrows) == len(re.findall(r"->", diagram))
    for file, name in boxes.values():
        assert {*name.split(".")} <= words_of(file), (file, name)
    for begin, kind, label, end in arrows:
        file, (other_file, name) = boxes[begin][0], boxes[end]
        if kind == "-->":
            assert name.rpartition(".")[2] in words_of(file), (begin, end)
        else:
            assert label in words_of(file) & words_of(other_file), (begin, end)


def test_the_walk_of_a_sample_is_that_of_the_code():
    """The file of each step has its names, and as many functions as the text says. One of them makes a `Round`."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    steps = re.findall(r"^(\d+)\. \[\w+\.py\]\((\S+)\): ([^;\n]+)", text, re.M)
    assert [int(number) for number, *_ in steps] == list(range(1, len(steps) + 1))
    passed = []
    for _, file, names in steps:
        for name in re.findall(r"`([\w.]+)`", names):
            assert {*name.split(".")} <= words_of(file), name
            passed.append(name)
    assert f"passes {len(passed)} functions" in text
    assert "Rounds._round" in passed


def test_every_option_is_documented():
    text = (ROOT / "docs/start.md").read_text()
    assert [flag for flag in FLAGS.values() if f"`{flag}" not in text] == []


def test_page_describes_every_arm_and_every_contender():
    page = (ROOT / "docs" / "kernel.md").read_text(encoding="utf-8")
    described = {}
    for table in re.findall(r"^\| (?:arm|contender) \|.*\n(?:\|.*\n)+", page, re.MULTILINE):
        firsts = [row.split("|")[1] for row in table.splitlines()[2:]]
        described.setdefault(table.split("|")[1].strip(), set()).update(re.findall(r"`(\w+)`", " ".join(firsts)))
    assert described["arm"] == {*ARMS, f"ARM{PERSISTENT}"}
    assert {*CONTENDERS} <= described["contender"]


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: f"{claim.figures.__name__}-{Path(claim.page).stem}")
def test_a_page_says_what_its_runs_say(claim):
    page = " ".join((ROOT / claim.page).read_text().split())
    assert claim.text() in page


def test_the_page_foretells_what_its_command_prints(capsys):
    assert foretold.main([]) == 0
    printed = capsys.readouterr().out.replace("\\", "").strip()
    assert printed in foretold.PAGE.read_text()
    assert foretold.main([str(foretold.RUN)]) == 0
    assert "P = 8, tp 16, `ridge`: hides 0.826, foretold 0.887" in capsys.readouterr().out


DOCUMENTS = sorted(
    path
    for place in (".", "docs", "results", "results/reference/*", "kernels/*")
    for path in ROOT.glob(f"{place}/*.md")
)


LINK = re.compile(r"\]\(([^()\s#]*)(?:#([^()\s]+))?\)")


def anchors(text):
    """What GitHub makes of the headings of a page."""
    return {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall("^#+ (.*)$", text, re.MULTILINE)
    }


def test_each_link_and_picture_of_the_documents_exists():
    targets, missing = 0, []
    for document in DOCUMENTS:
        for link, anchor in LINK.findall(document.read_text()):
            if ":" in link:
                continue
            targets += 1
            target = document.parent / link if link else document
            if any(folder in link for folder in TAKEN_OUT):
                continue
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text())):
                missing.append((document.relative_to(ROOT), link, anchor))
    assert (targets > 250, missing) == (True, [])


def test_docs_draw_a_plot_of_its_own_from_a_frame(monkeypatch):
    (snippet,) = re.findall(r"```python\n(import roofline.*?)```", (ROOT / "docs/start.md").read_text(), re.DOTALL)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MPLBACKEND", "agg")
    exec(snippet, namespace := {})
    dtypes = {name: str(namespace["frame"][name].dtype) for name in ("case", "m", "above_roof", "time_s")}
    assert dtypes == {"case": "object", "m": "Int64", "above_roof": "boolean", "time_s": "float64"}
