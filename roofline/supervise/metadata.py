"""The first line of a journal: what is measured, on what, with what, from which commit."""

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from roofline import __version__, operations
from roofline.host.machine import anonymous
from roofline.operations.matmul import BY_HEADS
from roofline.operations.options import as_values
from roofline.store import journal
from roofline.store.conditions import slug, threads_text
from roofline.store.source_files import hash_of_files
from roofline.worker import METHOD_VERSION

UNKNOWN = "unknown"


def make(options, chip: dict, root: Path, cases: list[str], notes: list[str]) -> dict:
    """The metadata of a run on the machine of `chip` that begins now and means to measure `cases`, of which `notes`
    tell."""
    started, commit = datetime.now(UTC), commit_of(root)
    return {
        "schema": journal.SCHEMA,
        "method_version": METHOD_VERSION,
        "roofline_version": __version__,
        "started": started.isoformat(timespec="seconds"),
        "commit": commit,
        "files": hash_of_files(root),
        "title": _title(options, chip, cases),
        "footer": _footer(options, chip, commit, started),
        "notes": _notes(options, root, commit) + notes,
        "machine": chip,
        "options": as_values(options),
        "cases": cases,
    }


def _title(options, chip: dict, cases: list[str]) -> str:
    names = list(dict.fromkeys(case.partition("-")[0] for case in cases))
    measured = ", ".join(names)
    if "matmul" in names:
        beyond_ffn = options.shapes or {*options.layers} & {*BY_HEADS}
        measured = "matmuls" if beyond_ffn else "FFN matmuls"
    sizes = f" of a file's {len(options.shapes)} shapes" if options.shapes else f" of {options.model}"
    if "/" in sizes:
        sizes += " (scaled down)"
    if names and not any("model" in operations.find(name).case.__dataclass_fields__ for name in names):
        sizes = ""
    return f"{'Quick run of ' if options.quick else ''}{measured}{sizes} on {chip['chip']}"


def _footer(options, chip: dict, commit: str, started: datetime) -> str:
    width = threads_text(chip["threads"]) if options.device == "cpu" else f"driver {chip['driver']}"
    versions = [f"{name} {chip['versions'][name]}" for name in ("torch", "triton") if name in chip["versions"]]
    if ptxas := chip.get("ptxas"):
        versions.append(f"ptxas {ptxas}")
    method = f"seed {options.seed}, method {METHOD_VERSION}{', quick' if options.quick else ''}"
    when = f"{started:%Y-%m-%d %H:%M} UTC"
    return f"{chip['chip']}, {width} | {', '.join(versions)} | commit {commit} | {when} | {method}"


def _notes(options, root: Path, commit: str) -> list[str]:
    notes = []
    if options.device == "cpu":
        notes.append("Triton kernels were not timed: without a GPU they run in the interpreter, to be checked.")
    if commit == UNKNOWN:
        notes.append(why_unknown(root))
    return notes


def folder_name(chip: str) -> str:
    """`<UTC time>-<chip>`, which sorts by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{slug(chip)}"


def commit_of(root: Path) -> str:
    """The commit of the checkout that runs: what the environment variable ROOFLINE_COMMIT says, else git's short hash,
    with `+dirty` where files differ from it, or `unknown` (`why_unknown`).

    A copy may have a `.git` that is stale, so the variable wins. `make reference` checks it, by the hash of the files
    (`store.source_files`).
    """
    return os.environ.get("ROOFLINE_COMMIT") or _of_git(root)[0]


def why_unknown(root: Path) -> str:
    """Why git names no commit of a checkout, and the way out, in a sentence."""
    problem = _of_git(root)[1]
    trusted = f"git config --global --add safe.directory {root}, or " * ("dubious" in problem)
    return anonymous(f"The commit is unknown: {problem}; {trusted}set ROOFLINE_COMMIT to it.")


def _of_git(root: Path) -> tuple[str, str]:
    """The commit, and why it is unknown."""
    describe = ["git", "describe", "--always", "--exclude=*", "--dirty=+dirty"]
    env = os.environ | {"LC_ALL": "C"}
    try:
        told = subprocess.check_output(describe, text=True, errors="replace", cwd=root, env=env, stderr=subprocess.PIPE)
        return told.strip(), ""
    except OSError as error:
        return UNKNOWN, f"git could not be run ({error.strerror})"
    except subprocess.CalledProcessError as error:
        return UNKNOWN, f"git says '{error.stderr.strip().partition(chr(10))[0]}'"
