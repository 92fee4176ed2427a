"""Which source files a run measured, as one hash: of the files that lie there, or of those that a commit has.

A copy of a checkout may come without its `.git`, or with one that is stale. Its run still says what it is of, and
`make reference` compares that with the commit.
"""

import hashlib
import subprocess
from pathlib import Path

PLACES = (
    "collectives",
    "conftest.py",
    "kernels",
    "pyproject.toml",
    "roofline",
    "roofline_pytest.py",
    "tests/benchmarks",
)
"""Files and folders that a measurement depends on."""
SUFFIXES = (".html", ".json", ".py", ".toml")
"""Of the files that count in those folders."""


def hash_of_files(root: Path) -> str:
    """The hash of the source files in the checkout `root`, tracked by git or not."""
    blobs = {}
    for place in PLACES:
        path = root / place
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in SUFFIXES and file.is_file():
                blobs[file.relative_to(root).as_posix()] = _blob(file.read_bytes())
    return _hash(blobs)


def hash_of_commit(root: Path, commit: str) -> str:
    """The hash of the source files that `commit` has, by the git of `root`. Raises ValueError where git does not know
    the commit."""
    command = ["git", "ls-tree", "--full-tree", "-r", "-z", commit, "--", *PLACES]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"git does not know commit {commit}: fetch it first ({done.stderr.strip()})")
    blobs = {}
    for line in done.stdout.split("\0")[:-1]:
        about, _, path = line.partition("\t")
        if path.endswith(SUFFIXES):
            blobs[path] = about.split()[2]
    return _hash(blobs)


def _blob(content: bytes) -> str:
    """The name that git gives to a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _hash(blobs: dict[str, str]) -> str:
    lines = [f"{blob} {path}\n" for path, blob in sorted(blobs.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]
