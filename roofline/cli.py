"""The `roofline` command. Imports only what the command at hand needs: none needs torch, `balance` needs no package."""

import argparse
import json
import os
import sys
from pathlib import Path

from roofline import __version__
from roofline.account import command as account
from roofline.arguments import Parser, bandwidth, flops, positive
from roofline.predict import command as predicting
from roofline.theory import chips
from roofline.theory.bounds import balance


def _share(text: str) -> float:
    value = positive(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share below 1, as in 0.03 for 3 %")
    return value


def main(arguments: list[str] | None = None) -> int:
    """Run the command line `arguments`; returns the exit code (0 done, 1 slower, 2 bad input)."""
    parser = Parser(prog="roofline", description="What kernel benchmark numbers mean.")
    parser.add_argument("--version", action="version", version=f"roofline {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)

    command = commands.add_parser("balance", help="FLOP per byte at which compute and bytes take equally long")
    command.add_argument("--flops", type=flops, metavar="FLOP/s", help="e.g. 275e12")
    command.add_argument("--bandwidth", type=bandwidth, metavar="BYTES/s", help="of the link or memory, e.g. 100e9")
    command.add_argument("--chip", help="take both from a datasheet (bf16; memory and links), e.g. 'H100 SXM'")
    command.set_defaults(run=_balance)

    account.add_command(commands)

    command = commands.add_parser("report", help="redraw the tables and plots of a run folder from its saved data")
    command.add_argument("folder", metavar="RUN", type=Path, help="a folder of results/local or results/reference")
    command.set_defaults(run=_report)

    command = commands.add_parser("compare", help="what became faster or slower from one run to another")
    command.usage = "roofline compare BASE NEW [options], or BASE... --new NEW... [options]"
    command.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run folders: BASE and NEW, or all of BASE")
    command.add_argument("--new", metavar="NEW", nargs="+", type=Path, help="run folders, where a side has several")
    command.add_argument(
        "--by", choices=("ratio", "time"), default="ratio", help="ratio to the baseline, or plain time"
    )
    command.add_argument("--margin", type=_share, default=0.03, metavar="SHARE", help="that counts (default: 0.03)")
    command.add_argument("--allow", action="append", default=[], choices=("chip", "driver", "method"),
                         help="compare although this differs; may be repeated")  # fmt: skip
    command.add_argument("--quick", action="store_true", help="compare quick runs too, which say too little")
    command.add_argument("--strict", action="store_true", help="exit 1 also where a case is unclear or missing")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="every number, as results/README.md documents it")
    form.add_argument("--markdown", action="store_true", help="for a pull request")
    command.set_defaults(run=_compare)

    predicting.add_command(commands)

    command = commands.add_parser("doctor", help="what this machine lacks for a whole benchmark run, and the way out")
    command.add_argument("--json", action="store_true", help="every finding, as results/README.md documents it")
    command.set_defaults(run=_doctor)

    options = parser.parse_args(arguments)
    try:
        code = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, as `head`, has read enough; nothing is left to flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        print(f"roofline {options.command}: {error}", file=sys.stderr)
        return 2


def _balance(options) -> int:
    if options.chip:
        if options.flops or options.bandwidth:
            raise ValueError("give either --chip, or --flops and --bandwidth")
        chip = chips.find(options.chip)
        print(f"{chip.name}: {chip.source}")
        if chip.memory_bandwidth_bytes_per_s:
            _explain(chip.flops["bf16"], chip.memory_bandwidth_bytes_per_s, " (device memory)")
        if chip.received_bytes_per_s:
            _explain(chip.flops["bf16"], chip.received_bytes_per_s, " (all links, one direction)", wire=True)
        return 0
    if not options.flops or not options.bandwidth:
        raise ValueError("give --flops and --bandwidth, as in: roofline balance --flops 275e12 --bandwidth 100e9")
    _explain(options.flops, options.bandwidth, wire=True)
    return 0


def _explain(flops: float, bandwidth: float, where: str = "", *, wire: bool = False) -> None:
    ridge = balance(flops, bandwidth)
    print(f"balance: {ridge:.6g} FLOP/byte = {flops:g} FLOP/s / {bandwidth:g} bytes/s{where}")
    print(f"  work below {ridge:.6g} FLOP per byte waits for its bytes, work above it for its FLOP")
    if wire:
        # 2 FLOP for each weight and token, 2 bytes for each weight: the intensity of a gather is the tokens on a chip.
        print(f"  gathering 2-byte weights hides behind their matmul above {ridge:.6g} tokens on a chip")


def _doctor(options: argparse.Namespace) -> int:
    from roofline import doctor

    return doctor.run(as_json=options.json)


def _report(options) -> int:
    from roofline.report.write import write

    for path in write(options.folder):
        print(path)
    return 0


def _compare(options) -> int:
    from roofline.report import compare
    from roofline.store.journal import load

    sides = (options.runs, options.new) if options.new else (options.runs[:1], options.runs[1:])
    if not options.new and len(options.runs) != 2:
        problem = f"of {len(options.runs)} runs, which are NEW?" if options.runs[1:] else "there is no NEW:"
        raise ValueError(f"{problem} Say roofline compare BASE NEW, or BASE... --new NEW...")
    if twice := [folder for side in sides for folder in side if side.count(folder) > 1]:
        raise ValueError(f"{twice[0]} is given twice on one side: it would count as two runs")
    base, new = ([load(folder) for folder in side] for side in sides)
    comparison = compare.compare(
        base, new, by=options.by, margin=options.margin, allow=options.allow, quick=options.quick
    )
    if options.json:
        print(json.dumps(compare.as_json(comparison, base, new, strict=options.strict), indent=2))
    elif options.markdown:
        print(compare.markdown(comparison, base, new))
    else:
        print("\n".join(compare.terminal(comparison)))
    return comparison.exit_code(strict=options.strict)
