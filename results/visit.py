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
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from roofline.store import journal
from roofline.store.run import Run
from roofline.supervise import signals
from roofline.supervise.child import kill_marked
from roofline.worker.machine import gpu_driver

ROOT = Path(__file__).parents[1]
PYTHON, LOGS = "python", "logs"
"""Words of a command that stand for this Python and for the folder of the logs."""
GPU_TESTS = "python -m pytest -q -m gpu"
"""Tests that take a GPU."""
MACHINE = "python -m kernels.machine"
MEASURES = "--ffn-device=cuda --ffn-no-report"
"""Options of every run that is begun."""
BEGIN_S = 25
"""What a run takes beside its shapes: imports, the ceilings, the power of an idle card."""
GRACE_S = 8
"""For a step to save what it measured, before it is killed."""
CLOSE_S = 3
"""For the last archives."""

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
    """Whether it is begun in every visit, however short."""
    needs: str = ""
    """The step that has to end with exit code 0 before it."""
    counts: str = ""
    """The step into whose run it counts."""


STEPS = (
    Step("doctor", 8, 40, "python -m roofline doctor"),
    Step("matmuls", 160, 250, selects="test_matmul and not scatter", archive="default", must=True),
    Step("gathers", 110, 180, selects="test_all_gather_matmul and not pcie", archive="default", must=True),
    Step("links", 12, 60, f"{GPU_TESTS} tests/collectives/test_on_gpu.py -k 'late or signalled' -x", must=True),
    Step("matmuls-again", 280, 380, selects="test_matmul and not scatter", options="", archive="again"),
    Step("scatters", 30, 90, selects="test_matmul_reduce_scatter", archive="links", needs="links"),
    Step("layers", 35, 90, selects="test_ffn and not gated", archive="links", needs="links"),
    Step("prefetches", 50, 90, selects="test_weight_prefetch", archive="links", needs="links"),
    Step("pcie", 30, 90, selects="test_all_gather_matmul and pcie", archive="links", needs="links"),
    Step("links-beside", 40, 90, selects=BESIDE, options=MOVERS, archive="movers", needs="links"),
    Step("counters", 30, 90, "python -m roofline counters", archive="default", counts="matmuls"),
    Step("movers", 150, 240, selects=BY_TURNS, options=MOVERS, archive="movers", needs="links"),
    Step("clocks", 25, 60, "python -m roofline clocks", archive="default", counts="matmuls"),
    Step("fp8", 240, 360, selects="test_matmul and not scatter", options=FP8, archive="again"),
    Step("trial", 240, 300, "python -m kernels.trial --out logs"),
    Step("trial-fixed", 60, 120, "python -m kernels.trial fixed --minutes 1 --out logs"),
    Step("trial-pair", 240, 300, "python -m kernels.trial pair --out logs"),
    Step("trial-odd", 240, 300, "python -m kernels.trial odd --out logs"),
    Step("gated-layers", 120, 240, selects="test_ffn_gated", archive="training"),
    Step("attention", 300, 420, selects="test_attention", archive="attention"),
    Step("memcheck", 15, 60, f"compute-sanitizer --tool memcheck {MACHINE} --gpu --only bf16"),
    Step("synccheck", 15, 60, f"compute-sanitizer --tool synccheck {MACHINE} --gpu --only bf16"),
    Step("perturbed", 60, 180, f"{MACHINE} --perturb 1 --only bf16"),
    Step("training-steps", 120, 300, selects="test_transformer_step and l12", archive="training"),
    Step("kernels", 120, 600, f"{GPU_TESTS} tests/kernels tests/benchmarks tests/roofline/test_faults.py"),
    Step("machine", 240, 600, f"{MACHINE} --gpu --thorough"),
    Step("arms", 90, 600, f"{GPU_TESTS} tests/collectives"),
)
"""What a visit does, in the order of its worth. Seconds are what an H100 took for doctor and gathers without a cache of
compiled kernels, and with one for scatters, layers, prefetches, links, memcheck and counters. It took 135 s for matmuls
without `cublaslt_best`, what calls cost and sustained blocks, and 150 s for the checks and a quarter of the cases of
attention. The others are estimates."""

STATE = "steps.json"
MARK = "ROOFLINE_VISIT"
"""Environment variable by which all children of a visit's step are found, whatever session they lead."""
NOT_FOUND, REFUSED = 127, 2
"""Exit codes: of a command that is not there, and of a run that is refused."""
QUERY = "name,driver_version,temperature.gpu,power.draw,power.limit,clocks.sm,clocks.max.sm,memory.total"


class Visit:
    """Does the steps that fit before `deadline`, a reading of `time.monotonic`. `out` has what earlier visits left.

    Raises ValueError where there is no card, an archive is damaged, or earlier visits were to another card.
    """

    def __init__(self, out: Path, steps: tuple[Step, ...] = STEPS, deadline: float = math.inf):
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
        self.tried: set[str] = set()
        """Steps that this visit has begun."""
        self.codes: dict[str, int | None] = {}
        """Exit codes of the steps that are over; None of one that was cut off when its run was whole."""
        state = self.logs / STATE
        if state.exists():
            earlier = json.loads(state.read_text())
            if earlier["chip"] != self.chip:
                raise ValueError(f"{out} has visits to {earlier['chip']}, and this is {self.chip}: choose another OUT")
            self.codes = earlier["codes"]

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic() - CLOSE_S

    @property
    def steps_left(self) -> list[Step]:
        return [step for step in self.steps if step.name not in self.codes.keys() | self.tried]

    @property
    def musts_s(self) -> int:
        """What the steps of every visit take that are still to be begun."""
        return seconds_of([step for step in self.steps_left if step.must])

    def plan(self) -> tuple[list[list[Step]], list[str]]:
        """The steps to begin, in groups that are one command each; and a line for each other step, why not."""
        groups: list[list[Step]] = []
        reasons: list[str] = []
        spare_s = self.left_s - self.musts_s
        for step in self.steps_left:
            reason = self.reason_against(step)
            joins = bool(groups) and self.are_one_run(groups[-1][-1], step)
            seconds = step.seconds if joins else seconds_of([step])
            if not step.must and not reason:
                if seconds > spare_s:
                    reason = f"it takes about {seconds} s"
                else:
                    spare_s -= seconds
            if reason:
                reasons.append(f"{step.name}: not begun, {reason}")
            elif joins:
                groups[-1].append(step)
            else:
                groups.append([step])
        return groups, reasons

    def reason_against(self, step: Step) -> str:
        """Why `step` cannot be begun, whatever time there is; empty if it can."""
        before = step.needs or step.counts
        if before in self.tried and before not in self.codes:
            return f"{before} was cut off"
        if step.needs and (code := self.codes.get(before)):
            return f"{before} ended with exit code {code}"
        if step.counts in self.codes and not self.runs_of(before):
            return f"there is no run of {before}"
        return ""

    def are_one_run(self, step: Step, other: Step) -> bool:
        """Whether two steps that follow one another are measured by one pytest."""
        if not (step.selects and other.selects and step.archive == other.archive):
            return False
        return self.cut_off_run(step) == self.cut_off_run(other)

    def runs_of(self, step: str) -> dict[Path, Run]:
        """{folder: run} of the runs of `step` that got as far as their first line, the newest first. They lie in a
        folder that is named for all steps of a run."""
        runs = {}
        for path in sorted(self.work.glob(f"*/*/*/{journal.NAME}"), reverse=True):
            if step in path.parts[-3].split("+"):
                with suppress(ValueError, OSError):
                    runs[path.parent] = journal.load(path.parent)
        return runs

    def cut_off_run(self, step: Step) -> Path | None:
        """The run folder that `step` can go on with."""
        for folder, newest in self.runs_of(step.name).items():
            return folder if newest.unfinished else None
        return None

    def run(self) -> None:
        """Do all that fits, and say how each step ended. Raises ValueError where not even the steps that must fit."""
        if self.musts_s > self.left_s:
            names = ", ".join(step.name for step in self.steps_left if step.must)
            needs = f"{names} take about {self.musts_s} s"
            raise ValueError(f"{needs}, and {self.left_s:.0f} s are left: give more MINUTES")
        groups, reasons = self.plan()
        for group in groups:
            print(f"{title_of(group)}: about {seconds_of(group)} s")
        print(*reasons, f"in all about {sum(map(seconds_of, groups))} s", sep="\n", flush=True)
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
        self.tried |= names
        limit = min(sum(each.limit for each in group), self.left_s - self.musts_s)
        code = None
        try:
            code = self.execute(self.command_of(group, cut_off), title, limit)
        finally:
            if self.is_over(step, code):
                self.codes |= dict.fromkeys(names, code)
            (self.logs / STATE).write_text(json.dumps({"chip": self.chip, "codes": self.codes}))
            self.note_conditions()
            self.pack(step.archive)
            self.pack(LOGS)
        if code == REFUSED and cut_off:  # as of another driver: it is begun anew
            cut_off.parent.rename(cut_off.parents[1] / f"refused-{title}")
            self.tried -= names
        how = f"cut off at {limit:.0f} s" if code is None else f"exit code {code}"
        print(f"{title}: {how}, after {time.monotonic() - began:.0f} s", flush=True)

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

    def is_over(self, step: Step, code: int | None) -> bool:
        """Whether nothing is left to do of `step`, whose command ended with `code`, or was cut off (None)."""
        if step.selects:
            return bool(self.runs_of(step.name)) and not self.cut_off_run(step)
        return code is not None and not (step.counts and code == REFUSED)

    def execute(self, command: list[str], title: str, limit: float) -> int | None:
        """The exit code of `command`; None where it was cut off, since it took `limit` seconds."""
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
                return process.wait(limit - GRACE_S)
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
            print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, {smi(QUERY) or 'no nvidia-smi'}", file=file)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack `archive` into `folder`. Raises ValueError for one that is damaged."""
    try:
        shutil.unpack_archive(archive, folder, "gztar", filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"{archive} cannot be unpacked ({error}): remove it, or choose another OUT") from None


def title_of(group: list[Step]) -> str:
    return "+".join(step.name for step in group)


def seconds_of(steps: list[Step]) -> int:
    """About what `steps` take one after another. Those that measure into one archive are one run, which begins once."""
    runs = {step.archive for step in steps if step.selects}
    return sum(step.seconds for step in steps) + BEGIN_S * len(runs)


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
