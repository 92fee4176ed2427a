"""Which configuration is the fastest on this card, in some minutes: `python -m kernels.trial [EXPERIMENT]`.

A table of trial.toml is kernels for Hopper, the tokens that they are tried at, and what is changed. Candidates are the
tiles that `kernels.tiles` has for a shape, as the model of waves orders their work, with those changes. The `most` best
by the model are compiled and checked; one that does not fit, spills or is wrong is named and left out. The others take
turns with cuBLAS and with what the first kernel takes at present, in the rounds of `roofline.worker`. Shapes that the
model expects most from come first, and it ends in time.

Where power is in question (`sustained_s`), the fastest then run alone for a while, and their lines have J/TFLOP. Where
shapes differ in K alone (`shapes`), each is timed with cold operands and with warm ones, and a line is fitted to the
calls of each contender: its value at K = 0 is what a call takes beside its products.

The earlier half of the rounds says which is the best, the later half whether it is faster than what is taken at
present. Then it is an entry in OUT/EXPERIMENT.json, one a line, for exactly that shape and number of SMs. No table is
changed: at home, move these lines to the top of `entries` in kernels/configs/sm90.json, where `kernels.tiles` finds
them.

`--dry` needs no GPU: it compiles the launches of all candidates for a `--chip`, and says what it would time. With
`--inspected FILE` it adds what came out to a list, and a trial that finds it there compiles nothing: `make pack`.
"""

import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import linear_regression, median
from typing import Any, NamedTuple

import pandas
import torch
import triton

from kernels import hopper, tiles, waves
from kernels.bench import checks
from kernels.bench.instruments import Instruments
from kernels.bench.matmul import operands
from kernels.experiments.trial_launches import Inspected, inspect_launches
from kernels.inspect import Job
from kernels.registry import CONTENDERS
from kernels.tiles import Config
from kernels.waves import GpuSpec
from roofline.host.arguments import Parser, positive
from roofline.host.telemetry import GpuTelemetry
from roofline.operations.matmul import LAYERS, Matmul, sweep
from roofline.operations.options import Options
from roofline.protocol.stop_rule import StopRule
from roofline.store.stats import ratio_of
from roofline.theory import chips
from roofline.theory.chips import Chip
from roofline.theory.data import tables_of
from roofline.worker import steady
from roofline.worker.clocks import Call, CudaClock
from roofline.worker.prepared import Entrant, PreparedCase, rejection
from roofline.worker.rounds import take_turns

LEAST_ROUNDS, MARGIN = 10, 1.01
"""Turns that each candidate gets; the ratio to the present configuration that has to be exceeded."""

LEAST_S = 1.0
"""What the turns of a shape get, however little time is left: several rounds of the longest calls."""

ALONE = 4
"""How many run alone: cuBLAS, what is taken at present, and the two fastest others."""

SETS = {"cold": None, "warm": 1}
"""How many sets of operands calls have in rotation: all of them leave none in the cache, and one stays as far as it
fits."""


INSPECTED = "ROOFLINE_INSPECTED"
"""Environment variable: the list of candidates that a pack brings."""


class Experiment(NamedTuple):
    kernels: list[str]
    tokens: list[int]
    changes: list[dict[str, list]]
    """Changes of a configuration, as {field: the values that are tried}."""
    most: int = 16
    """Candidates of a shape, beside what is taken at present."""
    shapes: Sequence[str] = ()
    """Shapes that differ in K alone, in place of the layers of xxl: a line is fitted to their calls."""
    sustained_s: float = 0.0
    """How long each of the fastest runs alone; 0: they do not."""

    @property
    def triton(self) -> tuple[int, int]:
        """The release of Triton that all its changes can be compiled by."""
        releases = []
        for kernel in self.kernels:
            config = tiles.table("sm90").of(kernel)[0].config
            releases += [replace(config, **change).triton for change in combinations(self.changes)]
        return max(releases)


EXPERIMENTS = {name: Experiment(**row) for name, row in tables_of(__file__, "trial.toml").items()}


def combinations(changes: list[dict[str, list]]) -> list[dict]:
    """All that a configuration may be changed to, no change first."""
    combinations: list[dict] = [{}]
    for fields in changes:
        combinations += [dict(zip(fields, values, strict=True)) for values in itertools.product(*fields.values())]
    return combinations


def candidates(experiment: Experiment, case: Matmul, gpu: GpuSpec) -> dict[Job, float]:
    """{job: seconds by the model}, for the present configuration of each kernel and the `most` best by the model, as
    many of each kernel."""
    table = tiles.table("sm90")
    best = {}
    for kernel in experiment.kernels:
        now, seconds = modelled(kernel, experiment.changes, case, gpu)
        fastest_first = sorted(seconds, key=lambda config: seconds[config])
        for config in (now, *fastest_first[: experiment.most // len(experiment.kernels)]):
            best[Job(kernel, config, "bf16", table.target, table.shared_limit_bytes, None)] = seconds[config]
    return best


def modelled(kernel: str, changes: list[dict], case: Matmul, gpu: GpuSpec) -> tuple[Config, dict[Config, float]]:
    """The present configuration of a kernel, and {configuration: seconds by the model} for that and each change of
    it."""
    shape = case.m, case.n, case.k
    table = tiles.table("sm90")
    now = tiles.choose(kernel, "sm90", *shape, torch.bfloat16, gpu)
    bases = [now]
    for row in table.of(kernel):
        if row.is_taken and row.admits(kernel, *shape, "bf16") and not row.measured:
            free = table.modelled.get(kernel)
            bases.append(tiles.modelled(free, [row.config], *shape, 2, gpu) if free else row.config)
    seconds = {now: waves.cost(*shape, 2, now, gpu).seconds}
    for change, base in itertools.product(combinations(changes), bases):
        config = replace(base, **change)
        if config.is_odd and (config.shared_waves or config.cluster > 1):
            continue
        estimate = waves.cost(*shape, 2, config, gpu)
        if config.shared_waves > 1 and estimate.tiles < gpu.sms:
            continue  # there is no whole wave to share: it is the launch of 1
        if config.ring_bytes(torch.bfloat16.itemsize) <= table.shared_limit_bytes:
            seconds[config] = estimate.seconds
    return now, seconds


def measure(sets: list[tuple], tried: list[Job], seconds: float, sustained_s: float) -> tuple[dict, dict]:
    """Time cuBLAS, and those of `tried` that are right, by turns on `sets` of x, w and out in rotation. For half of the
    seconds, where the fastest then run alone for `sustained_s` each: if calls are long enough for a steady state.

    Returns {candidate, or "cublas": {round: seconds}}, and {who ran alone: its block, as `steady.run_block` has it}."""
    runs: dict[Any, Callable] = {"cublas": CONTENDERS["cublas"].load()}  # and by job
    reference = checks.reference_sums(*sets[0][:2])
    turn = itertools.cycle(sets)
    for job in tried:
        run = partial(CONTENDERS[job.kernel].load(), config=job.config)
        try:
            _, refused = checks.check(job.kernel, run, sets[0], reference)
        except Exception as error:  # of Triton, too: the others still get their times
            refused = rejection(error)
        if refused:
            print(f"left out: {job}: {refused.reason}")
        else:
            runs[job] = run
    clock = CudaClock()
    clock.instruments = Instruments()

    def by_turns(run: Callable) -> Call:
        return Call(lambda: run(*next(turn)))

    prepared = PreparedCase(None, "")
    for name, matmul in runs.items():
        prepared.entrants[name] = Entrant(str(name), by_turns(matmul))
    if sustained_s:
        seconds /= 2
    rule = StopRule(max_seconds=max(LEAST_S, seconds), min_rounds=LEAST_ROUNDS)
    times = take_turns(prepared, clock, rule, seed=0).times_s
    time_s = medians(times)
    blocks = {}
    if sustained_s and time_s["cublas"] >= steady.FROM_S:
        telemetry = GpuTelemetry()
        names = list(times)  # cuBLAS and what is taken at present are the first two
        names[2:] = sorted(names[2:], key=lambda name: time_s[name])
        for name in names[:ALONE]:
            blocks[name] = steady.run_block(prepared.entrants[name].call, time_s[name], clock, telemetry, sustained_s)
    return times, blocks


def medians(times: dict) -> dict:
    """{name: median seconds} of {name: {round: seconds}}."""
    return {name: median(by_round.values()) for name, by_round in times.items()}


def tell(label: str, flop: float, times: dict, blocks: dict) -> None:
    """Print a line for each candidate, and one for each that ran alone."""
    for name, time_s in medians(times).items():
        rate = f"{time_s * 1e6:.1f} us, {flop / time_s / 1e12:.1f} TFLOP/s"
        if ratio := ratio_of(times["cublas"], times[name]):
            rate += f", {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of cublas"
        print(f"{label} {name}: {rate}", flush=True)
    for name, block in blocks.items():
        rate = flop / block["time_s"] / 1e12
        energy = "energy unmeasured: NVML counts none here"
        if block["energy_j"]:
            watts = block["energy_j"] / block["calls"] / block["time_s"]
            energy = f"{watts:.0f} W, {watts / rate:.4f} J/TFLOP"
        print(f"{label} {name} alone: {rate:.1f} TFLOP/s, {energy}", flush=True)


def tell_fixed_time(calls: dict) -> None:
    """Print the line through the calls of each contender, {name: [(K, seconds)]}: what a call takes that does not grow
    with K, and what it takes along K."""
    for name, points in calls.items():
        if len(points) > 1:
            slope, intercept = linear_regression(*zip(*points, strict=True))
            print(
                f"{name}: {intercept * 1e6:.1f} us of a call do not grow with K, and each 1024 along K take "
                f"{slope * 1024e6:.2f} us, by {len(points)} sizes"
            )


def fastest(times: dict, now: Job) -> tuple[Job, float]:
    """The fastest, and its speed over `now`. The earlier rounds say which it is, the later ones by how much."""
    rounds = pandas.DataFrame(times).dropna().sort_index()
    speeds = rounds.rdiv(rounds[now], axis=0)
    half = len(speeds) // 2
    best = speeds[:half].median().drop("cublas").idxmax()
    return best, speeds[best][half:].median()


def entry(best: Job, case: Matmul, mma: str, measured: dict) -> dict:
    """The row of a table for exactly this shape."""
    return {
        "kernel": best.kernel,
        "dtypes": ["bf16"],
        "m_min": case.m,
        "m_max": case.m,
        "n": case.n,
        "k": case.k,
        **vars(best.config),
        "mma": mma,
        "measured": {
            "chip": torch.cuda.get_device_name(),
            "date": time.strftime("%Y-%m-%d"),
            "shape": f"{best.kernel} {case.m}x{case.n}x{case.k} bf16",
            "triton": triton.__version__,
            "torch": torch.__version__,
            **measured,
        },
    }


def sound_among(
    plans: dict[Matmul, dict[Job, float]], chip: Chip, inspected: Inspected, *, anew: bool
) -> dict[Job, str]:
    """{job: the instruction that it compiles to}, of those of the plans that have no problems: the others are named.
    What is in the list `inspected` is inspected again `anew` alone; what comes out is added to it."""
    if inspected.is_stale:
        print(f"{inspected.path} is of another Triton or of other source files: all is inspected here")
    todo = [(job, case) for case, plan in plans.items() for job in plan if anew or job not in inspected]
    if todo:
        for finding in inspect_launches(todo, chip):
            inspected.add(finding)
    sound = {}
    for job in dict.fromkeys(itertools.chain(*plans.values())):
        if problem := inspected.problems.get(repr(job)):
            print(f"left out: {job}: {problem}")
        else:
            sound[job] = inspected.sound[repr(job)]
    return sound


def conduct(
    experiment: Experiment,
    plans: dict[Matmul, dict[Job, float]],
    sound: dict[Job, str],
    options: Options,
    deadline: float,
    path: Path | None,
    sms: int,
) -> None:
    """Try what is `sound` of the plans until `deadline`, those shapes first that the model expects most from. Entries,
    for a chip of so many SMs, go to `path` as they come; without one nothing is timed."""
    entries = []
    gains = {}
    for case, plan in plans.items():
        now_s, *_ = plan.values()
        gains[case] = now_s / min(plan.values())
    calls = defaultdict(list)
    caches = [*SETS] if experiment.shapes else ["cold"]
    turns = list(itertools.product(caches, sorted(plans, key=lambda case: gains[case], reverse=True)))
    for place, (cache, case) in enumerate(turns):
        label = f"{case.id} {cache}"
        left_s = deadline - time.monotonic()
        if path and left_s < 0:
            print(f"{label}: not begun, the time is up")
            continue
        now, *_ = plans[case]
        tried = [job for job in plans[case] if job in sound]
        expected = f"by the model one has {gains[case]:.3f} of the speed of {now}"
        print(f"{label}: {len(tried)} to time, {expected}", flush=True)
        if not path:
            continue
        sets = operands(case, options)[: SETS[cache]]
        times, blocks = measure(sets, tried, left_s / (len(turns) - place), experiment.sustained_s)
        tell(label, case.work.flop, times, blocks)
        for name, time_s in medians(times).items():
            calls[f"{name} {cache}"].append((case.k, time_s))
        best, ratio = fastest(times, now) if now in times else (now, 1.0)
        if ratio > MARGIN and not experiment.shapes:
            measured = {"sms": sms, "ratio": round(ratio, 4), "over": str(now), "tried": len(tried) - 1}
            entries.append(json.dumps(entry(best, case, sound[best], measured)))
            path.write_text("[\n" + ",\n".join(entries) + "\n]\n", encoding="utf-8")
    if experiment.shapes:
        tell_fixed_time(calls)


def parser() -> Parser:
    """What reads the words of the command."""
    parser = Parser(prog="python -m kernels.trial", description=__doc__.partition("\n")[0])
    parser.add_argument("experiment", nargs="?", choices=[*EXPERIMENTS], default="warpgroup")
    parser.add_argument("--shapes", nargs="+", default=(), metavar="ID", help="as matmul-xxl-up-tp8-m4096-bf16")
    parser.add_argument("--minutes", type=positive, default=4, help="when it ends (4)")
    parser.add_argument("--out", type=Path, default="results/local/trial", metavar="FOLDER", help="where entries go")
    parser.add_argument("--dry", action="store_true", help="compile all candidates, and time none")
    parser.add_argument("--chip", choices=hopper.CHIPS, default=hopper.CHIPS[0], help="that --dry is for (%(default)s)")
    parser.add_argument(
        "--inspected",
        type=Path,
        default=os.environ.get(INSPECTED),
        metavar="FILE",
        help="a list of candidates that were inspected, which --dry adds to ($ROOFLINE_INSPECTED)",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    began = time.monotonic()
    command = parser()
    options = command.parse_args(arguments)
    experiment = EXPERIMENTS[options.experiment]
    if tiles.triton_release() < experiment.triton:
        least = "{}.{}".format(*experiment.triton)
        command.error(
            f"{options.experiment} needs Triton {least} or later, this is {triton.__version__}: "
            "`make pack TRITON=3.9.0` takes one along"
        )
    path = None
    chip = chips.find(options.chip)
    gpu = GpuSpec.of_chip(chip)
    if not options.dry:
        if not torch.cuda.is_available():
            command.error("torch finds no GPU here: run this on a Hopper, or with --dry")
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / f"{options.experiment}.json"
        chip = chips.chip_of_device(torch.cuda.get_device_name()) or chip
        gpu = tiles.machine_of(torch.device("cuda", 0)) or gpu
    inspected = Inspected(options.inspected)
    shapes = tuple(options.shapes or experiment.shapes)
    cases = Options(
        device="cuda",
        timed=True,
        model="xxl",
        layers=LAYERS,
        tokens=tuple(experiment.tokens),
        tp=(1, 8),
        dtypes=("bf16",),
        shapes=shapes,
    )
    try:
        plans = {case: candidates(experiment, case, gpu) for case in sweep(cases)}
        sound = sound_among(plans, chip, inspected, anew=options.dry)
        conduct(experiment, plans, sound, cases, began + 60 * options.minutes, path, gpu.sms)
    except ValueError as error:
        command.error(str(error))
    if options.dry:
        inspected.write()
    return 0
