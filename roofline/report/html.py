"""report.html: report.md rendered by markdown-it-py into the template page.html, its figures inside it. It loads
nothing, needs no network, and runs no script: a policy in it forbids any. HTML in the Markdown stays text.
"""

import re
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
        image = f'<p><img src="{name}.png" alt="{label(name)}" /></p>'
        body = body.replace(image, f"<figure>{inline(svg, name)}</figure>")
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(title=escape(title), body=body)


def folded(body: str) -> str:
    """Fold all findings but the worst, so that a figure is near."""
    start, heading, rest = body.partition("<h2>Findings</h2>\n<ul>\n")
    findings, end, rest = rest.partition("</ul>\n")
    worst = findings.splitlines(keepends=True)
    more = worst[MOST_FINDINGS:]
    if more:
        more = [f"</ul>\n<details><summary>{len(more)} more</summary>\n<ul>\n", *more, "</ul>\n</details>\n"]
        end = ""
    return "".join([start, heading, *worst[:MOST_FINDINGS], *more, end, rest])


def label(name: str) -> str:
    """The words for the figure `name` where it is not seen."""
    return name.replace("_", " ")


def inline(svg: str, name: str) -> str:
    """`svg` for a page that has others: the ids in it begin with `name`."""
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body)
    return body.replace("<svg", f'<svg role="img" aria-label="{label(name)}"', 1)
