"""Contenders; and a matmul of one's own as one, `FILE::NAME` or `module:NAME`, with what its function may say
of itself.

The function is called as `f(x, w, out=out)`: it writes x[M, K] @ w[N, K].T to out[M, N] and returns `out`. In fp8 it is
called as `f(x, w, out=out, scales=scales)`, if it takes scales. Needs no torch.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from roofline.store.conditions import short as short
from roofline.theory.words import nearest

DEVICES = ("cpu", "cuda")
KINDS = ("vendor", "library", "triton", "user")

FIRST_CALL_S = {"user": 300.0, "compiled": 900.0, "tuned": 1800.0}
"""Seconds of a first call by its kind, with all it compiles, where that may take longer than usual
(`supervise.limits.LIMIT_S`). --ffn-first-call-seconds says another.

A user's may autotune, or import a compiler. `torch.compile` takes
minutes for 36 layers forward and backward. Inductor also times what it compiles for each shape, on a busy host for a
multiple of that."""


def by_library(name: str) -> Callable[..., str]:
    """A `describe` that says the version of a library."""
    return lambda *inputs: f"{name} {import_module(name).__version__}"


BY_TORCH = by_library("torch")
ENDS = ": what ends the process, as argparse may, belongs under if __name__ == '__main__'"
"""Stands behind the error of an import that does."""


@dataclass(frozen=True)
class Contender:
    """One way to run an operation."""

    name: str
    path: str | Callable
    """`package.module:name` of what is called, or the function itself, as all that may be a path. What it is called
    with is the operation's."""
    _: KW_ONLY
    kind: str = "library"
    """"vendor", "library", "triton" (ours: plain pytest checks them on a CPU, too, in Triton's interpreter) or
    "user"."""
    devices: Sequence[str] = DEVICES
    """Where it is timed."""
    first_call: str = ""
    """The entry of `FIRST_CALL_S` that limits a first call, with all it compiles, where it may take longer than
    usual."""
    require: str | Callable = lambda *inputs: None
    """Raises TypeError or ValueError for what it cannot take here."""
    describe: str | Callable[..., str] = BY_TORCH
    """Its configuration for these inputs, in words."""

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"contender {self.name}: kind {self.kind!r} is not known: take one of {', '.join(KINDS)}")

    def load(self) -> Any:
        """The function that is called, imported."""
        return loaded(self.path)

    def why_not(self, *inputs) -> str | None:
        """The error that `require` raises, in words; None if it passes."""
        return reason(loaded(self.require), *inputs)

    def config(self, *inputs) -> str:
        return loaded(self.describe)(*inputs)


def loaded(place: str | Callable) -> Any:
    """What `package.module:name` or `FILE::name` names; what is no text is it itself."""
    if not isinstance(place, str):
        return place
    file = _file(place)
    return getattr(module_of(file), place.rpartition(":")[2]) if file else resolve_name(place)


def reason(require: Callable[..., Any], *inputs: Any) -> str | None:
    """The message of the TypeError or ValueError that `require(*inputs)` raises; None when it passes."""
    try:
        require(*inputs)
    except (TypeError, ValueError) as error:
        return str(error)
    return None


class Planner:
    """Lists the contenders of an operation by the `options` of a run, before anything imports torch.

    They are those of its declaration, or a subclass lists them by `choices` and `names` of its own.
    """

    def __init__(self, options, contenders: Iterable[Contender] = ()):
        self.options = options
        self._contenders = contenders

    def choices(self) -> list[str]:
        """The names that --ffn-contenders may have."""
        return [contender.name for contender in self._contenders]

    def timed_names(self) -> list[str]:
        """Those of them that are timed on the device."""
        return [contender.name for contender in self._contenders if self.options.device in contender.devices]

    def names(self, case) -> list[str]:
        """The contenders of `case` to run: those that were asked for, else its default ones. Where nothing is timed,
        these are without those that compile for long, and with ours, in Triton's interpreter."""
        if chosen := self.options.contenders:
            choices = self.choices()
            return [name for name in chosen if name in choices]
        if self.options.timed:
            return self.timed_names()
        names = []
        ours = []
        for contender in self._contenders:
            if contender.kind == "triton":
                ours.append(contender.name)
            elif self.options.device in contender.devices and not contender.first_call:
                names.append(contender.name)
        return names + ours


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Properties of a user's contender. It decorates the function, which has it as `declaration`. Contenders of
    the suite are declared in kernels/registry.toml.
    """

    label: str = ""
    """Stands before its file in the column `config`."""
    tolerance: float | None = None
    """Largest relative Frobenius error that is right, if it is not that of the dtype."""
    supports: Callable[[int, int, int, str], bool] | None = None
    """(m, n, k, dtype) -> whether it takes that shape. Where it does not, the case is skipped."""
    devices: Collection[str] = DEVICES
    """Where it is timed: `cpu`, `cuda`, or both."""

    def __call__(self, function: Any) -> Any:
        function.declaration = self
        return function

    def refusal(self, m: int, n: int, k: int, dtype: str, device: str) -> str:
        """Why it does not take a shape on `device`, as it is declared; empty if it does."""
        if device not in self.devices:
            return f"is declared for {self.devices}, x is on {device}"
        if self.supports and not self.supports(m, n, k, dtype):
            return f"is declared not to support m={m}, n={n}, k={k} in {dtype}"
        return ""


contender = Declaration
"""`@roofline.contender(label="64 x 64 tiles")` before a function."""


def parse(text: str) -> str:
    """Resolve the path of `FILE::NAME`, with `~` for the home folder. `module:NAME` stays as it is.

    Raises ValueError for anything else, and where there is no such file.
    """
    if not re.fullmatch(r"(.+::|\w+(\.\w+)*:)[^\W\d]\w*", text):
        raise ValueError("it is written FILE::NAME or module:NAME, as mine.py::matmul")
    file, separator, name = text.rpartition("::")
    if not separator:
        return text
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise ValueError(f"there is no file {file}; it is looked for from the folder you are in")
    if not spec_from_file_location(path.stem, path):
        raise ValueError(f"{file} is no file that Python imports; put the function into one that ends in .py")
    return f"{anonymous(path)}::{name}"


def anonymous(path: Path) -> str:
    """Write `~` for the home folder, whose name may be its owner's."""
    home = Path.home().resolve()
    return str("~" / path.relative_to(home) if path.is_relative_to(home) else path)


def names(places: Collection[str], taken: Collection[str] = ()) -> dict[str, str]:
    """Name the contenders of `places`: NAME, or FILE_NAME where NAME is another's too or `taken`.

    >>> names(["~/a.py::matmul", "~/b.py::matmul", "pkg.fast:mm"])
    {'a_matmul': '~/a.py::matmul', 'b_matmul': '~/b.py::matmul', 'mm': 'pkg.fast:mm'}
    >>> names(["~/a.py::mm", "~/b/a.py::mm"])
    {'a_mm': '~/a.py::mm', 'a_mm_2': '~/b/a.py::mm'}
    """
    named: dict[str, str] = {}
    times = Counter(place.rpartition(":")[2] for place in places)
    for place in places:
        source, _, word = place.rpartition(":")
        if times[word] > 1 or word in taken:
            stem = Path(source).stem if source.endswith(":") else source.rpartition(".")[2]
            word = re.sub(r"\W", "_", f"{stem}_{word}")
        numbered = word
        numbers = count(2)
        while numbered in named or numbered in taken:
            numbered = f"{word}_{next(numbers)}"
        named[numbered] = place
    return named


def _file(place: str) -> Path | None:
    """The file of `FILE::NAME`. A module has none."""
    file, separator, _ = place.rpartition("::")
    return Path(file).expanduser() if separator else None


def version(place: str) -> str:
    """The first digits of the hash of a contender's file. A module has none."""
    file = _file(place)
    return sha256(file.read_bytes()).hexdigest()[:8] if file else ""


@cache
def load(place: str, wanted: str = "") -> Callable:
    """Import the function that `parse` named.

    Raises ValueError, in one line, where its file is not of the `wanted` version, where the import fails, where there
    is no such name in it, and where that is nothing that can be called as f(x, w, out=out).
    """
    if wanted and version(place) != wanted:
        raise ValueError(f"{place}: the file is not what it was when the run began; begin a new run")
    module = _module(place)
    name = place.rpartition(":")[2]
    function = getattr(module, name, None)
    if type(function).__module__.startswith("triton."):
        raise ValueError(f"{place}: {name} is a kernel; name the function f(x, w, out=None) that launches it")
    if not callable(function):
        functions = []
        for word, value in vars(module).items():
            if inspect.isfunction(value) and word[0] != "_":
                functions.append(word)
        problem = "is nothing that can be called" if hasattr(module, name) else "is not in it"
        those = f"{nearest(name, functions)}its functions are {', '.join(functions) or 'none'}"
        raise ValueError(f"{place}: {name} {problem}; {those}")
    if problem := _signature_problem(function, out="out"):
        form = f"{name}(x, w, out=out): {problem}; write def {name}(x, w, out=None), which fills and returns out"
        raise ValueError(f"{place}: it takes {inspect.signature(function)}, and is called as {form}")
    return function


def _module(place: str) -> ModuleType:
    """Import the module of a place. Raises ValueError that names the line which failed."""
    file = _file(place)
    try:
        return module_of(file) if file else import_module(place.partition(":")[0])
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        where = ""
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == str(file):
                where = f" in line {frame.lineno}"
        if isinstance(error, SyntaxError):
            where = f" in line {error.lineno}"
        last = traceback.format_exception_only(error)[-1].strip()
        if isinstance(error, SystemExit):
            last += ENDS
        if isinstance(error, ImportError):
            folders = [file.parent] if file else map(Path, sys.path)
            last += _clash(error.name or "", folders)
        raise ValueError(f"{place}: its import failed{where}: {last}") from error


def _clash(name: str, folders: Iterable[Path]) -> str:
    """Why a module was not found in these folders, where a package that is in use has its name; else empty."""
    package = name.partition(".")[0]
    for ours in getattr(sys.modules.get(package), "__path__", []):
        for folder in folders:
            if (theirs := folder / package).is_dir() and not theirs.samefile(ours):
                text = f"; {package} is {ours} here, and not {theirs.absolute()}"
                return f"{text}: rename that, or name a file in it by its path, FILE::NAME"
    return ""


def _signature_problem(function: Callable, **keywords: str) -> str:
    """Why `function` cannot be called as f(x, w, **keywords); empty if it can, or is in C, of which nobody knows."""
    try:
        inspect.signature(function).bind("x", "w", **keywords)
    except TypeError as error:
        return str(error)
    except ValueError:
        pass
    return ""


def takes_scales(function: Callable) -> bool:
    """A contender's function may take scales. One in C does, as far as anybody knows."""
    return not _signature_problem(function, out="out", scales="scales")


def module_of(file: Path) -> ModuleType:
    """Import `file` under a name of its own, since another of the same name may be there.

    Modules that lie beside it are its own, too: a file of another folder gets others of the same names. Where Python
    looks in that folder anyway, they are everybody's.
    """
    name = f"{file.stem}_{sha256(os.fsencode(file)).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    before = {*sys.modules}
    folder = str(file.parent)
    is_apart = file.parent not in [Path(entry).absolute() for entry in sys.path]
    spec: Any = spec_from_file_location(name, file)
    module = sys.modules[name] = module_from_spec(spec)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(folder)
        for other in sys.modules.keys() - before - {name} if is_apart else ():
            place = file.parent / other.partition(".")[0]
            source = getattr(sys.modules[other], "__file__", None) or ""
            if source.startswith((f"{place}.py", f"{place}{os.sep}")):
                del sys.modules[other]
    return module
