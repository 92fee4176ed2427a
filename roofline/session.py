"""One benchmark run: its folder, its journal, and measuring each shape once, whichever of its tests comes first."""

import os
import subprocess
import zlib
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from roofline import __version__
from roofline.measure import METHOD_VERSION, ceilings, machine
from roofline.measure.clocks import empty_call_s
from roofline.measure.lineup import Lineup, Prepare
from roofline.measure.rounds import Plan, Turns, take_turns
from roofline.options import Options
from roofline.report import journal
from roofline.report.records import derive

MOST_REMEASURED = 3
"""Times a run measures its ceilings again because a point lay above them; after that the rows are marked only."""


class Session:
    """Measures shapes and journals them. Knows no kernel and no pytest: it is handed callables and a clock."""

    def __init__(self, options: Options, folder: Path, clock, telemetry, probes: list[ceilings.Probe], root: Path):
        self._journal = journal.Journal(folder)
        self.options, self.folder, self.clock, self.telemetry, self.probes = options, folder, clock, telemetry, probes
        self.run = journal.Run(self._head(root))
        self._journal.write({"kind": "run"} | self.run.head)
        self._lineups: dict[str, Lineup] = {}
        self._remeasured = 0
        clock.while_busy = telemetry.read

    def _head(self, root: Path) -> dict:
        options, about = self.options, machine.describe(self.options.device)
        started = datetime.now(UTC)
        commit = _commit(root)
        width = f"{about['threads']} threads" if options.device == "cpu" else f"driver {about['driver']}"
        versions = ", ".join(
            f"{name} {about['versions'][name]}" for name in ("torch", "triton") if name in about["versions"]
        )
        scale = " (scaled down)" if "/" in options.model else ""
        notes = [f"Measured on the {about['source'].upper()}: {about['chip']}."]
        if options.device == "cpu":
            notes.append("Triton kernels were not timed: without a GPU they run in the interpreter, to be checked.")
        about["empty_call_s"] = empty_call_s(self.clock)
        return {
            "schema": journal.SCHEMA,
            "method_version": METHOD_VERSION,
            "roofline_version": __version__,
            "started": started.isoformat(timespec="seconds"),
            "commit": commit,
            "title": f"FFN matmuls of {options.model}{scale} on {about['chip']}",
            "footer": f"{about['chip']}, {width} | {versions} | commit {commit} | {started:%Y-%m-%d %H:%M} UTC"
            f" | seed {options.seed}, method {METHOD_VERSION}",
            "notes": notes,
            "machine": about,
            "options": {name: value for name, value in asdict(options).items() if name != "results"},
        }

    def measure_ceilings(self, when: str) -> None:
        """Measure the probes' ceilings and journal them under `when`."""
        for ceiling in ceilings.measure(self.probes, self.clock, when=when, seed=self.options.seed):
            line = asdict(ceiling)
            line["ceiling"] = line.pop("kind")
            self.run.ceilings.append(line)
            self._journal.write({"kind": "ceiling"} | line)

    def lineup(self, case, names: list[str], prepare: Prepare) -> Lineup:
        """The contenders `names` of `case`, prepared, timed and journalled on the first call, remembered after that."""
        if case.id not in self._lineups:
            found = prepare(case, names)
            self._lineups[case.id] = found
            if found.ready:
                seed = zlib.crc32(f"{self.options.seed} {case.id}".encode())
                self.telemetry.start()
                turns = take_turns(found.ready, self.clock, Plan(max_seconds=self.options.max_seconds), seed=seed)
                self._record(case, found, turns, seed)
            found.ready.clear()  # lets go of the operands, of which the calls hold gigabytes
        return self._lineups[case.id]

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
        self._journal.write({"kind": "shape"} | shape, *samples)
        self.run.shapes[case.id] = shape | {"times_s": turns.times_s}
        self._explain_above_roof(case.id)

    def _explain_above_roof(self, shape_id: str) -> None:
        """A point above the roof says that the ceiling was measured too low: measure it again, beside the point."""
        above = any(self.record(shape_id, name)["above_roof"] for name in self.run.measured(shape_id))
        if above and self._remeasured < MOST_REMEASURED:
            self._remeasured += 1
            self.measure_ceilings(when=shape_id)

    def record(self, shape_id: str, contender: str) -> dict | None:
        """The derived record of a contender on a shape by the ceilings known so far; None if it was not measured."""
        if contender not in self.run.measured(shape_id):
            return None
        return derive(self.run, self.run.shapes[shape_id], contender)

    def not_measured(self, case_id: str, outcome: str, reason: str) -> None:
        """Journal that `case_id` has no number, and why. `outcome` is `skipped` or `failed`."""
        entry = {"case": case_id, "outcome": outcome, "reason": reason}
        self.run.not_measured.append(entry)
        self._journal.write({"kind": "not_measured"} | entry)

    def close(self) -> None:
        """Say in the journal that the run came to its end."""
        self.run.end = {"finished": datetime.now(UTC).isoformat(timespec="seconds")}
        self._journal.write({"kind": "end"} | self.run.end)
        self._journal.close()


def folder_name(device: str) -> str:
    """`<UTC time>-<chip>`, which sorts by time."""
    chip = "".join(c if c.isalnum() else "-" for c in machine.describe(device)["chip"].lower())
    chip = "-".join(part for part in chip.split("-") if part)
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{chip}"


def _commit(root: Path) -> str:
    """Short hash of the checkout, with `+dirty` where files differ from it.

    Where there is no git or no checkout, what the environment variable ROOFLINE_COMMIT says, else `unknown`.
    """
    command = ["git", "describe", "--always", "--dirty=+dirty", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("ROOFLINE_COMMIT", "unknown")
