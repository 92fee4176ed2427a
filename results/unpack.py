"""Unpack on a machine without a network what `results.pack` made: `python3 -m results.unpack PACK FOLDER`.

The checksums that xz keeps say whether all arrived as it was packed. Each entry of Triton's cache has a file that names
its other files by their absolute paths, and Triton looks the entry up by it. These files are written here, where the
paths are known.
"""

import io
import json
import lzma
import sys
import tarfile
from pathlib import Path

from roofline.host.arguments import Parser

CACHE = "cache"
"""The folder of Triton's cache in the pack."""

INSPECTED = "inspected.json"
"""The list, in the pack, of the candidates of trials that were inspected."""

TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
"""The tag of this Python in the names of wheels."""


def unpack(archive: Path, folder: Path) -> dict[str, str]:
    """Unpack `archive` into `folder`, which may not be there or is empty. Returns the environment that uses it.

    Raises ValueError where something lies in `folder`, where the archive is not as it was packed, and where the pack is
    for another Python.
    """
    folder = folder.absolute()
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: name a folder of its own")
    try:
        content = lzma.decompress(archive.read_bytes())
    except lzma.LZMAError as error:
        raise ValueError(f"{archive} is not as it was packed: {error}; carry it again") from None
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        tar.extractall(folder, filter="data")
    (wheel,) = folder.glob("triton-*.dist-info/WHEEL")
    if f"Tag: {TAG}-" not in wheel.read_text(encoding="utf-8"):
        raise ValueError(
            f"this Python is {TAG}, and {wheel.parent.name} is for another: make a pack under this version"
        )
    write_groups(folder / CACHE)
    return environment_of(folder)


def environment_of(folder: Path) -> dict[str, str]:
    """The environment variables that have the pack in `folder` used."""
    return {
        "PYTHONPATH": str(folder),
        "TRITON_CACHE_DIR": str(folder / CACHE),
        "ROOFLINE_INSPECTED": str(folder / INSPECTED),
        "QUACK_CACHE_DIR": str(folder / "quack"),
    }


def write_groups(cache: Path) -> None:
    """Write for each entry of Triton's `cache` the file that names its other files."""
    for entry in cache.iterdir():
        (metadata,) = entry.glob("*.json")
        paths = {path.name: str(path) for path in sorted(entry.iterdir())}
        (entry / f"__grp__{metadata.name}").write_text(json.dumps({"child_paths": paths}), encoding="utf-8")


def main(arguments: list[str]) -> None:
    parser = Parser(prog="python -m results.unpack", description=__doc__.partition("\n")[0])
    parser.add_argument("pack", type=Path, metavar="PACK", help="the archive that results.pack made")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to; made where it is not there")
    options = parser.parse_args(arguments)
    try:
        environment = unpack(options.pack, options.folder)
    except (ValueError, OSError, tarfile.TarError) as error:
        parser.error(str(error))
    for name, value in environment.items():
        print(f"export {name}={value}")


if __name__ == "__main__":
    main(sys.argv[1:])
