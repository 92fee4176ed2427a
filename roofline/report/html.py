"""report.html: the sections of report.md as one static page by the template page.html, its figures inside it. It loads
nothing, needs no network, and runs no script: a policy in it forbids any. All words of a run are escaped.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from roofline.report import tables
from roofline.report.sections import Section

HERE = Path(__file__).parent
TERM = re.compile(r"^([\w ]{1,20}):(?= )")
"""How a line begins that says something of one thing, as a finding."""


def page(title: str, footer: str, sections: Sequence[Section], pictures: dict[str, str]) -> str:
    """The whole file. `pictures`: {name: its SVG} of all figures that `sections` have."""
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["anchor"] = _anchor
    environment.filters["marked"] = _marked
    environment.filters["sides"] = _sides
    environment.filters["term"] = _term
    inlined = {name: Markup(inline(svg, name)) for name, svg in pictures.items()}
    template = environment.get_template("page.html")
    return template.render(title=title, footer=footer, sections=sections, pictures=inlined)


def _anchor(title: str) -> str:
    return "-".join(re.findall(r"\w+", title.lower()))


def _marked(text: str) -> Markup:
    """Markdown of our own, as far as it is used: `code` and *emphasis*."""
    text = str(escape(text)).replace("&#39;", "'")
    text = re.sub(r"`([^`]*)`", r"<code>\1</code>", text)
    return Markup(re.sub(r"\*(\w[^*]*)\*", r"<em>\1</em>", text))


def _sides(table) -> list[Markup]:
    """The attribute of each column's cells."""
    return [Markup(' class="right"' if side == ">" else "") for side in tables.sides(table)]


def _term(line: str) -> Markup:
    return Markup(TERM.sub(r"<b>\1</b>:", str(escape(line))))


def inline(svg: str, name: str) -> str:
    """`svg` for a page that has others: the ids in it begin with `name`."""
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body)
    label = name.replace("_", " ")
    return body.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
