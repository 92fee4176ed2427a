"""What comes in by the door: roofline has no word of it, is whole without it, and shows what a journal says of it."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from made_up_run import END, HEAD, LINES, save, shape

from conftest import ROOT
from roofline.analysis.fields import refuse_taken
from roofline.analysis.records import frame
from roofline.operations import OPERATIONS, SUITE, Field, Table
from roofline.operations.shown import Shown
from roofline.report import write
from roofline.report.write import markdown
from roofline.store.lines import as_read

CODE = {".py", ".toml", ".html"}
SHOWN = Shown(
    fields=(
        Field("rows_kept", "that stay", unit="1", header="rows", format="number"),
        Field("gain", "computed", unit="1", header="gain", format="mean", ends=("gain_low", "gain_high"), of=max),
    ),
    tables=(
        Table(
            "What stays", of="rows_kept", columns=("shape", "contender", "rows_kept", "gain"), about="*Rows* [a](b)."
        ),
    ),
    figures={"over_rows": "nowhere:figure"},
)

LEFT_OUT = (
    "fused is not known here, and is shown without what its code computes and draws; name its file by --operations"
)


def test_roofline_has_no_word_of_what_comes_in_by_the_door():
    """But for `roofline account`, which has formulas of two of them, and the heads of a model."""
    words = re.compile(r"attention|ffn_gated|transformer_step")
    rooms = [path for path in (ROOT / "roofline").iterdir() if path.name not in ("account", "theory")]
    files = [file for room in rooms for file in (room.rglob("*") if room.is_dir() else [room])]
    assert [file for file in files if file.suffix in CODE and words.search(file.read_text())] == []


def lines_of_unknown(**head) -> list[dict]:
    """A run of an operation that is known nowhere."""
    lines = [HEAD | head, *shape(16, {"cublas": 2e-6, "tiled": 4e-6}), END]
    lines[1] = lines[1] | {"op": "fused"}
    lines[1]["entrants"]["tiled"] |= {"rows_kept": 3}
    return lines


def test_what_a_journal_says_of_an_operation_is_shown_and_what_is_left_out_is_told(loaded):
    run = loaded(lines_of_unknown(shown=as_read({"fused": SHOWN.plain})))
    cases = frame(run)
    assert [*cases][-4:] == ["rows_kept", "gain", "gain_low", "gain_high"]
    text = markdown(run, cases, [])
    assert "## What stays\n\n*Rows* [a]\\(b).\n\n| shape | contender | rows |\n" in text
    assert LEFT_OUT in text


def test_a_journal_that_says_nothing_of_its_operation_is_shown_with_what_every_record_has(loaded):
    run = loaded(lines_of_unknown())
    text = markdown(run, frame(run), [])
    assert "| tiled |" in text
    assert LEFT_OUT in text
    assert "rows_kept" not in frame(run)


def test_no_code_that_a_journal_names_is_run(loaded, monkeypatch):
    monkeypatch.setattr(os, "system", lambda *words: pytest.fail("it was run"))
    shown = SHOWN.plain | {"figures": {"over_rows": "os:system"}}
    shown["fields"] = [field | {"of": "os:system"} for field in shown["fields"]]
    run = loaded(lines_of_unknown(shown=as_read({"fused": shown})))
    frame(run)
    assert "over_rows" not in dict(write._figures(run, frame(run)))


def test_a_field_of_every_record_is_no_operations_own():
    taken = replace(OPERATIONS["matmul"], fields=(Field("time_s", "another"),))
    with pytest.raises(ValueError, match="every record has a field 'time_s'; choose another name"):
        refuse_taken(taken)


def test_an_installed_roofline_accounts_and_reports_without_the_checkout(tmp_path):
    """It finds no table of operations around it."""
    shutil.copytree(ROOT / "roofline", tmp_path / "site" / "roofline", ignore=shutil.ignore_patterns("__pycache__"))
    save(tmp_path / "run", LINES)
    known = "from roofline.operations import OPERATIONS, SUITE; assert (*OPERATIONS,) == SUITE"
    env = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    for words in (
        ["-c", known],
        ["-m", "roofline", "csv", "run"],
        ["-m", "roofline", "account", "--case", "attention-b2-h1-d64-m4096-causal-forward-fp32"],
        ["-m", "roofline", "account", "--case", "transformer_step-l4-d256-b2-t128-step-bf16"],
    ):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "in all" in done.stdout
    assert {*OPERATIONS} > {*SUITE}
