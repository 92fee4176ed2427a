"""The commit of the checkout that runs."""

import os
import subprocess
from pathlib import Path

from roofline.host.machine import anonymous

UNKNOWN = "unknown"


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
        told = subprocess.check_output(
            describe,
            text=True,
            errors="replace",
            cwd=root,
            env=env,
            stderr=subprocess.PIPE,
        )
        return told.strip(), ""
    except OSError as error:
        return UNKNOWN, f"git could not be run ({error.strerror})"
    except subprocess.CalledProcessError as error:
        return UNKNOWN, f"git says '{error.stderr.strip().partition(chr(10))[0]}'"
