"""One benchmark run: its folder, its journal, and measuring each shape once, whichever of its tests comes first."""

import zlib
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from roofline.measure import ceilings, faults, steady
from roofline.measure.lineup import Lineup, Prepare
from roofline.measure.machine import anonymous
from roofline.measure.rounds import CallError, Plan, Turns, take_turns
from roofline.options import Options
from roofline.report import journal
from roofline.report.records import derive

MOST_REMEASURED = 3
"""Times a run measures its ceilings again because a point lay above them; after that the rows are marked only."""


class Session:
    """Measures shapes and journals them. Knows no kernel and no pytest: it is handed callables and a clock.

    `run` is a new one, with its head alone, or one that was cut off and is gone on with.
    """

    def __init__(self, options: Options, folder: Path, clock, telemetry, run: journal.Run):
        self._journal = journal.Journal(folder)
        self.options, self.folder, self.clock, self.telemetry, self.run = options, folder, clock, telemetry, run
        self.over = ""
        """Why nothing more can be measured, if that is so."""
        self._probes: list[ceilings.Probe] = []
        self._remeasured = 0
        self._entries = {e["case"]: e for e in run.not_measured if e["outcome"] != journal.NOT_RUN}
        if run.end or run.ceilings or run.shapes or run.not_measured:
            run.end = None
            for name in run.interrupted:
                del run.shapes[name]
            self._write({"kind": "resumed", "started": _now()})
        else:
            self._write({"kind": "run"} | run.head)
        clock.while_busy = telemetry.read

    def begin(self, make_probes, *, when: str) -> None:
        """Measure the ceilings of the probes that `make_probes()` returns. A failure ends the run here."""
        try:
            self._probes = make_probes()
            self.measure_ceilings(when)
        except Exception as error:
            self.over = f"the ceilings could not be measured: {faults.reason(error)}"

    def measure_ceilings(self, when: str) -> None:
        """Measure the probes' ceilings and journal them under `when`."""
        for ceiling in ceilings.measure(self._probes, self.clock, when=when, seed=self.options.seed):
            line = asdict(ceiling)
            line["ceiling"] = line.pop("kind")
            self.run.ceilings.append(line)
            self._write({"kind": "ceiling"} | line)

    def measure(self, case, names: list[str], prepare: Prepare) -> None:
        """Measure the contenders `names` of `case` side by side, unless that is done.

        Afterwards each has a `record` or an `entry`, unless the run is `over`.
        """
        if self.over or all(self.record(case.id, name) or self.entry(f"{case.id}-{name}") for name in names):
            return
        names = [name for name in names if not self.entry(f"{case.id}-{name}")]
        found = self._prepared(case, names, prepare)
        seed = zlib.crc32(f"{self.options.seed} {case.id}".encode())
        plan = Plan(max_seconds=self.options.max_seconds)
        while found.ready:
            self.telemetry.start()
            turns = Turns.of(found.ready)
            try:
                take_turns(found.ready, self.clock, plan, seed=seed, into=turns)
            except KeyboardInterrupt:
                turns.stopped_by = journal.INTERRUPTED
                self._record(case, found, turns, seed)
                raise
            except Exception as error:
                self._take_out(found, error)
                continue
            self._record(case, found, turns, seed)
            self._explain_above_roof(case.id)
            if self.options.steady:
                self._steady_state(case, found, seed)
            break
        found.ready.clear()  # lets go of the operands, of which the calls hold gigabytes
        for outcome, reasons in (("skipped", found.unable), ("failed", found.wrong)):
            for name, reason in reasons.items():
                self.not_measured(f"{case.id}-{name}", outcome, reason)
        if found.lost:
            self.over = f"the device was lost at {case.id}: {found.lost}"

    def _prepared(self, case, names: list[str], prepare: Prepare) -> Lineup:
        try:
            return prepare(case, names)
        except Exception as error:  # operands that do not fit, for one
            found = Lineup(vendor="", ready=dict.fromkeys(names))
            self._take_out(found, error)
            return found

    def _take_out(self, found: Lineup, error: Exception) -> None:
        """Take the contender that raised `error` out; all of them where it was no single one, or the device is lost."""
        culprit = [error.name] if isinstance(error, CallError) else [*found.ready]
        if faults.device_lost(self.options.device):
            # Calls are asynchronous: the one that raised need not be the one that broke it.
            culprit, found.lost = [*found.ready], faults.reason(error)
        for name in culprit:
            found.refuse(name, error)

    def _record(self, case, found: Lineup, turns: Turns, seed: int) -> None:
        shape = {
            "shape": case.id,
            "op": case.op,
            "model": case.model,
            "layer": case.layer,
            **{key: getattr(case, key) for key in ("tp", "m", "n", "k", "dtype")},
            **asdict(case.work),
            "vendor": found.vendor,
            "seed": seed,
            "stopped_by": turns.stopped_by,
            "rounds": len(turns.order),
            "cache": found.cache,
            "telemetry": self.telemetry.summary(),
            "contenders": {
                name: {
                    "config": found.config[name],
                    "relative_error": found.relative_error[name],
                    "late": turns.late[name],
                }
                for name in turns.times_s
            },
        }
        samples = [
            {
                "kind": "sample",
                "shape": case.id,
                "contender": name,
                "round": index,
                "position": position,
                "time_s": turns.times_s[name][index],
            }
            for index, order in enumerate(turns.order)
            for position, name in enumerate(order)
            if index in turns.times_s[name]
        ]
        self._write({"kind": "shape"} | shape, *samples)
        self.run.shapes[case.id] = shape | {"times_s": turns.times_s}
        for name, times in turns.times_s.items():
            if not times and turns.stopped_by != journal.INTERRUPTED:
                found.wrong[name] = f"{name}: the host was late for every sample; close the programs that keep it busy"

    def _steady_state(self, case, found: Lineup, seed: int) -> None:
        """Blocks of the kernels that are long enough, journalled one by one."""
        medians = {name: self.record(case.id, name)["time_s"] for name in self.run.measured(case.id)}
        try:
            for block in steady.blocks(found.ready, medians, self.clock, self.telemetry, seed=seed):
                line = {"shape": case.id} | asdict(block)
                line |= line.pop("telemetry")
                self._write({"kind": "steady"} | line)
                self.run.steady.append(line)
        except Exception as error:
            self._take_out(found, error)

    def _explain_above_roof(self, shape_id: str) -> None:
        """A point above the roof says that the ceiling was measured too low: measure it again, beside the point."""
        above = any(self.record(shape_id, name)["above_roof"] for name in self.run.measured(shape_id))
        if above and self._remeasured < MOST_REMEASURED:
            self._remeasured += 1
            self._ceilings_again(when=shape_id)

    def _ceilings_again(self, when: str) -> None:
        try:
            self.measure_ceilings(when)
        except Exception as error:
            self.not_measured(f"ceilings-{when}", "failed", faults.reason(error))

    def record(self, shape_id: str, contender: str) -> dict | None:
        """The derived record of a contender on a shape by the ceilings known so far; None if it was not measured."""
        if contender not in self.run.measured(shape_id):
            return None
        return derive(self.run, self.run.shapes[shape_id], contender)

    def entry(self, case_id: str) -> dict | None:
        """{case, outcome, reason} of a case that was tried and has no number; None of any other."""
        return self._entries.get(case_id)

    def not_measured(self, case_id: str, outcome: str, reason: str) -> None:
        """Journal that `case_id` has no number, and why. `outcome` is `skipped`, `failed` or `not_run`."""
        entry = {"case": case_id, "outcome": outcome, "reason": anonymous(reason)}
        self.run.not_measured.append(entry)
        self._entries[case_id] = entry
        self._write({"kind": "not_measured"} | entry)

    def finish(self, why_cut_short: str) -> None:
        """End the run: the ceilings once more if it came to its end, and a reason for all that has no number."""
        if not why_cut_short and not self.over:
            self._ceilings_again("end")
        reason = self.over or why_cut_short or "its test ended before it was measured"
        for entry in self.run.missing:
            if not self.entry(entry["case"]):
                self.not_measured(entry["case"], journal.NOT_RUN, reason)
        self.run.end = {"finished": _now()}
        self._write({"kind": "end"} | self.run.end)
        self._journal.close()

    def _write(self, *lines: dict) -> None:
        """To the journal. If that fails, the run is over, and what it holds stays as it is."""
        try:
            self._journal.write(*lines)
        except OSError as error:
            self.over = f"the journal could not be written: {error.strerror}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
