"""The journal (`samples.jsonl`): everything a run measured, line by line, as soon as it is known.

It is the one source of tables and plots, so that a run that died can still be reported and gone on with. Lines are JSON
objects with a `kind`; results/README.md documents them. Records hold primitives in SI units; derived fields are
`records.derive`'s.
"""

import itertools
import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SCHEMA = 6
READABLE = (1, 2, 3, 4, 5, 6)
"""Schema 1 lacks `cases` in its first line, and has no line of the kinds `visit`, `steady` and `resumed`. Schema 2 has
no `timeline`, and no contenders with a `role`. In schema 3 the arm of launches by row block is called `row_block`.
Schema 4 has no `counters`, `kernels`, `saved` and `note`, schema 5 no `trying`."""

NAME = "samples.jsonl"
ROOM_BYTES = 32 * 2**20
"""Must be free before a run begins. A default run writes 6 MB; the rest is for reports and longer plans."""

NOT_RUN = "not_run"
"""The outcome of a case whose turn never came. The others are `skipped` (cannot run here) and `failed`."""

SAVED = "saved"
"""How the entry ends that says why what a tuning found of a shape could not be saved; it goes once that was."""

INTERRUPTED = "interrupt"
"""What stopped the rounds of a shape that Ctrl-C or SIGTERM cut short. Its rows stay, until it is gone on with."""

REQUIRED = {
    "run": ("method_version", "title", "footer", "notes", "machine"),
    "resumed": ("started",),
    "ceiling": ("ceiling", "dtype", "when", "probe", "value"),
    "shape": (
        *("shape", "op", "model", "layer", "tp", "m", "n", "k", "dtype", "flop", "device_bytes", "vendor"),
        *("stopped_by", "rounds", "cache", "telemetry", "contenders"),
    ),
    "trying": ("case",),
    "visit": ("shape", "visit", "stopped_by", "rounds", "telemetry", "late"),
    "sample": ("shape", "contender", "round", "time_s"),
    "steady": ("shape", "contender", "block", "time_s"),
    "timeline": ("shape", "contender", "transfers", "arrivals_s", "waits", "end_s"),
    "counters": ("shape", "contender", "dram_bytes", "l2_bytes", "tensor_ops", "counter_source"),
    "kernels": ("shape", "kernel_names"),
    "saved": ("shape",),
    "note": ("about", "text"),
    "not_measured": ("case", "outcome", "reason"),
    "end": (),
}
"""Kind -> the fields without which a line of it cannot be read."""


OF_A_SHAPE = ("visit", "sample", "steady", "timeline", "counters", "kernels", "saved")
SAMPLE = {"kind", "shape", "contender", "round", "position", "time_s"}
"""Fields of every sample; what else it has is its notes."""

TABLES = {
    "machine": {"chip", "source", "datasheet"},
    "counter_source": {"tool", "version", "metrics"},
    **{name: set() for name in ("telemetry", "contenders", "late", "kernel_names")},
}
"""Fields that are tables -> what must be in them."""

POSITIVE = {"time_s", "value", "flop", "device_bytes", "rounds"}


def make_folder(folder: Path) -> Path:
    """Make `folder`, or `folder`-2 and so on where another run has that name; returns it. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        own = folder.with_name(f"{folder.name}-{number}") if number > 1 else folder
        with suppress(FileExistsError):
            own.mkdir()
            return own


class Journal:
    """Appends to samples.jsonl in `folder`, which it makes, or goes on with.

    A write is whole or it is not there: one that fails (the disk is full) is taken back before OSError is raised, and
    nothing is left in a buffer for a later kill to lose. A line that a kill cut off is dropped before the next.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        _require_room(folder)
        path = folder / NAME
        whole = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
        self._file = path.open("ab", buffering=0)
        self._file.truncate(len(whole[0] + whole[1]))

    def write(self, *lines: dict) -> None:
        size = self._file.seek(0, 2)
        rest = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except BaseException:
            self._file.truncate(size)
            raise

    def close(self) -> None:
        self._file.close()


def _require_room(folder: Path) -> None:
    """Raise OSError now, before anything is measured, if the folder cannot be written or its disk is full."""
    probe = folder / ".room"
    try:
        probe.write_bytes(bytes(ROOM_BYTES))
    except OSError:
        probe.unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()
        raise
    probe.unlink()


@dataclass
class Run:
    """A journal read back."""

    head: dict
    ceilings: list[dict] = field(default_factory=list)
    shapes: dict[str, dict] = field(default_factory=dict)
    """Shape id -> its line, with `times_s`: {contender: {round: seconds}} added, `notes`: {contender: {round: further
    fields of the sample}}, `timelines` and `counters`: {contender: its line}."""
    steady: list[dict] = field(default_factory=list)
    not_measured: list[dict] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)
    """What the report is to say beside the notes of the head, by what it is about."""
    end: dict | None = None
    """The line that closes a run that came to its end; None if it was cut off."""

    def measured(self, shape_id: str) -> list[str]:
        """Contenders that have samples on a shape. What took turns with them for comparison only has a role."""
        shape = self.shapes.get(shape_id, {"late": {}, "contenders": {}})
        own = [name for name in shape["late"] if "role" not in shape["contenders"].get(name, {})]
        return [name for name in own if shape["times_s"].get(name)]

    def cases(self):
        """(shape, contender) of every row: what was asked for, and the vendor beside it."""
        for shape_id, shape in self.shapes.items():
            for name in self.measured(shape_id):
                yield shape, name

    @property
    def notes(self) -> list[str]:
        """What a reader should know: sentences."""
        return [*self.head["notes"], *self.told.values()]

    @property
    def interrupted(self) -> list[str]:
        """Shapes whose rounds were cut short."""
        return [name for name, shape in self.shapes.items() if shape["stopped_by"] == INTERRUPTED]

    @property
    def unfinished(self) -> bool:
        """Whether there is something to go on with: a shape cut short, a case whose turn never came, or a choice of a
        tuning that could not be saved."""
        unsaved = {f"{shape}-{SAVED}" for shape in self.shapes}
        left = (entry for entry in self.missing if entry["outcome"] == NOT_RUN or entry["case"] in unsaved)
        return bool(self.interrupted or any(left))

    @property
    def missing(self) -> list[dict]:
        """{case, outcome, reason} of each case that failed or has no number: the last word on it."""
        last = {entry["case"]: entry for entry in self.not_measured}
        for case in self.head.get("cases", ()):
            cut_off = {"case": case, "outcome": NOT_RUN, "reason": "the run was cut off before it"}
            last.setdefault(case, cut_off)
        measured = {f"{shape['shape']}-{name}" for shape, name in self.cases()}
        again = {f"ceilings-{ceiling['when']}" for ceiling in self.ceilings}
        again |= {f"{shape}-{SAVED}" for shape, about in self.shapes.items() if about.get("saved")}
        return [
            entry
            for case, entry in last.items()
            if case not in again and (case not in measured or entry["outcome"] != NOT_RUN)
        ]

    def take(self, line: dict) -> None:
        """Add a line of the journal, after its first one. It is one that `load` would accept."""
        kind = line["kind"]
        line = {key: value for key, value in line.items() if key != "kind"}
        if kind == "ceiling":
            self.ceilings.append(line)
        elif kind == "shape":  # a second one is of a run that was gone on with: the shape is measured anew
            line.setdefault("late", {name: own.get("late", 0) for name, own in line["contenders"].items()})  # schema 1
            if self.head["schema"] < 4 and "row_block" in line["contenders"]:
                line["contenders"]["row_block"]["simulated_as"] = "row_block_launches"
            self.shapes[line["shape"]] = line | {"times_s": {}, "notes": {}, "timelines": {}, "counters": {}}
            self.steady = [block for block in self.steady if block["shape"] != line["shape"]]
        elif kind == "visit":
            self.shapes[line["shape"]] |= line
        elif kind == "sample":
            shape, name, index = self.shapes[line["shape"]], line["contender"], line["round"]
            shape["times_s"].setdefault(name, {})[index] = line["time_s"]
            if notes := {key: value for key, value in line.items() if key not in SAMPLE}:
                shape["notes"].setdefault(name, {})[index] = notes
        elif kind == "timeline":
            self.shapes[line["shape"]]["timelines"][line["contender"]] = line
        elif kind == "counters":
            self.shapes[line["shape"]]["counters"][line["contender"]] = line
        elif kind == "kernels":
            for name, kernels in line["kernel_names"].items():
                self.shapes[line["shape"]]["contenders"].get(name, {})["kernel_name"] = kernels
        elif kind == "saved":
            self.shapes[line["shape"]]["saved"] = True
        elif kind == "note":
            self.told[line["about"]] = line["text"]
        elif kind == "steady":
            self.steady.append(line)
        elif kind == "not_measured":
            self.not_measured.append(line)
        elif kind == "resumed":
            self.end = None
        elif kind == "end":
            self.end = line


def load(folder: Path) -> Run:
    """The run in `folder`. A last line that was cut off is ignored. Raises ValueError if it is no journal of ours."""
    folder = Path(folder)
    path = folder if folder.name == NAME else folder / NAME
    if not path.is_file():
        raise ValueError(f"{folder} is no run folder: it has no {NAME}; give one of results/local or results/reference")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no journal: it is not text in UTF-8") from None
    lines.pop()  # empty, or what a kill cut off while it was written
    run: Run | None = None
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            raise ValueError(f"{path}:{number} is not JSON: the journal is damaged, or no journal") from None
        kind = line.pop("kind", None) if isinstance(line, dict) else None
        if run is None and (kind != "run" or line.get("schema") not in READABLE):
            raise ValueError(f"{path} is no journal of schema {SCHEMA}: it begins with {text[:60]!r}")
        if kind not in REQUIRED or (run and kind == "run"):
            raise ValueError(f"{path}:{number} has a line of unknown kind {kind!r} here")
        if problem := _problem(kind, line):
            raise ValueError(f"{path}:{number} is a line of kind {kind!r} {problem}: the journal is damaged")
        if kind in OF_A_SHAPE and line["shape"] not in run.shapes:
            raise ValueError(f"{path}:{number} is of {line['shape']!r}, a shape that no line before it describes")
        if kind == "run":
            run = Run(line)
        else:
            run.take({"kind": kind} | line)
    if run is None:
        raise ValueError(f"{path} is empty: the run ended before it began")
    for shape in run.shapes.values():
        if any(len(shape["times_s"].get(name, ())) + late < shape["rounds"] for name, late in shape["late"].items()):
            shape["stopped_by"] = INTERRUPTED  # killed between the line of the shape and its samples
    return run


def _problem(kind: str, line: dict) -> str | None:
    """What a line lacks, or has of another type, in words; None if it can be read."""
    for name in REQUIRED[kind]:
        if name not in line:
            return f"without {name!r}"
        if name in TABLES and not (isinstance(line[name], dict) and TABLES[name] <= line[name].keys()):
            return f"whose {name!r} is no table of {', '.join(sorted(TABLES[name])) or 'values'}"
        if name in POSITIVE and not (isinstance(line[name], int | float) and line[name] > 0):
            return f"whose {name!r} is no number above 0"
    return None
