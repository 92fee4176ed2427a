"""The command `roofline predict`."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median

from roofline import operations
from roofline.arguments import count
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.operations.ffn import Ffn
from roofline.operations.gathering import Gathering
from roofline.operations.matmul import LAYERS, Matmul
from roofline.operations.matmul_reduce_scatter import MatmulReduceScatter
from roofline.predict.times import ANY, EFFICIENCY, DatasheetTimes, Place, RunTimes, place_of
from roofline.report import tables
from roofline.report.format import error_text, percent_text, rate_text, time_text
from roofline.store import journal
from roofline.theory import arms, chips, wires
from roofline.theory.models import parse as parse_model
from roofline.theory.simulator import hidden_fraction

Times = RunTimes | DatasheetTimes


def add_command(commands) -> None:
    """Add `predict` to the subparsers of the `roofline` command."""
    command = commands.add_parser("predict", help="what a case will take that was not measured")
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", dest="folder", metavar="RUN", type=Path, help="by a run: between the M it measured")
    source.add_argument("--chip", help="by a datasheet's bf16, e.g. 'H100 SXM', and the share matmuls reach of it")
    command.add_argument("--case", metavar="CASE", help="with --chip: attention or a transformer's step, as "
                         "attention-b8-h1-d128-m16384-causal-forward-bf16, as if it were a matmul")  # fmt: skip
    command.add_argument("--model", help="a model, or D,F (default: those of the run, else xxl)")
    command.add_argument("--tokens", metavar="M,...", type=_counts, default=(4096,), help="rows (default: 4096)")
    command.add_argument("--tp", metavar="TP,...", type=_counts, help="tensor parallel (default: the run's, else 8)")
    command.add_argument("--ranks", metavar="P,...", type=_counts, help="layers between P ranks: gather, scatter, both")
    command.add_argument(
        "--wire",
        help="with --ranks: 50GBps, balance2750, ridge (default: that of the run's gathers; all of the chip's)",
    )
    command.set_defaults(run=run)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(count, text.split(",")))


def run(options) -> int:
    """Print the predictions. Raises ValueError where there are none."""
    times, rows = predictions(options)
    columns = OVERLAPS if options.ranks else MATMULS
    cells = [[write(row) for write in columns.values()] for row in rows]
    table = tables.aligned([list(columns), *cells], tables.sides(zip(*cells, strict=True)))
    print("\n".join([*table, "", *words(times)]))
    return 0


def predictions(options) -> tuple[Times, list[dict]]:
    """Return where the times come from, and a row for each case. Raises ValueError where there is none."""
    if options.wire and not options.ranks:
        raise ValueError("--wire goes with --ranks")
    model, wire = options.model and parse_model(options.model).name, options.wire
    if options.case and not options.chip:
        raise ValueError("--case goes with --chip: a run predicts matmuls")
    if options.chip:
        times = DatasheetTimes(chip := chips.find(options.chip))
        if options.case:
            return times, matmuls(times, operations.parse(options.case)[0])
        places = [*product([model or "xxl"], LAYERS, options.tp or (8,), ["bf16"])]
        if not wire and chip.received_bytes_per_s:
            wire = wires.Wire("fixed", chip.received_bytes_per_s).token
    else:
        times = RunTimes(journal.load(options.folder), str(options.folder))
        wire = wire or times.wire
        places = [
            place for place in times.curves if model in (None, place[0]) and place[2] in (options.tp or place[2:3])
        ]
    if options.ranks:
        rows = [row for case in _gatherings(places, options, wire) for row in overlaps(times, case)]
    else:
        cases = (Matmul(*place[:3], m, place[3]) for place, m in product(places, options.tokens))
        rows = [row for case in cases for row in matmuls(times, case)]
    if not rows:
        places = (place for place in times.curves if options.ranks or times.contenders(place))
        measured = ", ".join("{} {} tp={} {}".format(*place) for place in places)
        raise ValueError(f"{times.name} has not measured what these need: choose of {measured}")
    return times, rows


def matmuls(times: Times, case: operations.Case) -> list[dict]:
    """Return a row for each contender."""
    rows = []
    for name in times.contenders(place_of(case) if isinstance(times, RunTimes) else None):
        time_s, origin = times.matmul(case, name)
        about = {"case": case.id if name == ANY else f"{case.id}-{name}", "time_s": time_s}
        rows.append(about | {"tflops": case.work.flop / time_s / 1e12, "origin": origin})
    return rows


def _gatherings(places: list[Place], options, wire: str | None) -> Iterator[Gathering]:
    """Yield the gather, the scatter and the layer of each model, tp and dtype, whose matmuls are all in `places`."""
    if places and not wire:
        raise ValueError("nothing says how fast the ranks hear each other: give it, as in --wire 50GBps")
    sizes = dict.fromkeys((model, tp, dtype) for model, layer, tp, dtype in places if layer in LAYERS)
    kinds = (AllGatherMatmul, MatmulReduceScatter, Ffn)
    for (model, tp, dtype), m, ranks, kind in product(sizes, options.tokens, options.ranks, kinds):
        case = kind(model, kind.of_layer, tp, m, dtype, ranks, wire)
        if {place_of(matmul) for matmul in case.matmuls} <= {*places}:
            yield case


def overlaps(times: Times, case: Gathering) -> list[dict]:
    """Return a row for each arm: what the simulator says of its schedule, of T_gemm and T_comm alone."""
    gemms = [times.beside_link(matmul) for matmul in case.matmuls]
    t_gemm_s, wire = sum(gemm.time_s for gemm in gemms), wires.parse(case.wire)
    roof = times.roof_beside_link(case.dtype)
    if wire.kind in (*wires.LINKS, "memory") or (wire.kind == "balance" and not roof):
        raise ValueError(f"nothing says how fast the wire {case.wire} is: give it in figures, as in --wire 50GBps")
    speed = wire.bytes_per_s(chip_flops=roof and roof.flops, t_gemm_s=t_gemm_s, wire_bytes=case.work.wire_bytes)
    t_comm_s, rows = case.work.wire_bytes / speed, []
    for arm in arms.of_operation(case.op, gpu=times.gpu):
        plan = arms.plan(arm, case.m, case.n, case.ranks, times.workers, t_gemm_s, t_comm_s)
        time_s = plan.predicted_s(t_gemm_s, t_comm_s)
        row = {"case": f"{case.id}-{arm}", "time_s": time_s, "tflops": case.work.flop / time_s / 1e12}
        row |= {"t_gemm_s": t_gemm_s, "t_comm_s": t_comm_s, "gain": (t_gemm_s + t_comm_s) / time_s}
        row |= {"hidden_fraction": hidden_fraction(t_gemm_s, t_comm_s, time_s)}
        rows.append(row | {"origin": ", ".join(dict.fromkeys(gemm.origin for gemm in gemms))})
    return rows


def words(times: Times) -> list[str]:
    """Return where the numbers come from, and how far off a run's are, left out one M at a time."""
    if isinstance(times, DatasheetTimes):
        shares = " and ".join(f"{percent_text(share)} ({bound})" for bound, share in EFFICIENCY.items())
        return [f"datasheet of {times.chip}, of which matmuls reach {shares} on an H200"]
    lines = [f"matmuls of {times.name}, {times.chip}"]
    if errors := times.errors():
        lines.append(
            "left out one M at a time, its {} are off by {} in the median, and by the plain roofline by {}".format(
                len(errors), *(error_text(median(row[i] for row in errors)) for i in (1, 2))
            )
        )
    return lines


TIMES = {
    "case": lambda row: row["case"],
    "time": lambda row: time_text(row["time_s"]),
    "TFLOP/s": lambda row: rate_text(row["tflops"]),
}
MATMULS = {**TIMES, "from": lambda row: row["origin"]}
OVERLAPS = {
    **TIMES,
    "T_gemm": lambda row: time_text(row["t_gemm_s"]),
    "T_comm": lambda row: time_text(row["t_comm_s"]),
    "gain": lambda row: f"{row['gain']:.2f}",
    "hidden": lambda row: f"{row['hidden_fraction']:.2f}",
    "T_gemm from": lambda row: row["origin"],
}
