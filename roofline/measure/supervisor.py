"""One benchmark run: its folder, its journal, and the shares that measure it.

The supervisor measures nothing. It begins a share, journals each line that it tells before it is let go on, and sleeps
meanwhile. It knows what the share is at, and how long that may take: past it, or where the share ends by itself, the
group of its processes is ended, what was being tried gets its outcome, and the next share goes on with the rest. This
is what happens where a kernel hangs, dies or loses the device: `Job.end`.
"""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from multiprocessing.connection import wait
from pathlib import Path
from statistics import median

from roofline import operations
from roofline.measure import epochs, kernel_names, machine, plan, share, signals, telemetry
from roofline.measure.child import Child
from roofline.measure.epochs import Epochs, RankLostError
from roofline.measure.machine import anonymous
from roofline.measure.prepared import FAILED
from roofline.measure.share import CALL, CEILINGS, IDLE, PREPARE, RECHECK, START, STEADY, TURNS, Request, Stopped
from roofline.options import as_values
from roofline.store import journal
from roofline.store.run import INTERRUPTED, NOT_RUN, Round, Run

HUNG = "hung"
"""How the reason begins of what did not end in time."""
LIMIT_S = {
    START: {"cpu": 120.0, "cuda": 180.0},  # imports, and on a GPU its context
    IDLE: {"cpu": 20.0, "cuda": 30.0},
    CEILINGS: {"cpu": 180.0, "cuda": 240.0},
    PREPARE: {"cpu": 60.0, "cuda": 180.0},  # on a GPU also matmuls that are compiled and timed to choose one
    CALL: {"cpu": 20.0, "cuda": 120.0},  # Triton compiles a kernel within half a minute
    RECHECK: {"cpu": 20.0, "cuda": 60.0},
    TURNS: {"cpu": 10.0, "cuda": 20.0},
    STEADY: {"cpu": 10.0, "cuda": 20.0},
}
"""What a step may take on a device, beside what its calls and its own rule take."""

HUNG_TIMES = 100
"""A call that takes so many times as long as the reference hangs."""
RULE_TIMES = 3
"""So does a step that takes so many times what its rule leaves it."""

LOOK_S, RANKS_LOOK_S, FIRST_LOOK_S = 2.0, 0.5, 0.05
"""From one look to the next at a share that tells nothing, on ranks, and at one that has told nothing yet."""

GRACE_S, RANKS_GRACE_S = 5.0, 1.0
"""For a share to tell its whole rounds, once it was asked to end; on ranks it may wait for another that is gone."""
APART_S = 0.7
"""Signals closer together are one: `timeout` sends its own to the process and to its group."""
BY_SIGNAL = 130
"""Exit code of a run that a second signal ended."""
ENDING_S = 60.0
"""For a tool to write what it counted."""

TRIES = 3
"""Shares in a row that may end without anybody to blame."""
CHECKERS = 4
"""Shares that check at once on a GPU at most, one for four cores: compiling takes most of a first call."""

WHERE = {
    PREPARE: "while its shape was prepared",
    CALL: "in its first call",
    TURNS: "while it was timed",
    RECHECK: "when it was checked again",
    STEADY: "in a block",
}
STEPS = {CEILINGS: plan.CEILINGS, PREPARE: plan.PREPARE, TURNS: plan.MEASURE, STEADY: plan.STEADY}


class Supervisor:
    """Runs the shares of a run, and journals what they tell. `run` is what is known of it by now."""

    def __init__(
        self, options, planned: dict[str, list[str]], runners, root: Path | None, epochs: Epochs | None = None
    ):
        """`planned` is {shape: contenders}. `root` is the folder that shares begin in; without it they run in this
        process. `epochs` is what supervisors of several ranks say to one another."""
        self.options, self.planned, self.runners, self.root, self.epochs = options, planned, runners, root, epochs
        self.signals: list[tuple[str, float]] = []
        """(name, when) of those that ask for the end."""
        self.hello: dict = {}
        """What the first share tells of the machine, of its ranks, and of the clock that times the contenders."""
        self.over = ""
        """Why nothing more can be measured, if that is so."""
        self.lacking = ""
        """What the end of the run is at."""
        self.at: Callable[..., None] = lambda *step: None
        """Told what begins, in the fields of a `plan.Step`; without them, that the same goes on."""
        self.say: Callable[[str], None] = lambda text: None
        self.observers: list = []
        """Called once all timing is over, each with what the run lacks where that is interrupted."""
        self.reference_s: dict[str, float] = {}
        """Shape -> what a call of its baseline took when it was checked."""
        self.chosen: dict[str, dict] = {}
        """Shape -> facts that a share chose when it checked it."""
        self.run: Run | None = None
        self._entries: dict[str, dict] = {}

    def greet(self) -> None:
        """Learn from a share what this machine is. Raises ValueError where nothing can be measured on it."""
        job = Hello(self)
        self.supervise([job])
        if problem := self.hello.get("problem") or self.over:
            raise ValueError(problem)

    def open(self, folder: Path, run: dict | Run) -> None:
        """Begin the run whose first line is `run`, in a new folder, or go on with `run` in its own.

        Raises OSError for a folder that cannot be written, or has no room."""
        self.folder = journal.make_folder(folder) if isinstance(run, dict) else folder
        self._journal = journal.Journal(self.folder)
        if isinstance(run, dict):
            self.run = Run(run)
            self.add({"kind": "run"} | run)
        else:
            self.run = run
            for name in [name for name in run.interrupted if not run.shapes[name].passes]:
                del run.shapes[name]
            self.add({"kind": "resumed", "started": _now()})
        self._entries = {e["case"]: e for e in self.run.not_measured if e["outcome"] != NOT_RUN}

    @property
    def passes(self) -> int:
        """How many times each process comes back to a shape."""
        return self.hello["passes"]

    @property
    def processes(self) -> int:
        """How many processes measure each shape, one after another."""
        return self.options.processes or self.hello["processes"]

    # What is asked for, and what of it is left.

    def entry(self, case_id: str) -> dict | None:
        """{case, outcome, reason} of a case that was tried and has no number; None of any other."""
        return self._entries.get(case_id)

    def left(self, shape: str) -> list[str]:
        """Contenders to measure on `shape`, unless it is whole."""
        known = self.run.shapes.get(shape)
        is_whole = known and known.stopped_by != INTERRUPTED
        return [] if is_whole else [name for name in self.planned[shape] if not self.entry(f"{shape}-{name}")]

    def passes_left(self) -> tuple[int, dict[str, int]]:
        """The process of the plan that is next, and {shape: passes} that it still has to make."""
        each, done = self.passes, {}
        for shape in [shape for shape in self.planned if self.left(shape)]:
            known = self.run.shapes.get(shape)
            done[shape] = known.passes if known else 0
        process = min((passes // each for passes in done.values()), default=0)
        return process, {shape: each - passes % each for shape, passes in done.items() if passes // each == process}

    def checked(self, shape: str) -> list[str]:
        """Return the contenders that a check share called on `shape`, and that are right."""
        return self.left(shape) if shape in self.reference_s else []

    @property
    def fruitful(self) -> bool:
        """Whether anything that was asked for has a number."""
        return any(set(names) & set(self.run.measured(shape)) for shape, names in self.planned.items())

    def request(self, kind: str, cases: dict[str, list[str]], **more) -> Request:
        """What a share of `kind` is told of `cases`."""
        refused = {case: entry["reason"] for case, entry in self._entries.items() if entry["outcome"] == FAILED}
        shapes = self.run.shapes if self.run else {}
        known = {name: shape for name, shape in shapes.items() if name in cases and shape.passes}
        chosen = {name: self.chosen[name] for name in cases if name in self.chosen}
        for name, shape in known.items():
            times = {own: shape.times_s(own).values() for own in shape.late}
            medians = {own: median(of) for own, of in times.items() if of}
            chosen[name] = {"facts": shape.facts, "medians_s": medians}
        entrants = {name: list(shape.late) for name, shape in known.items()}
        about = {"refused": refused, "chosen": chosen, "entrants": entrants}
        return Request(kind, options=as_values(self.options), cases=cases, **about, **more)

    # Shares, to their end.

    def measure(self) -> None:
        """Check and measure all that is left. Afterwards each contender has a record in the run, or an `entry`, unless
        the run is `over`."""
        if self.root:
            self.check()
        self.supervise([Measure(self)])

    def check(self) -> None:
        """Have each contender called in a share of its own kind before it is called in one that measures: what hangs or
        dies there costs its own row. Compiles on the way."""
        shapes = {name: names for name in self.planned if name not in self.run.shapes and (names := self.left(name))}
        gathers = {op for op, one in operations.OPERATIONS.items() if one.analysis == "overlap"}
        linked = {name: shapes[name] for name in shapes if name.partition("-")[0] in gathers}
        others = [(name, names) for name, names in shapes.items() if name not in linked]
        if not shapes:
            return
        began, count = time.monotonic(), len(self._entries)
        # The last one checks alone: a link keeps no pace beside other processes.
        is_gpu = self.options.device == "cuda" and not self.epochs
        several = max(1, min(CHECKERS, machine.cores() // 4)) if is_gpu else 0
        parts = [Check(self, dict(others[index::several])) for index in range(several)]
        last = Check(self, linked if several else dict(others) | linked, is_alone=True)
        self.supervise(parts)
        for part in parts:
            last.cases = part.again | last.cases
        self.supervise([last])
        cases, lost = sum(map(len, shapes.values())), len(self._entries) - count
        took_s = time.monotonic() - began
        self.note("check", f"Checked in shares of their own: {cases} cases in {took_s:.0f} s, {lost} without a number.")

    def supervise(self, jobs: list["Job"]) -> None:
        """Run the shares of `jobs` at once, each job's one after another, until all jobs have no more.

        Raises KeyboardInterrupt where a signal came, once the shares have told their whole rounds."""
        if not self.root:
            for job in jobs:
                while not self.over and (asked := job.next_request()):
                    self._run_here(job, asked)
            return
        running: dict[Child, Job] = {}
        with signals.noted() as (self.signals, woken):
            try:
                for job in jobs:
                    self._begin(job, running)
                while running and not self.signals:
                    self._listen(running, woken)
                if self.signals:
                    self._stop(running)
            except RankLostError as lost:
                self.over = str(lost)
            finally:
                for child in running:
                    child.end()
        if self.signals:
            if self.epochs:  # torchrun sends more
                signals.deafen()
            raise KeyboardInterrupt(self.signals[0][0])

    def _run_here(self, job: "Job", asked: Request) -> None:
        job.begin(asked)
        with suppress(Stopped):
            share.run(asked, job.take, self.runners)
        job.end("")

    def _begin(self, job: "Job", running: dict[Child, "Job"]) -> None:
        """Begin the next share of `job`, if it has one; all ranks begin theirs."""
        if self.over or self.signals or not (asked := job.next_request()):
            return
        asked = replace(asked, runners=operations.places(asked.cases), path=sys.path)
        if self.epochs:
            asked = replace(asked, world=self.epochs.begin(asked))
        job.begin(asked)
        running[Child(asked, self.root, job.under)] = job

    def _listen(self, running: dict[Child, "Job"], woken: list) -> None:
        """Take what shares tell until the next look, and end those that have ended or hang."""
        by_place = {child.waits_at: child for child in running}
        first = any(job.at["step"] == START for job in running.values())
        least_s = min(job.left_s for job in running.values())
        look_s = FIRST_LOOK_S if first or self.signals else RANKS_LOOK_S if self.epochs else LOOK_S
        ready = wait([*by_place, *woken], max(0.0, min(look_s, least_s)))
        for place in [place for place in ready if place in by_place]:
            child = by_place[place]
            job = running[child]
            try:
                if line := child.receive():
                    job.take(line, stops=False)
                    if job.broke:  # nobody lets it go on
                        self._end_epoch(child, running, epochs.RAISED, broke=job.broke)
                    else:
                        child.acknowledge(stop=bool(self.over))
            except EOFError:
                how = child.end(ENDING_S if job.under else 2.0)
                self._end(child, running, "" if job.is_done else how)
        if not ready:
            self.at()
        for child, job in list(running.items()):
            if child.waits_at in ready:
                continue
            if job.left_s <= 0:
                self._end(child, running, HUNG)
            elif child.has_ended and not wait([child.waits_at], 0):
                self._end(child, running, child.end())
            elif self.epochs:
                self.epochs.heed()
                if self.epochs.reports():
                    self._end_epoch(child, running)
        if self.epochs and (name := self.epochs.heard("interrupted")) and not self.signals:
            self.signals.append((name, time.monotonic()))

    def _end(self, child: Child, running: dict[Child, "Job"], how: str) -> None:
        """The share has ended: well, or by `how`."""
        if how and self.epochs:
            kind = epochs.HUNG if how == HUNG else epochs.DIED
            return self._end_epoch(child, running, kind, how=how, marked=child.marked)
        job = running.pop(child)
        child.end()
        job.printed, job.marked = child.printed, child.marked
        job.end(how)
        self._begin(job, running)

    def _end_epoch(self, child: Child, running: dict[Child, "Job"], *kind: int, **how) -> None:
        """A share has ended, of this rank where there is a `kind` of that, or of another: so do all, and the job learns
        by which."""
        job = running[child]
        mine = self.epochs.report(*kind, job.at, **how) if kind else None
        report = self.epochs.end(mine, self.signals)
        child.end()
        del running[child]
        if report:
            job.at, job.marked, job.broke = report["at"], report.get("marked", 0), report.get("broke")
            job.end(report.get("how", ""), f"rank {report['rank']}: ")
            self._begin(job, running)

    def _stop(self, running: dict[Child, "Job"]) -> None:
        """Have all shares tell their whole rounds and end. A second signal ends them and the run at once."""
        (name, when), deadline = self.signals[0], time.monotonic() + (RANKS_GRACE_S if self.epochs else GRACE_S)
        for child in running:
            child.process.terminate()
        while running and time.monotonic() < deadline:
            self._listen(running, [])
            name, again = self.signals[-1]
            if again - when >= APART_S and not self.epochs:
                for child in running:
                    child.end()
                self.say("\n".join(["", f"{name} came after another signal", *signals.ways_on(self.run, self.folder)]))
                os._exit(BY_SIGNAL)

    # What they told.

    def not_measured(self, case_id: str, outcome: str, reason: str) -> None:
        """Journal that `case_id` has no number, and why. `outcome` is `skipped`, `failed` or `not_run`."""
        entry = {"case": case_id, "outcome": outcome, "reason": anonymous(reason)}
        self._entries[case_id] = entry
        self.add({"kind": "not_measured"} | entry)

    def lose(self, shape: str, name: str, outcome: str, reason: str) -> None:
        """Take a contender out of a shape, with its samples."""
        if not self.entry(f"{shape}-{name}"):
            self.not_measured(f"{shape}-{name}", outcome, reason)
        known = self.run.shapes.get(shape)
        if known and name in known.late:
            self.add(_pass_line(known, late={other: count for other, count in known.late.items() if other != name}))
        if known and known.stopped_by == INTERRUPTED and not self.left(shape):  # nobody is left to go on with
            self.add(_pass_line(known, stopped_by="time"))

    def note(self, about: str, text: str) -> None:
        """Tell in the report what is to be known `about` something, in place of what was told of it before."""
        self.add({"kind": "note", "about": about, "text": anonymous(text)})

    def add(self, *lines: dict) -> None:
        """Journal lines, and take them into the run. If that fails, the run is over, and neither has any of them."""
        try:
            self._journal.write(*lines)
        except OSError as error:
            self.over = f"the journal could not be written: {error.strerror}"
            return
        for line in lines:
            self.run.take(line)

    def finish(self, why_cut_short: str) -> None:
        """End the run: what `observers` do if it came to its end, and a reason for all that has no number."""
        if not why_cut_short and not self.over:
            for observe, lacking in self.observers:
                self.lacking = lacking
                observe()
        reason = self.over or why_cut_short or "its test ended before it was measured"
        asked = {f"{shape}-{name}" for shape, names in self.planned.items() for name in names}
        for case in [entry["case"] for entry in self.run.missing if entry["outcome"] == NOT_RUN]:
            self.not_measured(case, NOT_RUN, reason if case in asked else "not selected")
        self.add({"kind": "end", "finished": _now(), "cut_short": self.over or why_cut_short or None})
        self._journal.close()

    def name_kernels(self) -> None:
        """Journal the names of the kernels that were measured and have none yet. Arms are left out: what they run is
        the matmul of the same name and the link's copier."""
        shapes = self.run.shapes.values() if self.options.device == kernel_names.DEVICE else ()
        matmuls = [shape for shape in shapes if shape.analysis != "overlap"]
        cases = {one.id: [n for n in one.measured if "kernel_name" not in one.entrants[n]] for one in matmuls}
        self.supervise([Names(self, {name: nameless for name, nameless in cases.items() if nameless})])


class Job:
    """Shares of one kind, one after another, until nothing is left for them."""

    kind, under = "", ()

    def __init__(self, supervisor: Supervisor):
        self.supervisor, self.device = supervisor, supervisor.options.device
        self.is_done, self.marked, self.printed = False, 0, ""
        self._lost_at, self._is_fruitful = "", False
        """Why the share lost the device; whether anything came of it."""
        self.at = {"step": START, "shape": ""}
        self._limit_s = self._began = 0.0
        self.broke: dict | None = None
        """Who raised, and why: the ranks are out of step."""
        self._ended = defaultdict(int)
        """(step, shape) -> how many shares ended there without anybody to blame; "lost" -> how many had no device."""

    def next_request(self) -> Request | None:
        """What the next share is to do; None where nothing is left."""
        raise NotImplementedError

    def begin(self, asked: Request) -> None:
        """A share begins that does what is asked for."""
        self.is_done, self._lost_at, self._is_fruitful, self.broke = False, "", False, None
        self.take_at({"step": START, "shape": ""})

    def take(self, line: dict, *, stops: bool = True) -> None:
        """Take what the share tells. Raises `Stopped` where nothing more can be journalled, unless it does not stop."""
        getattr(self, f"take_{line.pop('tell')}")(line)
        if stops and self.supervisor.over:
            raise Stopped

    @property
    def left_s(self) -> float:
        """Seconds until what it is at hangs."""
        return self._began + self._limit_s - time.monotonic()

    def reference_s(self, shape: str) -> float:
        """About what a call takes on `shape`: what the baseline took, or else by its work and what the machine does."""
        case, _ = operations.parse(shape)
        _, beside_link = machine.flops(self.device, self.supervisor.hello["machine"]["datasheet"])
        return max(case.work.flop / beside_link, self.supervisor.reference_s.get(shape, 0.0))

    def take_at(self, at: dict) -> None:
        self.at, self._began = at, time.monotonic()
        step, shape, told_s = at["step"], at["shape"], at.get("seconds") or 0.0
        self._limit_s = LIMIT_S[step][self.device]
        if shape:
            calls = len(at.get("entrants", "1"))
            self._limit_s += HUNG_TIMES * calls * self.reference_s(shape)
            self._limit_s = max(self._limit_s, told_s) if step == CALL else self._limit_s + RULE_TIMES * told_s

    def take_line(self, line: dict) -> None:
        self.supervisor.add(line)

    def take_rejected(self, line: dict) -> None:
        self._is_fruitful = True
        self.supervisor.lose(line["shape"], line["name"], line["outcome"], line["reason"])

    def take_lost(self, line: dict) -> None:
        self._lost_at = line["reason"]
        self.supervisor.say(f"{line['reason']}; the next share goes on with what is left")

    def take_broke(self, line: dict) -> None:
        self.broke = line

    def take_done(self, line: dict) -> None:
        self.is_done = True

    def culprits(self) -> list[str]:
        """Who may have ended the share, by what it was at: a contender, or where that is not known, all but the
        baseline. None where it was at no shape."""
        shape, name = self.at["shape"], self.at.get("name")
        if name or not shape:
            return [name] if name else []
        return self.supervisor.left(shape)

    def end(self, how: str, rank: str = "") -> None:
        """A share has ended: well, or by `how` on a `rank`, and then what it was at has its outcome. Where that is no
        single contender, the shape is tried once more, and then its contenders have it; where it is nothing, the next
        share goes on, a few times."""
        if self._lost_at and not self._is_fruitful:
            self._ended["lost"] += 1
            self.supervisor.over = self._lost_at if self._ended["lost"] >= TRIES else self.supervisor.over
        if (how or self.broke) and not (self.supervisor.over or self.supervisor.signals):
            self.conclude(self.verdict(how, rank))

    def verdict(self, how: str, rank: str) -> dict:
        """Return who has which outcome, since the share ended by `how`, or broke. It is known to be theirs, or what it
        was at is tried once more."""
        step, shape, names = self.at["step"], self.at["shape"], self.culprits()
        about = {"step": step, "shape": shape}
        if self.broke:
            names = [self.broke["name"]] if self.broke["name"] else names
            why, outcome = rank + self.broke["reason"], self.broke["outcome"]
            return about | {"names": names, "outcome": outcome, "why": why, "is_known": bool(names)}
        where, hung = WHERE.get(step, f"at its {step}"), f"it was not over in {self._limit_s:.3g} s, the limit"
        why = rank + (f"{HUNG} {where}: {hung}" if how == HUNG else f"{how}, {where}")
        is_known = len(names) == 1 and step != PREPARE
        return about | {"names": names, "outcome": FAILED, "why": why, "is_known": is_known}

    def conclude(self, verdict: dict) -> None:
        """Journal who has which outcome."""
        step, shape, names, why = (verdict[name] for name in ("step", "shape", "names", "why"))
        if step == CEILINGS:
            return self.supervisor.note("ceilings", f"No shares of the roof: the share ended by {why}.")
        self._ended[step, shape] += not verdict["is_known"]
        if verdict["is_known"] or (names and self._ended[step, shape] > 1):
            for name in names:
                self.supervisor.lose(shape, name, verdict["outcome"], f"{name}: {why}")
        elif self._ended[step, shape] >= TRIES:
            self.supervisor.over = f"{TRIES} shares ended at their {step}: {why}"


class Hello(Job):
    """Learns what the machine is."""

    kind = share.HELLO

    def next_request(self) -> Request | None:
        is_asked = self.supervisor.hello or self._ended
        return None if is_asked else self.supervisor.request(self.kind, self.supervisor.planned)

    def take_hello(self, line: dict) -> None:
        self.supervisor.hello = line
        if epochs := self.supervisor.epochs:
            epochs.loopback = line["ranks"]["loopback"]

    def conclude(self, verdict: dict) -> None:
        self._ended[START, ""] += 1
        self.supervisor.over = f"a share that only looks at the machine ended: {verdict['why']}"


class Check(Job):
    """Calls each contender before it is trusted."""

    kind = share.CHECK

    def __init__(self, supervisor: Supervisor, cases: dict[str, list[str]], *, is_alone: bool = False):
        super().__init__(supervisor)
        self.cases, self.is_alone = dict(cases), is_alone
        self.again: dict[str, list[str]] = {}
        """What lacked memory beside others, to be checked alone."""

    def next_request(self) -> Request | None:
        left = {shape: self.supervisor.left(shape) for shape in self.cases}
        self.cases = {shape: names for shape, names in left.items() if names}
        return self.supervisor.request(self.kind, self.cases) if self.cases else None

    def begin(self, asked: Request) -> None:
        self.cases = asked.cases  # on other ranks than 0, too
        super().begin(asked)

    def take_rejected(self, line: dict) -> None:
        if "out of memory" in line["reason"] and not self.is_alone:
            self.again[line["shape"]] = self.cases[line["shape"]]
        else:
            super().take_rejected(line)

    def take_checked(self, line: dict) -> None:
        shape = line["shape"]
        self.cases.pop(shape)
        self.supervisor.reference_s[shape] = line["reference_s"]
        self.supervisor.chosen[shape] = {"facts": line["facts"], "medians_s": {}}
        self.supervisor.at()


class Measure(Job):
    """Makes the passes over all shapes, process by process."""

    kind = share.MEASURE

    def __init__(self, supervisor: Supervisor):
        super().__init__(supervisor)
        self.when = "resume" if supervisor.run.shapes else "start"
        self.process = 0

    def next_request(self) -> Request | None:
        run = self.supervisor.run
        self.process, passes = self.supervisor.passes_left()
        if not passes:
            return None
        if self.process:
            self.supervisor.at(plan.BEGIN, self.process)
        number = 1 + max((one.process for shape in run.shapes.values() for one in shape.rounds), default=-1)
        cases = {shape: self.supervisor.left(shape) for shape in passes}
        about = {"processes": self.supervisor.processes, "ceilings": run.ceilings, "when": self.when}
        self.when = ""
        return self.supervisor.request(self.kind, cases, passes=passes, process=number, **about)

    def begin(self, asked: Request) -> None:
        self._number, self._cases = asked.process, asked.cases
        self._prepared: dict[str, dict] = {}
        self._before: dict[str, dict] = {}
        """Shape -> what was known of it when the share began."""
        super().begin(asked)

    def take_at(self, at: dict) -> None:
        super().take_at(at)
        if (step := at["step"]) in STEPS:
            known = self.supervisor.run.shapes.get(at["shape"])
            done = known.passes % self.supervisor.passes if known else 0
            self.supervisor.at(STEPS[step], self.process, at["shape"], *([done + 1] if step == TURNS else []))

    def culprits(self) -> list[str]:
        shape, entrants = self.at["shape"], self.at.get("entrants", [])
        if not (shape and entrants):
            return super().culprits()
        if not (about := self._prepared.get(shape)):
            return super().culprits()
        contenders = [name for name in entrants if "role" not in about["entrants"][name]]
        at_turn = entrants[self.marked - 1] if self.marked else ""
        return [at_turn] if at_turn in contenders else [n for n in contenders if n != about["baseline"]] or contenders

    def take_prepared(self, line: dict) -> None:
        self._prepared[line["id"]] = line
        self.at = self.at | {"shape": ""}

    def take_turns(self, line: dict) -> None:
        """Journal rounds, numbered behind those of earlier shares, and what is known of the shape by now."""
        shape, whole, supervisor = line["shape"], line["whole"], self.supervisor
        self._is_fruitful = True
        known = supervisor.run.shapes.get(shape)
        if shape not in self._before:
            known = known if known and known.passes else None
            self._before[shape] = {
                "passes": known.passes if known else 0,
                "processes": known.processes if known else 0,
                "rounds": known.round_count if known else 0,
                "late": known.late if known else {},
                "telemetry": [known.telemetry] * known.passes if known else [],
            }
        before = self._before[shape]
        rounds = [
            replace(
                one,
                index=one.index + before["rounds"],
                pass_index=one.pass_index + before["passes"],
                process=self._number,
            ).line(shape)
            for one in (Round(**fields) for fields in line["rounds"])
        ]
        passes, each = (known.passes if known else 0) + whole, supervisor.passes
        is_over = whole and line["stopped_by"] and passes == each * supervisor.processes
        before["telemetry"] += [line["telemetry"]] * whole
        now = {
            "passes": passes,
            "processes": before["processes"] + 1,
            "stopped_by": line["stopped_by"] if is_over else INTERRUPTED,
            "round_count": (known.round_count if known else 0) + len(rounds),
            "telemetry": telemetry.merged(before["telemetry"] or [line["telemetry"]]),
            "late": {name: count + before["late"].get(name, 0) for name, count in line["late"].items()},
        }
        about = {"kind": "pass", "shape": shape} if known else self._prepared[shape]
        supervisor.add(about | now, *rounds, *line["timelines"])
        self.at = self.at | {"shape": ""}  # which is over

    def end(self, how: str, rank: str = "") -> None:
        super().end(how, rank)
        # A shape that it did not measure is not asked for again.
        if not (how or self.broke or self._lost_at or self.supervisor.over):
            for shape, name in [(shape, name) for shape, names in self._cases.items() for name in names]:
                if shape not in self._before and name in self.supervisor.left(shape):
                    reason = f"{name}: its runner left it out, and did not say why"
                    self.supervisor.lose(shape, name, FAILED, reason)


class Names(Job):
    """Names the kernels of what was measured."""

    kind = share.NAMES

    def __init__(self, supervisor: Supervisor, cases: dict[str, list[str]]):
        super().__init__(supervisor)
        self.cases = cases

    def next_request(self) -> Request | None:
        cases, self.cases = self.cases, {}
        return self.supervisor.request(self.kind, cases) if cases else None

    def conclude(self, verdict: dict) -> None:
        self.supervisor.note("kernel names", f"Kernel names: not all were found: {verdict['why']}.")


def _pass_line(shape, **changed) -> dict:
    """What the last pass over a shape came to, some of it `changed`."""
    known = ("passes", "processes", "stopped_by", "round_count", "telemetry", "late")
    return {"kind": "pass", "shape": shape.id} | {name: getattr(shape, name) for name in known} | changed


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
