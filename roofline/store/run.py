"""A run in memory: what measuring fills line by line, and what `roofline.load` reads back from disk.

Times are in seconds. A journal's lines are these dataclasses, and those of `store.lines`, as JSON objects: `Run.apply`
adds one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import truediv
from statistics import median
from typing import TYPE_CHECKING, Any

from roofline.store import lines, typed
from roofline.store.outcome import NOT_RUN, SKIPPED, Outcome
from roofline.store.stats import Interval, estimate, processes, time_of, values_by
from roofline.theory.work import Work

if TYPE_CHECKING:
    from pandas import DataFrame

LOOPBACK = (
    "void, loopback: ranks share a machine, where gloo takes its time from the cores that compute, or a GPU. Results "
    "were right; their times say nothing of a wire, and stay in the journal: take a machine, or a GPU, for each rank"
)
"""Why samples are no times of anything."""

PROBE = "probe"
"""The role of what takes turns with contenders to say where the roof is."""

PART = "part"
"""The role of a part of what contenders compute, which takes turns alone beside them."""

AGAIN = "_again"
"""Behind the baseline's name: the baseline once more, as a contender, which says how far equals are apart."""

REQUESTED = "link_bytes_per_s_requested"
"""A fact of a shape whose link is told how fast to be; of the wire `ridge` what it began with, and each round has its
own beside T_gemm."""

INTERRUPTED = "interrupt"
"""The end of a shape's rounds that Ctrl-C or SIGTERM cut short. Its rows stay, until it is gone on with."""

FEWEST_ROUNDS = 30
"""A run plans as many of each shape, unless the time runs out; a row of fewer says so."""


@dataclass(slots=True)
class Round:
    """One turn of all entrants of a shape. A sample that a late host spoilt is absent from `time_s`."""

    index: int
    order: list[str]
    time_s: dict[str, float]
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    """{entrant: what else was read of its sample}, as `last_arrival_s` or `sm_clock_hz`."""
    pass_index: int = 1
    """Which return to the shape it belongs to, from 1."""
    process: int = 0


@dataclass
class Shape:
    """A case's shape: its entrants, and the rounds in which they took turns."""

    id: str
    op: str
    analysis: str
    """Name of the analysis that judges it: `throughput` or `overlap`."""
    params: dict[str, Any]
    """The fields of its case, which make it again."""
    dtype: str
    work: Work
    baseline: str
    """The entrant that the others are compared with."""
    cache: str
    """The state of the cache that every sample starts from, in words."""
    entrants: dict[str, dict]
    """{name: config, relative_error, and what else is known of it}. One with a `role` takes turns for comparison only:
    `gemm`, `link`, `preset`, `contended`, `probe`, `part`."""
    seed: int = 0
    """The orders in the rounds follow from it."""
    facts: dict = field(default_factory=dict)
    """Values by its operation: sizes that are no parameters, and others that are plain."""
    passes: int = 1
    """Whole ones that were made over it, by now."""
    processes: int = 1
    """Processes that have measured it."""
    stopped_by: str = ""
    """`width`, `time`, `rounds` or `decision`; `INTERRUPTED` until the last pass has ended."""
    round_count: int = 0
    """Rounds that were run. The journal of a run that was killed may hold fewer."""
    telemetry: dict = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    """Samples dropped because the host was late, of each entrant that is still in."""
    rounds: list[Round] = field(default_factory=list)
    timelines: dict[str, dict] = field(default_factory=dict)
    counters: dict[str, dict] = field(default_factory=dict)
    steady: dict[str, dict[int, dict]] = field(default_factory=dict)
    """{contender: {alternation: its block of seconds}} of those that ran alone."""
    apart: str = ""
    """The contender that took turns alone with the baseline; empty where all took turns together."""

    def apply(self, kind: str, read: Any, line: dict) -> None:
        """Apply a `line` of the journal of some `kind` that is about the shape, and was `read` as that."""
        match kind:
            case "pass":
                for name in vars(read).keys() & line.keys():
                    setattr(self, name, getattr(read, name))
            case "round":
                if self.rounds and read.index <= self.rounds[-1].index:
                    raise ValueError(
                        f"round {read.index} is there already; two processes wrote at once, so measure anew"
                    )
                self.rounds.append(read)
            case "timeline" | "counters":
                lines_of = {"timeline": self.timelines, "counters": self.counters}
                lines_of[kind][read.contender] = line
            case "steady":
                self.steady.setdefault(read.contender, {})[read.block] = line
            case "costs":
                entrant = self.entrants.get(read.contender, {})
                entrant["costs"] = entrant.get("costs", {}) | read.costs
            case "kernels":
                for name, kernels in read.kernel_names.items():
                    about = {"kernel_name": kernels, "binary": read.binaries.get(name)}
                    self.entrants.get(name, {}).update(about)

    def get(self, name: str, default: Any = None) -> Any:
        """A parameter, or else a fact."""
        return self.params[name] if name in self.params else self.facts.get(name, default)

    def times_s(self, entrant: str | None) -> dict[int, float]:
        """{round: seconds}; {} of an entrant that has none."""
        times_s = {}
        for round_ in self.rounds:
            if entrant in round_.time_s:
                times_s[round_.index] = round_.time_s[entrant]
        return times_s

    def time(self, entrant: str) -> Any:
        """The typical time of an entrant, an interval, told beside the baseline's; None of one that has no sample."""
        return self.estimate(float, self.times_s(entrant))

    def estimate(self, of: Callable[..., float], *series: dict[int, float], log: bool = True) -> Interval | None:
        """`stats.estimate` of some series of the shape, told beside the baseline's."""
        return estimate(of, *series, groups=self.groups, anchor=self.anchor, log=log)

    def ratios(self, contender: str) -> dict[int, float]:
        """{process: the baseline's typical time over that of a contender}."""
        return values_by(processes(self.groups), truediv, self.anchor or {}, self.times_s(contender))

    @property
    def anchor(self) -> dict[int, float] | None:
        """The baseline's {round: seconds}, beside which all times of the shape are told; None where it has
        none."""
        return (self.baseline in self.late and self.times_s(self.baseline)) or None

    @property
    def groups(self) -> dict[int, tuple[int, int]]:
        """{round: (process, pass)}, by which statistics know which rounds are alike."""
        return groups_of(self.rounds)

    def values(self, entrant: str | None, name: str) -> dict[int, float]:
        """{round: value} of what was read beside the time."""
        values = {}
        for round_ in self.rounds:
            of_entrant = round_.values.get(entrant or "", {})
            if name in of_entrant:
                values[round_.index] = of_entrant[name]
        return values

    @property
    def requested_by_round(self) -> dict[int, float]:
        """{round: bytes/s that the link was asked for}; {} of one that is asked for the same in all."""
        return self.values(f"gemm {self.get('unsplit')}", REQUESTED)

    @property
    def requested_bytes_per_s(self) -> float | None:
        """Bytes/s that the link was asked for in a typical round; None where the link chooses."""
        typical = time_of(self.requested_by_round, self.groups)
        return typical.value if typical else self.get(REQUESTED)

    def of_role(self, role: str) -> list[str]:
        """Entrants of a role that are still in, as `gemm`; "" is that of contenders."""
        return [name for name in self.late if self.entrants.get(name, {}).get("role", "") == role]

    @property
    def choices(self) -> dict:
        """Choices for the shape, made once, which hold for all later processes that prepare it: its `facts`, and the
        median seconds of its entrants."""
        medians_s = {}
        for entrant in self.late:
            if times_s := self.times_s(entrant):
                medians_s[entrant] = median(times_s.values())
        return {"facts": self.facts, "medians_s": medians_s}

    @property
    def rivals(self) -> list[str]:
        """Contenders whose ratio to the baseline is judged: ours and the user's. Libraries are rivals only where
        nobody else stands beside the baseline, and the baseline's second turn never is."""
        of_baseline = self.baseline, self.baseline + AGAIN
        others = [name for name in self.measured if name not in of_baseline]
        rivals = [name for name in others if not self.entrants[name].get("of_library")]
        return rivals or others

    @property
    def measured(self) -> list[str]:
        """Contenders that were asked for and have samples. Of a shape that was made apart, once it is whole: until then
        somebody is suspected."""
        if self.apart and self.stopped_by == INTERRUPTED:
            return []
        return [name for name in self.of_role("") if any(name in round_.time_s for round_ in self.rounds)]


def key_of(shape_id: str, apart: str) -> str:
    """The key of a shape among those of a run."""
    return f"{shape_id}-{apart}" if apart else shape_id


def groups_of(rounds: list[Round]) -> dict[int, tuple[int, int]]:
    """{round: (process, pass)}."""
    return {round_.index: (round_.process, round_.pass_index) for round_ in rounds}


KINDS = {"run": lines.Head, "shape": Shape, "round": Round, "not_measured": Outcome}
KINDS |= {kind.__name__.lower(): kind for kind in lines.Line.__subclasses__()}
"""What a line of each kind is read as."""

LISTS = {"ceiling": "ceilings", "process": "processes"}
"""Kinds of lines -> the lists of a `Run` that take them as they are."""


@dataclass
class Run:
    """Everything that was measured, as far as it is known."""

    metadata: dict
    """The first line of the journal: what the run was measured on, and what was planned."""
    ceilings: list[dict] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)
    """{id: as all made it together}, and behind it {case: as its contender made it alone with the baseline}."""
    not_measured: list[Outcome] = field(default_factory=list)
    processes: list[dict] = field(default_factory=list)
    """Seconds of each process, of a run that decides."""
    notes_by_topic: dict[str, str] = field(default_factory=dict)
    """Notes beside those in the metadata."""
    end: dict | None = None
    """The line that closes a run that came to its end; None if it was cut off."""
    derived: dict = field(default_factory=dict, compare=False)
    """Results of analyses on a run that is closed; gone with the next line that is taken."""

    def made(self, shape_id: str, apart: str = "") -> Shape | None:
        """The shape as all made it together, or as one did `apart`; None where it has no line yet."""
        return self.shapes.get(key_of(shape_id, apart))

    def passes(self, shape_id: str, apart: str = "") -> int:
        """The passes over a shape by now, that all made together, or one did `apart`."""
        made = self.made(shape_id, apart)
        return made.passes if made else 0

    @property
    def rows(self) -> dict[tuple[str, str], Shape]:
        """{(shape, contender): the shape in whose rounds it has samples}: those that all made together, or its own."""
        rows: dict[tuple[str, str], Shape] = {}
        for shape in sorted(self.shapes.values(), key=lambda shape: bool(shape.apart)):
            for name in shape.measured:
                rows.setdefault((shape.id, name), shape)
        return rows

    def cases(self) -> list[tuple[Shape, str]]:
        """(shape, contender) of every row: what was asked for, and the baseline beside it; none where all is
        void."""
        if self.void:
            return []
        return [(shape, name) for (_, name), shape in self.rows.items()]

    @property
    def void(self) -> str:
        """Why no sample is the time of anything; empty where they are."""
        return LOOPBACK if self.metadata.get("ranks", {}).get("loopback") else ""

    @property
    def notes(self) -> list[str]:
        """Notes for readers, in sentences."""
        return [*self.metadata["notes"], *self.notes_by_topic.values()]

    @property
    def interrupted(self) -> list[str]:
        """Shapes whose rounds were cut short."""
        return [name for name, shape in self.shapes.items() if shape.stopped_by == INTERRUPTED]

    @property
    def unfinished(self) -> bool:
        """A run is unfinished with a shape that was cut short, or a case whose turn never came."""
        return bool(self.interrupted) or NOT_RUN in [missing.outcome for missing in self.missing]

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """By case, of what was tried and has no number."""
        return {outcome.case: outcome for outcome in self.not_measured if outcome.outcome != NOT_RUN}

    @property
    def missing(self) -> list[Outcome]:
        """The last outcome of each case that failed or has no number."""
        last = {outcome.case: outcome for outcome in self.not_measured}
        for case in self.metadata.get("cases", ()):
            last.setdefault(case, Outcome(NOT_RUN, "the run was cut off before it", case))
        measured = ["-".join(row) for row in self.rows]
        missing = []
        for case, outcome in last.items():
            if case not in measured or outcome.outcome != NOT_RUN:
                missing.append(outcome)
        if self.void:
            for case in measured:
                missing.append(Outcome(SKIPPED, self.void, case))
        return missing

    def apply(self, line: dict) -> None:
        """Apply a line of the journal to the run, but for the first one, whose fields are the `metadata`. Raises
        ValueError for one that is not as its kind says, or does not belong here."""
        self.derived.clear()
        if "checkout" in line:  # until 2026-11-29 a run could hold what another checkout measured beside it
            return
        read = typed.read_line(KINDS, line)
        line = line.copy()
        match line.pop("kind"):
            case "run":
                raise ValueError("it is a second first line")
            case "resumed":
                self.resume()
            case "end":
                self.end = line
            case "links":
                self.metadata["links"] = line
            case "idle":
                self.metadata["machine"] |= line
            case "not_measured":
                self.not_measured.append(read)
            case "note":
                self.notes_by_topic[read.about] = read.text
            case "shape":
                self.shapes[key_of(read.id, read.apart)] = read  # a second one is measured anew
            case kind if kind in LISTS:
                getattr(self, LISTS[kind]).append(line)
            case kind:
                key = key_of(line.pop("shape", None), line.pop("apart", ""))
                if key not in self.shapes:
                    raise ValueError(f"it is of {key!r}, a shape that no line before it describes")
                self.shapes[key].apply(kind, read, line)

    def resume(self) -> None:
        """The run is gone on with: passes that were cut off are made anew, and their rounds forgotten."""
        self.end = None
        self.note_lost_rounds()
        for name in self.interrupted:
            shape = self.shapes[name]
            shape.rounds = [round_ for round_ in shape.rounds if round_.pass_index <= shape.passes]
            shape.round_count = len(shape.rounds)

    def note_lost_rounds(self) -> None:
        """Count as interrupted the shapes that lack samples: the run was killed between their line and their rounds.
        Each is counted once, however often this looks."""
        for shape in self.shapes.values():
            if len(shape.rounds) < shape.round_count:
                shape.stopped_by = INTERRUPTED
                shape.passes = max(0, shape.passes - 1)
                shape.round_count = len(shape.rounds)

    def samples(self) -> DataFrame:
        """A row for each timed call; results/README.md documents the columns. Behind them are those of the values read
        beside the time, NaN where one was not read. Calls that a late host spoilt are absent."""
        import pandas

        rows = []
        for shape in self.shapes.values():
            for round_ in shape.rounds:
                for name, time_s in round_.time_s.items():
                    row = {
                        "case": f"{shape.id}-{name}",
                        "shape": shape.id,
                        "contender": name,
                        "role": shape.entrants[name].get("role", ""),
                        "round": round_.index,
                        "position": round_.order.index(name),
                        "pass": round_.pass_index,
                        "process": round_.process,
                        "apart": shape.apart,
                        "time_s": time_s,
                    }
                    rows.append(row | round_.values.get(name, {}))
        return pandas.DataFrame(rows)
