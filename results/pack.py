"""Pack what a Hopper machine without a network needs: `python -m results.pack --out FOLDER`.

One archive has a stripped Triton, and its compile cache, filled ahead by that very Triton with every launch of a run of
the benchmarks (`results.dry_run`) and of the trials of a visit, with the list of those that are sound; and msgspec, by
which journals are read. The key of an entry hashes libtriton.so and Triton's Python files, and a kernel's source and
first line. So the pack is made under the version of Python that the machine has, from the checkout that goes there. At
the end it is unpacked into an empty folder, where a second dry run must find everything.

Parts of Triton that no Hopper needs are left out: AMD's libraries, one of two ptxas, the profiler, plugins, symbols. So
are the texts in an entry that no launch reads. The launcher stays to be built on the machine: it needs the driver's
library.
"""

import fnmatch
import lzma
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from results import unpack, visit
from roofline.host.arguments import Parser

ROOT = Path(__file__).resolve().parents[1]

LIMIT_BYTES = 60_000_000
"""The most bytes of a pack: it goes along with one command of 64 MiB, beside a checkout without results/reference."""

READ = (".json", ".cubin")
"""What a launch reads of an entry of Triton's cache. The texts on the way to the machine code stay at home."""

REMOVED = (
    "bin/*",
    "triton/plugins/*",
    "triton/include/*",
    "triton/instrumentation/*",
    "triton/profiler/*",
    "triton/FileCheck",
    "triton/_C/libproton.so",
    "triton/backends/amd/lib/*",
    "triton/backends/amd/include/*",
    "triton/backends/nvidia/lib/cupti*",
    "triton/backends/nvidia/include/*",
)
"""Files that are left out, as patterns whose `*` also matches `/`."""

KEPT = ("triton/backends/nvidia/include/cuda.h",)
"""Files of `REMOVED` that stay: the launcher is built with them."""

CHIPS = ("H100 SXM", "H200")
"""Chips that the cache is filled for. Both have 132 SMs: the tiles of a few shapes depend on the size of the cache."""

LIBRARY = "triton/_C/libtriton.so"

FILTERS = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9}]
"""The first filter writes jumps and calls of x86 by their targets, which repeat: with xz alone a pack is 5 % larger."""


def is_kept(name: str) -> bool:
    """Whether the file `name` of an installed Triton goes along.

    >>> is_kept("triton/language/core.py"), is_kept("triton/backends/amd/lib/ockl.bc")
    (True, False)
    """
    return name in KEPT or not any(fnmatch.fnmatchcase(name, pattern) for pattern in REMOVED)


def other_assembler(version: str) -> str:
    """The file in the wheel of Triton `version` that assembles nothing for Hopper. Since 3.9 Hopper takes Blackwell's
    ptxas, before its own.

    >>> other_assembler("3.9.0")
    'triton/backends/nvidia/bin/ptxas'
    """
    major, minor = map(int, version.split(".")[:2])
    name = "ptxas" if (major, minor) >= (3, 9) else "ptxas-blackwell"
    return f"triton/backends/nvidia/bin/{name}"


def pinned(name: str, constraints: str) -> str:
    """The package `name` with its version, as a file of constraints has it."""
    lines = (ROOT / constraints).read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{name}=="))


def newest() -> str:
    """The newest version of Triton that the suite was tested with."""
    return pinned("triton", "constraints-newest.txt").removeprefix("triton==")


def install(version: str, tree: Path) -> None:
    """Install Triton `version` for this Python into `tree`, and the decoder of journals, which no image has. Raises
    ValueError where there is no wheel."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--only-binary=:all:"]
    packages = f"triton=={version}", pinned("msgspec", "constraints.txt")
    if subprocess.run([*command, "--target", tree, *packages], check=False).returncode:
        raise ValueError(f"pip has no wheel of {' or '.join(packages)} for this Python: choose another with --triton")


def leave_out(tree: Path, version: str) -> None:
    """Remove the files of Triton `version` in `tree` that do not go along."""
    (tree / other_assembler(version)).unlink()
    for path in tree.rglob("*"):
        if path.is_file() and not is_kept(path.relative_to(tree).as_posix()):
            path.unlink()


def run_dry(command: list[str], environment: dict[str, str]) -> None:
    """Run a module of the checkout by the Triton of `environment`. Raises ValueError where that fails."""
    # Some variables of Triton change the key.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    paths = {"PYTHONPATH": f"{environment['PYTHONPATH']}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-m", *command], env=inherited | environment | paths, cwd=ROOT, check=False)
    if done.returncode:
        raise ValueError(f"{' '.join(command)} failed, see above")


def dry_run(environment: dict[str, str], *arguments: str) -> None:
    """Go through a run on each chip, by the Triton of `environment`. Raises ValueError where one fails."""
    for chip in CHIPS:
        run_dry(["results.dry_run", "--chip", chip, *arguments], environment)


def dry_trials(environment: dict[str, str], version: str) -> None:
    """Inspect the launches of the trials of a visit that Triton `version` can compile, on each chip. Raises ValueError
    where a trial fails."""
    for step in visit.STEPS:
        if step.command.startswith(visit.TRIAL) and visit.release(version) >= visit.release(step.triton):
            _, _, *words = shlex.split(step.command)
            for chip in CHIPS:
                run_dry([*words, "--dry", "--chip", chip], environment)


def fill(tree: Path, version: str) -> None:
    """Fill the cache in `tree` by the Triton in it. What no launch reads, and files that name absolute paths, do not go
    along."""
    environment = unpack.environment_of(tree)
    dry_run(environment)
    dry_trials(environment, version)
    for path in (tree / unpack.CACHE).glob("*/*"):
        if path.suffix not in READ or path.name.startswith("__grp__"):
            path.unlink()


def archive(tree: Path, path: Path) -> int:
    """Write all of `tree` to `path`, without owners and times. Returns the bytes of the archive.

    Raises ValueError where they are too many.
    """
    nobody = dict(uid=0, gid=0, uname="", gname="", mtime=0)
    with lzma.open(path, "wb", filters=FILTERS) as file, tarfile.open(fileobj=file, mode="w|") as tar:
        tar.add(tree, ".", filter=lambda member: member.replace(**nobody, deep=False))
    size = path.stat().st_size
    if size > LIMIT_BYTES:
        raise ValueError(f"{path} has {size:,} bytes, the limit is {LIMIT_BYTES:,}: leave more out in results/pack.py")
    return size


def pack(version: str, out: Path) -> Path:
    """Make the pack of Triton `version` in the folder `out`, and rehearse it. Returns its path. Raises ValueError."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"triton-{version}-{unpack.TAG}.tar.xz"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = folder / "tree"
        install(version, tree)
        leave_out(tree, version)
        subprocess.run(["strip", "--strip-all", tree / LIBRARY], check=True)  # of symbols
        fill(tree, version)
        size = archive(tree, path)
        print(f"{path}: {size:,} bytes of {LIMIT_BYTES:,}")
        dry_run(unpack.unpack(path, folder / "unpacked"), "--check")
    return path


def main(arguments: list[str]) -> None:
    parser = Parser(prog="python -m results.pack", description=__doc__.partition("\n")[0])
    parser.add_argument("--triton", default=newest(), metavar="VERSION", help="default: %(default)s")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the archive goes")
    options = parser.parse_args(arguments)
    try:
        path = pack(options.triton, options.out)
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        parser.error(str(error))
    print(f"There: python3 -m results.unpack {path.name} FOLDER says what to export")


if __name__ == "__main__":
    main(sys.argv[1:])
