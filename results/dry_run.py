"""Every launch of a benchmark run on a Hopper GPU, compiled and never run: `python -m results.dry_run`.

It fills Triton's cache ahead, for a machine on which a compiler's minutes are dear, and says what it still had to
compile. No GPU is needed. The runners are the project's own: they make operands, links and arms, and call each
contender as they do before they time it, on a GPU that is not there (kernels/bench/absent_gpu.py).

How an arm is cut depends on how long its matmul and its link take. So the run is gone through for several speeds, and
our persistent matmul, by which arms multiply, is called for any number of row blocks. Attention and the gated layer are
called by our own contender alone. quack, where it is installed, compiles into a cache of its own.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import torch

from collectives import device
from kernels import hopper, rivals
from kernels.bench import absent_gpu
from kernels.registry import CONTENDERS
from kernels.tiles import DTYPES
from roofline import operations
from roofline.host.arguments import Parser
from roofline.operations.options import Options, resolve
from roofline.store.run import REQUESTED
from roofline.theory import chips, wires
from roofline.theory.arms import BLOCKS
from roofline.worker.prepared import FAILED

REACHED_SHARES = (0.5, 0.65, 0.8)
"""Fractions of the datasheet's FLOP/s that the matmul of an arm may reach: it was 0.70 to 0.84 on an H200 and an H100
in the runs of results/reference."""

WIRE_SHARE = 0.7
"""The fraction that the large matmul reaches that wires are made for."""

PCIE_BYTES_PER_S = 55e9
"""About the bytes/s of 16 lanes of generation 5."""

OURS = {"attention": ["flash"], "ffn_gated": ["fused"]}
"""{operation: its contenders that are called}. The others are libraries', which cannot be called without a GPU."""


def install(chip: chips.Chip, launches: absent_gpu.Launches) -> None:
    """Stand in for a GPU in this process from now on, also for links."""
    absent_gpu.install(chip, launches)
    device.call_driver = lambda name, *arguments: None


def chosen(case, chip: chips.Chip, reached_share: float) -> dict:
    """What an earlier process would have chosen for a case over a wire, had it been on `chip`: see
    `roofline.worker.runner.Runner.earlier`."""
    datasheet = chip.flops[case.dtype]
    wire = wires.parse(case.wire)
    t_gemm_s = case.work.flop / (reached_share * datasheet)
    wire_bytes = case.work.wire_bytes
    facts = {
        "unsplit": "cublas",
        "t_gemm_planned_s": t_gemm_s,
        "t_comm_planned_s": wire_bytes / PCIE_BYTES_PER_S,
        "gather": wire.link,
        REQUESTED: wire.bytes_per_s(chip_flops=WIRE_SHARE * datasheet, t_gemm_s=t_gemm_s, wire_bytes=wire_bytes),
    }
    return {"facts": facts, "medians_s": {}}


def launch_row_blocks(case) -> None:
    """Multiply rows of `case` by our persistent matmul: one of the most blocks that there may be, two, and so on up to
    all. The weights are those of `case`, and those of a layer's second matmul, whose n and k are exchanged."""
    persistent = CONTENDERS["persistent"].load()
    blocks = max(BLOCKS)
    about = dict(dtype=DTYPES[case.dtype], device="cuda")
    for n, k in ((case.n, case.k), (case.k, case.n)):
        x = torch.empty((case.m, k), **about)
        w = torch.empty((n, k), **about)
        for count in range(1, blocks + 1):
            persistent(x[: case.m * count // blocks], w)


def launch_all(options: Options, chip: chips.Chip, names: list[str]) -> list[str]:
    """Make every launch of the operations `names` by `options`. Returns a sentence for each contender that raised: what
    it would have launched after that is not known."""
    failures = []
    for share in REACHED_SHARES:
        runners = operations.Runners(options)
        for name in names:
            operation = operations.find(name)
            runner = runners.of(operation)
            planner = runners.planner(operation)
            runner.instruments()()
            for case in operation.sweep(options):
                if operation.analysis == "overlap":
                    runner.earlier[case.id] = chosen(case, chip, share)
                    launch_row_blocks(case)
                prepared = runner.prepare(case, OURS.get(name) or planner.names(case))
                for entrant in prepared.entrants.values():
                    entrant.call()
                for rejected in prepared.rejected.values():
                    if rejected.outcome == FAILED:
                        failures.append(f"{case.id}: {rejected.reason}")
    return failures


def compile_quack(options: Options) -> None:
    """Compile what the contender `quack` would launch for each matmul, where it is installed."""
    if not find_spec("quack"):
        print(f"quack is not installed, nothing of it was compiled: {rivals.INSTALL}")
        return
    cases = operations.find("matmul").sweep(options)
    for case in cases:
        shapes = (case.m, case.k), (case.n, case.k), (case.m, case.n)
        rivals.compile_quack(*(torch.empty(shape, dtype=DTYPES[case.dtype], device="cuda") for shape in shapes))
    print(f"quack compiled, or found, its kernels of {len(cases)} matmuls")


def main(arguments: list[str]) -> int:
    parser = Parser(prog="python -m results.dry_run", description=__doc__.partition("\n")[0])
    parser.add_argument("--chip", choices=hopper.CHIPS, default=hopper.CHIPS[0], help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="exit with code 1 where anything had to be compiled")
    asked = parser.parse_args(arguments)
    options = resolve({}, device="cuda", timed=True, root=Path())
    names = [name for name, operation in operations.OPERATIONS.items() if operation.default or name in OURS]
    chip = chips.find(asked.chip)
    launches = absent_gpu.Launches()
    install(chip, launches)
    failures = launch_all(options, chip, names)
    os.environ |= rivals.HOPPER
    compile_quack(options)
    for failure in failures:
        print(failure)
    for name, times in launches.launched.items():
        compiled = launches.compiled[name]
        found = launches.found[name]
        print(f"{name:20} {times:6} launches of {compiled + found:3} variants, {compiled:3} of them compiled now")
    return 1 if failures or (asked.check and launches.compiled) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
