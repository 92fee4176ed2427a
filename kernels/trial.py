"""Which configuration is the fastest on this card, in some minutes: `python -m kernels.trial [EXPERIMENT]`.

A table of trial.toml is kernels for Hopper, the tokens that they are tried at, and what is changed. Candidates are the
tiles that `kernels.tiles` has for a shape, as the model of waves orders their work, with those changes. The MOST best
by the model are compiled and checked; one that does not fit, spills or is wrong is named and left out. The others take
turns with cuBLAS and with what the first kernel takes at present, in the rounds of `roofline.worker`. Shapes that the
model expects most from come first, and it ends in time.

The earlier half of the rounds says which is the best, the later half whether it is faster than what is taken at
present. Then it is an entry in OUT/EXPERIMENT.json, one a line, for exactly that shape and number of SMs. No table is
changed: at home, move these lines to the top of `entries` in kernels/configs/sm90.json, where `kernels.tiles` finds
them.

`--dry` needs no GPU: it compiles all candidates, for an H100 then, and says what it would time.
"""

import itertools
import json
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import triton

from kernels import tiles, waves
from kernels.bench import checks
from kernels.bench.instruments import Instruments
from kernels.bench.matmul import operands
from kernels.inspect import Job, inspect_all
from kernels.registry import CONTENDERS
from kernels.tiles import Config
from kernels.waves import GpuSpec
from roofline.operations.matmul import LAYERS, Matmul, sweep
from roofline.operations.options import Options
from roofline.store.stats import ratio_of
from roofline.theory import chips
from roofline.theory.arguments import Parser, positive
from roofline.theory.data import beside
from roofline.worker.clocks import CudaClock
from roofline.worker.prepared import rejection
from roofline.worker.rounds import StopRule, take_turns

MOST, LEAST_ROUNDS, MARGIN = 16, 10, 1.01
"""Candidates of a shape; turns that each gets; the ratio to the present configuration that has to be exceeded."""


class Experiment(NamedTuple):
    kernels: list[str]
    tokens: list[int]
    changes: list[dict[str, list]]
    """Changes of a configuration, as {field: the values that are tried}."""


EXPERIMENTS = {name: Experiment(**row) for name, row in beside(__file__, "trial.toml").items()}


def candidate(kernel: str, config: Config) -> Job:
    """The job that is compiled, and timed if it is sound."""
    table = tiles.table("sm90")
    return Job(kernel, config, "bf16", table.target, table.shared_limit_bytes, None)


def candidates(experiment: Experiment, case: Matmul, gpu: GpuSpec) -> dict[Job, float]:
    """{job: seconds by the model}, for the present configuration of each kernel and the `MOST` best by the model, as
    many of each kernel."""
    best = {}
    for kernel in experiment.kernels:
        now, seconds = modelled(kernel, experiment.changes, case, gpu)
        fastest_first = sorted(seconds, key=seconds.get)
        for config in (now, *fastest_first[: MOST // len(experiment.kernels)]):
            best[candidate(kernel, config)] = seconds[config]
    return best


def modelled(kernel: str, changes: list[dict], case: Matmul, gpu: GpuSpec) -> tuple[Config, dict[Config, float]]:
    """The present configuration of a kernel, and {configuration: seconds by the model} for that and each change of
    it."""
    shape = case.m, case.n, case.k
    table = tiles.table("sm90")
    now = tiles.choose(kernel, "sm90", *shape, torch.bfloat16, gpu)
    bases = [now]
    for row in table.entries:
        if row.admits(kernel, *shape, "bf16") and not row.measured:
            free = table.modelled.get(kernel)
            bases.append(tiles.modelled(free, [row.config], *shape, 2, gpu) if free else row.config)
    combinations = [{}]
    for fields in changes:
        combinations += [dict(zip(fields, values, strict=True)) for values in itertools.product(*fields.values())]
    seconds = {}
    for change, base in itertools.product(combinations, bases):
        config = replace(base, **change)
        ring_bytes = 2 * config.num_stages * (config.block_m + config.block_n) * config.block_k
        if ring_bytes <= table.shared_limit_bytes and not (config.is_odd and config.shared_waves):
            seconds[config] = waves.cost(*shape, 2, config, gpu).seconds
    return now, seconds


def measure(sets: list[tuple], tried: list[Job], seconds: float) -> dict:
    """Time cuBLAS, and those of `tried` that are right, by turns on `sets` of x, w and out in rotation. Returns
    {candidate, or "cublas": {round: seconds}}."""
    runs = {"cublas": CONTENDERS["cublas"].load()}
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
    calls = {name: lambda run=run: run(*next(turn)) for name, run in runs.items()}
    return take_turns(calls, clock, StopRule(max_seconds=seconds, min_rounds=LEAST_ROUNDS), seed=0).times_s


def tell(case: Matmul, times: dict) -> None:
    """Print a line for each candidate."""
    for name, by_round in times.items():
        time_s = median(by_round.values())
        ratio = ratio_of(times["cublas"], by_round)
        rates = f"{time_s * 1e6:.1f} us, {case.work.flop / time_s / 1e12:.1f} TFLOP/s"
        print(f"{case.id} {name}: {rates}, {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of cublas", flush=True)


def fastest(times: dict, now: Job) -> tuple[Job, float]:
    """The fastest, and its speed over `now`. The earlier rounds say which it is, the later ones by how much."""
    whole = sorted(set.intersection(*map(set, times.values())))
    half = len(whole) // 2

    def speed(name: Job, rounds: list[int]) -> float:
        return median(times[now][number] / times[name][number] for number in rounds)

    jobs = [name for name in times if name != "cublas"]
    best = max(jobs, key=lambda name: speed(name, whole[:half]))
    return best, speed(best, whole[half:])


def entry(best: Job, case: Matmul, mma: str, measured: dict) -> dict:
    """The row of a table for exactly this shape."""
    return {
        "kernel": best.kernel,
        "dtypes": ["bf16"],
        "m_min": case.m,
        "m_max": case.m,
        "n": case.n,
        "k": case.k,
        **asdict(best.config),
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


def sound_among(jobs: list[Job]) -> dict[Job, str]:
    """{job: the instruction that it compiles to}, without those of `jobs` that have problems: these are named."""
    sound = {}
    for finding in inspect_all(jobs):
        if problems := finding.problems():
            print(f"left out: {finding.job}: {problems[0]}")
        else:
            sound[finding.job] = finding.mma
    return sound


def conduct(experiment: Experiment, options: Options, gpu: GpuSpec, deadline: float, path: Path | None) -> None:
    """Try an experiment on the shapes of `options` until `deadline`, those first that the model expects most from.
    Entries go to `path` as they come; without one nothing is timed."""
    entries = []
    plans = {case: candidates(experiment, case, gpu) for case in sweep(options)}
    sound = sound_among(list(dict.fromkeys(itertools.chain(*plans.values()))))
    gains = {}
    for case, plan in plans.items():
        now_s, *_ = plan.values()
        gains[case] = now_s / min(plan.values())
    for place, case in enumerate(sorted(plans, key=gains.get, reverse=True)):
        left_s = deadline - time.monotonic()
        if path and left_s < 0:
            print(f"{case.id}: not begun, the time is up")
            continue
        now, *_ = plans[case]
        tried = [job for job in plans[case] if job in sound]
        expected = f"by the model one has {gains[case]:.3f} of the speed of {now}"
        print(f"{case.id}: {len(tried)} to time, {expected}", flush=True)
        if not path:
            continue
        times = measure(operands(case, options), tried, left_s / (len(plans) - place))
        tell(case, times)
        best, ratio = fastest(times, now) if now in times else (now, 1.0)
        if ratio > MARGIN:
            measured = {"sms": gpu.sms, "ratio": round(ratio, 4), "over": str(now), "tried": len(tried) - 1}
            entries.append(json.dumps(entry(best, case, sound[best], measured)))
            path.write_text("[\n" + ",\n".join(entries) + "\n]\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    began = time.monotonic()
    parser = Parser(prog="python -m kernels.trial", description=__doc__.partition("\n")[0])
    parser.add_argument("experiment", nargs="?", choices=[*EXPERIMENTS], default="warpgroup")
    parser.add_argument("--shapes", nargs="+", default=(), metavar="ID", help="as matmul-xxl-up-tp8-m4096-bf16")
    parser.add_argument("--minutes", type=positive, default=4, help="when it ends (4)")
    parser.add_argument("--out", type=Path, default="results/local/trial", metavar="FOLDER", help="where entries go")
    parser.add_argument("--dry", action="store_true", help="compile all candidates, and time none")
    options = parser.parse_args(arguments)
    experiment = EXPERIMENTS[options.experiment]
    path = None
    gpu = GpuSpec.of_chip(chips.find("H100 SXM"))
    if not options.dry:
        if not torch.cuda.is_available():
            parser.error("torch finds no GPU here: run this on a Hopper, or with --dry")
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / f"{options.experiment}.json"
        gpu = tiles.machine_of(torch.device("cuda", 0))
    shapes = tuple(options.shapes)
    cases = Options("cuda", True, "xxl", LAYERS, tuple(experiment.tokens), (1, 8), ("bf16",), shapes=shapes)
    try:
        conduct(experiment, cases, gpu, began + 60 * options.minutes, path)
    except ValueError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
