"""report.html: what stands in it and in which order; and in a headless Chromium, where there is one, that it runs
without a word of complaint, loads nothing, and sorts."""

import json
import re
import shutil
import subprocess
from html import unescape

import made_up_gathers
import pytest
from made_up_run import END, HEAD, LINES, save, shape

from roofline.plots import theme
from roofline.report import html
from roofline.report.write import write

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a run with every kind of figure, and with times in us and ms."""
    slow = shape(512, {"cublas": 3e-3, "tiled": 2e-3})
    lines = [
        made_up_gathers.HERE | {"notes": ["made up"]},
        *LINES[1:-1],
        *slow,
        *made_up_gathers.SWEEP,
        END,
    ]
    folder = save(tmp_path_factory.mktemp("html") / "run", lines)
    write(folder)
    return folder


@pytest.fixture(scope="module")
def text(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


def test_every_figure_is_inside_and_no_two_share_an_id(folder, text):
    names = [path.stem for path in folder.glob("*.svg")]
    assert len(names) == 4
    assert sorted(re.findall(r'role="img" aria-label="([\w ]+)"', text)) == sorted(n.replace("_", " ") for n in names)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len({*ids})
    wanted = {*re.findall(r'href="#([^"]+)"', text), *re.findall(r"url\(#([^)]+)\)", text)}
    assert wanted
    assert wanted <= {*ids}


def test_nothing_is_loaded_and_the_policy_says_so(text):
    assert "default-src 'none'" in text
    links = re.findall(r'\b(?:src|href)="([^"]*)"', text) + re.findall(r"url\(([^)]*)\)", text)
    assert all(link.startswith(("#", "data:image/png")) for link in links)
    assert "@import" not in text


def test_second_report_is_the_same_to_the_byte(folder):
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    names = {"samples.jsonl", "report.md", "report.html", "timeline.json"}
    figures = ("memory_roofline", *made_up_gathers.NAMES)
    names |= {f"{figure}.{ending}" for figure in figures for ending in theme.ENDINGS}
    assert first.keys() == names
    write(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    assert all(f"]({name})" in first["report.md"].decode() for name in names if name.endswith(".png"))


@pytest.mark.parametrize(
    ("cell", "value"),
    [("1.02 ms", "0.00102"), ("165 us", "0.000165"), ("54 % [51, 57]", "54"), ("-0.04 [-0.23, 0.16]", "-0.04"),
     ("1 (baseline)", "1"), ("4.04e+03", "4040"), ("paced 1.05 GB/s", None), ("-", None), ("64x8", None),
     ("2.5.1", None), ("1.5 GB", "1.5e+09"), ("+3.4 %", "3.4"), ("> 20", None)],
)  # fmt: skip
def test_cell_sorts_by_the_number_it_begins_with(cell, value):
    key = html.sort_value(cell).removeprefix(' data-v="').rstrip('"')
    assert (key or None) == value


def browse(path, *flags):
    """Return Chromium's output, and its console's lines."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={path.parent / 'profile'}"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=5000", *flags, path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")


@needs_chromium
def test_browser_has_nothing_to_complain_of(folder, tmp_path):
    page = shutil.copy(folder / "report.html", tmp_path / "report.html")
    dom, console = browse(page, "--dump-dom")
    assert console == []
    assert dom.count("</svg>") == len([*folder.glob("*.svg")]) > 1


CLICK = """
<script>
const table = [...document.querySelectorAll("table")].find(table => table.tHead.textContent.startsWith("shape"));
const rows = () => [...table.rows].map(row => [...row.cells].map(cell => cell.textContent));
const before = rows();
for (const name of NAMES) [...table.querySelectorAll("th")].find(cell => cell.textContent === name).firstChild.click();
document.title = JSON.stringify([before, rows()]);
</script>
"""


@needs_chromium
@pytest.mark.parametrize(
    ("clicks", "key", "reverse"),
    [(["time", "time"], "time", True), (["shape", "hidden [95 %]"], "hidden [95 %]", False)],
)
def test_a_click_sorts_numbers_by_what_they_are(clicks, key, reverse, text, tmp_path):
    page = re.sub(r"<meta http-equiv=.*?>", "", text)  # which forbids the script that clicks
    path = tmp_path / "report.html"
    path.write_text(page.replace("</body>", CLICK.replace("NAMES", json.dumps(clicks)) + "</body>"), encoding="utf-8")
    dom, console = browse(path, "--dump-dom")
    assert console == []
    before, (header, *rows) = json.loads(unescape(re.search("<title>(.*?)</title>", dom)[1]))
    assert sorted(rows) == sorted(before[1:])
    assert rows != before[1:]
    units = {"s": 1, "ms": 1e-3, "us": 1e-6}
    cells = [row[header.index(key)].split() for row in rows]
    values = [float(cell[0]) * units.get(cell[-1], 1) for cell in cells if cell != ["-"]]
    assert len({*values}) > 2
    assert values == sorted(values, reverse=reverse)
    assert re.findall(r'<th[^>]*aria-sort="(\w+)"', dom) == ["descending" if reverse else "ascending"]


@needs_chromium
def test_policy_forbids_a_script_that_is_not_the_pages(text, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(text.replace("</body>", "<script>document.title = 'run'</script></body>"), encoding="utf-8")
    dom, console = browse(path, "--dump-dom")
    assert "Content Security Policy" in "".join(console)
    assert "<title>run</title>" not in dom


def test_run_without_any_row_is_a_page(tmp_path):
    write(save(tmp_path / "run", [HEAD, END]))
    assert "nothing wrong" in (tmp_path / "run" / "report.html").read_text()
