"""Whole functions: every launch of Triton inside of a block goes to `check`, and the function goes on with its results.

`with launches(): f(x)` takes kernels under @triton.jit and @gluon.jit, autotuned ones in the configuration that Triton
itself would begin with, and Inductor's. Tensors lie on the CPU (`pretend` lets code ask for `cuda`). A launch begins
with what the ones before it left.
"""

import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from .arguments import several, tensors_of
from .compile import Call, compile_for
from .gpus import RESERVED, SMS, capability
from .pretend import OnCpu, begin, is_hosts, patches
from .report import page
from .trial import Trial
from .verdict import CONSEQUENCE, Verdict, check

FOLDERS = tuple(f"{Path(module.__file__).parent}{os.sep}" for module in (triton, torch))
LIBRARIES = *FOLDERS, __file__, begin.__code__.co_filename
"""How the names of files begin whose frames are no user's."""
FEW_SMS = 4
"""Multiprocessors that the GPU says it has: few, since a persistent kernel starts as many programs."""


class LaunchesError(AssertionError):
    """Some launch is not exact."""


@dataclass(frozen=True)
class Launch:
    """A verdict on one launch, the line that launches it, and the kernel's file."""

    kernel: str
    file: str
    line: int
    verdict: Verdict
    source: str

    @property
    def place(self) -> tuple[str, int]:
        """The first file and line that the verdict names; where it names none, those of the launch."""
        for name, line in re.findall(r"(\w+\.py):(\d+)", self.verdict.text):
            for file in [self.source, *(getattr(module, "__file__", None) for module in list(sys.modules.values()))]:
                if file and Path(file).name == name:
                    return file, int(line)
        return self.file, self.line

    def __str__(self) -> str:
        return self.verdict.under(f"{self.kernel}  {Path(self.file).name}:{self.line}")


class launches:  # noqa: N801 (it is used as a function)
    """Judge every launch inside of a `with` block, whose end raises LaunchesError where one is not exact.

    `seeds`, `seed`, `slots`, `budget`, `tolerance`, `strict`, `accept` and `all_programs` are those of `check`. `sms`:
    multiprocessors that the GPU says it has. `empty`: names of arguments that are as torch.empty makes them, in all
    kernels that have one of this name. `raises=False`: look at `verdicts`, `bad` and `exit_code` instead. A launch goes
    to the innermost block of its thread, or to the latest block where its thread has none. A launch with a fault leaves
    what it had done until then, and later verdicts may be consequences of that.
    """

    def __init__(
        self,
        *,
        arch: str = "sm_90a",
        sms: int = FEW_SMS,
        raises: bool = True,
        empty: Sequence[str] = (),
        **options: Any,
    ):
        self.arch = arch
        self.target = capability(arch)
        self.sms = sms
        self.raises = raises
        self.options = options
        self.empty = several(empty)
        self.verdicts: list[Launch] = []
        self.row: list[Trial | Tensor] = []  # launches that the next one may overlap
        self.others_seen = OnCpu.others
        self.stack = ExitStack()

    def __enter__(self) -> "launches":
        if triton.knobs.runtime.interpret:
            raise ValueError("TRITON_INTERPRET is set, so nothing is compiled; unset it before the kernel is imported")
        from torch._inductor import config  # which takes a second

        self.thread = threading.get_ident()
        PATCHED.enter(self)
        self.stack.callback(PATCHED.leave, self)
        self.stack.enter_context(config.patch(cpu_backend="triton", force_disable_caches=True, compile_threads=1))
        self.stack.enter_context(OnCpu())
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        self.stack.close()
        if self.raises and self.bad and kind is None:
            raise LaunchesError(str(self))

    @property
    def bad(self) -> list[Launch]:
        return [launch for launch in self.verdicts if not launch.verdict]

    @property
    def exit_code(self) -> int:
        return int(bool(self.bad))

    def judge(self, kernel: JITFunction, grid: Any, args: dict[str, Any]) -> Any:
        """Judge one launch, and return what Triton's own launch returns."""
        file, line = launched_at()
        for name, tensor in tensors_of(args):
            if is_hosts(tensor):
                place = f"{file}:{line}: {kernel.__name__}"
                raise ValueError(f"{place} is given {name}, which is on the host: {name}.cuda() is on the GPU")
        if torch._C._current_graph_task_id() >= 0:  # autograd's own kernels may be between, which nobody sees
            self.row.clear()
        elif self.others_seen != OnCpu.others:
            self.row[:] = OnCpu.written
        begin()  # for other blocks
        self.others_seen = OnCpu.others
        names = [name for name in self.empty if name in kernel.arg_names]
        verdict = check(kernel, grid, args, arch=self.arch, empty=names, row=self.row, **self.options)
        accepted = [launch.kernel for launch in self.verdicts if launch.verdict.accepted]
        if accepted and not verdict:
            behind = "behind", f"an accepted race of {accepted[0]}, launched before: {CONSEQUENCE}"
            verdict = replace(verdict, text=page(verdict.text, behind))
        self.verdicts.append(Launch(kernel.__name__, file, line, verdict, kernel.fn.__code__.co_filename))
        return compile_for(self.target, Call(kernel, (1,), args))  # cached in memory by Triton by now

    def __str__(self) -> str:
        kinds = Counter(launch.verdict.kind for launch in self.verdicts)
        kernels = len({launch.kernel for launch in self.verdicts})
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "nothing was launched"
        title = f"triton {triton.__version__}, {self.arch}: {len(self.verdicts)} launches, {kernels} kernels"
        return "\n".join([*map(str, self.bad), f"{title}: {counts}"])


def launched_at() -> tuple[str, int]:
    """The file and line of a launch: those of the innermost frame that is not torch's, Triton's, or ours."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(LIBRARIES):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


class Patched:
    """The patches of Triton and torch that hold while there is a block."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.blocks: list[launches] = []
        self.stack = ExitStack()
        self.tuners: dict[Autotuner, dict] = {}  # their attributes before

    def enter(self, block: launches) -> None:
        with self.lock:
            if not self.blocks:
                self.begin(block)
            elif block.arch != self.blocks[0].arch:
                raise ValueError(f"arch={block.arch} inside of a block for {self.blocks[0].arch}")
            self.blocks.append(block)

    def leave(self, block: launches) -> None:
        with self.lock:
            self.blocks.remove(block)
            if not self.blocks:
                self.stack.close()
                for tuner, before in self.tuners.items():
                    vars(tuner).clear()
                    vars(tuner).update(before)
                self.tuners.clear()

    def begin(self, block: launches) -> None:
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        self.stack.enter_context(triton.knobs.compilation.scope())
        triton.knobs.compilation.always_compile = True
        for stand_in in patches(block.target, SMS[block.target].shared_bytes - RESERVED, block.sms):
            self.stack.enter_context(stand_in)
        jit, tune = JITFunction.run, Autotuner.run

        def run(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            if warmup:
                return jit(kernel, *args, grid=grid, warmup=True, **kwargs)
            with self.lock, torch._C.DisableTorchFunction():
                return self.block().judge(kernel, grid, dict(zip(kernel.arg_names, args, strict=False)) | kwargs)

        def run_tuned(tuner: Autotuner, *args: Any, **kwargs: Any) -> Any:
            with self.lock:
                if tuner not in self.tuners:
                    self.tuners[tuner] = dict(vars(tuner))
                    tuner.cache = {}
            return tune(tuner, *args, **kwargs)

        self.stack.enter_context(patch.object(JITFunction, "run", run))
        # None of its results are on disk, and Inductor's kernels are compiled as they are launched.
        tuned = dict(run=run_tuned, _bench=fits, check_disk_cache=lambda tuner, key, configs, bench: bool(bench()))
        inductor = dict(run=run_inductor, precompile=lambda tuner, **options: None)
        self.stack.enter_context(patch.multiple(Autotuner, **tuned))
        self.stack.enter_context(patch.multiple(CachingAutotuner, **inductor))

    def block(self) -> launches:
        """The block that a launch of this thread goes to."""
        here = threading.get_ident()
        return next((block for block in reversed(self.blocks) if block.thread == here), self.blocks[-1])


PATCHED = Patched()


def fits(tuner: Autotuner, *args: Any, config: triton.Config, **kwargs: Any) -> list[float]:
    """A stand-in for a measured time: 0 for the first configuration that compiles and fits, which Triton then takes."""
    misfit = [float("inf")] * 3
    if vars(tuner).get("fitting") is tuner.nargs:  # an earlier one does
        return misfit
    try:
        made = tuner.fn.run(*args, **kwargs | config.all_kwargs() | dict(warmup=True))
    except Exception:
        return misfit
    properties = triton.runtime.driver.active.utils.get_device_properties(0)
    if made.metadata.shared > properties["max_shared_mem"]:
        return misfit
    tuner.fitting = tuner.nargs
    return [0.0] * 3


def run_inductor(tuner: Any, *args: Any, stream: Any = None, benchmark_run: bool = False, **kwargs: Any) -> None:
    """Launch Inductor's kernel in its first configuration."""
    config = tuner.configs[0]
    args, grid = tuner._interpret_args_grid(args, config)
    tuner.fn[grid](*args, **kwargs, **config.all_kwargs())
