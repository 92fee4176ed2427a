"""Committed runs and the README: what they show can be derived again from the raw samples."""

from pathlib import Path

import pytest

from roofline.report import journal, tables
from roofline.report.records import derive_all

ROOT = Path(__file__).parents[2]
RUNS = sorted(path.name for path in (ROOT / "results" / "reference").iterdir() if path.is_dir())


@pytest.mark.parametrize("name", RUNS)
def test_committed_table_comes_out_of_the_samples_again(name):
    folder = ROOT / "results" / "reference" / name
    records = derive_all(journal.load(folder))
    assert records
    assert tables.markdown(records) in (folder / "report.md").read_text()


def test_readme_shows_rows_and_picture_of_a_committed_run():
    readme = (ROOT / "README.md").read_text()
    shown = next(name for name in RUNS if f"](results/reference/{name}/memory_roofline.png)" in readme)
    report = (ROOT / "results" / "reference" / shown / "report.md").read_text()
    rows = [line for line in readme.splitlines() if line.startswith("| matmul-")]
    assert len(rows) >= 4
    assert all(row in report for row in rows)
    assert f"](results/reference/{shown}/report.md)" in readme
