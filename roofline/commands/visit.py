"""A short visit to a GPU: `make gpu MINUTES=N OUT=FOLDER`. It ends in time, and what it measured is in OUT as it comes.

`STEPS` is all that there is to do, in the order of its worth. A step is begun where its seconds are left, and ended
with all of its children at its limit; none is stopped by another's failure. Measuring steps that follow one another
and share an archive are one run. When a run has ended or was cut off, its folder is an archive in OUT; logs and
conditions are one more. A later visit with the same OUT goes on from these. Nothing is drawn: `roofline report` does
that at home.
"""

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from roofline.store import journal
from roofline.supervise.child import kill_marked
from roofline.worker.machine import gpu_driver, versions
from roofline.worker.messages import interrupt

ROOT = Path(__file__).parents[2]
PYTHON, LOGS = "python", "logs"
"""Words of a command that stand for this Python and for the folder of the logs."""
PYTEST = (PYTHON, "-m", "pytest")
ON_GPU = (*PYTEST, "-q", "-m", "gpu")
"""Tests that take a GPU."""
MEMCHECK = ("compute-sanitizer", "--tool", "memcheck")
SYNCCHECK = ("compute-sanitizer", "--tool", "synccheck")
MEASURES = ("--ffn-device=cuda", "--ffn-no-report")
"""Options of a run that is begun."""
BEGIN_S = 25
"""What a run takes beside its shapes: imports, the ceilings, the power of an idle card."""
GRACE_S = 8
"""For a step to save what it measured, before it is killed."""
CLOSE_S = 3
"""For the last archives."""
MOST_BYTES = 16_000_000
"""An archive is meant to be smaller."""
MOST_ARCHIVES = 6
"""So many archives there are at most, beside that of the logs."""


WIRES = "{0}copier32,{0}copier132,{0}engine"
MOVERS = (
    *("--ffn-steady=0", "--ffn-tp=8,16", "--ffn-ranks=8,16"),
    f"--ffn-link-bandwidth={WIRES.format('balance2750')},{WIRES.format('ridge')},pcie",
)
BY_TURNS = (
    "test_all_gather_matmul and (p8-tp8 or tp16) and not (ridge and up-p16) and not (ridge and tp8) and not p16-tp8"
)
"""The ridge at tp 16, the balance at tp 8 and 16 and at 16 ranks, each over the copier, the engine and PCIe."""
BESIDE = "test_all_gather_matmul and up-p8 and serial and not ridge"
"""Each link alone, and a matmul beside it, at tp 8 and 16."""
FP8 = "--ffn-steady=0", "--ffn-dtype=fp8,fp8_block"


@dataclass(frozen=True)
class Step:
    """A step of a visit. It takes about `seconds`, and is ended at `limit`."""

    name: str
    seconds: int
    limit: int
    command: tuple[str, ...] = (*PYTEST, "--benchmark-only")
    selects: str = ""
    """What a step that measures takes of the benchmarks, for pytest's -k."""
    options: tuple[str, ...] = ("--ffn-steady=0",)
    """Further options of its run: without these, long kernels also run alone for a while."""
    archive: str = ""
    """Where its run goes."""
    must: bool = False
    """Whether it is begun in every visit, however short."""
    needs: str = ""
    """The step that has to end with exit code 0 before it."""
    counts: str = ""
    """The step into whose run it counts."""

    @property
    def begin_s(self) -> int:
        return BEGIN_S if self.selects else 0


STEPS = (
    Step("doctor", 8, 40, (PYTHON, "-m", "roofline", "doctor")),
    Step("matmuls", 160, 250, selects="test_matmul and not scatter", archive="default", must=True),
    Step("gathers", 110, 180, selects="test_all_gather_matmul and not pcie", archive="default", must=True),
    Step("links", 12, 60, (*ON_GPU, "tests/collectives/test_on_gpu.py", "-k", "late or signalled", "-x"), must=True),
    Step("matmuls-again", 280, 380, selects="test_matmul and not scatter", options=(), archive="again"),
    Step("scatters", 30, 90, selects="test_matmul_reduce_scatter", archive="links", needs="links"),
    Step("layers", 35, 90, selects="test_ffn and not gated", archive="links", needs="links"),
    Step("prefetches", 50, 90, selects="test_weight_prefetch", archive="links", needs="links"),
    Step("pcie", 30, 90, selects="test_all_gather_matmul and pcie", archive="links", needs="links"),
    Step("links-beside", 40, 90, selects=BESIDE, options=MOVERS, archive="movers", needs="links"),
    Step("counters", 30, 90, (PYTHON, "-m", "roofline", "counters"), archive="default", counts="matmuls"),
    Step("movers", 150, 240, selects=BY_TURNS, options=MOVERS, archive="movers", needs="links"),
    Step("clocks", 25, 60, (PYTHON, "-m", "roofline", "clocks"), archive="default", counts="matmuls"),
    Step("fp8", 240, 360, selects="test_matmul and not scatter", options=FP8, archive="again"),
    Step("trial", 240, 300, (PYTHON, "-m", "kernels.trial", "--out", LOGS)),
    Step("gated-layers", 120, 240, selects="test_ffn_gated", archive="training"),
    Step("attention", 300, 420, selects="test_attention", archive="attention"),
    Step("memcheck", 15, 60, (*MEMCHECK, PYTHON, "-m", "kernels.machine", "--gpu", "--only", "bf16")),
    Step("synccheck", 15, 60, (*SYNCCHECK, PYTHON, "-m", "kernels.machine", "--gpu", "--only", "bf16")),
    Step("perturbed", 60, 180, (PYTHON, "-m", "kernels.machine", "--perturb", "1", "--only", "bf16")),
    Step("training-steps", 120, 300, selects="test_transformer_step and l12", archive="training"),
    Step("kernels", 120, 600, (*ON_GPU, "tests/kernels", "tests/benchmarks", "tests/roofline/test_faults.py")),
    Step("machine", 240, 600, (PYTHON, "-m", "kernels.machine", "--gpu", "--thorough")),
    Step("arms", 90, 600, (*ON_GPU, "tests/collectives")),
)
"""What a visit does, in the order of its worth. Seconds are what an H100 took for doctor and gathers without a cache of
compiled kernels, and with one for scatters, layers, prefetches, links, memcheck and counters. It took 135 s for matmuls
without `cublaslt_best`, what calls cost and sustained blocks, and 150 s for the checks and a quarter of the cases of
attention. The others are estimates."""

STATE = "steps.json"
MARK = "ROOFLINE_VISIT_STEP"
"""Environment variable by which all children of a step are found, whatever session they lead."""
NOT_FOUND, REFUSED, UNKNOWN = 127, 2, -1
"""Exit codes: of a command that is not there, of a run that is refused, and where nobody saw one."""
QUERY = "name,driver_version,temperature.gpu,power.draw,power.limit,clocks.sm,clocks.max.sm,memory.total"


class Visit:
    """Does the steps that fit before `deadline`, a reading of `time.monotonic`. `out` has what earlier visits left."""

    def __init__(self, out: Path, steps: tuple[Step, ...] = STEPS, deadline: float = math.inf):
        self.out = out
        self.steps = steps
        self.deadline = deadline
        self._temporary = tempfile.TemporaryDirectory(prefix="roofline-visit-", ignore_cleanup_errors=True)
        self.work = Path(self._temporary.name)
        self.logs = self.work / LOGS
        self.tried: set[str] = set()
        """Steps that this visit has begun."""
        out.mkdir(parents=True, exist_ok=True)
        for archive in sorted(out.glob("*.tgz")):
            unpack(archive, self.work)
        self.logs.mkdir(exist_ok=True)
        self.codes: dict[str, int] = {}
        """Exit codes of the steps that are over. A step that was cut off has none."""
        self.chip = smi("name")
        self.read_state()
        self.take_in_whole_runs()

    def take_in_whole_runs(self) -> None:
        """Steps are over whose runs are whole, though they were cut off before they could say so."""
        for step in self.steps:
            if step.selects and step.name not in self.codes and self.is_over(step, 0):
                self.codes[step.name] = UNKNOWN

    def read_state(self) -> None:
        """Take in what earlier visits did. Raises ValueError where there is no card, or they were to another one."""
        if not (self.chip or gpu_driver()):
            raise ValueError("this machine has no NVIDIA GPU: make bench measures the CPU")
        path = self.logs / STATE
        if not path.exists():
            return
        state = json.loads(path.read_text())
        if state["chip"] != self.chip:
            raise ValueError(f"{self.out} has visits to {state['chip']}, and this is {self.chip}: choose another OUT")
        self.codes = state["codes"]

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic() - CLOSE_S

    @property
    def musts_left(self) -> list[Step]:
        """The steps of every visit that are still to be begun."""
        begun = self.codes.keys() | self.tried
        return [step for step in self.steps if step.must and step.name not in begun]

    def plan(self) -> tuple[list[list[Step]], list[str]]:
        """The steps to begin, in groups that are one command each; and a line for each other step, why not."""
        groups: list[list[Step]] = []
        reasons: list[str] = []
        spare_s = self.left_s - seconds_of(self.musts_left)
        for step in self.steps:
            if step.name in self.codes or step.name in self.tried:
                continue
            if reason := self.reason_against(step):
                reasons.append(f"{step.name}: not begun, {reason}")
                continue
            joins = bool(groups) and self.are_one_run(groups[-1][-1], step)
            seconds = step.seconds if joins else step.seconds + step.begin_s
            if not step.must:
                if seconds > spare_s:
                    reasons.append(f"{step.name}: not begun, it takes about {seconds} s")
                    continue
                spare_s -= seconds
            if joins:
                groups[-1].append(step)
            else:
                groups.append([step])
        return groups, reasons

    def reason_against(self, step: Step) -> str:
        """Why `step` cannot be begun, whatever time there is; empty if it can."""
        for name in filter(None, (step.needs, step.counts)):
            if name in self.tried and name not in self.codes:
                return f"{name} was cut off"
        if step.counts in self.codes and not self.runs_of(step.counts):
            return f"there is no run of {step.counts}"
        if code := self.codes.get(step.needs):
            return f"{step.needs} ended with exit code {code}"
        return ""

    def are_one_run(self, step: Step, other: Step) -> bool:
        """Whether two steps that follow one another are measured by one pytest."""
        if not (step.selects and other.selects and step.archive == other.archive):
            return False
        return self.cut_off_run(step) == self.cut_off_run(other)

    def runs_of(self, step: str) -> list[Path]:
        """The run folders of `step` that can be read, the newest first. They lie in a folder that is named for all
        steps of a run."""
        folders = []
        for path in self.work.glob(f"*/*/*/{journal.NAME}"):
            if step in path.parts[-3].split("+") and is_readable(path.parent):
                folders.append(path.parent)
        return sorted(folders, reverse=True)

    def cut_off_run(self, step: Step) -> Path | None:
        """The run folder that `step` can go on with."""
        for folder in self.runs_of(step.name)[:1]:
            if journal.load(folder).unfinished:
                return folder
        return None

    def run(self) -> None:
        """Do all that fits, and say how each step ended. Raises ValueError where not even the steps that must fit."""
        groups, reasons = self.plan()
        self.say_forecast(groups, reasons)
        self.note_conditions()
        while groups:
            self.do(groups[0])
            groups, reasons = self.plan()
        for reason in reasons:
            print(reason, flush=True)

    def say_forecast(self, groups: list[list[Step]], reasons: list[str]) -> None:
        least = seconds_of(self.musts_left)
        if least > self.left_s:
            names = ", ".join(step.name for step in self.musts_left)
            raise ValueError(f"{names} take about {least} s, and {self.left_s:.0f} s are left: give more MINUTES")
        for group in groups:
            print(f"{title_of(group)}: about {seconds_of(group)} s")
        for reason in reasons:
            print(reason)
        total = sum(map(seconds_of, groups))
        of_all = f" of {self.left_s:.0f} s" if self.deadline < math.inf else ""
        print(f"in all about {total} s{of_all}", flush=True)

    def do(self, group: list[Step]) -> None:
        """Do the steps of `group` by one command, and leave their archive and the logs in `out`."""
        step = group[0]
        title = title_of(group)
        began = time.monotonic()
        cut_off = self.cut_off_run(step) if step.selects else None
        names = []
        limit = 0
        for each in group:
            names.append(each.name)
            limit += each.limit
        self.tried.update(names)
        limit = min(limit, self.left_s - seconds_of(self.musts_left))
        try:
            code = self.execute(self.command_of(group, cut_off), title, limit)
        finally:
            self.pack(step.archive)
            self.pack(LOGS)
        if code is not None and self.is_over(step, code):
            self.codes |= dict.fromkeys(names, code)
        self.take_in_whole_runs()
        state = {"chip": self.chip, "codes": self.codes}
        (self.logs / STATE).write_text(json.dumps(state, indent=1))
        if code == REFUSED and cut_off:  # as of another driver: it is begun anew
            cut_off.parent.rename(cut_off.parents[1] / f"refused-{title}")
            self.tried.difference_update(names)
        how = f"cut off at {limit:.0f} s" if code is None else f"exit code {code}"
        print(f"{title}: {how}, after {time.monotonic() - began:.0f} s", flush=True)
        self.note_conditions()
        self.pack(LOGS)

    def command_of(self, group: list[Step], cut_off: Path | None) -> list[str]:
        step = group[0]
        places = {PYTHON: sys.executable, LOGS: str(self.logs)}
        words = [places.get(word, word) for word in step.command]
        if step.counts:
            return [*words, str(self.runs_of(step.counts)[0])]
        if cut_off:
            return [*words, f"--ffn-resume={cut_off}"]
        if not step.selects:
            return words
        selects = " or ".join(f"({step.selects})" for step in group)
        results = f"--ffn-results={self.work / step.archive / title_of(group)}"
        return [*words, *MEASURES, *step.options, results, "-k", selects]

    def is_over(self, step: Step, code: int) -> bool:
        """Whether nothing is left to do of `step`, whose command ended with `code`."""
        if step.counts:
            return code != REFUSED
        return not step.selects or (bool(self.runs_of(step.name)) and not self.cut_off_run(step))

    def execute(self, command: list[str], title: str, limit: float) -> int | None:
        """The exit code of `command`; None where it was cut off, since it took `limit` seconds."""
        mark = uuid.uuid4().hex
        with (self.logs / f"{title}.log").open("a") as log:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=os.environ | {MARK: mark},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                log.write(f"{error}\n")
                return NOT_FOUND
            try:
                return process.wait(max(0.0, limit - GRACE_S))
            except subprocess.TimeoutExpired:
                return None
            finally:
                end(process, mark)

    def pack(self, name: str) -> None:
        """Replace the archive `name` in `out` by what there is now, in one move, so that it is always whole."""
        folder = self.work / name
        archive = self.out / f"{name}.tgz"
        partial = self.out / f".{name}.partial"
        if not name or not folder.exists():
            return
        with tarfile.open(partial, "w:gz") as file:
            file.add(folder, name)
        if partial.stat().st_size > MOST_BYTES:
            print(f"{archive.name} has {partial.stat().st_size} bytes, more than the {MOST_BYTES} that were meant")
        os.replace(partial, archive)

    def note_conditions(self) -> None:
        """Append the time and what nvidia-smi says of the card; first of all the versions."""
        lines = [f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, {smi(QUERY) or 'no nvidia-smi'}"]
        if not self.tried:
            packages = ", ".join(map(" ".join, versions().items()))
            lines.insert(0, f"Python {platform.python_version()}, {packages}")
        with (self.logs / "conditions.txt").open("a") as file:
            file.write("\n".join(lines) + "\n")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack `archive` into `folder`. Raises ValueError for one that is damaged."""
    try:
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"{archive} cannot be unpacked ({error}): remove it, or choose another OUT") from None


def is_readable(run: Path) -> bool:
    """Whether a run got as far as its first line."""
    try:
        journal.load(run)
    except (ValueError, OSError):
        return False
    return True


def title_of(group: list[Step]) -> str:
    return "+".join(step.name for step in group)


def seconds_of(steps: list[Step]) -> int:
    """About what `steps` take one after another. Those that measure into one archive are one run, which begins once."""
    seconds = 0
    begin_s = {}
    for step in steps:
        seconds += step.seconds
        begin_s[step.archive] = step.begin_s
    return seconds + sum(begin_s.values())


def end(process: subprocess.Popen, mark: str) -> None:
    """End `process`, which has GRACE_S to save what it measured, and all that it began."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    kill_marked(MARK, mark)
    with suppress(subprocess.TimeoutExpired):  # one that the driver holds
        process.wait(CLOSE_S / 2)


def smi(query: str) -> str:
    """What nvidia-smi says of the first GPU, by a list of its fields; empty where it cannot."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().partition("\n")[0]


def main(arguments: list[str] | None = None, steps: tuple[Step, ...] = STEPS) -> int:
    """Make a visit; returns the exit code: 0, 1 where a step failed or was cut off, 2 for bad input, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=math.inf, help="the most that it takes (default: no limit)")
    parser.add_argument("--out", type=Path, required=True, help="where the archives go, and come from")
    parser.add_argument("--began", type=float, default=time.time(), help="seconds since 1970 from when minutes count")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + options.began - time.time() + 60 * options.minutes
    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), interrupt)
    try:
        visit = Visit(options.out, steps, deadline)
        visit.run()
    except ValueError as error:
        print(f"make gpu: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; give this command again to go on from {options.out}", file=sys.stderr)
        return 130
    failed = [name for name in visit.tried if visit.codes.get(name) != 0]
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
