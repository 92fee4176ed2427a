"""Committed runs and the documents: what they show comes out of the raw samples again, and nothing is overwritten."""

import functools
import inspect
import io
import json
import lzma
import re
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
from made_up_gathers import NAMES
from made_up_run import LINES, save, touching_pairs, words_on_points
from matplotlib.image import imread
from PIL import Image

import roofline
from conftest import ROOT
from results import references, rule
from roofline.analysis.fields import FIELDS, GROUPS, by_name
from roofline.analysis.records import frame, records_of
from roofline.operations import OPERATIONS, SUITE
from roofline.report import plots
from roofline.report.format import FORMATS, WITH_ENDS
from roofline.report.write import markdown, write
from roofline.store import journal
from roofline.theory import floor
from roofline.theory.chips import chip_of_device

REFERENCE = ROOT / "results" / "reference"
RUNS = sorted(path.name for path in REFERENCE.iterdir() if path.is_dir())
README = (ROOT / "README.md").read_text()
(SHOWN,) = re.findall(r"The run is\s+\[([\w-]+)\]", README)
DRAWN = references.PICTURE_OF.findall(README)
each_run = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in (SHOWN, *DRAWN) else pytest.mark.slow) for name in RUNS]
)
"""Those of README by default, of matmuls and of gathers, the others with `-m slow`."""
HIGHEST = {"max_sm_clock_mhz": 1980, "affinity": 2, "instruction_sets": ["avx512f"]}
"""Of the committed runs: nvidia-smi's clocks.max.sm in the GPUs' conditions; the cores and lscpu's flags of the CPU."""
PICTURED = sorted({path.parent.name for path in REFERENCE.glob("*/*.png")})


@functools.cache
def load_committed(name):
    return journal.load(REFERENCE / name)


@each_run
def test_report_of_a_committed_run_is_made_of_its_samples_again(name):
    """To the letter: what differs is what has changed."""
    run, folder = load_committed(name), REFERENCE / name
    text = markdown(run, frame(run), [path.stem for path in folder.glob("*.png")])
    assert text.splitlines() == (folder / "report.md").read_text().splitlines()
    assert references.private(folder) == []


@each_run
def test_no_time_of_a_committed_run_is_below_its_floor(name):
    run = load_committed(name)
    machine, chip = run.metadata["machine"], chip_of_device(run.metadata["machine"]["chip"])
    machine |= HIGHEST | {"datasheet": asdict(chip) if chip else None}
    for record in records_of(run):
        least = floor.floor(run.shapes[record["shape"]].work, machine, record["dtype"])
        assert least.seconds < record["time_s"], record["case"]


@pytest.mark.parametrize("name", ["memory_roofline", *NAMES])
def test_words_on_a_figure_of_a_committed_run_touch_neither_points_nor_words(name):
    run = load_committed(PICTURED[0])
    figure = plots.timeline(run) if name == "timeline" else plots.FIGURES[name](frame(run))
    figure.draw_without_rendering()
    assert sum(len(axes.texts) for axes in figure.axes) >= 9
    for axes in figure.axes:
        assert (touching_pairs(axes), words_on_points(axes)) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURED)
def test_pictures_of_a_committed_run_are_drawn_of_its_samples_again(name, tmp_path):
    """Those of a run of which README shows one are as today's code draws them; others are as they were drawn last."""
    committed = REFERENCE / name
    shutil.copy(journal.find(committed), tmp_path)
    run = journal.load(tmp_path)
    cases = frame(run).copy()
    drawn = {path.name for path in write(tmp_path, run)}
    assert frame(run).equals(cases)  # which all figures and tables share
    pictures = {path.name for path in committed.glob("*.png")}
    assert pictures <= drawn
    for picture in pictures if name in DRAWN else ():
        before, after = (imread(folder / picture) for folder in (committed, tmp_path))
        assert before.shape == after.shape, picture
        assert abs(before - after).mean() < 0.01, picture


def git(*arguments):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=True).stdout


def test_committed_runs_are_light():
    paths = [ROOT / name for name in git("ls-files", "-z", "results/reference").decode().split("\0")[:-1]]
    assert {path.suffix for path in paths} == {".xz", ".md", ".png", ".txt"}
    assert sum(path.stat().st_size for path in paths) <= 9e6


@pytest.mark.parametrize("name", RUNS)
def test_committed_samples_are_never_changed(name):
    paths = [f"results/reference/{name}/{file}" for file in journal.OPENERS]
    brought = git("log", "--format=%h", "--diff-filter=A", "--no-renames", "--reverse", "--", *paths).decode().split()
    if not brought or git("rev-parse", "--is-shallow-repository").strip() == b"true":
        pytest.skip("this checkout came without its history")
    (first,) = git("ls-tree", "-r", "--name-only", brought[0], "--", *paths).decode().split()
    packed = io.BytesIO(git("show", f"{brought[0]}:{first}"))
    with journal.OPENERS[Path(first).name](packed) as before, lzma.open(REFERENCE / name / journal.PACKED) as now:
        assert now.read() == before.read()


@pytest.mark.parametrize("name", DRAWN)
def test_records_have_the_declared_fields_and_no_others(name):
    for record in records_of(load_committed(name)):
        declared = {*GROUPS["every"], *(GROUPS["wire"] if record["analysis"] == "overlap" else ())}
        assert record.keys() == declared
    assert len(FIELDS) == len(GROUPS["every"]) + len(GROUPS["wire"])


def test_each_field_is_written_by_a_format_that_takes_its_ends():
    for field in FIELDS.values():
        assert field.format in FORMATS or (field.format in WITH_ENDS and len(field.ends) == 2), field.name
        assert field.meaning and set(field.ends) <= FIELDS.keys(), field.name  # noqa: PT018


@pytest.mark.slow
def test_committed_runs_have_a_dispatcher_by_the_rule_of_their_commit(capsys):
    run = rule.load(REFERENCE / "nvidia-h100-80gb-hbm3-2026-11-26-4")
    table = roofline.by_tokens(run).set_index("m").round(3)
    assert table["dispatched_ratio"][[16, 64, 8192]].tolist() == [1.050, 1.048, 1.005]
    assert table["ratio_to_baseline"][[16, 64, 8192]].tolist() == [1.053, 1.053, 1.029]
    assert run.frame()["tuned"].sum() == 10
    assert rule.main([]) == 0
    printed = capsys.readouterr().out
    assert "| 1.005 [0.998, 1.012] warpgroup (3 tuned) |" in printed
    assert "| 1.013 [1.010, 1.016] warpgroup (3 tuned) |" in printed
    assert rule.main([str(REFERENCE / "amd-epyc-2026-11-24")]) == 2
    assert "has no matmuls in bf16 on a GPU" in capsys.readouterr().err


@pytest.mark.slow
def test_tables_of_runs_and_fields_are_the_ones_that_the_command_makes():
    readme = (ROOT / "results" / "README.md").read_text()
    for group in GROUPS.values():
        assert f"{references.START}\n{references.schema(group.values())}\n{references.END}" in readme
    assert f"{references.START}\n{references.table(REFERENCE)}\n{references.END}" in readme
    assert all(f"[{name}](reference/{name}/report.md)" in readme for name in RUNS)


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - SUITE))
def test_the_page_of_an_operation_has_the_table_of_its_fields(name):
    operation = OPERATIONS[name]
    page = Path(inspect.getfile(operation.sweep)).with_name("README.md")
    assert references.schema(by_name(operation.fields).values()) in page.read_text()


@pytest.fixture
def checkout(tmp_path):
    """Return a checkout with an empty results/reference, and a run to put there."""
    (tmp_path / "results" / "reference").mkdir(parents=True)
    (tmp_path / "results" / "README.md").write_text(f"before\n{references.START}\nold\n{references.END}\nafter\n")
    lines = [json.loads(json.dumps(line)) for line in LINES]
    lines[0] |= {"commit": "abc1234", "started": "2026-01-02T03:04:05+00:00"}
    lines[0]["machine"] |= {"chip": "NVIDIA H200", "versions": {"torch": "2.13.0"}}
    return tmp_path, save(tmp_path / "run", lines)


def add(checkout):
    root, run = checkout
    return references.main([str(run)], root / "results" / "reference")


def test_run_is_copied_and_listed_and_never_overwritten(checkout, capsys):
    root, run = checkout
    (run / "benchmark.json").write_text("{}")
    assert add(checkout) == 0
    first = root / "results" / "reference" / "nvidia-h200-2026-01-02"
    before = (first / journal.PACKED).read_bytes()
    assert lzma.decompress(before) == (run / journal.NAME).read_bytes()
    assert [path.name for path in first.iterdir()] == [journal.PACKED]
    with (run / journal.NAME).open("a") as file:
        file.write(json.dumps({"kind": "resumed", "started": "x"}) + "\n" + json.dumps({"kind": "end"}) + "\n")
    assert add(checkout) == 0
    assert (first / journal.PACKED).read_bytes() == before
    assert (root / "results" / "reference" / "nvidia-h200-2026-01-02-2" / journal.PACKED).exists()
    readme = (root / "results" / "README.md").read_text()
    assert readme.startswith("before\n")
    assert readme.endswith("after\n")
    assert "old" not in readme
    assert readme.count("| [nvidia-h200-2026-01-02") == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("abc1234", "abc1234+dirty", "of commit abc1234+dirty"),
        (f"{json.dumps(LINES[-1])}\n", "", "was cut off"),
        ('"title"', '"options": {"quick": true}, "title"', "is a quick run, and a reference"),
        ('"title"', '"ranks": {"loopback": true}, "title"', "is void, loopback: ranks share a machine"),
        ('"abc1234"', '"abc1234", "files": "others"', "files that are not that commit's"),
        ('"why"', '"no file /home/ada/x"', "holds '/home/ada'"),
        ('"why"', '"on thehost7"', "holds this host's name 'thehost7'"),
    ],
)
def test_run_that_is_not_fit_is_refused_and_nothing_is_copied(checkout, capsys, monkeypatch, old, new, message):
    root, run = checkout
    monkeypatch.setattr("platform.node", lambda: "thehost7")
    monkeypatch.setattr(references, "hash_of_commit", lambda root, commit: "those")
    path = run / journal.NAME
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert add(checkout) == 2
    assert message in capsys.readouterr().err
    assert not list((root / "results" / "reference").iterdir())


@pytest.mark.parametrize(("slower", "message"), [(None, "give a second run"), (1.0, ""), (1.2, "as matmul-1024x1024")])
def test_a_gpus_matmuls_are_a_reference_once_a_second_run_agrees(checkout, capsys, slower, message):
    root, run = checkout
    path = run / journal.NAME
    path.write_text(path.read_text().replace('"method_version": 1', '"method_version": 6', 1))
    runs = [run]
    if slower:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line["kind"] == "round":
                line["time_s"]["tiled"] *= slower
        runs.append(save(root / "second", lines))
    into = root / "results" / "reference"
    assert references.main([*map(str, runs)], into) == (2 if message else 0)
    assert message in capsys.readouterr().err
    assert len([*into.iterdir()]) == (0 if message else 2)


@pytest.mark.parametrize(
    ("shown", "words", "is_drawn"),
    [
        ("", [], False),
        pytest.param("", ["nvidia-h200-2026-01-02"], True, marks=pytest.mark.slow),
        ("![](results/reference/{}/x.png)", [], True),
    ],
)
def test_reports_are_renewed_and_pictures_where_readme_or_somebody_asks(checkout, capsys, shown, words, is_drawn):
    root, _ = checkout
    assert add(checkout) == 0
    folder = root / "results" / "reference" / "nvidia-h200-2026-01-02"
    report, names = (folder / "report.md"), {"report.md", "memory_roofline.png", journal.PACKED}
    report.write_text("of an earlier version")
    (folder / "memory_roofline.png").write_bytes(b"")
    readme = root / "README.md"
    table = f"{references.TABLE_START}\nold\n{references.TABLE_END}"
    readme.write_text(f"before\n{table}\nThe run is [{folder.name}](x).{shown.format(folder.name)}\n")
    assert references.main(["--reports", *words], folder.parent) == 0
    drawn = report.read_text().splitlines()
    assert drawn[0].startswith("# FFN matmuls")
    assert {path.name for path in folder.iterdir()} == names
    picture = folder / "memory_roofline.png"
    assert bool(picture.read_bytes()) == is_drawn
    assert not is_drawn or Image.open(picture).mode == "P"  # 256 colours
    lines = readme.read_text().splitlines()
    assert lines[2].startswith(references.FIRST_ROW)
    assert set(lines[2:-2]) <= set(drawn)
    assert len(lines[2:-2]) > 2


def test_what_no_reference_can_be_made_of_is_one_line(checkout, tmp_path, capsys):
    into = tmp_path / "results" / "reference"
    (tmp_path / "README.md").write_text("names no run")
    (tmp_path / "results" / "README.md").write_text("no marks")
    for words, folder, message in (
        ([], tmp_path / "nowhere", "call this from the checkout"),
        ([], into, "lacks the marks"),
        (["--reports"], into, "or 'The run is [NAME]': put them there"),
        (["--reports", "elsewhere"], into, "['elsewhere'] are no runs in"),
    ):
        assert references.main(words, folder) == 2
        assert message in capsys.readouterr().err


def test_reasons_hold_neither_host_nor_home(monkeypatch):
    from roofline.host.machine import anonymous

    monkeypatch.setattr("platform.node", lambda: "thehost7")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ada"))
    assert anonymous("no /home/ada/x on thehost7, nor on thehost77") == "no ~/x on <host>, nor on thehost77"


def test_readme_shows_table_and_picture_of_a_committed_run():
    assert DRAWN[1] == SHOWN
    report = (REFERENCE / SHOWN / "report.md").read_text().splitlines()
    (table,) = re.findall("<!-- table -->\n(.*?)\n<!-- /table -->", README, re.DOTALL)
    rows = [line for line in table.splitlines() if line]
    assert len(rows) >= 6
    assert [row for row in rows if row not in report] == []
