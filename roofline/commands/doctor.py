"""`roofline doctor`: which device a benchmark run would measure here, and what the machine lacks for it.

`CHECKS` is the table: a question, what a lack costs and the way out. A question asks by the calls that a run makes, so
that it fails as the run would. Nothing is measured. What only some runs take, as links between GPUs or counters, the
run says, and whether it can write its folder; what else is on the card, and whether its clock was held down, its rows.
"""

import os
import shutil
import tempfile
import tomllib
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from roofline.host import machine
from roofline.host.device_errors import reason

ROOT = Path(__file__).parents[2]

HEADERS = "#include <Python.h>\nPyMODINIT_FUNC PyInit_roofline_doctor(void) { return 0; }\n"
"""What Triton asks of a compiler for each kernel that it loads: a module of C for Python."""


class Check(NamedTuple):
    """A row of `CHECKS`. `question` returns what is there, in words, or raises ValueError for what is lacking."""

    subject: str
    question: Callable[[], str]
    costs: str
    way_out: str = ""
    device: str = ""
    """The only device that is asked it. Empty of what is asked before the device is known."""


def run(options) -> int:
    """Print what is found; returns 0 where the default run would be whole, else 1."""
    lacking = sum(map(is_lacking, CHECKS[:2]))
    if not lacking:  # else all others would fail for the same reason
        measured = machine.choose_device("auto", timed=True)
        lacking = sum(is_lacking(check) for check in CHECKS[2:] if check.device == measured)
    print(f"the default run would {'not ' if lacking else ''}be whole here")
    return int(lacking > 0)


def is_lacking(check: Check) -> bool:
    """Ask a question, and print the answer: what it raises is lacking, with what that costs and the way out of it."""
    remedy: list[str] = []
    try:
        text = check.question()
    except Exception as error:
        text = str(error) if isinstance(error, ValueError) else reason(error)
        remedy = [check.costs, machine.way_out(text) or check.way_out]
    print(f"{'lacking' if remedy else 'ok':<8} {check.subject:<12} {text}")
    for line in remedy:
        if line not in text:
            print(f"{'':<21} {line}")
    return bool(remedy)


def packages() -> str:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]  # which need not be installed
    wrong = []
    for package in map(Requirement, project["dependencies"] + project["optional-dependencies"]["bench"]):
        if package.marker and not package.marker.evaluate():
            continue
        try:
            version = metadata.version(package.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"no {package.name}{package.specifier}")
            continue
        if not package.specifier.contains(version, prereleases=True):
            wrong.append(f"{package.name} {version}, asked for is {package.specifier}")
    if wrong:
        raise ValueError(", ".join(wrong))
    return f"torch {metadata.version('torch')}, pytest-benchmark {metadata.version('pytest-benchmark')}"


def device() -> str:
    name = machine.choose_device("auto", timed=True)
    if name == "cuda" and (problem := machine.unusable_gpu()):
        raise ValueError(problem)
    fields = machine.describe(name)
    if name == "cpu":
        return f"no NVIDIA GPU; a run measures the CPU, {fields['chip']}"
    import torch

    torch.ones(1, device="cuda").add_(1).item()
    text = (
        f"{fields['chip']}, {fields['sms']} SMs, compute capability {fields['compute_capability']}; driver "
        f"{fields['driver']}, torch for CUDA {fields['cuda']}"
    )
    if (generation := int(fields["compute_capability"].partition(".")[0])) < 8:
        raise ValueError(f"{text}; below capability 8.0 there is no bf16: take an A100 or newer")
    return text if generation == 9 else f"{text}; what is made for Hopper is left out, and its rows say so"


def compiler() -> str:
    from triton import knobs
    from triton.runtime.build import compile_module_from_src

    Path(knobs.cache.dir).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=knobs.cache.dir) as folder, knobs.cache.scope():
        knobs.cache.dir = folder  # else it may answer from what was compiled before
        with suppress(ImportError, SystemError):  # an empty module loads no further: compiling it is what counts
            compile_module_from_src(HEADERS, "roofline_doctor")
    return f"{os.environ.get('CC') or shutil.which('gcc') or shutil.which('clang')}, Python.h; {knobs.cache.dir}"


def cores() -> str:
    if (count := machine.cores()) < 2:
        raise ValueError("one core")
    return f"{count}; an emulated link takes one of them"


CHECKS = (
    Check(
        "packages",
        packages,
        "nothing can be relied upon without them",
        'pip install -e ".[bench]", or make bench, which sets up an environment of its own',
    ),
    Check("device", device, "nothing is measured"),
    Check(
        "compiler",
        compiler,
        "our kernels, the gathers and the SM clock are left out",
        "install a C compiler and Python's headers (gcc, python3-dev), and set TRITON_CACHE_DIR to a folder that can "
        "be written",
        device="cuda",
    ),
    Check(
        "cores",
        cores,
        "an emulated link takes the core of the matmul, and nothing overlaps",
        "give it two, or leave the gathers out: tests/benchmarks/test_matmul.py",
        device="cpu",
    ),
)
"""In the order in which one mends them. The first two are asked first: all else fails without them."""
