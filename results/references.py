"""The reference runs, which others compare with: adds one, draws their reports again, and renews the tables of
README.md and results/README.md.

    make reference RUN="FOLDER SECOND"    adds two runs of a GPU that agree; of a CPU one may be added
    make reports                 writes report.md of each again, in its place, as after a change of a column, and draws
                                 the pictures of a run of which README shows one
    make reports RUN=FOLDER      and those of FOLDER, whose name is enough
"""

import itertools
import lzma
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from roofline.analysis.comparison import compare
from roofline.analysis.fields import GROUPS
from roofline.analysis.records import frame
from roofline.analysis.tokens import compared
from roofline.analysis.verdicts import FASTER, SLOWER
from roofline.operations.shown import Field
from roofline.report import tables
from roofline.report.format import rate_text
from roofline.report.write import markdown, write
from roofline.store import journal
from roofline.store.conditions import differences, slug
from roofline.store.run import Run
from roofline.store.source_files import PLACES, SUFFIXES, hash_of_blobs
from roofline.store.stats import geometric_mean

INTO = Path("results/reference")
TABLE_START, TABLE_END = "<!-- table -->", "<!-- /table -->"
"""In README.md: between them stands a table of the report of the run that it names."""
TABLE_OF = re.compile(r"The run is\s+\[([\w-]+)\]")
PICTURE_OF = re.compile(r"\(results/reference/([\w-]+)/\w+\.png\)")
FIRST_ROW = "| M | dtype | shapes |"
START, END = "<!-- made by `make reference` -->", "<!-- end of what `make reference` made -->"
KEPT = ("report.md", "*.png")
"""What is committed of a run beside its journal; the rest is drawn again from that."""
REPEATED_SINCE = 6
"""The method from which on a GPU's matmuls are measured twice."""
PRIVATE = re.compile(r"/home/\w+|/Users/\w+|/root\b|\"node\"")
"""What a published run holds no more: homes, and pytest-benchmark's field for the host."""


def add(folder: Path, into: Path) -> Path:
    """Copy report.md and the PNGs of the run `folder` to `into/<chip>-<date>`, with `-2` and so on where that is taken,
    and pack its journal there.

    Raises ValueError for a run that was cut off or has gaps, that is not from a clean commit, whose files are not those
    of its commit, or that holds a host's name or a path.
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
    _require_files_of_commit(folder, run, into)
    _parts(into)
    if secrets := private(folder):
        raise ValueError(f"{folder} is not fit to be published: {secrets[0]}")
    name = slug(f"{run.metadata['machine']['chip']} {run.metadata['started'][:10]}")
    names = [name, *(f"{name}-{number}" for number in range(2, 100))]
    target = next(into / name for name in names if not (into / name).exists())
    target.mkdir()
    for path in (path for pattern in KEPT for path in folder.glob(pattern)):
        shutil.copy(path, target)
    for picture in target.glob("*.png"):
        shrink(picture)
    pack(folder, target)
    return target


def require_repeated(folder: Path, others: list[Path]) -> None:
    """Raise ValueError unless one of the `others` measured the matmuls of a GPU again, and agrees with `folder`."""
    run = journal.load(folder)
    is_of_gpu = run.metadata["machine"]["source"] == "gpu" and any(s.op == "matmul" for s in run.shapes.values())
    if not is_of_gpu or run.metadata["method_version"] < REPEATED_SINCE:
        return
    reasons = [f"give a second run, of the same commit and minutes apart: make reference RUN='{folder} SECOND'"]
    for other in others:
        second = journal.load(other)
        if changes := differences([run.metadata], [second.metadata]):
            reasons.append(f"{other} has another {', '.join(changes)}")
            continue
        changed = [case for case in compare([run], [second]).cases if case.verdict in (FASTER, SLOWER)]
        if not changed:
            return
        reasons.append(f"{other} has {len(changed)} cases that are not as fast, as {changed[0].case}")
    raise ValueError(f"{folder} is one run of a GPU, which is no reference: {'; '.join(reasons)}")


def shrink(picture: Path) -> None:
    """Keep a picture in 256 colours, in which it has a third of the bytes: it is in every clone, for good."""
    with Image.open(picture) as drawn:
        image = drawn.convert("RGB").quantize(kmeans=1)
    image.save(picture, optimize=True)


def pack(folder: Path, target: Path) -> None:
    """Pack the journal of the run `folder` into the folder `target`. The same journal gives the same bytes."""
    packed = lzma.compress(_content(journal.find(folder)), preset=9 | lzma.PRESET_EXTREME)
    (target / journal.PACKED).write_bytes(packed)


def _content(path: Path) -> bytes:
    """What is in a file of a run's folder; of a packed journal what was packed."""
    with journal.OPENERS.get(path.name, open)(path, "rb") as file:
        return file.read()


def _require_files_of_commit(folder: Path, run: Run, root: Path) -> None:
    """Raise ValueError where the run measured other files than its commit has. Runs before 2026-11-26 do not say."""
    commit, measured = run.metadata["commit"], run.metadata.get("files")
    if measured and measured != hash_of_commit(root, commit):
        raise ValueError(
            f"{folder} says that it is of commit {commit}, and measured files that are not that commit's: name the "
            "right one, in a copy by ROOFLINE_COMMIT, and run it again"
        )


def hash_of_commit(root: Path, commit: str) -> str:
    """The hash of the source files that `commit` has, by the git of `root`. Raises ValueError where git does not know
    the commit."""
    command = ["git", "ls-tree", "--full-tree", "-r", "-z", "--end-of-options", commit, "--", *PLACES]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"git does not know commit {commit}: fetch it first ({done.stderr.strip()})")
    blobs = {}
    for line in done.stdout.split("\0")[:-1]:
        about, _, path = line.partition("\t")
        if path.endswith(SUFFIXES):
            blobs[path] = about.split()[2]
    return hash_of_blobs(blobs)


def renew_report(folder: Path, draws: bool) -> None:
    """Write report.md of a reference run again, from its journal; where it `draws`, its pictures too. It keeps those
    that it had, and no others."""
    run = journal.load(folder)
    pictures = {path.stem for path in folder.glob("*.png")}
    if draws:
        for path in write(folder, run):
            if path.suffix == ".png" and path.stem in pictures:
                shrink(path)
            else:
                path.unlink()
    text = markdown(run, frame(run), pictures)
    (folder / "report.md").write_text(text, encoding="utf-8")


def renew_reports(into: Path, chosen: list[str]) -> None:
    """Write report.md of each run in `into` again. Pictures are drawn of those runs of which README.md shows one, and
    of those `chosen`: a picture that is drawn anew is in every clone, for good."""
    readme = into.parents[1] / "README.md"
    folders = {path.name: path for path in sorted(into.iterdir()) if journal.find(path)}
    if unknown := {Path(name).name for name in chosen} - folders.keys():
        raise ValueError(f"{sorted(unknown)} are no runs in {into}: give some of {', '.join(folders)}")
    drawn = {*PICTURE_OF.findall(readme.read_text(encoding="utf-8")), *(Path(name).name for name in chosen)}
    for name, folder in folders.items():
        renew_report(folder, draws=name in drawn)
        print(folder)
    renew_readme(readme, into)


def renew_readme(readme: Path, into: Path) -> None:
    """Write into `readme` the table of the report of the run that it names. Raises ValueError where it names none."""
    text = readme.read_text(encoding="utf-8")
    named = TABLE_OF.search(text)
    if not named or TABLE_START not in text or TABLE_END not in text:
        raise ValueError(f"{readme} lacks {TABLE_START}, {TABLE_END}, or 'The run is [NAME]': put them there")
    lines = (into / named[1] / "report.md").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(FIRST_ROW))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[first:])
    before, rest = text.split(TABLE_START)
    _, after = rest.split(TABLE_END)
    made = "\n".join([TABLE_START, *rows, TABLE_END])
    readme.write_text(before + made + after, encoding="utf-8")


def private(folder: Path) -> list[str]:
    """Return what the files of a run folder tell about the machine's owner: a line for each file and thing."""
    host = platform.node()
    secrets = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        text = "" if path.suffix == ".png" else _content(path).decode("utf-8", errors="ignore")
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
    made = table(into), *(schema(group.values()) for group in GROUPS.values())
    parts[2::4] = [f"\n{text}\n" for text in made[: len(parts) // 4]]
    readme.write_text("".join(parts), encoding="utf-8")
    return readme


def _parts(into: Path) -> tuple[Path, list[str]]:
    """Return the README.md, and its text cut at its pairs of marks: one for the runs, one more for each
    group of fields where these are told."""
    readme = into.parent / "README.md"
    parts = re.split(f"({START}|{END})", readme.read_text(encoding="utf-8"))
    if parts[1::2] not in ([START, END], [START, END] * (1 + len(GROUPS))):
        raise ValueError(f"{readme} lacks the marks {START} and {END}: put them where the table shall be")
    return readme, parts


def schema(fields: Iterable[Field]) -> str:
    """Return a row for each of `fields`, in Markdown."""
    rows = [{"field": f"`{field.name}`", "unit": field.unit or " ", "meaning": field.meaning} for field in fields]
    return tables.markdown(tables.written(rows), trusted=True)


def table(into: Path) -> str:
    """Return a row for each run folder in `into`, in Markdown."""
    rows = [_row(folder, journal.load(folder)) for folder in sorted(into.iterdir()) if journal.find(folder)]
    return tables.markdown(tables.written(rows), trusted=True)


def _row(folder: Path, run: Run) -> dict[str, str]:
    cases, machine = frame(run), run.metadata["machine"]
    roofs = (
        f"{rate_text(roof.flops / 1e12)} TFLOP/s {dtype}, {roof.read_bytes_per_s / 1e9:.3g} GB/s"
        for dtype, roof in cases.attrs["measured"].items()
        if roof
    )
    ratios = compared(cases[cases["analysis"] == "throughput"]).groupby("contender", sort=False)
    speeds = (
        f"{name} {geometric_mean(rows['ratio_to_baseline']):.3f} of {rows['baseline'].iloc[0]} ({len(rows)})"
        for name, rows in ratios
    )
    texts = {
        "chip": machine["chip"],
        "model": ", ".join(cases["model"].unique()),
        "torch, triton": ", ".join(machine["versions"].get(name, "-") for name in ("torch", "triton")),
        "commit": re.sub(r"^(\w{8})\w+", r"\1", run.metadata["commit"]),
        "method": str(run.metadata["method_version"]),
        "rows": str(len(cases)),
        "measured roof": ", ".join(roofs),
        "speed, geometric mean (shapes)": ", ".join(speeds),
    }
    link = f"[{folder.name}](reference/{folder.name}/report.md)"
    return {"run": link} | {header: tables.escaped(text) for header, text in texts.items()}


def main(arguments: list[str], into: Path = INTO) -> int:
    """Add the runs that are named, or with --reports renew the reports of those that are there, and renew the tables.
    Returns the exit code (0 done, 2 refused)."""
    try:
        if not into.is_dir():
            raise ValueError(f"there is no folder {into}: call this from the checkout")
        if arguments[:1] == ["--reports"]:
            renew_reports(into, arguments[1:])
            arguments = []
        given, kept = [Path(folder) for folder in arguments], [path for path in into.iterdir() if journal.find(path)]
        for folder in given:
            require_repeated(folder, [other for other in given + kept if other != folder])
        for folder in given:
            print(add(folder, into))
        print(renew(into))
    except (ValueError, OSError) as error:
        print(f"results/references.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
