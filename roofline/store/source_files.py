"""Which source files a run measured, as one hash of their git blobs.

A copy of a checkout may come without its `.git`, or with one that is stale. Its run still says what it is of, and
`make reference` compares that with the commit.
"""

import hashlib
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
"""Files in those folders count if their names end so."""


def hash_of_files(root: Path) -> str:
    """The hash of the source files in the checkout `root`, tracked by git or not."""
    blobs = {}
    for place in PLACES:
        path = root / place
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in SUFFIXES and file.is_file():
                blobs[file.relative_to(root).as_posix()] = _blob(file.read_bytes())
    return hash_of_blobs(blobs)


def _blob(content: bytes) -> str:
    """The name that git gives to a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def hash_of_blobs(blobs: dict[str, str]) -> str:
    """The hash of {path: name of its blob}."""
    digest = hashlib.sha256()
    for path, blob in sorted(blobs.items()):
        digest.update(f"{blob} {path}\n".encode())
    return digest.hexdigest()[:16]
