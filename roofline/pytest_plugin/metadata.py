"""The first line of a journal: what is measured, on what, with what, from which commit."""

from datetime import UTC, datetime
from pathlib import Path

from roofline import __version__, operations
from roofline.host.checkout import UNKNOWN, commit_of, why_unknown
from roofline.operations.options import Options, as_values
from roofline.store import journal
from roofline.store.conditions import slug, threads_text
from roofline.store.source_files import hash_of_files
from roofline.supervise.session import Session
from roofline.worker import METHOD_VERSION


def make(state: Session, root: Path) -> dict:
    """The metadata of a run that begins now."""
    options, chip = state.options, state.hello["machine"]
    started, commit = datetime.now(UTC), commit_of(root)
    header = {
        "schema": journal.SCHEMA,
        "method_version": METHOD_VERSION,
        "roofline_version": __version__,
        "started": started.isoformat(timespec="seconds"),
        "commit": commit,
        "files": hash_of_files(root),
        "title": _title(options, chip, state.cases),
        "footer": _footer(options, chip, commit, started),
        "notes": _notes(options, root, commit, [*state.planned]),
        "machine": chip,
        "options": as_values(options),
        "cases": state.cases,
    }
    if ranks := state.hello.get("ranks"):
        header["ranks"] = ranks
    for operation in map(operations.find, state.planned):
        if operation.name not in operations.SUITE:
            header.setdefault("shown", {})[operation.name] = operation.plain
    return header


def _title(options, chip: dict, cases: list[str]) -> str:
    names = list(dict.fromkeys(case.partition("-")[0] for case in cases))
    sizes = f" of a file's {len(options.shapes)} shapes" if options.shapes else f" of {options.model}"
    if names and not any("model" in operations.find(name).case.__dataclass_fields__ for name in names):
        sizes = ""
    return f"{'Quick run of ' if options.quick else ''}{', '.join(names)}{sizes} on {chip['chip']}"


def _footer(options, chip: dict, commit: str, started: datetime) -> str:
    width = threads_text(chip["threads"]) if options.device == "cpu" else f"driver {chip['driver']}"
    versions = [f"{name} {chip['versions'][name]}" for name in ("torch", "triton") if name in chip["versions"]]
    if ptxas := chip.get("ptxas"):
        versions.append(f"ptxas {ptxas}")
    method = f"seed {options.seed}, method {METHOD_VERSION}{', quick' if options.quick else ''}"
    when = f"{started:%Y-%m-%d %H:%M} UTC"
    return f"{chip['chip']}, {width} | {', '.join(versions)} | commit {commit} | {when} | {method}"


def _notes(options: Options, root: Path, commit: str, shapes: list[str]) -> list[str]:
    notes = []
    if options.device == "cpu":
        notes.append("Triton kernels were not timed: without a GPU they run in the interpreter, to be checked.")
    if commit == UNKNOWN:
        notes.append(why_unknown(root))
    for name, operation in operations.OPERATIONS.items():
        notes += operation.notes(options, [shape for shape in shapes if shape.startswith(f"{name}-")])
    return list(dict.fromkeys(notes))


def folder_name(chip: str) -> str:
    """`<UTC time>-<chip>`, which sorts by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{slug(chip)}"
