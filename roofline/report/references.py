"""Reference runs: committed run folders that others compare with, and the table of them in results/README.md."""

import platform
import re
import shutil
from pathlib import Path

from roofline.analysis.records import roof_of
from roofline.report import tables
from roofline.stats import geometric_mean
from roofline.store import journal
from roofline.store.conditions import slug
from roofline.store.run import Run

START, END = "<!-- made by `roofline reference` -->", "<!-- end of what `roofline reference` made -->"
PRIVATE = re.compile(r"/home/\w+|/Users/\w+|/root\b|\"node\"")
"""What a published run holds no more: homes, and pytest-benchmark's field for the host."""


def add(folder: Path, into: Path) -> Path:
    """Copy the run `folder` to `into/<chip>-<date>`, with `-2` and so on where that is taken.

    Raises ValueError for a run that was cut off or has gaps, that is not from a clean commit, or that holds a host's
    name or a path.
    """
    run = journal.load(folder)
    if run.end is None or run.unfinished:
        raise ValueError(f"{folder} was cut off: go on with it by --ffn-resume, or run it again")
    if run.metadata["commit"] == "unknown" or run.metadata["commit"].endswith("+dirty"):
        raise ValueError(f"{folder} is of commit {run.metadata['commit']}: a reference run is of a clean commit")
    _parts(into)
    if found := private(folder):
        raise ValueError(f"{folder} is not fit to be published: {found[0]}")
    name = f"{slug(run.metadata['machine']['chip'])}-{run.metadata['started'][:10]}"
    names = [name, *(f"{name}-{number}" for number in range(2, 100))]
    target = next(into / name for name in names if not (into / name).exists())
    shutil.copytree(folder, target)
    return target


def private(folder: Path) -> list[str]:
    """What the files of a run folder tell about the machine's owner: a line for each file and thing."""
    host = platform.node()
    found = []
    for path in sorted(folder.iterdir()):
        text = path.read_text(encoding="utf-8", errors="ignore") if path.suffix != ".png" else ""
        match = PRIVATE.search(text)
        if match:
            found.append(f"{path.name} holds {match[0]!r}")
        if len(host) > 2 and re.search(rf"(?<!\w){re.escape(host)}(?!\w)", text):
            found.append(f"{path.name} holds this host's name {host!r}")
    return found


def renew(into: Path) -> Path:
    """Write the table of the runs in `into` between its marks in the README.md beside it. ValueError without marks."""
    readme, before, after = _parts(into)
    readme.write_text(f"{before}{START}\n{table(into)}\n{END}{after}", encoding="utf-8")
    return readme


def _parts(into: Path) -> tuple[Path, str, str]:
    """The README.md, what stands before its table, and what stands after it."""
    readme = into.parent / "README.md"
    before, start, rest = readme.read_text(encoding="utf-8").partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"{readme} lacks the marks {START} and {END}: put them where the table shall be")
    return readme, before, after


def table(into: Path) -> str:
    """A row for each run folder in `into`, in Markdown."""
    folders = sorted(path.parent for path in into.glob(f"*/{journal.NAME}"))
    runs = [(folder, run, run.records()) for folder in folders for run in [journal.load(folder)]]
    return tables.markdown(runs, COLUMNS)


def _roof(run: Run, records: list[dict]) -> str:
    """The measured roof of each dtype."""
    roofs = {dtype: roof_of(run.ceilings, dtype) for dtype in dict.fromkeys(r["dtype"] for r in records)}
    return ", ".join(
        f"{tables.rate_text(roof.flops / 1e12)} TFLOP/s {dtype}, {roof.read_bytes_per_s / 1e9:.3g} GB/s"
        for dtype, roof in roofs.items()
        if roof
    )


def _ratios(records: list[dict]) -> str:
    """The geometric mean of each contender's ratio to the vendor."""
    texts = []
    records = tables.plain_matmuls(records)
    for name in dict.fromkeys(r["contender"] for r in records if r["contender"] != r["vendor"]):
        own = [r for r in records if r["contender"] == name and r["ratio_to_vendor"]]
        if own:
            mean = geometric_mean(r["ratio_to_vendor"] for r in own)
            texts.append(f"{name} {mean:.3f} of {own[0]['vendor']} ({len(own)})")
    return ", ".join(texts)


def _versions(versions: dict) -> str:
    return ", ".join(versions.get(name, "-") for name in ("torch", "triton"))


COLUMNS = (
    ("run", lambda r: f"[{r[0].name}](reference/{r[0].name}/report.md)"),
    ("chip", lambda r: r[1].metadata["machine"]["chip"]),
    ("model", lambda r: ", ".join(dict.fromkeys(record["model"] for record in r[2]))),
    (
        "torch, triton",
        lambda r: ", ".join(r[1].metadata["machine"]["versions"].get(n, "-") for n in ("torch", "triton")),
    ),
    ("commit", lambda r: r[1].metadata["commit"]),
    ("method", lambda r: str(r[1].metadata["method_version"])),
    ("rows", lambda r: str(len(r[2]))),
    ("measured roof", lambda r: _roof(r[1], r[2])),
    ("speed, geometric mean (shapes)", lambda r: _ratios(r[2])),
)
