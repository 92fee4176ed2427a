"""FILE::NAME: verdicts on a kernel of yours, in the cases that its file has.

FILE has `def cases()`, which yields (grid, args, expected), and a tolerance as a fourth if need be: what `check` takes.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import IO

import torch
import triton
from triton.runtime.jit import KernelInterface

from .compile import why
from .gpus import ARCHITECTURES
from .processes import forked
from .verdict import BUDGET, check

OWN = "place", "coverage", "triton"
"""The options that are not those of `check`."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "triton-machine"


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: {message}\n")
    parser.add_argument("place", nargs="?", metavar="FILE::NAME", help="a kernel")
    parser.add_argument("--seeds", type=int, default=8, help="orders of events for each case (8)")
    parser.add_argument("--seed", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--arch", default="sm_90a", help=f"{', '.join(ARCHITECTURES)} (sm_90a)")
    parser.add_argument("--configs", default=1, type=which, help="the number of an autotuned kernel's, or all (1)")
    parser.add_argument("--strict", action="store_true", help="races of equal values are races")
    parser.add_argument("--accept", action="append", default=[], metavar="FILE:LINE", help="its races are known")
    parser.add_argument("--all", action="store_true", dest="all_programs", help="none stands for others that are alike")
    parser.add_argument("--slots", type=int, help="CTAs that the GPU holds at a time (as many as fit)")
    parser.add_argument("--budget", type=int, default=BUDGET, help=f"instructions until a run is given up ({BUDGET:_})")
    parser.add_argument("--empty", action="append", default=[], metavar="NAME", help="a tensor of torch.empty's")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="that share the orders (one a core)")
    parser.add_argument("--coverage", action="store_true", help="print which instructions are modelled, and how")
    parser.add_argument("--triton", metavar="VERSION,...", help="under the newest of each (3.7.1,3.9), by pip")
    options = parser.parse_args(words)
    if options.coverage:
        print("\n".join(coverage()))
        return 0
    try:
        if options.triton:
            return max(under(version, words) for version in options.triton.split(","))
        file, _, name = (options.place or "").rpartition("::")
        if file:
            module = load(Path(file))
            kernels = {word: value for word, value in vars(module).items() if isinstance(value, KernelInterface)}
            if name not in kernels:
                raise ValueError(f"{file} has no kernel {name}; it has {', '.join(kernels) or 'none'}")
            if not hasattr(module, "cases"):
                raise ValueError(f"{file} has no cases(); see --help")
            return judge(kernels[name], name, module.cases, options)
        raise ValueError("it takes FILE::NAME of a kernel; see --help")
    except ValueError as error:
        parser.error(str(error))


def which(configs: str) -> int | str:
    return configs if configs == "all" else int(configs)


def coverage() -> Iterator[str]:
    """Yield the lines of a table of the instructions that the machine models, as each of its modules lists them."""
    yield "Alternatives stand in braces, what may be left out in brackets.\n"
    yield "| instruction | modelled how |"
    yield "|---|---|"
    for name, module in sorted(sys.modules.items()):
        if name.startswith(f"{__package__}.") and hasattr(module, "INSTRUCTIONS"):
            for row in module.INSTRUCTIONS.strip().splitlines():
                opcodes, how = row.split(" | ")
                yield f"| `{opcodes}` | {how} |"


def judge(kernel: KernelInterface, name: str, cases: Callable, options: argparse.Namespace) -> int:
    """Judge the cases in a process of its own, since a compiler may end it. Then another process goes on with the next
    case. Returns the command's exit code."""
    torch.set_num_threads(1)  # a forked process would wait for others in vain
    count = 0
    bad = 0
    with tempfile.TemporaryFile() as printed:
        while True:
            child, receiver = forked(judge_each, kernel, name, cases, options, printed, count)
            try:
                while message := receiver.recv():
                    count, text, is_bad = message
                    bad += is_bad
                    print(text, end="", flush=True)
                break
            except EOFError:
                child.join()
                bad += 1
                end = f"{name} is not judged: the compiler of triton {triton.__version__} ends its process"
                print(f"{name}  case {count}\n    {end} ({child.exitcode}) for {options.arch}: {said_in(printed)}")
    child.join()
    tried = f"{count} case{'s' * (count != 1)} under {options.seeds} order{'s' * (options.seeds > 1)} of events"
    print(f"triton {triton.__version__}, {options.arch}: {tried}, {bad} bad")
    return 1 if bad or not count or child.exitcode else 0


def judge_each(
    kernel: KernelInterface,
    name: str,
    cases: Callable,
    options: argparse.Namespace,
    printed: IO[bytes],
    begun: int,
    sender: Connection,
) -> None:
    """Send the result of each case after the first `begun`. What a case prints to stderr goes to the file `printed`."""
    stderr = os.dup(2)
    try:
        for number, (grid, args, *expected) in enumerate(cases(), 1):
            if number <= begun:
                continue
            sender.send((number, "", False))
            printed.seek(0)
            printed.truncate()
            os.dup2(printed.fileno(), 2)
            try:
                given = dict(zip(("expected", "tolerance"), expected, strict=False))
                for word, value in vars(options).items():
                    if word not in OWN:
                        given[word] = value
                verdict = check(kernel, grid, args, **given)
            except ValueError as error:
                text = f"{name}  case {number}\n    {error}; {said_in(printed)}".removesuffix("; ")
                is_bad = True
            else:
                text = verdict.under(f"{name}  case {number}")
                is_bad = not verdict
                printed.seek(0)
                os.write(stderr, printed.read())
            finally:
                os.dup2(stderr, 2)
            sender.send((number, f"{text}\n", is_bad))
    finally:
        sender.send(None)


def said_in(printed: IO[bytes]) -> str:
    """The line, in what a compiler printed, that says why it failed."""
    printed.seek(0)
    lines = printed.read().decode(errors="replace").splitlines()
    return why(lines or [""])


def load(file: Path) -> ModuleType:
    """Import a file, which may import modules from its own folder."""
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"the import of {file} failed: {type(error).__name__}: {error}") from error
    return module


def under(version: str, words: list[str]) -> int:
    """Run the same command with another Triton, whose wheel is laid over the installed one."""
    if not re.fullmatch(r"\d+(\.\d+){1,2}", version):
        raise ValueError(f"--triton {version} is no version, as 3.9 or 3.9.0")
    if tuple(map(int, version.split("."))) < (3, 5):
        raise ValueError(
            f"--triton {version}: the machine takes 3.5 and later; tried are 3.5.1, 3.7.1, 3.8.0 and 3.9.0"
        )
    folder = CACHE / f"triton-{version}"
    wanted = f"triton=={version}" + ".*" * (version.count(".") == 1)
    if not folder.is_dir():
        part = folder.with_name(f"{folder.name}-{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(part), wanted]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"--triton {version}: pip finds no {wanted}: {done.stderr.strip().splitlines()[-1]}")
        part.rename(folder)
    option = argparse.ArgumentParser(add_help=False)
    option.add_argument("--triton")
    command = [sys.executable, "-m", __package__, *option.parse_known_args(words)[1]]
    path = os.pathsep.join([str(folder), *sys.path])
    return subprocess.run(command, env=os.environ | dict(PYTHONPATH=path)).returncode
