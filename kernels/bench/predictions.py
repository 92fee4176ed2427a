"""What the model of waves predicts for a model's layers: `python -m kernels.waves [RUN] [--model NAME]`.

A call takes `fixed + waves x (FLOP of a tile / rate + per tile)`; its bytes come from memory beside its waves. The
three numbers are fitted to the calls of a run, once for cuBLAS and once for `warpgroup`. The tiles of cuBLAS are in the
names of its kernels, columns first. For each shape cuBLAS is taken to choose the best of these by the model, and never
to cut K. Below LEAST_M tokens bytes decide, and the model says nothing.
"""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import pandas

import roofline
from kernels.warpgroup_config import Config
from kernels.waves import GpuSpec, cost
from roofline.analysis.memory_roof import roof_of
from roofline.host.arguments import Parser
from roofline.operations.matmul import Matmul
from roofline.theory import chips
from roofline.theory.models import parse

RUN = Path(__file__).parents[2] / "results/reference/nvidia-h100-80gb-hbm3-2026-11-26-4"
"""The newest run on an H100 whose matmuls are whole."""

LEAST_M = 128
SLOWING = 0.025
"""The rate falls with this power of a call's FLOP: the longer it takes, the lower is the clock under the power cap. It
fits the calls of cuBLAS in `RUN` better than 0.02 and 0.03."""
BESIDE = 5
"""Power by which waves and bytes add up: the shorter of the two counts for little. It fits those calls best among 3 to
8."""
BOUND = 0.8
"""Where bytes take this fraction of a call's time or more, they decide, and the call says nothing about waves."""

BIG = Config(128, 256, 64, 8, 4)
DESIGNS = {"128x256": BIG, "128x128": replace(BIG, block_n=128)}
DESIGNS |= {f"gangs of {gang}": replace(BIG, gang_m=gang, shared_waves=1) for gang in (2, 4, 8)}
DESIGNS |= {"a cluster": replace(DESIGNS["gangs of 2"], cluster=2)}
"""Designs of `warpgroup` that are compared with cuBLAS. Gangs are on tiles of 128x256; a cluster is a gang of 2."""


def terms(case: Matmul, tile: Config, gpu: GpuSpec) -> tuple[np.ndarray, float]:
    """The factors that the three numbers are multiplied by, and the seconds of the bytes."""
    estimate = cost(case.m, case.n, case.k, 2, tile, gpu)
    stores = estimate.full_waves + (estimate.tail_s > 0)
    waves = stores
    if tile.shared_waves:
        waves = estimate.full_waves + estimate.tail_s / estimate.mma_s
    products_s = waves * estimate.mma_s * case.work.flop**SLOWING
    return np.array([1, products_s, stores]), case.work.device_bytes / gpu.memory_bytes_per_s


def fit(calls: dict, gpu: GpuSpec) -> tuple:
    """The three numbers that fit `calls`, {(case, tile): seconds}, and a function that predicts the seconds of a call
    by them."""
    rows = []
    for call, time_s in calls.items():
        factors, moved_s = terms(*call, gpu)
        if moved_s < BOUND * time_s:
            rows.append(factors / time_s)
    numbers = np.linalg.lstsq(np.array(rows), np.ones(len(rows)))[0]

    def seconds(case: Matmul, tile: Config) -> float:
        factors, moved_s = terms(case, tile, gpu)
        fixed_s, *waves_s = numbers * factors
        return fixed_s + (sum(waves_s) ** BESIDE + moved_s**BESIDE) ** (1 / BESIDE)

    return numbers, seconds


def calls_of(run) -> dict[str, dict]:
    """{contender: {(case, tile): seconds}} of a run."""
    calls = {"cublas": {}, "warpgroup": {}}
    for row in run.frame().query(f"m >= {LEAST_M} and contender in {[*calls]}").itertuples():
        case = Matmul(row.model, row.layer, row.tp, row.m, row.dtype)
        if row.contender == "cublas":
            columns, rows = re.search(r"nvjet_sm90_tst_(\d+)x(\d+)", row.kernel_name).groups()
            tile = replace(BIG, block_m=int(rows), block_n=int(columns))
        else:
            rows, columns, *others = map(int, re.findall(r"\d+", row.config))
            tile = replace(BIG, block_m=rows, block_n=columns)
            if "cluster2" in row.config:
                tile = replace(tile, cluster=2, gang_m=2)
            if "gang" in row.config:
                gang_m, gang_n, shared_waves = others[-3:]
                tile = replace(tile, gang_m=gang_m, gang_n=gang_n, shared_waves=shared_waves)
        calls[row.contender][case, tile] = row.time_s
    return calls


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m kernels.waves", description=__doc__.partition("\n")[0])
    parser.add_argument("run", nargs="?", default=RUN, help="whose calls say the numbers")
    parser.add_argument("--model", default="xxl", help="whose layers are predicted (xxl)")
    options = parser.parse_args(arguments)
    try:
        run = roofline.load(options.run)
        layers = parse(options.model).layers
    except ValueError as error:
        parser.error(str(error))
    chip = chips.chip_of_device(run.metadata["machine"]["chip"])
    roof = roof_of(run, "bf16")
    if not (chip and roof):
        parser.error(f"{options.run} has no ceilings in bf16 of a GPU with a datasheet: give a run on a Hopper")
    gpu = GpuSpec(chip.sms, *roof, chip.cache_bytes)
    calls = calls_of(run)
    models = {name: fit(calls[name], gpu) for name in calls}
    (_, vendor_s), (_, our_s) = models.values()
    rows = []
    for layer, tp, m in product(layers, (1, 8), (LEAST_M, 256, 512, 1024, 4096, 8192)):
        case = Matmul(options.model, layer, tp, m, "bf16")
        baseline_s = min(vendor_s(case, tile) for _, tile in calls["cublas"])
        row = {"PREDICTED": case.id, "us of cublas": baseline_s * 1e6}
        for name, tile in DESIGNS.items():
            row[name] = baseline_s / our_s(case, tile)
        rows.append(row)
    print(pandas.DataFrame(rows).to_string(index=False, float_format="{:.3f}".format))
    for name, (numbers, predicted_s) in models.items():
        missed = [abs(predicted_s(*call) / time_s - 1) for call, time_s in calls[name].items()]
        print(f"{name}: {1e6 * numbers[0]:.1f} us a call and {1e6 * numbers[2]:.1f} us a tile are no products")
        print(f"{name}: off by {median(missed):.1%} in the median of {len(missed)} calls, {max(missed):.1%} at most")
    return 0
