"""What came of a run of pytest in a process of its own, by its exit code, its output and the folder that it left."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from roofline.analysis.records import records_of
from roofline.store import journal
from roofline.store.run import Run


@dataclass
class Outcome:
    code: int
    text: str
    folder: Path | None
    go_on: Callable[..., "Outcome"]
    """It, or a copy of it, is gone on with, without the fault; takes what began it."""
    root: Path | None = None
    """The folder of the project, where it is a small one."""

    @property
    def kept(self) -> Run:
        """By its journal."""
        return journal.load(self.folder)

    @property
    def lines(self) -> list[dict]:
        """Of its journal, without their checksums."""
        lines = [json.loads(line) for line in (self.folder / journal.NAME).read_text().splitlines()]
        return [{name: value for name, value in line.items() if name != "sum"} for line in lines]

    @property
    def report(self) -> str:
        return (self.folder / "report.md").read_text()

    @property
    def saved(self) -> dict:
        return json.loads((self.folder / "benchmark.json").read_text())

    @property
    def rows(self) -> dict[str, dict]:
        return {row["extra_info"]["contender"]: row for row in self.saved["benchmarks"]}

    @property
    def cases(self) -> list[str]:
        """`m64-torch` and so on: what pytest-benchmark saved."""
        return [f"m{row['extra_info']['m']}-{row['extra_info']['contender']}" for row in self.saved["benchmarks"]]

    @property
    def rounds(self) -> dict[str, int]:
        """{m64-torch: how many it has} by the journal."""
        return {f"m{record['m']}-{record['contender']}": record["rounds"] for record in records_of(self.kept)}

    @property
    def measured(self) -> list[str]:
        """Those that have all of them."""
        return [name for name, rounds in self.rounds.items() if rounds >= 30]

    @property
    def reasons(self) -> dict[str, tuple[str, str]]:
        """{m64-torch: (outcome, reason)} of what has no number, by the journal."""
        missing = [(missing.case, (missing.outcome, missing.reason)) for missing in self.kept.missing]
        return {case.partition("tp8-")[2].replace("-fp32", "") or case: reason for case, reason in missing}
