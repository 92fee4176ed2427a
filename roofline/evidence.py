"""All that a GPU has to tell of this project, step by step: `make gpu`, or `python3 -m roofline.evidence`.

Each step is a command that one can also type, ends within ten minutes, and is not done again once it has ended, unless
it is asked for by its name. A measurement that was cut off goes on where it stopped, tests begin anew. Times of the
steps are estimates for an H100, which no run has confirmed.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from roofline.arguments import Parser, positive
from roofline.measure.machine import gpu_driver
from roofline.measure.metadata import commit_of
from roofline.pytest_plugin import signals
from roofline.store import journal

LIMIT_S = 600.0
"""Of a step."""

GRACE_S = 40.0
"""From Ctrl-C to the kill: a run saves what it measured and draws its report."""

STATE = "evidence.json"
LOCAL = Path("results/local")
PYTEST = (sys.executable, "-m", "pytest")
MEASURE = (*PYTEST, "--benchmark-only", "--ffn-device=cuda")


@dataclass(frozen=True)
class Step:
    """What is run, in parts at once where they disturb no measurement. One that `measures` leaves a run folder, and
    goes on with it; one that has `after` goes on with the folder of another step."""

    name: str
    estimate_s: float
    commands: tuple[tuple[str, ...], ...]
    limit_s: float = LIMIT_S
    measures: bool = False
    after: str = ""


def _tests(*paths: str) -> tuple[str, ...]:
    return (*PYTEST, "-q", *paths)


KERNELS = tuple(f"tests/kernels/test_{name}.py" for name in ("decode", "workspace", "instruments"))

SHAPES = [f"{m},{n},{k}" for n, k in ((6656, 16384), (16384, 6656)) for m in (256, 1024, 4096, 8192)]
"""M, N and K of the layers of `xxl` at tp 8, for the tuning."""

STEPS = (
    Step("doctor", 15, ((sys.executable, "-m", "roofline", "doctor"),)),
    Step("warpgroup", 90, (_tests("tests/kernels/test_matmul.py", "-k", "warpgroup"),), limit_s=300),
    Step(
        "correctness", 420,
        (
            _tests("tests/kernels/test_matmul.py", "-k", "persistent"),
            _tests("tests/kernels/test_matmul.py", "-k", "not warpgroup and not persistent"),
            (sys.executable, "-m", "kernels.machine", "--gpu", "--thorough"),
            _tests("tests/kernels/test_flagged.py", "tests/collectives"),
            _tests(*KERNELS, "tests/benchmarks", "tests/roofline/test_faults.py"),
        ),
    ),
    Step("tune", 240, ((sys.executable, "-m", "kernels.tune", "persistent", "--shapes", *SHAPES),)),
    Step("matmuls", 330, ((*MEASURE, "-k", "test_matmul and not scatter"),), measures=True),
    Step("gathers", 480, ((*MEASURE, "-k", "gather or scatter or prefetch"),), measures=True),
    Step("layers", 100, ((*MEASURE, "-k", "test_ffn"),), measures=True),
    Step("counters", 540, ((*PYTEST, "--benchmark-only", "--ffn-counters=48"),), after="matmuls"),
)  # fmt: skip
"""In this order: what may hang first and alone, then what is right, then what is fast."""


@dataclass
class Evidence:
    """The steps of one `folder`: which have ended, with which exit code, and where their runs lie."""

    folder: Path
    ended: dict[str, int] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> "Evidence":
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / STATE
        return cls(folder, **json.loads(path.read_text(encoding="utf-8"))) if path.exists() else cls(folder)

    def save(self) -> None:
        text = json.dumps({"ended": self.ended, "runs": self.runs}, indent=1)
        (self.folder / STATE).write_text(text + "\n", encoding="utf-8")

    def left(self, steps: Iterable[Step]) -> list[Step]:
        return [step for step in steps if step.name not in self.ended]

    def commands(self, step: Step) -> list[list[str]]:
        """Of `step`, which goes on with a run where there is one."""
        run = self.runs.get(step.after or step.name)
        if step.after:
            return [[*command, f"--ffn-resume={run or 'RUN'}"] for command in step.commands]
        if step.measures and run:
            return [[*PYTEST, "--benchmark-only", f"--ffn-resume={run}"]]
        more = [f"--ffn-results={self.folder}"] if step.measures else []
        return [[*command, *more] for command in step.commands]

    def run(self, step: Step, limit_s: float) -> int | None:
        """The exit code of `step`, the worst of its parts; None where it was cut off after `limit_s`."""
        before, code = set(self.folder.iterdir()), None
        try:
            code = _run(self.commands(step), limit_s)
        finally:  # Ctrl-C, too
            made = sorted(path for path in set(self.folder.iterdir()) - before if journal.find(path))
            if step.measures and made:
                self.runs[step.name] = str(made[-1])
            if code is not None:
                self.ended[step.name] = code
            self.save()
        return code


def _run(commands: list[list[str]], limit_s: float) -> int | None:
    """Run `commands` at once, interrupt what is not over after `limit_s`, and kill what does not end by that."""
    deadline = time.monotonic() + limit_s
    processes = [subprocess.Popen(command, start_new_session=True) for command in commands]
    cut_off = False
    try:
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for number, patience_s in ((signal.SIGINT, GRACE_S), (signal.SIGKILL, None)):
            for process in (alive := [process for process in processes if process.poll() is None]):
                cut_off = True
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            for process in alive:
                with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # a second one: at once, then
                    process.wait(patience_s)
    return None if cut_off else max((process.returncode for process in processes), key=abs)


def collect(evidence: Evidence, steps: list[Step], budget_s: float, say=print) -> int:
    """Run what is left of `steps` in `budget_s`; returns 0 where all have ended well, 1 where one has failed, 3 where
    some are left."""
    deadline = time.monotonic() + budget_s
    left = evidence.left(steps)
    if left:
        say(f"{len(left)} steps, about {sum(step.estimate_s for step in left) / 60:.0f} min by estimate")
    for step in left:
        rest_s = deadline - time.monotonic()
        if rest_s < step.estimate_s:
            say(f"{step.name}: about {step.estimate_s:.0f} s by estimate, of the budget {rest_s:.0f} s are left")
            break
        say(f"{step.name}: about {step.estimate_s:.0f} s by estimate, {step.limit_s:.0f} s at most")
        began = time.monotonic()
        code = evidence.run(step, min(step.limit_s, rest_s))
        ended = "cut off" if code is None else f"exit code {code}"
        say(f"{step.name}: {ended}, after {time.monotonic() - began:.0f} s")
        if step.name == "doctor" and code:
            say("mend what it says and add the word doctor, or go on without: give this command again")
            break
    if "tune" in evidence.ended and commit_of(Path.cwd()).endswith("+dirty"):
        say("commit kernels/configs: what was measured by a table that is not committed cannot become a reference")
    if left := evidence.left(steps):
        say(f"left: {', '.join(step.name for step in left)}; give this command again")
        return 3
    return int(any(evidence.ended[step.name] for step in steps))


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    names = {step.name: step for step in STEPS}
    parser = Parser(prog="python3 -m roofline.evidence", description="All that a GPU has to tell of this project.")
    parser.add_argument(
        "--budget", type=positive, default=float("inf"), metavar="SECONDS", help="for all (default: none)"
    )
    parser.add_argument("--folder", type=Path, default=LOCAL, metavar="DIR", help=f"of the runs (default: {LOCAL})")
    parser.add_argument("--list", action="store_true", help="print the commands that are left, and run none")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(names)} (default: all)")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.steps if name not in names]:
        parser.error(f"no step {unknown[0]!r}: known are {', '.join(names)}")
    steps, evidence = [names[name] for name in asked.steps or names], Evidence.load(asked.folder)
    for name in asked.steps:
        evidence.ended.pop(name, None)
    if not asked.list and gpu_driver() is None:
        parser.error("this machine has no NVIDIA GPU; make bench measures the CPU, --list prints the commands")
    if not asked.list:
        signals.install()  # those of a batch system end what was begun, too
        return collect(evidence, steps, asked.budget)
    for step in evidence.left(steps):
        for command in evidence.commands(step):
            print(f"timeout {step.limit_s:.0f} {shlex.join(['python3', *command[1:]])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
