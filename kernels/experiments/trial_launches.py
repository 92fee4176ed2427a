"""What the compiler made of the launches of a trial, each as it is made on a card, without the card.

A launch depends on the chip's number of SMs: whether tiles are left to share, and how many programs walk them. So each
is made for a chip that is not there (kernels/bench/absent_gpu.py), compiled, and inspected. Triton's cache then holds
the very binaries that run on the card, and a list of what is sound can go along with them (`results/pack.py`).
"""

import json
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch
import triton

from kernels.contract import KernelLaunch, example_operands
from kernels.inspect import Finding, Job, inspect
from kernels.machine.compile import compile_for
from kernels.registry import CONTENDERS
from kernels.tiles import DTYPES
from roofline.operations.matmul import Matmul
from roofline.store.source_files import hash_of_files
from roofline.theory.chips import Chip

ROOT = Path(__file__).parents[2]

finding_of: dict[str, Finding] = {}
"""{key of a binary: what it was found to be} in this process."""


def inspect_launches(todo: Iterable[tuple[Job, Matmul]], chip: Chip) -> list[Finding]:
    """What the launch of each job on its case, on `chip`, compiles to."""
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=stand_in, initargs=(chip,)) as pool:
        return list(pool.map(inspect_launch, *zip(*todo, strict=True)))


def stand_in(chip: Chip) -> None:
    """Stand in for `chip` in this process."""
    from kernels.bench import absent_gpu  # it imports torch's compiler, which only these processes need

    absent_gpu.install(chip, absent_gpu.Launches())


def launch_of(job: Job, case: Matmul) -> KernelLaunch:
    """The launch of `job` on a case, in a process that stands in for a chip. Raises TypeError and ValueError where the
    configuration does not fit the kernel."""
    with torch.device("cuda"):
        operands = example_operands(DTYPES[job.dtype], case.m, case.n, case.k)
    return CONTENDERS[job.kernel].load().prepare(*operands, job.config)


def inspect_launch(job: Job, case: Matmul) -> Finding:
    """Compile and inspect the launch of `job` on a case, in a process that stands in for a chip. Launches of one binary
    are inspected once."""
    try:
        launch = launch_of(job, case)
    except (TypeError, ValueError) as error:
        return Finding(job, None, [str(error)])
    try:
        key = compile_for(job.target, launch).hash
    except Exception:  # of Triton: it becomes a finding
        return inspect(job, launch)
    if key not in finding_of:
        finding_of[key] = inspect(job, launch)
    return replace(finding_of[key], job=job)


class Inspected:
    """A list of jobs that were inspected before, elsewhere: {job: its instruction} of sound ones, {job: its problem} of
    others. It holds for one Triton and the source files as they are."""

    def __init__(self, path: Path | None):
        self.path = path
        self.source = {"triton": triton.__version__, "files": hash_of_files(ROOT)}
        held = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}
        self.is_stale = bool(held) and not self.source.items() <= held.items()
        if self.is_stale:
            held = {}
        self.sound: dict[str, str] = held.get("sound", {})
        self.problems: dict[str, str] = held.get("problems", {})

    def __contains__(self, job: Job) -> bool:
        return repr(job) in self.sound or repr(job) in self.problems

    def add(self, finding: Finding) -> None:
        """Note what a job compiles to on one case. A problem on any case counts."""
        if finding.problems:
            self.problems[repr(finding.job)] = finding.problems[0]
        elif finding.cubin:
            self.sound[repr(finding.job)] = finding.cubin.instruction

    def write(self) -> None:
        """Write the list, if it has a file."""
        held = self.source | {"sound": self.sound, "problems": self.problems}
        if self.path:
            self.path.write_text(json.dumps(held, indent=1), encoding="utf-8")
