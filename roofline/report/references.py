"""Adds a run to the reference runs, which others compare with, and renews the tables of results/README.md.

`make reference RUN=FOLDER` calls it; without RUN it renews the tables alone.
"""

import platform
import re
import shutil
import sys
from pathlib import Path

from roofline.analysis.records import records_of
from roofline.analysis.throughput.metrics import roof_of
from roofline.report import tables
from roofline.report.analyses import GRADIENTS, OVERLAP, THROUGHPUT, analysis_of
from roofline.report.format import rate_text
from roofline.report.layout import Analysis, Column
from roofline.report.throughput.analysis import beside_baseline
from roofline.stats import geometric_mean
from roofline.store import journal
from roofline.store.conditions import slug
from roofline.store.run import Run

INTO = Path("results/reference")
START, END = "<!-- made by `make reference` -->", "<!-- end of what `make reference` made -->"
KEPT = (f"{journal.NAME}*", "report.md", "benchmark.json", "*.png")
"""What is committed of a run; the rest is drawn again from its journal."""
PRIVATE = re.compile(r"/home/\w+|/Users/\w+|/root\b|\"node\"")
"""What a published run holds no more: homes, and pytest-benchmark's field for the host."""


def add(folder: Path, into: Path) -> Path:
    """Copy the journal, report.md, benchmark.json and the PNGs of the run `folder` to `into/<chip>-<date>`, with `-2`
    and so on where that is taken, and pack the journal.

    Raises ValueError for a run that was cut off or has gaps, that is not from a clean commit, or that holds a host's
    name or a path.
    """
    run = journal.load(folder)
    if run.end is None or run.unfinished:
        raise ValueError(f"{folder} was cut off: go on with it by --ffn-resume, or run it again")
    if run.metadata.get("options", {}).get("quick"):
        raise ValueError(f"{folder} is a quick run, and a reference run is a whole one: run it without --ffn-quick")
    if run.void:
        raise ValueError(f"{folder} is {run.void}")
    if run.metadata["commit"] == "unknown" or run.metadata["commit"].endswith("+dirty"):
        raise ValueError(f"{folder} is of commit {run.metadata['commit']}: a reference run is of a clean commit")
    _parts(into)
    if secrets := private(folder):
        raise ValueError(f"{folder} is not fit to be published: {secrets[0]}")
    name = slug(f"{run.metadata['machine']['chip']} {run.metadata['started'][:10]}")
    names = [name, *(f"{name}-{number}" for number in range(2, 100))]
    target = next(into / name for name in names if not (into / name).exists())
    target.mkdir()
    for path in (path for pattern in KEPT for path in folder.glob(pattern)):
        shutil.copy(path, target)
    if (target / journal.NAME).exists():
        journal.pack(target)
    return target


def private(folder: Path) -> list[str]:
    """Return what the files of a run folder tell about the machine's owner: a line for each file and thing."""
    host = platform.node()
    secrets = []
    for path in sorted(folder.iterdir()):
        text = journal.read(path).decode("utf-8", errors="ignore") if path.suffix != ".png" else ""
        match = PRIVATE.search(text)
        if match:
            secrets.append(f"{path.name} holds {match[0]!r}")
        if len(host) > 2 and re.search(rf"(?<!\w){re.escape(host)}(?!\w)", text):
            secrets.append(f"{path.name} holds this host's name {host!r}")
    return secrets


def renew(into: Path) -> Path:
    """Write the table of the runs in `into`, and of the fields of records, between their marks in the README.md beside
    it. ValueError without marks."""
    readme, parts = _parts(into)
    made = table(into), schema(THROUGHPUT), schema(OVERLAP), schema(GRADIENTS)
    parts[2::4] = [f"\n{text}\n" for text in made[: len(parts) // 4]]
    readme.write_text("".join(parts), encoding="utf-8")
    return readme


def _parts(into: Path) -> tuple[Path, list[str]]:
    """Return the README.md, and its text cut at its pairs of marks: one for the runs, three more where fields are
    told."""
    readme = into.parent / "README.md"
    parts = re.split(f"({START}|{END})", readme.read_text(encoding="utf-8"))
    if parts[1::2] not in ([START, END], [START, END] * 4):
        raise ValueError(f"{readme} lacks the marks {START} and {END}: put them where the table shall be")
    return readme, parts


def schema(analysis: Analysis) -> str:
    """Return a row for each field of its records, in Markdown; what another has in common with `THROUGHPUT` stands
    there."""
    described = {(column.name, column.doc) for column in (() if analysis is THROUGHPUT else THROUGHPUT.columns)}
    return tables.markdown([c for c in analysis.columns if c.doc and (c.name, c.doc) not in described], FIELDS)


FIELDS = (
    Column(header="field", of_row=lambda column: tables.Markup(f"`{column.name}`"), right=False),
    Column(header="unit", of_row=lambda column: column.unit, right=False),
    Column(header="meaning", of_row=lambda column: tables.Markup(column.doc), right=False),
)


def table(into: Path) -> str:
    """Return a row for each run folder in `into`, in Markdown."""
    folders = sorted(path for path in into.iterdir() if journal.find(path))
    runs = [(folder, run, records_of(run)) for folder in folders for run in [journal.load(folder)]]
    return tables.markdown(runs, COLUMNS)


def _versions(run: Run) -> str:
    return ", ".join(run.metadata["machine"]["versions"].get(name, "-") for name in ("torch", "triton"))


def _roof(run: Run, records: list[dict]) -> str:
    """Return the measured roof of each dtype."""
    roofs = {dtype: roof_of(run, dtype) for dtype in dict.fromkeys(r["dtype"] for r in records)}
    return ", ".join(
        f"{rate_text(roof.flops / 1e12)} TFLOP/s {dtype}, {roof.read_bytes_per_s / 1e9:.3g} GB/s"
        for dtype, roof in roofs.items()
        if roof
    )


def _ratios(run: Run, records: list[dict]) -> str:
    """Return the geometric mean of each contender's ratio to the baseline."""
    plain = [record for record in records if analysis_of(run, record) is THROUGHPUT]
    return ", ".join(
        f"{name} {geometric_mean(r['ratio_to_vendor'] for r in rows):.3f} of {rows[0]['vendor']} ({len(rows)})"
        for name, rows in beside_baseline(plain).items()
    )


COLUMNS = (
    Column(
        header="run", right=False, of_row=lambda r: tables.Markup(f"[{r[0].name}](reference/{r[0].name}/report.md)")
    ),
    Column(header="chip", of_row=lambda r: r[1].metadata["machine"]["chip"], right=False),
    Column(header="model", of_row=lambda r: ", ".join(dict.fromkeys(record["model"] for record in r[2])), right=False),
    Column(header="torch, triton", of_row=lambda r: _versions(r[1]), right=False),
    Column(header="commit", of_row=lambda r: r[1].metadata["commit"], right=False),
    Column(header="method", of_row=lambda r: str(r[1].metadata["method_version"])),
    Column(header="rows", of_row=lambda r: str(len(r[2]))),
    Column(header="measured roof", of_row=lambda r: _roof(r[1], r[2])),
    Column(header="speed, geometric mean (shapes)", of_row=lambda r: _ratios(r[1], r[2])),
)


def main(arguments: list[str], into: Path = INTO) -> int:
    """Add the run that is named, if any, and renew the tables; returns the exit code (0 done, 2 refused)."""
    try:
        if not into.is_dir():
            raise ValueError(f"there is no folder {into}: call this from the checkout")
        print(*(add(Path(folder), into) for folder in arguments), renew(into), sep="\n")
    except (ValueError, OSError) as error:
        print(f"make reference: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
