"""The command `roofline predict`: what a case will take, term by term, and where the numbers come from.

Reads `prediction.json` of a run, or a datasheet; needs neither numpy nor torch. results/README.md documents `--json`.
"""

import difflib
import json
import math
from dataclasses import dataclass
from pathlib import Path

from roofline import operations
from roofline.analysis.base import Column
from roofline.analysis.overlap import arms
from roofline.analysis.prediction.cost_model import PRIORS
from roofline.analysis.prediction.model import ANY, Model, Prediction, Sizes, of_chip, of_values
from roofline.operations.matmul import Matmul
from roofline.report import tables
from roofline.report.format import error_text, rate_text, time_text
from roofline.store import journal
from roofline.theory import chips, wires

SCHEMA = 1
SAVED, SAVED_SCHEMA = "prediction.json", 1
"""What a run keeps for this command, and the schema of it that is read."""

FORMULAS = (
    "time = start + (compute^p + memory^p)^(1/p)",
    "time = loss * own ideal of T_gemm and T_comm, as the simulator of tiles says it",
)
"""Of a matmul, and of what gathers."""


@dataclass(frozen=True)
class Source:
    """What predictions stand on: a model, its name, a line about it, and the errors it made in its run."""

    model: Model
    name: str
    chip: str
    words: str
    scores: dict | None


@dataclass(frozen=True)
class Row:
    """One predicted case."""

    case: Matmul
    contender: str
    found: Prediction
    fitted_on: int

    @property
    def id(self) -> str:
        return self.case.id if self.contender == ANY else f"{self.case.id}-{self.contender}"

    @property
    def tflops(self) -> float:
        return self.case.work.flop / self.found.time_s / 1e12

    def values(self) -> dict:
        flop = self.case.work.flop
        about = {"case": self.id, "contender": self.contender, "flop": flop, "time_s": self.found.time_s}
        return about | {"tflops": self.tflops, "fitted_on": self.fitted_on, "terms": self.found.terms}


def add_command(commands) -> None:
    """Add `predict` to the subparsers of the `roofline` command."""
    command = commands.add_parser("predict", help="what a case will take, from a run's constants or a datasheet")
    command.add_argument(
        "cases", metavar="CASE", nargs="+", help=f"{operations.matmul.OPERATION.example}, or without contender"
    )
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", dest="folder", metavar="RUN", type=Path, help="a folder of results/")
    source.add_argument("--chip", help="a datasheet, e.g. 'H100 SXM', with constants that nobody fitted")
    command.add_argument("--json", action="store_true", help="every term, as results/README.md documents it")
    command.set_defaults(run=run)


def run(options) -> int:
    """Print the predictions. Raises ValueError for a case, run or chip that has none."""
    source = of_run(options.folder) if options.folder else of_datasheet(options.chip)
    rows = [row for text in options.cases for row in predict(source, text)]
    if options.json:
        about = {"name": source.name, "chip": source.chip, "constants": source.model.source, "scores": source.scores}
        print(json.dumps({"schema": SCHEMA, "source": about, "cases": [row.values() for row in rows]}, indent=2))
    else:
        print("\n".join(terminal(source, rows)))
    return 0


def of_run(folder: Path) -> Source:
    """The model that a run keeps."""
    path = folder / SAVED
    if not path.is_file():
        if journal.find(folder):
            raise ValueError(f"{folder} has no {SAVED}: roofline report {folder} makes it")
        raise ValueError(f"{folder} is no run folder: it has no {journal.NAME}; give one of results/local or reference")
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        if saved["schema"] != SAVED_SCHEMA:
            raise ValueError(f"schema {saved['schema']}")
        model, scores, chip, kind = of_values(saved["model"]), saved["scores"], saved["chip"], saved["source"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is not of schema {SAVED_SCHEMA}: roofline report {folder} makes it again") from None
    if not model.machines:
        raise ValueError(f"{folder} measured no ceilings, which predictions stand on: choose another run, or --chip")
    errors = scores.get("all")
    words = f"ceilings and constants of run {folder}, {chip} ({kind.upper()})"
    if errors:
        words += f"; its error on cases left out: median {error_text(errors['median'])}, "
        words += f"95th percentile {error_text(errors['p95'])}, over {errors['cases']}"
    return Source(model, str(folder), chip, words, scores)


def of_datasheet(name: str) -> Source:
    """The model of a chip's datasheet."""
    chip, prior = chips.find(name), PRIORS["datasheet"]
    words = (
        f"datasheet of {chip.name} ({chip.source}), constants not fitted: {100 * prior.compute:.0f} % of its FLOP/s, "
        f"{100 * prior.memory:.0f} % of its bandwidth, extra K {prior.extra_k:g}, start {time_text(prior.start_s)}"
    )
    words += "" if chip.sms else "; its SMs are not known, so there are no waves"
    return Source(of_chip(chip), chip.name, chip.name, words, None)


def predict(source: Source, text: str) -> list[Row]:
    """A row for each contender that `text` means. Raises ValueError."""
    case, contender = operations.parse(text)
    sizes, model = Sizes(case.m, case.n, case.k, case.dtype, case.work), source.model
    if case.dtype not in model.machines:
        raise ValueError(
            f"case {text!r}: {source.name} has no FLOP/s of {case.dtype}, but of {', '.join(model.machines)}"
        )
    if model.source == "datasheet" and not _gathers(case):  # whose prediction is the same for all
        found = model.family(ANY, case.dtype).predict(sizes, model.machines[case.dtype])
        return [Row(case, contender or ANY, found, fitted_on=0)]
    known = contenders(source, case)
    if contender and contender not in known:
        near = difflib.get_close_matches(contender, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        kind = "arm" if _gathers(case) else "contender"
        raise ValueError(f"case {text!r}: unknown {kind} {contender!r}: {hint}{source.name} has {', '.join(known)}")
    names = [contender] if contender else known
    if not _gathers(case):
        families = [model.family(name, case.dtype) for name in names]
        return [Row(case, f.contender, f.predict(sizes, model.machines[case.dtype]), f.fitted_on) for f in families]
    fitted_on = sum(family.fitted_on for family in model.gemms if family.dtype == case.dtype)
    return [Row(case, arm, gather(model, case, sizes, arm), fitted_on) for arm in names]


def _gathers(case) -> bool:
    return operations.find(case.op).analysis == "overlap"


def contenders(source: Source, case: Matmul) -> list[str]:
    """Names that may stand behind `case`: those that the run measured, else all that its kind of machine could."""
    model = source.model
    if not _gathers(case):
        return [family.contender for family in model.families if family.dtype == case.dtype]
    return model.arms.get(case.op) or arms.of_operation(case.op, gpu=model.source != "cpu")


def gather(model: Model, case, sizes: Sizes, arm: str) -> Prediction:
    """One arm of `case`, cut as it would be, over its wire."""
    workers = model.machines[case.dtype].workers
    t_gemm_s, speed = model.gemm(sizes).time_s, bytes_per_s(model, case, sizes)

    def cut(*times_s: float) -> arms.OverlapPlan:
        return arms.plan(arms.base_arm(arm), case.m, case.n, case.ranks, workers, *times_s)

    spilled = cut(t_gemm_s, t_comm_s := model.t_comm_s(case.work.wire_bytes, speed)).spilled_bytes(t_gemm_s, t_comm_s)
    return model.gather(sizes, arm, speed, lambda *times_s: cut(*times_s).predicted_s(*times_s), spilled)


def bytes_per_s(model: Model, case, sizes: Sizes) -> float:
    """Of the wire of `case`; a balance is under what the chip reaches beside a link, a ridge under T_gemm."""
    wire = wires.parse(case.wire)
    if wire.kind == "preset":
        return math.inf
    if wire.kind in wires.LINKS:
        raise ValueError(f"case {case.id!r}: nothing says how fast {case.wire} is: give it in figures, as in 50GBps")
    t_gemm_s = model.gemm(sizes).time_s
    flops = model.balance_flops.get(case.dtype) or case.work.flop / t_gemm_s
    return wire.bytes_per_s(chip_flops=flops, t_gemm_s=t_gemm_s, wire_bytes=case.work.wire_bytes)


def terminal(source: Source, rows: list[Row]) -> list[str]:
    """A table of the matmuls and one of what gathers, and where the numbers come from."""
    lines = []
    for formula, columns, gathers in zip(FORMULAS, (MATMULS, GATHERS), (False, True), strict=True):
        own = [row for row in rows if ("loss" in row.found.terms) == gathers]
        if own:
            lines += [*tables.terminal(own, columns), formula, ""]
    if source.scores is not None and not all(row.fitted_on for row in rows):
        lines.append("nothing was fitted for a row that is fitted on 0 cases: its constants are priors")
    return [*lines, source.words]


def _link(row: Row) -> str:
    speed = row.found.terms["link_bytes_per_s"]
    return f"{speed / 1e9:.3g} GB/s" if speed else "-"


def _seconds(name: str):
    return lambda row: time_text(row.found.terms[name])


MATMULS = (
    Column(header="case", of_row=lambda row: row.id, right=False),
    Column(header="time", of_row=lambda row: time_text(row.found.time_s)),
    Column(header="TFLOP/s", of_row=lambda row: rate_text(row.tflops)),
    Column(header="compute", of_row=_seconds("compute_s")),
    Column(header="memory", of_row=_seconds("memory_s")),
    Column(header="start", of_row=_seconds("start_s")),
    Column(
        header="waves",
        of_row=lambda row: f"{row.found.terms['waves']:.3g} of {row.found.terms['tile']}",
        shown=lambda row: "waves" in row.found.terms,
    ),
    Column(header="p", of_row=lambda row: f"{row.found.terms['p']:.3g}"),
    Column(header="fitted on", of_row=lambda row: str(row.fitted_on)),
)
GATHERS = (
    *MATMULS[:3],
    Column(header="T_gemm", of_row=_seconds("t_gemm_s")),
    Column(header="T_comm", of_row=_seconds("t_comm_s")),
    Column(
        header="link",
        of_row=_link,
    ),
    Column(header="own ideal", of_row=_seconds("ideal_s")),
    Column(header="loss", of_row=lambda row: f"{row.found.terms['loss']:.3f}"),
    Column(header="fitted on", of_row=lambda row: str(row.fitted_on)),
)
