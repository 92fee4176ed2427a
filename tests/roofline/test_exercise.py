"""What the documents show: commands and Python print what stands below them, links lead somewhere, README is short."""

import doctest
import re
import shlex
from pathlib import Path

import pytest

from roofline.commands.cli import main
from roofline.operations.options import FLAGS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "results/README.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+://", target):
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target


def test_readme_is_short_and_leads_to_every_page():
    text, pages = (ROOT / "README.md").read_text(), [*(ROOT / "docs").glob("*.md")]
    assert len(text.splitlines()) <= 100
    assert len(pages) <= 11
    assert {f"docs/{page.name}" for page in pages} <= set(re.findall(r"\]\(([^)#]+)", text))


def test_every_option_is_documented():
    text = (ROOT / "docs/start.md").read_text()
    assert [flag for flag in FLAGS.values() if f"`{flag}" not in text] == []
