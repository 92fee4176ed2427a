"""One benchmark run: its folder, its journal, and measuring each shape, whichever of its tests comes first."""

import json
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from roofline.measure import ceilings, device_errors, plan, steady
from roofline.measure.machine import anonymous
from roofline.measure.observer import Observer
from roofline.measure.prepared import FAILED, Entrant, Prepare, PreparedCase, Rejection, rejection
from roofline.measure.rounds import CallError, Rounds, StopRule
from roofline.measure.shape_measurement import ShapeMeasurement
from roofline.stats import time_of
from roofline.store import journal
from roofline.store.run import INTERRUPTED, NOT_RUN, Run

HUNG = "hung"
"""How the reason begins of what the watchdog ended."""

FIRST_CALL_S = {"cuda": 180.0, "cpu": 600.0}
"""By device: a first call hangs if it takes longer, with what it compiles and its check, unless `trying` was told
another limit. Triton compiles a kernel within half a minute; on a CPU one call of a full-size model takes minutes."""

PREPARE_S = {"cuda": 360.0, "cpu": 1200.0}
"""Of what precedes the first calls: operands, on a GPU also matmuls that are compiled and timed to choose one."""

TOLD = tuple(f'{{"kind": "{kind}"'.encode() for kind in ("trying", "shape", "pass"))
"""How the lines of a journal begin that say what a process is at."""

CALLS = 10
"""The rounds of a pass may take this many times as long as preparing the shape did, beyond their time: each contender
was called then, and is called some six times before the rounds look at the clock."""


class Session:
    """Measures shapes and journals them. Knows no kernel and no pytest: it is handed callables and a clock.

    `run` is the metadata of a new one, or a run that was cut off and is gone on with.
    """

    def __init__(
        self, options, folder: Path, clock, telemetry, run: dict | Run, planned: dict[str, list[str]], process: int = 0
    ):
        """`planned` is {shape: contenders}, as they were selected. `process` is another one than 0 where this process
        makes its share of the passes of a run that goes on in the one that began it, which waits meanwhile. Raises
        OSError for a folder that cannot be written, or has no room."""
        folder = journal.make_folder(folder) if isinstance(run, dict) else folder
        self._journal = journal.Journal(folder)
        self.options, self.folder, self.clock, self.telemetry = options, folder, clock, telemetry
        self.planned, self.process = planned, process
        self.processes = getattr(options, "processes", None) or clock.processes
        """How many measure each shape, one after another."""
        self.measure_elsewhere: Callable[[int], str] | None = None
        """`measure_elsewhere(process)` has another process make its share, and says why that ended early, if it did."""
        self.release: Callable[[], None] = lambda: None
        """Lets go of what this process holds of the device, once its own share is made."""
        self.over = ""
        """Why nothing more can be measured, if that is so."""
        self.device_lost = False
        self.observers: list[Observer] = []
        self.prepare: Prepare | None = None
        self.lacking = ""
        """What the end of the run is at."""
        self.expect: Callable[..., None] = lambda *step: None
        """Told what begins and how long it may take, as a `watchdog.Watchdog`'s is."""
        self.at: Callable[..., None] = lambda *step: None
        """Told what begins, in the fields of a `plan.Step`; without them, that the same goes on."""
        self._probes: list[ceilings.Probe] = []
        if isinstance(run, dict):
            self.run = Run(run)
            self.add({"kind": "run"} | run)
        else:
            self.run = run
            if not process:
                for name in [name for name in run.interrupted if not run.shapes[name].processes]:
                    del run.shapes[name]
                self.add({"kind": "resumed", "started": _now()})
        self._entries = {e["case"]: e for e in self.run.not_measured if e["outcome"] != NOT_RUN}
        clock.while_busy = telemetry.read

    def begin(self, make_probes, *, when: str) -> None:
        """Measure the ceilings of the probes that `make_probes()` returns. Where that fails, shares of the roof are
        unknown, and the run goes on unless the device was lost."""
        self.at(plan.CEILINGS)
        try:
            with self._watched(PREPARE_S[self.options.device], f"{HUNG} while the probes of the ceilings were made"):
                self._probes = make_probes()
            if not self.process:
                self.measure_ceilings(when)
        except Exception as error:
            reason, self._probes = f"the ceilings could not be measured: {device_errors.reason(error)}", []
            if device_errors.device_lost(self.options.device):
                self.over, self.device_lost = reason, not device_errors.gone
            else:
                self.note("ceilings", f"No shares of the roof: {reason}.")

    def measure_ceilings(self, when: str) -> None:
        """Measure the probes' ceilings and journal them under `when`."""
        with self._watched(PREPARE_S[self.options.device], f"{HUNG} while the ceilings were measured"):
            rule = replace(
                ceilings.STOP_RULE, max_seconds=min(ceilings.STOP_RULE.max_seconds, self.options.max_seconds)
            )
            found, reasons = ceilings.measure(
                self._probes, self.clock, when=when, seed=self.options.seed, device=self.options.device, rule=rule
            )
        self.add(*({"kind": "ceiling"} | asdict(ceiling) for ceiling in found))
        if reasons:
            names = {why: [probe for probe, other in reasons.items() if other == why] for why in reasons.values()}
            self.note(
                "ceilings", "No probe: " + "; ".join(f"{', '.join(of)}: {why}" for why, of in names.items()) + "."
            )

    @contextmanager
    def _watched(self, within_s: float, why: str, cases: list[str] | None = None) -> Iterator[None]:
        """What runs inside shall be over `within_s`; else the run is ended, and `cases` have failed: `why`."""
        self.expect(within_s, why, cases)
        try:
            yield
        finally:
            self.expect()

    def measure(self, shape: str, prepare: Prepare) -> None:
        """Measure the planned contenders of `shape` side by side, unless that is done.

        Where there are several passes or processes, all planned shapes are measured in them. Afterwards each contender
        has a record in the run, or an `entry`, unless the run is `over`.
        """
        self.prepare = prepare
        if self.over or self._is_done(shape):
            return
        together = self.clock.passes > 1 or self.processes > 1
        shapes = [name for name in self.planned if not self._is_done(name)] if together else [shape]
        for process in range(self.processes):
            if self.over or not (own := [name for name in shapes if self._lacks_share(name, process)]):
                continue
            if process:
                self._measure_elsewhere(process)
            else:
                self.take_share(own)
                if self.processes > 1:
                    self._probes = []
                    self.release()

    def _lacks_share(self, shape: str, process: int) -> bool:
        """Whether the passes of `process` over `shape` are not whole. Of one that was never begun, those of the first
        are lacking."""
        known = self.run.shapes.get(shape)
        return shape in self.run.interrupted and known.processes <= process if known else not process

    def take_share(self, shapes: list[str]) -> None:
        """Make this process's passes over `shapes`."""
        entered: dict[str, ShapeMeasurement] = {}
        passes = self.clock.passes
        for pass_index in range(1, passes + 1):
            for name in shapes:
                if pass_index == 1:
                    self.at(plan.PREPARE, self.process, name)
                    entered[name] = self._enter(name)
                self.at(plan.MEASURE, self.process, name, pass_index)
                # Of a shape that is done nothing is kept: its operands' memory is the next one's.
                self._run_pass(entered[name] if pass_index < passes else entered.pop(name), pass_index)
                if self.over:
                    return

    def _measure_elsewhere(self, process: int) -> None:
        """Have another process make its share, and take in what it journalled. Where it ends early, once more."""
        for _ in range(2):
            self.at(plan.BEGIN, process)
            read_from = self._followed = self._journal.size()
            self._passes = Counter()
            try:
                why = self.measure_elsewhere(process)
            finally:
                for line in self._journal.lines_from(read_from):
                    self.run.take(line)
                    if line["kind"] == "not_measured":
                        self._entries[line["case"]] = {key: line[key] for key in ("case", "outcome", "reason")}
            if not why:
                return
            self.add({"kind": "resumed", "started": _now()})
        self.over = f"process {process + 1} of {self.processes} ended by {why}"

    def follow(self, process: int) -> None:
        """Say what the other `process` is at, by its new lines in the journal."""
        with (self.folder / journal.NAME).open("rb") as file:
            file.seek(self._followed)
            whole = file.read().rpartition(b"\n")[0]
        self._followed += len(whole) + 1 if whole else 0
        step = ()
        for line in [json.loads(text) for text in whole.splitlines() if text.startswith(TOLD)]:
            shape = line.get("id") or line.get("shape") or line["case"].rpartition("-")[0]
            self._passes[shape] += line["kind"] != "trying"
            done = self._passes[shape]
            step = (plan.MEASURE, process, shape, done) if done else (plan.PREPARE, process, shape)
        self.at(*step)

    def left(self, shape: str) -> list[str]:
        """Planned contenders of `shape` that have neither a number nor a reason yet."""
        measured = [] if shape in self.run.interrupted else self.run.measured(shape)
        return [name for name in self.planned[shape] if name not in measured and not self.entry(f"{shape}-{name}")]

    def _is_done(self, shape: str) -> bool:
        return shape not in self.run.interrupted and not self.left(shape)

    def prepared(self, shape: str, names: list[str]) -> PreparedCase:
        """What `prepare` returns. Where a first call hangs, or what precedes it, that ends the run."""
        with self._watched(
            PREPARE_S[self.options.device], f"{HUNG} before its first call", [f"{shape}-{name}" for name in names]
        ):
            return self.prepare(shape, names, lambda *call: self._first_call(shape, *call))

    def _enter(self, shape: str) -> ShapeMeasurement:
        """Prepare what was planned for `shape`, but for what was tried before."""
        before = self.run.shapes.get(shape) if self.process else None
        names = [name for name in self.planned[shape] if not self.entry(f"{shape}-{name}")]
        began = time.monotonic()
        try:
            found = self.prepared(shape, names)
        except Exception as error:  # operands that do not fit, for one
            found = PreparedCase(case=None, baseline="", entrants={name: Entrant(name, None) for name in names})
            self._take_out(found, error)
        if found.analysis == "throughput" and found.contenders:
            probe = ceilings.beside(found.case, self._probes, self.run.ceilings)
            found.entrants |= {probe.name: probe} if probe else {}
        if before:  # who is out, is out
            found.entrants = {name: entrant for name, entrant in found.entrants.items() if name in before.late}
        seed = zlib.crc32(f"{self.options.seed} {shape}".encode())
        rule = StopRule.share(self.options.max_seconds, self.processes, self.options.device)
        calls = {name: entrant.call for name, entrant in found.entrants.items()}
        done = (before.round_count, before.passes) if before else (0, 0)
        rounds = Rounds(
            calls,
            self.clock,
            rule,
            seed=seed + self.process,
            passes=self.clock.passes,
            process=self.process,
            before=done,
        )
        within_s = FIRST_CALL_S[self.options.device] + rule.max_seconds + CALLS * (time.monotonic() - began)
        return ShapeMeasurement(shape, found, rounds, seed, within_s, self.process, self.processes, before)

    def _first_call(self, shape: str, name: str, within_s: float | None = None) -> None:
        """The first call of a contender begins. Raises RuntimeError where that has failed before, when it was tried, or
        in the run that this one goes on with: a baseline, which comes along unasked."""
        case = f"{shape}-{name}"
        if (entry := self.entry(case)) and entry["outcome"] == FAILED:
            raise RuntimeError(entry["reason"])
        self.add({"kind": "trying", "case": case})
        self.at()
        self.expect(within_s or FIRST_CALL_S[self.options.device], f"{HUNG} in its first call", [case])

    def _run_pass(self, one: ShapeMeasurement, pass_index: int) -> None:
        last = pass_index == self.clock.passes
        while one.found.contenders:
            self.telemetry.start()
            cases = [f"{one.shape}-{name}" for name in _suspects(one.found)]
            try:
                with self._watched(one.within_s, f"{HUNG}, or another that it took turns with did", cases):
                    one.rounds.run_pass()
            except KeyboardInterrupt:
                self._record(one, pass_index)
                raise
            except Exception as error:
                for name in self._take_out(one.found, error):
                    one.rounds.drop(name)
                continue
            self._record(one, pass_index)
            if last:
                self._recheck(one)
            if last and not self.process and not one.found.device_lost:
                self._steady_state(one)
            break
        for name, refused in one.found.rejected.items():
            if not self.entry(f"{one.shape}-{name}"):
                self.not_measured(f"{one.shape}-{name}", *refused)
            if self.process and name in (late := self.run.shapes[one.shape].late):
                self._correct(one.shape, late={other: count for other, count in late.items() if other != name})
        if self.process and not one.found.contenders:  # nobody is left to have a share
            self._correct(one.shape, processes=self.processes, stopped_by="time")
        if one.found.device_lost:
            self.over = device_errors.gone or f"the device was lost at {one.shape}: {one.found.device_lost}"
            self.device_lost = not device_errors.gone
        if last:
            one.found.entrants.clear()  # lets go of operands that are not shared with other shapes

    def _take_out(self, found: PreparedCase, error: Exception) -> list[str]:
        """Take the entrant that raised `error` out; all of them where it was no single one.

        Where the device is lost, all are out, and one contender at least has failed, or else a run that is gone on with
        would come no further. Calls are asynchronous: the one that raised need not be the one that broke it. The others
        get their turn then.
        """
        named = [error.name] if isinstance(error, CallError) else []
        names = named or list(found.entrants)
        if lost := device_errors.device_lost(self.options.device):
            names = [name for name in named if name in found.contenders] or _suspects(found)
            found.device_lost = device_errors.reason(error)
        for name in names:
            found.refuse(name, error)
        if lost:
            found.entrants.clear()
        return names

    def _record(self, one: ShapeMeasurement, pass_index: int) -> None:
        """Journal the rounds since the last pass, and what is known of the shape by now."""
        one.telemetry.append(self.telemetry.summary())
        self.add(*one.new_lines(pass_index))
        if one.rounds.stopped_by:
            for name in [name for name, times in one.rounds.times_s.items() if not times]:
                said = f"{name}: the host was late for every sample; close the programs that keep it busy"
                one.found.rejected[name] = Rejection(FAILED, said)

    def _recheck(self, one: ShapeMeasurement) -> None:
        """Take out who computes something else by now, with its samples: it was not timed at its work."""

        def again(entrant: Entrant) -> Entrant | Rejection:
            try:
                return entrant.recheck() or entrant
            except Exception as error:
                if device_errors.lack(error):  # of memory, by now: that says nothing of what was timed
                    return entrant
                raise

        for name in [name for name in one.found.contenders if one.found.entrants[name].recheck]:
            case = [f"{one.shape}-{name}"]
            try:
                with self._watched(FIRST_CALL_S[self.options.device], f"{HUNG} when it was checked again", case):
                    one.found.take(name, partial(again, one.found.entrants[name]))
            except KeyboardInterrupt:
                self._correct(one.shape, stopped_by=INTERRUPTED, processes=self.process)
                raise
            if name in one.found.rejected or one.found.device_lost:
                late = self.run.shapes[one.shape].late
                self._correct(one.shape, late={other: count for other, count in late.items() if other != name})
            if one.found.device_lost:
                return

    def _correct(self, shape: str, **changed) -> None:
        """Journal what the last pass over `shape` came to once more, some of it `changed`."""
        known = ("passes", "processes", "stopped_by", "round_count", "telemetry", "late")
        values = {name: getattr(self.run.shapes[shape], name) for name in known}
        self.add({"kind": "pass", "shape": shape} | values | changed)

    def _steady_state(self, one: ShapeMeasurement) -> None:
        """Blocks of the kernels that are long enough, journalled one by one. What fails here keeps its rounds."""
        if self.options.device == "cpu" and not self.options.steady:
            return
        shape = self.run.shapes[one.shape]
        times = {name: shape.times_s(name) for name in shape.measured}
        medians = {name: time_of(own, shape.groups, shape.anchor or own).value for name, own in times.items()}

        def failed(name: str, error: Exception) -> None:
            if device_errors.device_lost(self.options.device):
                one.found.device_lost = device_errors.reason(error)
                raise error
            self.not_measured(f"{one.shape}-{name}-steady", *rejection(error))

        names = steady.chosen(one.found, medians, self.options)
        calls = {name: one.found.entrants[name].call for name in names}
        about = {"seed": one.seed, "count": steady.BLOCKS if self.options.steady else 1, "failed": failed}
        step = FIRST_CALL_S[self.options.device], f"{HUNG} in a block", [f"{one.shape}-steady"]
        try:
            self.at(plan.STEADY, 0, one.shape)
            with self._watched(*step):
                for block in steady.blocks(calls, medians, self.clock, self.telemetry, **about):
                    self.add({"kind": "steady", "shape": one.shape} | block)
                    self.at()
                    self.expect(*step)
        except KeyboardInterrupt:
            self._correct(one.shape, stopped_by=INTERRUPTED, processes=self.process)
            raise
        except Exception as error:  # the device is lost, or the clock failed
            self.not_measured(f"{one.shape}-steady", "failed", device_errors.reason(error))

    def entry(self, case_id: str) -> dict | None:
        """{case, outcome, reason} of a case that was tried and has no number; None of any other."""
        return self._entries.get(case_id)

    @property
    def fruitful(self) -> bool:
        """Whether anything that was asked for has a number."""
        return any(set(names) & set(self.run.measured(shape)) for shape, names in self.planned.items())

    def not_measured(self, case_id: str, outcome: str, reason: str) -> None:
        """Journal that `case_id` has no number, and why. `outcome` is `skipped`, `failed` or `not_run`."""
        entry = {"case": case_id, "outcome": outcome, "reason": anonymous(reason)}
        self._entries[case_id] = entry
        self.add({"kind": "not_measured"} | entry)

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
            for observer in self.observers:
                self.lacking = observer.lacking
                observer.finished()
        reason = self.over or why_cut_short or "its test ended before it was measured"
        asked = {f"{shape}-{name}" for shape, names in self.planned.items() for name in names}
        for case in [entry["case"] for entry in self.run.missing if entry["outcome"] == NOT_RUN]:
            self.not_measured(case, NOT_RUN, reason if case in asked else "not selected")
        why = self.over or why_cut_short or None
        self.add({"kind": "end", "finished": _now(), "cut_short": why})
        self._journal.close()


def _suspects(found: PreparedCase) -> list[str]:
    """Who may have broken or hung what nobody is known to have: all but the baseline, or that if it was alone."""
    return [name for name in found.contenders if name != found.baseline] or found.contenders


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
