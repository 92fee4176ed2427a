"""Time configurations of a kernel on a GPU, and keep the fastest: `python -m kernels.tune KERNEL --shapes M,N,K ...`.

Candidates are the tiles that the table has for a shape, as the model of waves (kernels.waves) orders their work, and
each with one field changed to a value of the kernel's `grid`, or several by its `changes`. The `MOST` best by the model
are compiled, checked and timed by turns, beside what is taken at present. The earlier half of the rounds says which is
the best, the later half whether it is faster. Then it becomes the entry of `kernels/configs/<arch>.json` for exactly
that shape and number of SMs, where `kernels.tiles` finds it.

What it compiles for, and the shared memory that a candidate may take, are those of the GPU it runs on. The table of
another than a Hopper is for every GPU since Ampere: its own target and limit are those of the smallest.

Wins over `triton.autotune` in that one which does not compile costs nobody else, and that the answer is a file to be
reviewed. Loses where a shape comes that nobody tuned: that one gets the model's choice.
"""

import json
import math
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median

import torch
import triton

from kernels import tiles, waves
from kernels.bench.checks import error_of, reference_sums
from kernels.inspect import Job, inspect_all
from kernels.registry import CONTENDERS
from kernels.tiles import DTYPES, Config, Table
from kernels.waves import GpuSpec
from roofline.arguments import Parser, sizes
from roofline.measure.prepared import verdict

MOST, ROUNDS, MARGIN = 16, 10, 1.01
"""Candidates of a shape; turns that each gets; the ratio to what is taken at present that has to be exceeded."""

Shape = tuple[int, int, int]
"""m, n, k of out[m, n] = x[m, k] @ w[n, k].T."""


def candidates(kernel: str, shape: Shape, dtype: str, arch: str, gpu: GpuSpec) -> list[Config]:
    """Return what `kernel` takes at present, then the `MOST` best by the model. Raises ValueError where the table of
    `arch` has no tile for the shape."""
    itemsize, table = DTYPES[dtype].itemsize, tiles.table(arch)
    now = tiles.choose(kernel, arch, *shape, DTYPES[dtype], gpu)
    bases = [entry.config for entry in table.entries if entry.admits(kernel, *shape, dtype) and not entry.measured]
    if kernel in table.modelled:
        bases = [tiles.modelled(table.modelled[kernel], [base], *shape, itemsize, gpu) for base in bases]
    tuned = CONTENDERS[kernel].load()
    changes = [{}, *tuned.changes]
    for name, values in tuned.grid.items():
        changes += [{name: value} for value in values]
    configs = dict.fromkeys(replace(base, **change) for base in [now, *bases] for change in changes)

    def fits(config: Config) -> bool:
        ring_bytes = config.num_stages * (config.block_m + config.block_n) * config.block_k * itemsize
        return ring_bytes <= shared_limit_bytes(table, gpu)

    others = [config for config in configs if config != now and fits(config)]
    return [now, *sorted(others, key=lambda config: waves.cost(*shape, itemsize, config, gpu).seconds)[:MOST]]


def shared_limit_bytes(table: Table, gpu: GpuSpec) -> int:
    """Return what one program may take on `gpu`, or by its table where nobody asked the device."""
    return gpu.shared_bytes or table.shared_limit_bytes


def fastest(calls: dict[Config, Callable], clock: Callable[[Callable], float], now: Config) -> tuple[Config, float]:
    """Return the fastest of `calls` and its speed over `now`; `now` where that is no gain. `clock(call)` is asked once
    a round, each round in another order; the earlier rounds say which is the fastest, and the later ones by how
    much."""
    times, order, half = {config: [] for config in calls}, list(calls), ROUNDS // 2
    for number in range(ROUNDS):
        random.Random(number).shuffle(order)
        for config in order:
            times[config].append(clock(calls[config]))
    best = min(times, key=lambda config: median(times[config][:half]))
    ratio = median(old / new for old, new in zip(times[now][half:], times[best][half:], strict=True))
    return (best, ratio) if ratio > MARGIN else (now, 1.0)


def save(path: Path, kernel: str, shape: Shape, dtype: str, config: Config, mma: str, measured: dict) -> None:
    """Put `config` on top of the table at `path`, in the place of an entry for the same shape and number of SMs."""
    (m, n, k), document = shape, json.loads(path.read_text(encoding="utf-8"))
    about = {"kernel": kernel, "dtypes": [dtype], "m_min": m, "m_max": m, "n": n, "k": k}
    usual = {field.name: field.default for field in fields(Config)}
    tile = {name: value for name, value in asdict(config).items() if name == "group_m" or value != usual[name]}
    like = {**about, "sms": measured["sms"]}.items()
    others = [old for old in document["entries"] if not like <= {**old, **(old["measured"] or {})}.items()]
    document["entries"] = [about | tile | {"mma": mma, "measured": measured}, *others]
    path.write_text(as_text(document), encoding="utf-8")
    tiles.read_again()


def as_text(document: dict) -> str:
    """Return a table as it is checked in: one entry a line."""
    head = "".join(f"  {json.dumps(name)}: {json.dumps(document[name])},\n" for name in document if name != "entries")
    rows = ",\n".join(f"    {json.dumps(row)}" for row in document["entries"])
    return "{\n" + head + f'  "entries": [\n{rows}\n  ]\n' + "}\n"


def tune(kernel: str, shape: Shape, dtype: str, device: torch.device, clock: Callable[[Callable], float]) -> None:
    """Tune `kernel` for `shape` on `device`. Raises ValueError where the present configuration is wrong."""
    arch, gpu, (m, n, k) = tiles.arch_of(device), tiles.machine_of(device), shape
    table, (now, *others) = tiles.table(arch), candidates(kernel, shape, dtype, arch, gpu)
    entries = [entry for entry in table.entries if entry.kernel == kernel and dtype in entry.dtypes]
    mma = {(entry.config.block_m, entry.config.block_n): entry.mma for entry in entries}
    major, minor = tiles.capability(device)
    target, shared_bytes = 10 * major + minor, shared_limit_bytes(table, gpu)
    is_declared = major == table.target // 10  # another generation has other instructions

    def job(config: Config) -> Job:
        declared = mma[config.block_m, config.block_n] if is_declared else None
        return Job(kernel, config, dtype, target, shared_bytes, declared)

    findings = {finding.job.config: finding for finding in inspect_all([job(config) for config in (now, *others)])}
    x, w = (torch.randn((rows, k), device=device).to(DTYPES[dtype]) for rows in (m, n))
    out, reference, calls = x.new_empty((m, n)), reference_sums(x, w), {}
    for config in (now, *others):
        call = partial(CONTENDERS[kernel].load(), x, w, out, config=config)
        reasons = [] if config == now else findings[config].problems()
        if not reasons:
            out.fill_(math.nan)
            wrong = verdict(kernel, error_of(call(), reference), dtype)
            reasons = [wrong.reason] if wrong else []
        if not reasons:
            calls[config] = call
        elif config == now:
            raise ValueError(f"{config}, which is taken at present: {reasons[0]}; correct that first")
        else:
            print(f"  left out: {config}: {reasons[0]}")
    best, ratio = fastest(calls, clock, now)
    about = f"{kernel} {m}x{n}x{k} {dtype}"
    print(f"{about}: {best}, {ratio:.3f} times as fast as {now}, best of {len(calls)}", flush=True)
    measured = dict(
        chip=torch.cuda.get_device_name(device), sms=gpu.sms, date=f"{datetime.now(UTC):%Y-%m-%d}", shape=about,
        triton=triton.__version__, torch=torch.__version__, ratio=round(ratio, 4), over=str(now), tried=len(calls) - 1,
        target=target, shared_limit_bytes=shared_bytes,
    )  # fmt: skip
    save(tiles.FOLDER / f"{arch}.json", kernel, shape, dtype, best, findings[best].mma, measured)


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m kernels.tune", description=__doc__.splitlines()[0])
    ours = [name for name, contender in CONTENDERS.items() if contender.kind == "triton"]
    parser.add_argument("kernel", choices=ours)
    parser.add_argument("--shapes", nargs="+", required=True, type=sizes, metavar="M,N,K", help="of the matmul")
    parser.add_argument("--dtype", choices=[*DTYPES], default="bf16")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU here, and a configuration is chosen by timing it; run this on a GPU")
    clock = partial(triton.testing.do_bench, warmup=5, rep=30, return_mode="median")  # it clears L2 before each call
    try:
        for shape in options.shapes:
            tune(options.kernel, shape, options.dtype, torch.device("cuda", torch.cuda.current_device()), clock)
    except ValueError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
