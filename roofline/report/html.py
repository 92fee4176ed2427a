"""report.html: the sections of report.md as one static page, its figures inside it. It loads nothing, needs no network,
and runs one script of its own, which sorts a table by the column whose header is clicked; a policy in it forbids any
other. All words of a run are escaped.
"""

import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape

from roofline.report import tables
from roofline.report.layout import Section

UNITS = {"ms": 1e-3, "us": 1e-6, "MB": 1e6, "GB": 1e9}
NUMBER = re.compile(rf"([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?: ({'|'.join(UNITS)})\b)?(?![\w.])")
TERM, BOLD = re.compile(r"^([\w ]{1,20}):(?= )"), r"<b>\1</b>:"
"""How a line begins that says something of one thing, as a finding."""

SCRIPT = """
const value = cell => "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent;
const compare = (a, b, sign) => typeof a !== typeof b ? (typeof a === "number" ? -1 : 1)
  : sign * (typeof a === "number" ? a - b : a.localeCompare(b, "en", {numeric: true}));
for (const head of document.querySelectorAll("th")) head.firstChild.addEventListener("click", () => {
  const sign = head.ariaSort === "ascending" ? -1 : 1, body = head.closest("table").tBodies[0];
  const key = row => value(row.cells[head.cellIndex]);
  for (const other of head.parentElement.cells) other.ariaSort = null;
  head.ariaSort = sign === 1 ? "ascending" : "descending";
  body.append(...[...body.rows].sort((a, b) => compare(key(a), key(b), sign)));
});
"""

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1f2328; --soft: #656d76; --line: #d8dee4; --band: #f6f8fa;
  --mark: #0969da; }
@media screen and (prefers-color-scheme: dark) { :root { --ground: #0d1117; --ink: #e6edf3; --soft: #9198a1;
  --line: #30363d; --band: #151b23; --mark: #4493f8; } }
body { margin: 0 auto; max-width: 84rem; padding: 1.5rem clamp(.8rem, 3vw, 2.5rem) 4rem; background: var(--ground);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; }
h2 { font-size: 1.15rem; margin: 2.6rem 0 .6rem; padding-top: .8rem; border-top: 1px solid var(--line); }
header p, .about { color: var(--soft); max-width: 56rem; }
ul { padding-left: 1.2rem; }
#findings { padding: .1rem 1.2rem; background: var(--band); border-left: 4px solid var(--mark); }
#findings h2 { border: 0; margin: 0; }
figure, .box { margin: 1.2rem 0; overflow: auto; max-height: 85vh; border: 1px solid var(--line); border-radius: 6px; }
figure { padding: .6rem; max-height: none; background: #fff; }
figure svg { display: block; width: 100%; min-width: 46rem; height: auto; }
table { border-spacing: 0; width: 100%; font-size: .8rem; font-variant-numeric: tabular-nums; }
td, button { padding: .3rem .6rem; white-space: nowrap; text-align: left; }
tr:nth-child(even) { background: var(--band); }
.right, .right button { text-align: right; }
th { position: sticky; top: 0; padding: 0; background: var(--band); border-bottom: 1px solid var(--line); }
button { width: 100%; border: 0; background: none; color: inherit; font: inherit; font-weight: 600; cursor: pointer; }
[aria-sort=ascending] button::after { content: " ↑"; }
[aria-sort=descending] button::after { content: " ↓"; }
@page { size: landscape; margin: 1cm; }
@media print { body { max-width: none; padding: 0; font-size: 11px; } .box { max-height: none; overflow: visible; }
  table { font-size: 8px; } td, button { padding: .1rem .3rem; } th { position: static; }
  figure svg { min-width: 0; max-height: 85vh; } figure, tr, li { break-inside: avoid; } h2 { break-after: avoid; } }
"""

POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    f"script-src 'sha256-{b64encode(sha256(SCRIPT.encode()).digest()).decode()}'"
)


def page(title: str, conditions: str, sections: Sequence[Section], figures: dict[str, str]) -> str:
    """Return the whole file. `figures`: {name: its SVG} of all that `sections` have."""
    body = "\n".join(_section(section, figures) for section in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1>{escape(title)}</h1><p>{escape(conditions)}</p></header>
{body}
<script>{SCRIPT}</script>
</body>
</html>
"""


def _section(section: Section, figures: dict[str, str]) -> str:
    name = "-".join(re.findall(r"\w+", section.title.lower()))
    parts = [f"<h2>{escape(section.title)}</h2>"] if name else []
    parts += [f'<p class="about">{_marked(section.about)}</p>'] if section.about else []
    parts += [f"<figure>{inline(figures[figure.name], figure.name)}</figure>" for figure in section.figures]
    parts += [_table(section)] if section.rows else []
    items = "\n".join(f"<li>{TERM.sub(BOLD, escape(line))}</li>" for line in section.lines)
    parts += [f"<ul>\n{items}\n</ul>"] if items else []
    return "\n".join([f'<section id="{name}">' if name else "<section>", *parts, "</section>"])


def _marked(text: str) -> str:
    """Markdown of our own, as far as it is used: `code` and *emphasis*."""
    return re.sub(r"\*(\w[^*]*)\*", r"<em>\1</em>", re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text, quote=False)))


def _table(section: Section) -> str:
    shown, texts = tables.cells(section.rows, section.columns)
    sides = [' class="right"' if column.right else "" for column in shown]
    head = "".join(f"<th{side}><button>{escape(c.header)}</button></th>" for c, side in zip(shown, sides, strict=True))
    rows = ("".join(map(_cell, row, sides)) for row in texts)
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="box"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _cell(text: str, side: str) -> str:
    """Return a cell; one that begins with a number sorts by it, in units that all have in common."""
    match = NUMBER.match(text)
    number = f' data-v="{float(match[1]) * UNITS.get(match[2], 1):.6g}"' if match else ""
    return f"<td{side}{number}>{escape(text)}</td>"


def inline(svg: str, name: str) -> str:
    """Return `svg` for a page that has others: the ids in it begin with `name`."""
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body)
    return body.replace("<svg", f'<svg role="img" aria-label="{name.replace("_", " ")}"', 1)
