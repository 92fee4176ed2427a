"""report.html: report.md rendered by markdown-it-py into the template page.html, its figures inside it. It loads
nothing, needs no network, and runs no script: a policy in it forbids any. HTML in the Markdown stays text.
"""

from base64 import b64encode
from html import escape
from importlib.util import find_spec
from pathlib import Path
from string import Template

MOST_FINDINGS = 3
"""Findings that are shown at once, here and in a terminal."""
TEMPLATE = Path(__file__).parent / "page.html"

LACKING = (
    ""
    if find_spec("markdown_it")
    else "no report.html: this Python lacks markdown-it-py: python3 -m pip install markdown-it-py"
)
"""Why no page can be made, as on a machine where nothing can be installed; empty where one can."""


def page(title: str, markdown: str, pictures: dict[str, str]) -> str:
    """The whole file. `pictures`: {name: its SVG} of all figures that `markdown` names."""
    from markdown_it import MarkdownIt

    body = folded(MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown))
    for name, svg in pictures.items():
        data = b64encode(svg.encode()).decode()
        body = body.replace(f'src="{name}.png"', f'src="data:image/svg+xml;base64,{data}"')
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(title=escape(title), body=body)


def folded(body: str) -> str:
    """Fold all findings but the worst, so that a figure is near."""
    start, heading, rest = body.partition("<h2>Findings</h2>\n<ul>\n")
    findings, end, rest = rest.partition("</ul>\n")
    items = findings.splitlines(keepends=True)
    more = len(items) - MOST_FINDINGS
    if more > 0:
        items.insert(MOST_FINDINGS, f"</ul>\n<details><summary>{more} more</summary>\n<ul>\n")
        end += "</details>\n"
    return "".join([start, heading, *items, end, rest])
