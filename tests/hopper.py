"""Run kernels as compiled for Hopper, with no GPU: `python -m tests.hopper [KERNEL...]`, or FILE::NAME of yours.

The cases, and the delays of `--perturb`, stand in the folder `machine` beside this file.
"""

import argparse
import faulthandler
import gc
import sys
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
import triton

sys.path.extend(str(Path(__file__).parent / name) for name in ("machine", "attention", "gated"))

import cases
import links
import waiting
from cases import Case, Outcome, run, run_on_gpu
from perturb import perturbing
from source_lines import Lines, as_text

from roofline.host.arguments import Parser, count, sizes

OF_OPERATIONS = tuple(name for name in ("attention", "gated") if find_spec(f"{name}_cases"))
"""Those whose folder was not taken out."""
WATCHDOG_S = 60
"""For a case with delays, which take milliseconds; then it hangs, and the process ends with a traceback."""


def every() -> list[Case]:
    of_operations = [import_module(f"{name}_cases") for name in OF_OPERATIONS]
    return [case for module in (cases, *of_operations, waiting, links) for case in module.cases()]


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m tests.hopper", description=__doc__.splitlines()[0])
    parser.add_argument("kernel", nargs="*", help="only these; all by default; or a matmul of yours, FILE::NAME")
    parser.add_argument("--shape", type=sizes, default="120,240,208", metavar="M,N,K", help="of yours (120,240,208)")
    parser.add_argument("--dtype", choices=[*cases.DTYPES], default="bf16", help="of yours (bf16)")
    parser.add_argument("--seeds", type=count, default=2, help="orders of events for each case (2)")
    parser.add_argument("--seed", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--thorough", action="store_true", help="more shapes: short K, one row, few slots, odd rows")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose line has this in it")
    parser.add_argument("--gpu", action="store_true", help="on the Hopper GPU here: the machine's results, to the bit")
    parser.add_argument(
        "--perturb", type=count, metavar="SEED", help="on the Hopper GPU here, with delays that SEED chooses"
    )
    parser.add_argument(
        "--lines", action="store_true", help="at the end, which lines of kernels were executed, not by a GPU"
    )
    options = parser.parse_args(arguments)
    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set, so nothing would be compiled; run it under `env -u TRITON_INTERPRET`")
    options.gpu |= options.perturb is not None
    if options.gpu and not torch.cuda.is_available():
        parser.error("--gpu and --perturb run on a Hopper GPU, and torch finds none; without them it is the machine")
    if options.gpu and torch.cuda.get_device_capability()[0] != 9:
        print(f"{torch.cuda.get_device_name()} is no Hopper: there is nothing to compare with the machine")
        return 0
    try:
        users = [cases.of_user(name, options.shape, options.dtype) for name in options.kernel if ":" in name]
    except ValueError as error:
        parser.error(str(error))
    candidates = users or [
        case for case in every() if (options.thorough or not case.thorough) and (case.gpu or not options.gpu)
    ]
    names = list(dict.fromkeys(case.kernel for case in candidates))
    if unknown := set(options.kernel) - {*names}:
        parser.error(f"argument KERNEL: no cases of {', '.join(sorted(unknown))}, there are {', '.join(names)}")
    todo = [case for case in candidates if case.kernel in (options.kernel or names) and options.only in str(case)]
    torch.set_num_threads(1)  # others would wait for work in vain
    gc.freeze()  # torch's own objects are many, and need no visits
    delays = perturbing(options.perturb) if options.perturb is not None else nullcontext()
    lines = Lines()
    with delays, lines.watched() if options.lines else nullcontext():
        bad = sum(is_bad(case, options) for case in todo)
    if options.lines:
        print(as_text(lines))
    where = torch.cuda.get_device_name() if options.gpu else "sm_90a, executed by NumPy"
    print(f"triton {triton.__version__}, {where}: {len(todo)} cases under {options.seeds} orders of events, {bad} bad")
    return 1 if bad or not todo else 0


def is_bad(case: Case, options: argparse.Namespace) -> bool:
    """Run a case, and print what comes of it."""
    run_case = run_on_gpu if options.gpu else run
    if options.perturb is not None:
        print(f"{case}: delays of seed {options.perturb}", flush=True)
        faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    outcomes = {seed: run_case(case, seed) for seed in range(options.seed, options.seed + options.seeds)}
    faulthandler.cancel_dump_traceback_later()
    print("\n".join(lines(case, outcomes)), flush=True)
    return any(outcome.wrong for outcome in outcomes.values())


def lines(case: Case, outcomes: dict[int, Outcome]) -> list[str]:
    wrong = {seed: outcome for seed, outcome in outcomes.items() if outcome.wrong}
    seconds = sum(outcome.seconds for outcome in outcomes.values())
    fewest = min(outcome.instructions for outcome in outcomes.values())
    counted = f"  {fewest} instructions" if fewest else ""  # a GPU does not count them
    head = f"{'BAD  ' if wrong else 'exact'}  {case}{counted}  {seconds:.1f} s"
    return [head, *(f"    seed {seed}: {outcome.wrong}" for seed, outcome in wrong.items())]


if __name__ == "__main__":
    sys.exit(main())
