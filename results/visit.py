"""A short visit to a GPU: `make gpu MINUTES=N OUT=FOLDER`. It ends in time, and what it measured is in OUT as it comes.

`STEPS` is all that there is to do, in the order of its worth. A step is begun where its seconds are left, and ended
with all of its children at its limit; none is stopped by another's failure. Measuring steps that follow one another
and share an archive are one run. When a run has ended or was cut off, its folder is an archive in OUT; logs and
conditions are one more. A later visit with the same OUT goes on from these, and tries again what failed, unless it
ended with exit code 2: then it said in its log why it never can. Nothing is drawn: `roofline report` does that at home.
"""

import argparse
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from roofline.host.machine import gpu_driver
from roofline.operations import OPERATIONS, SUITE
from roofline.store import journal
from roofline.supervise import signals

ROOT = Path(__file__).parents[1]
PYTHON, LOGS = "python", "logs"
"""Words of a command that stand for this Python and for the folder of the logs."""
GPU_TESTS = "python -m pytest -q -m gpu"
"""Tests that take a GPU."""
HOPPER = "python -m tests.hopper"
SANITIZER = "compute-sanitizer --error-exitcode 9 --tool"
"""By itself it ends with the exit code of what it checks, whatever it found."""
TRIAL = "python -m kernels.trial --out logs"
MEASURES = "--ffn-device=cuda --ffn-no-report"
"""Options of every run that is begun."""
BEGIN_S = 25
"""What a run takes beside its shapes: imports and the ceilings."""
GRACE_S = 8
"""For a step that measures to save what it has, before it is killed."""
GO_ON_S = BEGIN_S + GRACE_S + 10
"""The least that is worth going on with a run for."""
CLOSE_S = 3
"""For the last archives."""

PICTURE = "test_matmul and not scatter and (cublas or persistent or warpgroup or decode)"
"""The matmuls of README's table: cuBLAS, twice, the best of cuBLASLt's candidates, and ours but `tiled`, a lesson."""
LONG = "(m8192 or tp1 and (m1024 or m4096))"
"""The eight shapes of 1024 rows and more whose calls take 2 ms and more: they also run alone for a while."""
UP, DOWN = "matmul-xxl-up-tp{}-m{}-bf16", "matmul-xxl-down-tp{}-m{}-bf16"
OF_KERNELS = "tests/kernels"
for name in sorted(OPERATIONS.keys() - SUITE):
    OF_KERNELS += f" tests/{OPERATIONS[name].sweep.__module__.split('.')[1]}"
"""The tests of kernels, and of what comes in by the door: `kernels.<folder>.operation`."""
OF_ODD = f"{UP.format(8, 256)} {UP.format(1, 256)} {UP.format(8, 1024)}"
OF_PAIR = " ".join(each.format(tp, 256) for tp in (8, 1) for each in (UP, DOWN))
OF_PAIR += f" {UP.format(8, 1024)} {DOWN.format(8, 1024)}"
"""Shapes of the trials: where whole tiles leave SMs idle, and where a call waits for L2."""
LINKS = "{0}copier32,{0}copier132,{0}engine"
MOVERS = (
    "--ffn-steady=0 --ffn-tp=8,16 --ffn-ranks=8,16 "
    f"--ffn-link-bandwidth={LINKS.format('balance2750')},{LINKS.format('ridge')},pcie"
)
BY_TURNS = (
    "test_all_gather_matmul and (p8-tp8 or tp16) and not (ridge and up-p16) and not (ridge and tp8) and not p16-tp8"
)
"""The ridge at tp 16, the balance at tp 8 and 16 and at 16 ranks, each over the copier, the engine and PCIe."""
BESIDE = "test_all_gather_matmul and up-p8 and serial and not ridge"
"""Each link alone, and a matmul beside it, at tp 8 and 16."""
ALONE = "test_matmul and not scatter"
RIVALS = "--ffn-steady=0 --ffn-contenders=quack,quack_tuned,deep_gemm,decode,persistent,warpgroup"
FP8 = "--ffn-steady=0 --ffn-dtype=fp8,fp8_block"


@dataclass(frozen=True)
class Step:
    """A step of a visit. It takes about `seconds`, and is ended at `limit`."""

    name: str
    seconds: int
    limit: int
    command: str = "python -m pytest --benchmark-only"
    selects: str = ""
    """What a step that measures takes of the benchmarks, for pytest's -k."""
    options: str = "--ffn-steady=0"
    """Further options of its run: without these, long kernels also run alone for a while."""
    archive: str = ""
    """Where its run goes."""
    must: bool = False
    """Whether a visit keeps time for it, which others do not get."""
    needs: str = "kernel"
    """The step that has to end with exit code 0 before it."""
    counts: str = ""
    """The step into whose run it counts."""
    triton: str = ""
    """The first release of Triton that can compile what it takes."""
    package: str = ""
    """A package without which it has nothing to do."""

    @property
    def grace_s(self) -> float:
        """What of its limit is kept for it to save what it measured."""
        return GRACE_S if self.selects or self.counts else 0


STEPS = [
    Step("doctor", 8, 40, "python -m roofline doctor", needs=""),
    Step("kernel", 12, 40, "python -m results.first_call kernel", must=True, needs=""),
    Step("compile", 20, 40, "python -m results.first_call compile"),
    Step("matmuls", 195, 300, selects=PICTURE, archive="default", must=True),
    Step("gathers", 140, 200, selects="test_all_gather_matmul and not pcie", archive="default", must=True),
    Step("foretold", 4, 30, "python -m results.foretold", archive="default", counts="gathers"),
    Step("links", 25, 60, f"{GPU_TESTS} tests/collectives/test_on_gpu.py -k 'late or signalled' -x", must=True),
    Step("links-beside", 40, 90, selects=BESIDE, options=MOVERS, archive="movers", needs="links"),
    Step("clusters", 20, 40, f"{HOPPER} warpgroup --gpu --only cluster2 --seeds 1", triton="3.8"),
    Step("odd-widths", 20, 40, f"{HOPPER} warpgroup --gpu --only x208x --seeds 1", triton="3.9"),
    Step("trial-odd", 60, 90, f"{TRIAL} odd --minutes 1 --shapes {OF_ODD}", needs="odd-widths", triton="3.9"),
    Step("trial-pair", 90, 120, f"{TRIAL} pair --minutes 1.5 --shapes {OF_PAIR}", needs="clusters", triton="3.8"),
    Step("matmuls-again", 175, 300, selects=f"{PICTURE} and {LONG}", options="", archive="again"),
    Step("ragged", 70, 150, selects=ALONE, options="--ffn-shapes=ragged --ffn-steady=0", archive="rivals"),
    Step("rivals", 200, 400, selects=ALONE, options=RIVALS, archive="rivals", package="quack"),
    Step("scatters", 30, 90, selects="test_matmul_reduce_scatter", archive="links", needs="links"),
    Step("layers", 35, 90, selects="test_ffn and not gated", archive="links", needs="links"),
    Step("prefetches", 50, 90, selects="test_weight_prefetch", archive="links", needs="links"),
    Step("counters", 90, 150, "python -m roofline counters", archive="default", counts="matmuls"),
    Step("fp8", 240, 360, selects=ALONE, options=FP8, archive="again"),
    Step("perturbed", 120, 240, f"{HOPPER} --perturb 1 --only bf16 --seeds 1"),
    Step("memcheck", 40, 120, f"{SANITIZER} memcheck {HOPPER} --gpu --only bf16 --seeds 1"),
    Step("synccheck", 40, 120, f"{SANITIZER} synccheck {HOPPER} --gpu --only bf16 --seeds 1"),
    Step("pcie", 30, 90, selects="test_all_gather_matmul and pcie", archive="links", needs="links"),
    Step("movers", 150, 240, selects=BY_TURNS, options=MOVERS, archive="movers", needs="links"),
    Step("clocks", 25, 60, f"{GPU_TESTS} -s tests/roofline/test_clocks.py"),
    Step("trial", 240, 300, f"{TRIAL} warpgroup --minutes 4"),
    Step("trial-fixed", 60, 120, f"{TRIAL} fixed --minutes 1"),
    Step("kernels", 120, 600, f"{GPU_TESTS} {OF_KERNELS} tests/benchmarks tests/roofline/test_faults.py"),
    Step("machine", 240, 600, f"{HOPPER} --gpu --thorough"),
    Step("arms", 90, 600, f"{GPU_TESTS} tests/collectives"),
]
"""What a visit does, in the order of its worth. Gathers took 133 s on an H100, scatters, layers and prefetches 139 s,
the links 9 s. The others are estimates: matmuls from the 160 s of five contenders, with what `cublaslt_best` and what a
call costs add; checks from the 12 s of half as many cases. Operations that come in by the door bring theirs."""

for operation in OPERATIONS.values():
    for about in operation.visits:
        (place,) = [index for index, step in enumerate(STEPS) if step.name == about["before"]]
        STEPS.insert(place, Step(**{name: value for name, value in about.items() if name != "before"}))

STATE = "steps.json"
OF_DRIVER = "doctor", "kernel", "compile"
"""Steps that are done again under another driver."""
MARK = "ROOFLINE_VISIT"
"""Environment variable by which all children of a visit's step are found, whatever session they lead."""
NOT_FOUND, REFUSED = 127, 2
"""Exit codes: of a command that is not there, and of a run that is refused."""
QUERY = "name,driver_version,temperature.gpu,power.draw,power.limit,clocks.sm,clocks.max.sm,memory.total"


def kill_marked(name: str, value: str) -> None:
    """Kill all processes that were begun with the environment variable `name` at `value`, whatever session they lead.
    Linux only: elsewhere nobody is found."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # one that has ended meanwhile
            if f"{name}={value}".encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


class Visit:
    """Does the steps that fit before `deadline`, a reading of `time.monotonic`. `out` has what earlier visits left.

    Raises ValueError where there is no card, an archive is damaged, or earlier visits were to another card.
    """

    def __init__(self, out: Path, steps: Sequence[Step] = STEPS, deadline: float = math.inf):
        self.out = out
        self.steps = steps
        self.deadline = deadline
        self.chip = smi("name")
        if not (self.chip or gpu_driver()):
            raise ValueError("this machine has no NVIDIA GPU: make bench measures the CPU")
        self._temporary = tempfile.TemporaryDirectory(prefix="roofline-visit-", ignore_cleanup_errors=True)
        self.work = Path(self._temporary.name)
        self.logs = self.work / LOGS
        self.logs.mkdir()
        out.mkdir(parents=True, exist_ok=True)
        for archive in sorted(out.glob("*.tgz")):
            unpack(archive, self.work)
        self.driver = smi("driver_version")
        self.triton = triton_version()
        self.tried: set[str] = set()
        """Steps that this visit has begun."""
        self.codes: dict[str, int | None] = {}
        """The last exit code of each step that was begun; None of one that was cut off."""
        self.spent_s: dict[str, float] = {}
        """What steps that measure had, beside the begin of their run."""
        state = self.logs / STATE
        if state.exists():
            self.go_on_from(json.loads(state.read_text()))

    def go_on_from(self, earlier: dict) -> None:
        """Take over what earlier visits did. Raises ValueError where these were to another card, or measured under
        another Triton: its kernels are others."""
        triton = earlier.get("triton", self.triton)
        if earlier["chip"] != self.chip:
            raise ValueError(f"{self.out} has visits to {earlier['chip']}, and this is {self.chip}: choose another OUT")
        if triton != self.triton:
            raise ValueError(
                f"{self.out} has visits under Triton {triton}, and this is {self.triton}: choose another OUT, or "
                "bring that Triton"
            )
        self.codes = earlier["codes"]
        self.spent_s = earlier.get("spent_s", {})
        if earlier.get("driver") != self.driver:
            self.codes = {name: code for name, code in self.codes.items() if name not in OF_DRIVER}

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic() - CLOSE_S

    @property
    def steps_left(self) -> list[Step]:
        return [step for step in self.steps if step.name not in self.tried and not self.is_over(step)]

    def is_over(self, step: Step) -> bool:
        """Whether nothing is left to do of `step`."""
        if step.selects:
            return bool(self.runs_of(step.name)) and not self.cut_off_run(step)
        code = self.codes.get(step.name)
        return code == 0 or (code == REFUSED and not step.counts)

    def plan(self) -> tuple[list[list[Step]], list[str]]:
        """The steps to begin, in groups that are one command each; and a line for each other step, why not."""
        groups: list[list[Step]] = []
        reasons: list[str] = []
        planned: set[str] = set()
        musts_s = self.seconds_of([step for step in self.steps_left if step.must])
        keeps_musts = musts_s <= self.left_s
        spare_s = self.left_s
        if keeps_musts:
            spare_s -= musts_s
        for step in self.steps_left:
            group = groups[-1] if groups and self.are_one_run(groups[-1][-1], step) else []
            seconds = self.seconds_of([*group, step]) - self.seconds_of(group)
            reason = self.reason_against(step, planned)
            if not reason and not (step.must and keeps_musts):
                goes_on = bool(self.cut_off_run(step)) and (bool(group) or spare_s >= GO_ON_S)
                if seconds > spare_s and not goes_on:
                    reason = f"it takes about {seconds:.0f} s"
                else:
                    spare_s -= seconds
            if reason:
                reasons.append(f"{step.name}: not begun, {reason}")
                continue
            planned.add(step.name)
            if not group:
                groups.append(group)
            group.append(step)
        return groups, reasons

    def seconds_of(self, steps: list[Step]) -> float:
        """About what `steps` take one after another, or still take. Those that measure into one archive are one run,
        which begins once."""
        runs = {step.archive for step in steps if step.selects}
        seconds = BEGIN_S * len(runs)
        for step in steps:
            seconds += max(0, step.seconds - self.spent_s.get(step.name, 0))
        return seconds

    def reason_against(self, step: Step, planned: set[str]) -> str:
        """Why `step` cannot be begun behind those that are `planned`, whatever time there is; empty if it can."""
        if release(self.triton) < release(step.triton):
            return f"it needs Triton {step.triton}, and this is {self.triton}"
        if step.package and not find_spec(step.package):
            return f"{step.package} is not installed"
        before = step.counts or step.needs
        if before in planned:
            return ""
        if before in self.tried and self.codes[before] is None:
            return f"{before} was cut off"
        if step.counts:
            return "" if self.runs_of(before) else f"there is no run of {before}"
        if before not in [other.name for other in self.steps]:
            return ""
        if code := self.codes.get(before):
            return f"{before} ended with exit code {code}"
        return "" if before in self.codes else f"{before} was not begun"

    def last_line(self, title: str) -> str:
        """What the step or group `title` printed last, which is why it failed."""
        log = self.logs / f"{title}.log"
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")

    def are_one_run(self, step: Step, other: Step) -> bool:
        """Whether two steps that follow one another are measured by one pytest."""
        if not (step.selects and other.selects):
            return False
        alike = (step.archive, step.options) == (other.archive, other.options)
        return alike and self.cut_off_run(step) == self.cut_off_run(other)

    def runs_of(self, step: str) -> dict[Path, bool]:
        """{folder: whether there is something to go on with} of the runs of `step` that got as far as their first line,
        the newest first. They lie in a folder that is named for all steps of a run."""
        runs = {}
        for path in sorted(self.work.glob(f"*/*/*/{journal.NAME}"), reverse=True):
            if step in path.parts[-3].split("+"):
                with suppress(ValueError, OSError):
                    runs[path.parent] = is_unfinished(path.parent, path.stat().st_size)
        return runs

    def cut_off_run(self, step: Step) -> Path | None:
        """The run folder that `step` can go on with."""
        for folder, unfinished in self.runs_of(step.name).items():
            return folder if unfinished else None
        return None

    def run(self) -> None:
        """Do all that fits, and say how each step ended. Raises ValueError for a first visit that is too short for what
        it must do."""
        musts = [step for step in self.steps_left if step.must]
        needs_s = self.seconds_of(musts)
        if needs_s > self.left_s and not self.codes:
            names = ", ".join(step.name for step in musts)
            raise ValueError(f"{names} take about {needs_s:.0f} s, and {self.left_s:.0f} s are left: give more MINUTES")
        groups, reasons = self.plan()
        for group in groups:
            print(f"{title_of(group)}: about {self.seconds_of(group):.0f} s")
        print(*reasons, f"in all about {sum(map(self.seconds_of, groups)):.0f} s", sep="\n", flush=True)
        self.note_conditions()
        while groups:
            self.do(groups[0])
            groups, reasons = self.plan()
        for reason in reasons:
            print(reason, flush=True)

    def do(self, group: list[Step]) -> None:
        """Do the steps of `group` by one command, and leave their archive and the logs in `out`."""
        step = group[0]
        title = title_of(group)
        began = time.monotonic()
        cut_off = self.cut_off_run(step)
        names = {each.name for each in group}
        limit = self.limit_of(group)
        command = self.command_of(group, cut_off)
        self.tried |= names
        self.codes |= dict.fromkeys(names)
        try:
            self.codes |= dict.fromkeys(names, self.execute(command, title, limit, step.grace_s))
        finally:
            took_s = time.monotonic() - began
            if self.cut_off_run(step):
                self.note_spent(group, took_s)
            self.save_state()
            self.note_conditions()
            self.pack(step.archive)
            self.pack(LOGS)
        code = self.codes[step.name]
        if code == REFUSED and cut_off:  # as of another driver: it is begun anew
            cut_off.parent.rename(cut_off.parents[1] / f"refused-{title}")
            self.tried -= names
            self.spent_s = {name: spent for name, spent in self.spent_s.items() if name not in names}
        how = f"cut off at {limit:.0f} s" if code is None else f"exit code {code}"
        why = f": {self.last_line(title)}" if code else ""
        print(f"{title}: {how}, after {took_s:.0f} s{why}", flush=True)

    def save_state(self) -> None:
        """Write what a later visit has to know."""
        names = "chip", "driver", "triton", "codes", "spent_s"
        (self.logs / STATE).write_text(json.dumps({name: getattr(self, name) for name in names}))

    def limit_of(self, group: list[Step]) -> float:
        """When `group` is ended: at its limits, or when time is up. Steps of every visit keep their time, unless it
        then lacks its own."""
        others = [step for step in self.steps_left if step.must and step not in group]
        left_s = self.left_s - self.seconds_of(others)
        if others:  # to end this one, and pack its archive
            left_s -= CLOSE_S
        if left_s < self.seconds_of(group):
            left_s = self.left_s
        return min(sum(step.limit for step in group), left_s)

    def note_spent(self, group: list[Step], took_s: float) -> None:
        """Note how long each step of a run had, as if one was whole before the next began."""
        spent_s = max(0.0, took_s - BEGIN_S)
        for step in group:
            before_s = self.spent_s.get(step.name, 0)
            more_s = min(spent_s, max(0, step.seconds - before_s))
            self.spent_s[step.name] = before_s + more_s
            spent_s -= more_s

    def command_of(self, group: list[Step], cut_off: Path | None) -> list[str]:
        step = group[0]
        places = {PYTHON: sys.executable, LOGS: str(self.logs)}
        words = [places.get(word, word) for word in shlex.split(step.command)]
        if step.counts:
            return [*words, str(next(iter(self.runs_of(step.counts))))]
        if cut_off:
            return [*words, f"--ffn-resume={cut_off}"]
        if not step.selects:
            return words
        selects = " or ".join(f"({step.selects})" for step in group)
        results = f"--ffn-results={self.work / step.archive / title_of(group)}"
        return [*words, *MEASURES.split(), *step.options.split(), results, "-k", selects]

    def execute(self, command: list[str], title: str, limit: float, grace_s: float) -> int | None:
        """The exit code of `command`; None where it was cut off, since it took all but `grace_s` of `limit` seconds."""
        with (self.logs / f"{title}.log").open("a") as log:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=os.environ | {MARK: self.work.name},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                log.write(f"{error}\n")
                return NOT_FOUND
            try:
                return process.wait(limit - grace_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                self.end(process)

    def end(self, process: subprocess.Popen) -> None:
        """End `process`, which has GRACE_S to save what it measured, and all that it began."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        kill_marked(MARK, self.work.name)
        with suppress(subprocess.TimeoutExpired):  # one that the driver holds
            process.wait(CLOSE_S / 2)

    def pack(self, name: str) -> None:
        """Replace the archive `name` in `out` by what there is now, in one move, so that it is always whole."""
        if name and (self.work / name).exists():
            partial = shutil.make_archive(str(self.out / f".{name}"), "gztar", self.work, name)
            os.replace(partial, self.out / f"{name}.tgz")

    def note_conditions(self) -> None:
        """Append the time and what nvidia-smi says of the card."""
        with (self.logs / "conditions.txt").open("a") as file:
            moment = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
            print(f"{moment}, Triton {self.triton}, {smi(QUERY) or 'no nvidia-smi'}", file=file)


@cache
def is_unfinished(folder: Path, size: int) -> bool:
    """Whether the run in `folder` can be gone on with; its journal, which takes a second to read, has `size` bytes.
    Raises ValueError and OSError for one that cannot be read."""
    return journal.load(folder).unfinished


def unpack(archive: Path, folder: Path) -> None:
    """Unpack `archive` into `folder`. Raises ValueError for one that is damaged."""
    try:
        shutil.unpack_archive(archive, folder, "gztar", filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"{archive} cannot be unpacked ({error}): remove it, or choose another OUT") from None


def title_of(group: list[Step]) -> str:
    return "+".join(step.name for step in group)


def triton_version() -> str:
    """The version of Triton that steps find: a pack's comes before an installed one."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return "none"


def release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, by which releases are ordered; those of `none` are none.

    >>> release("3.10.1") > release("3.9.0") > release("none")
    True
    """
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def smi(query: str) -> str:
    """What nvidia-smi says of the first GPU, by a list of its fields; empty where it cannot."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().partition("\n")[0]


def main(arguments: list[str] | None = None, steps: Sequence[Step] = STEPS) -> int:
    """Make a visit; returns the exit code: 0, 1 where a step failed or was cut off, 2 for bad input, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=math.inf, help="the most that it takes (default: no limit)")
    parser.add_argument("--out", type=Path, required=True, help="where the archives go, and come from")
    parser.add_argument("--began", type=float, default=time.time(), help="seconds since 1970 from when minutes count")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + options.began - time.time() + 60 * options.minutes
    signals.install()
    try:
        visit = Visit(options.out, steps, deadline)
        visit.run()
    except ValueError as error:
        print(f"make gpu: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; give this command again to go on from {options.out}", file=sys.stderr)
        return 130
    return int(any(visit.codes.get(name) != 0 for name in visit.tried))


if __name__ == "__main__":
    sys.exit(main())
