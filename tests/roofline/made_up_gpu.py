"""A journal of a GPU that was never measured: times by rules of its own, and 2 % of noise.

Tiles take time by themselves, beside their products; clocks fall while power is high; reads need a while to be fast;
the library takes other tiles for few rows; what is shorter of compute and memory hides but for a tenth.
"""

import math
import random

from made_up_run import HEAD, ceiling, lines_of

from roofline.operations.matmul import Matmul

SMS, TOKENS = 132, (1, 16, 64, 256, 1024, 4096, 8192)
FLOPS, READ = 735e12, 4.35e12
MACHINE = HEAD["machine"] | {"chip": "made-up GPU", "sms": SMS}


def tile_of(contender, m, n):
    """Rows, columns, and how many parts K is split in."""
    if m <= 64:
        rows, columns = 64, 128
    elif m <= 256:
        rows, columns = 128, 128
    else:
        rows, columns = (256, 128) if contender == "persistent" and n <= 8192 else (128, 256)
    tiles = math.ceil(m / rows) * math.ceil(n / columns)
    return rows, columns, SMS // tiles if contender == "cublas" and tiles < SMS else 1


SPEED = {"cublas": 1.0, "persistent": 0.97, "tiled": 0.88}
"""Of products in a tile."""


def exact_s(contender, case):
    m, n, k = case.m, case.n, case.k
    rows, columns, parts = tile_of(contender, m, n)
    waves = math.ceil(math.ceil(m / rows) * math.ceil(n / columns) * parts / SMS)
    tile_s = 2 * rows * columns * k / parts / (SPEED[contender] * 765e12 / SMS) + 2.4e-6
    compute_s = waves * tile_s
    compute_s *= 1 + 0.06 * compute_s / (compute_s + 1e-3)
    nbytes = case.work.device_bytes * (1.03 if m < 1024 else 1.2)
    memory_s = nbytes / (0.96 * READ) + 2.5e-6
    return 4e-6 + max(compute_s, memory_s) + 0.1 * min(compute_s, memory_s)


def cases():
    return [Matmul("xxl", layer, tp, m, "bf16") for layer in ("up", "down") for tp in (1, 8) for m in TOKENS]


def shape_lines(case, times):
    """Lines of the shape of `case`; `times` is {contender: seconds}."""
    about = {name: {"config": "{}x{}x64 warps8".format(*tile_of(name, case.m, case.n))} for name in times}
    about |= {"cublas": {"config": "torch 2.13.0"}}
    return lines_of(case, times, about=about, rounds=3, baseline="cublas", telemetry={"throttled": False})


def lines(change=lambda case, time_s: time_s):
    """The journal; `change(case, time_s)` may spoil times."""
    noise = random.Random(0)
    found = [HEAD | {"machine": MACHINE, "cases": []}]
    found += [ceiling("matmul", FLOPS, dtype="bf16"), ceiling("read", READ)]
    for case in cases():
        times = {name: change(case, exact_s(name, case) * math.exp(noise.gauss(0, 0.02))) for name in SPEED}
        found += shape_lines(case, times)
    return found
