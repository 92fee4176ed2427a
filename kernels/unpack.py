"""Unpack on a machine without a network what `kernels.pack` made: `python3 -m kernels.unpack PACK FOLDER`.

Each file is compared with the list that came with it. Triton's cache has a file for each entry that names the others by
their absolute paths, and looks an entry up by it: those are written here, where the paths are known.
"""

import hashlib
import json
import sys
import tarfile
from pathlib import Path

from roofline.theory.arguments import Parser

FILES, CACHE = "FILES", "cache"
"""In the folder: the list, lines of a sha256 and a path as `sha256sum -c` takes them; Triton's cache."""


def unpack(archive: Path, folder: Path) -> dict[str, str]:
    """Unpack `archive` into `folder`, which may not be there or is empty. Returns the environment that uses it.

    Raises ValueError where something lies in `folder`, where a file is not the one that was packed, and where the pack
    is for another Python.
    """
    folder = folder.absolute()
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: name a folder of its own")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    verify(folder)
    require_python(folder)
    write_groups(folder / CACHE)
    return {"PYTHONPATH": str(folder), "TRITON_CACHE_DIR": str(folder / CACHE)}


def files_in(folder: Path) -> list[Path]:
    """All files below `folder` but the list itself, in one order everywhere."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / FILES)


def list_files(folder: Path) -> None:
    """Write the list of what is in `folder`."""
    lines = [f"{sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in files_in(folder)]
    (folder / FILES).write_text("".join(lines), encoding="utf-8")


def verify(folder: Path) -> None:
    """Raise ValueError unless each file of the list is in `folder` as it was packed."""
    for line in (folder / FILES).read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        path = folder / name
        if not path.is_file() or sha256(path) != digest:
            raise ValueError(f"{name} is not as it was packed: carry the pack again")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_python(folder: Path) -> None:
    """Raise ValueError where this Python cannot load the Triton in `folder`."""
    (wheel,) = folder.glob("triton-*.dist-info/WHEEL")
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    if f"Tag: {tag}-" not in wheel.read_text(encoding="utf-8"):
        raise ValueError(
            f"this Python is {tag}, and {wheel.parent.name} is for another: make a pack under this version"
        )


def write_groups(cache: Path) -> None:
    """Write the file of each entry of Triton's `cache` that names the others."""
    for entry in cache.iterdir():
        (metadata,) = entry.glob("*.json")
        paths = {path.name: str(path) for path in sorted(entry.iterdir())}
        (entry / f"__grp__{metadata.name}").write_text(json.dumps({"child_paths": paths}), encoding="utf-8")


def main(arguments: list[str]) -> None:
    parser = Parser(prog="python -m kernels.unpack", description=__doc__.partition("\n")[0])
    parser.add_argument("pack", type=Path, metavar="PACK", help="the archive that kernels.pack made")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to; made where it is not there")
    asked = parser.parse_args(arguments)
    try:
        environment = unpack(asked.pack, asked.folder)
    except (ValueError, OSError, tarfile.TarError) as error:
        parser.error(str(error))
    for name, value in environment.items():
        print(f"export {name}={value}")


if __name__ == "__main__":
    main(sys.argv[1:])
