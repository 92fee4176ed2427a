"""The command `roofline predict`: what a case will take, term by term, and where the numbers come from.

Reads `prediction.json` of a run, or a datasheet; needs neither numpy nor torch. results/README.md documents `--json`.
"""

import argparse
import difflib
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from roofline import operations
from roofline.analysis.base import Column
from roofline.analysis.overlap import arms
from roofline.analysis.prediction import model as models
from roofline.analysis.prediction.cost_model import PRIORS
from roofline.analysis.prediction.model import ANY, Model, Prediction
from roofline.arguments import positive
from roofline.operations.matmul import Matmul
from roofline.report import tables
from roofline.report.format import error_text, percent_text, rate_text, time_text
from roofline.store import journal
from roofline.theory import chips, wires

SCHEMA = 2
"""Of `--json`."""


@dataclass(frozen=True)
class Source:
    """What predictions stand on: a model, its name, a line about it, and the errors it made in its run."""

    model: Model
    name: str
    chip: str
    words: str
    scores: dict | None


def add_command(commands) -> None:
    """Add `predict` to the subparsers of the `roofline` command."""
    command = commands.add_parser("predict", help="what a case will take, from a run's constants or a datasheet")
    command.add_argument(
        "cases", metavar="CASE", nargs="*", help=f"{operations.matmul.OPERATION.example}, or without contender"
    )
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", dest="folder", metavar="RUN", type=Path, help="a folder of results/")
    source.add_argument("--chip", help="a datasheet, e.g. 'H100 SXM', with constants that nobody fitted")
    command.add_argument("--on", metavar="RUN", type=Path, help="with --run: another run, whose ceilings to go by")
    command.add_argument("--json", action="store_true", help="every term, as results/README.md documents it")
    command.add_argument("--ranks", metavar="LIST", type=_ranks, help="with --run: where the gain of its gathers goes")
    command.add_argument("--plot", metavar="FILE", type=Path, help="with --ranks: a figure of it, .svg or .png")
    for name, (metavar, read, text) in NETWORK.items():
        command.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, type=read, help=f"with --ranks: {text}")
    command.set_defaults(run=run)


def _ranks(text: str) -> list[int]:
    found = sorted({int(word) if word.isdecimal() else 0 for word in text.split(",")})
    if not 2 <= found[0] <= found[-1] <= MOST_RANKS:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of 2 to {MOST_RANKS} ranks, as in 2,8,64,1024")
    return found


def _delay(text: str) -> float:
    try:
        return wires.parse_delay(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


MOST_RANKS = 10_000
NETWORK = {
    "ranks_a_node": ("N", int, "that share the wire inside a node"),
    "bandwidth_inside": ("BYTES/s", positive, "that a rank receives from its own node"),
    "bandwidth_between": ("BYTES/s", positive, "that a rank receives from other nodes"),
    "latency_inside": ("SECONDS", _delay, "of a message beside its bytes, inside a node"),
    "latency_between": ("SECONDS", _delay, "of one between nodes"),
    "message": ("SECONDS", _delay, "that each further message of a gather takes beside its bytes"),
    "skew": ("SECONDS", _delay, "up to which each rank begins late"),
}
"""What a run of real ranks measured is the default; the fields of `scale.Network`."""


def run(options) -> int:
    """Print the predictions. Raises ValueError for a case, run or chip that has none."""
    if options.ranks:
        return _scale(options)
    if given := [name for name in (*NETWORK, "plot") if getattr(options, name) is not None]:
        raise ValueError(f"--{given[0].replace('_', '-')} goes with --ranks")
    if not options.cases:
        raise ValueError("the following arguments are required: CASE, or --ranks")
    if options.on and not options.folder:
        raise ValueError("--on goes with --run: it has the ceilings, --run the constants")
    source = of_run(options.folder) if options.folder else of_datasheet(options.chip)
    source = at_ceilings_of(of_run(options.on), source) if options.on else source
    rows = [row for text in options.cases for row in predict(source, text)]
    if options.json:
        about = {"name": source.name, "chip": source.chip, "constants": source.model.source, "scores": source.scores}
        print(json.dumps({"schema": SCHEMA, "source": about, "cases": rows}, indent=2))
    else:
        print("\n".join(terminal(source, rows)))
    return 0


def _scale(options) -> int:
    from roofline.analysis.prediction import scale

    if not options.folder:
        raise ValueError("--ranks goes with --run: the gathers and their T_gemm are a run's")
    run = journal.load(options.folder)
    said = {name: own for name in NETWORK if (own := getattr(options, name)) is not None}
    network = replace(scale.measured(run), **said)
    if missing := network.missing(max(options.ranks)):
        raise ValueError(f"{options.folder} did not measure all of its wire: give {', '.join(missing)}")
    try:
        model = of_run(options.on or options.folder).model
    except ValueError:
        if options.on:
            raise
        model = None
    found = scale.gathers(run, options.cases, network, model)
    if options.plot:
        scale.draw(run, found, options.ranks).savefig(options.plot, dpi=150)
    if options.json:
        rows = [row for gather in found for ranks in options.ranks for row in gather.at(ranks)]
        print(json.dumps({"schema": SCHEMA, "wire": asdict(network), "gathers": rows}, indent=2))
    else:
        print("\n".join(scale.terminal(found, options.ranks, launches_known=bool(model))))
    return 0


def of_run(folder: Path) -> Source:
    """The model that a run keeps."""
    path = folder / models.SAVED
    if not path.is_file():
        if journal.find(folder):
            raise ValueError(f"{folder} has no {path.name}: roofline report {folder} makes it")
        raise ValueError(f"{folder} is no run folder: it has no {journal.NAME}; give one of results/local or reference")
    try:
        saved = journal.plain(json.loads(journal.read(path)))
        if saved["schema"] != models.SCHEMA:
            raise ValueError(f"schema {saved['schema']}")
        model, scores, chip = models.of_values(saved["model"]), saved["scores"], saved["chip"]
        errors = scores.get("all")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is not of schema {models.SCHEMA}: roofline report {folder} makes it again") from None
    if not model.machines:
        raise ValueError(f"{folder} measured no ceilings, which predictions stand on: choose another run, or --chip")
    words = f"ceilings and constants of run {folder}, {chip} ({model.source.upper()})"
    if errors:
        words += f"; its error on cases left out: median {error_text(errors['median'])}, "
        words += f"95th percentile {error_text(errors['p95'])}, over {errors['cases']} cases, of "
        words += f"which {percent_text(errors['coverage'])} lie in their interval of 80 %"
    return Source(model, str(folder), chip, words, scores)


def at_ceilings_of(other: Source, source: Source) -> Source:
    """`source` on the machine of `other`. Raises ValueError for one of another kind."""
    if other.model.source != source.model.source:
        raise ValueError(f"{source.name} is of a {source.model.source}, and {other.name} of a {other.model.source}")
    model = source.model.at_ceilings_of(other.model)
    return replace(source, model=model, words=f"{source.words}; at the ceilings of {other.name}, {other.chip}")


def of_datasheet(name: str) -> Source:
    """The model of a chip's datasheet."""
    chip, prior = chips.find(name), PRIORS["datasheet"]
    words = (
        f"datasheet of {chip.name} ({chip.source}), constants not fitted: {100 * prior.compute:.0f} % of its FLOP/s, "
        f"{100 * prior.memory:.0f} % of its bandwidth, extra K {prior.extra_k:g}, start {time_text(prior.start_s)}"
    )
    words += "" if chip.sms else "; its SMs are not known, so there are no waves"
    return Source(models.of_chip(chip), chip.name, chip.name, words, None)


def predict(source: Source, text: str) -> list[dict]:
    """A row of `--json` for each contender that `text` means. Raises ValueError."""
    case, contender = operations.parse(text)
    if not hasattr(case, "k"):
        raise ValueError(f"case {text!r}: the model is one of matmuls, and {case.op} is none; choose one of those")
    model, gathers = source.model, operations.find(case.op).analysis == "overlap"
    if case.dtype not in model.machines:
        raise ValueError(
            f"case {text!r}: {source.name} has no FLOP/s of {case.dtype}, but of {', '.join(model.machines)}"
        )
    if gathers:  # by the arms that the run measured, else all that its kind of machine could run
        known = model.arms.get(case.op) or arms.of_operation(case.op, gpu=model.source != "cpu")
    else:
        known = [family.contender for family in model.families if family.dtype == case.dtype]
    if contender and contender not in known and known != [ANY]:
        near = difflib.get_close_matches(contender, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        kind = "arm" if gathers else "contender"
        raise ValueError(f"case {text!r}: unknown {kind} {contender!r}: {hint}{source.name} has {', '.join(known)}")
    rows = []
    for name in [contender] if contender else known:
        found = gather(model, case, name) if gathers else model.matmul(case, ANY if known == [ANY] else name)
        about = {"case": case.id if name == ANY else f"{case.id}-{name}", "contender": name, "flop": case.work.flop}
        about |= {"time_s": found.time_s, "time_low_s": found.low_s, "time_high_s": found.high_s}
        about |= {"tflops": case.work.flop / found.time_s / 1e12}
        rows.append(about | {"fitted_on": found.fitted_on, "terms": found.terms})
    return rows


def gather(model: Model, case: Matmul, arm: str) -> Prediction:
    """One arm of `case`, cut as it would be, over its wire."""
    t_gemm_s, workers = model.gemm(case).time_s, model.machines[case.dtype].workers
    speed = bytes_per_s(model, case, t_gemm_s)

    def cut(*times_s: float) -> arms.OverlapPlan:
        return arms.plan(arms.base_arm(arm), case.m, case.n, case.ranks, workers, *times_s)

    alone_s = t_gemm_s, model.t_comm_s(case.work.wire_bytes, speed)
    spilled_bytes = cut(*alone_s).spilled_bytes(*alone_s)
    return model.gather(case, arm, speed, lambda *times_s: cut(*times_s).predicted_s(*times_s), spilled_bytes)


def bytes_per_s(model: Model, case: Matmul, t_gemm_s: float) -> float:
    """Of the wire of `case`; a balance is under what the chip reaches beside a link, a ridge under T_gemm."""
    wire = wires.parse(case.wire)
    if wire.kind == "preset":
        return math.inf
    if wire.kind in (*wires.LINKS, "memory"):
        raise ValueError(f"case {case.id!r}: nothing says how fast {case.wire} is: give it in figures, as in 50GBps")
    flops = model.balance_flops.get(case.dtype) or case.work.flop / t_gemm_s
    return wire.bytes_per_s(chip_flops=flops, t_gemm_s=t_gemm_s, wire_bytes=case.work.wire_bytes)


def terminal(source: Source, rows: list[dict]) -> list[str]:
    """A table of the matmuls and one of what gathers, and where the numbers come from."""
    lines = []
    for formula, columns, gathers in ((OF_MATMULS, MATMULS, False), (OF_GATHERS, GATHERS, True)):
        own = [row | row["terms"] for row in rows if ("loss" in row["terms"]) == gathers]
        if own:
            lines += [*tables.terminal(own, columns), formula, ""]
    if source.scores is not None and not all(row["fitted_on"] for row in rows):
        lines.append("nothing was fitted for a row that is fitted on 0 cases: its constants are priors")
    return [*lines, source.words]


WHAT = (
    Column("case", header="case", right=False),
    Column("time_s", header="time", text=time_text),
    Column(header="80 % interval", of_row=lambda r: f"{time_text(r['time_low_s'])} to {time_text(r['time_high_s'])}"),
    Column("tflops", header="TFLOP/s", text=rate_text),
)
FITTED_ON = Column("fitted_on", header="fitted on")
OF_MATMULS = "time = correction * (start + (compute^p + memory^p)^(1/p))"
MATMULS = (
    *WHAT,
    *(Column(f"{name}_s", header=name, text=time_text) for name in ("compute", "memory", "start")),
    Column(header="waves", of_row=lambda row: f"{row['waves']:.3g} of {row['tile']}", shown=lambda row: "waves" in row),
    Column("p", header="p", text="{:.3g}".format),
    Column("correction", header="correction", text="{:.3f}".format),
    FITTED_ON,
)
OF_GATHERS = "time = loss * own ideal of T_gemm and T_comm, as the simulator of tiles says it"
GATHERS = (
    *WHAT,
    *(Column(f"{name.lower()}_s", header=name, text=time_text) for name in ("T_gemm", "T_comm")),
    Column("link_bytes_per_s", header="link", text=lambda speed: f"{speed / 1e9:.3g} GB/s"),
    Column("ideal_s", header="own ideal", text=time_text),
    Column("loss", header="loss", text="{:.3f}".format),
    FITTED_ON,
)
