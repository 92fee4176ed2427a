"""The `roofline` command. Imports only what the command at hand needs: none needs torch, `balance` needs no package."""

import argparse
import os
import sys
from pathlib import Path

from roofline import __version__
from roofline.account import command as account
from roofline.arguments import Parser, bandwidth, flops
from roofline.predict import command as predicting
from roofline.report import compare as comparing
from roofline.theory.bounds import balance


def main(arguments: list[str] | None = None) -> int:
    """Run the command line `arguments`; returns the exit code (0 done, 1 slower, 2 bad input)."""
    parser = Parser(prog="roofline", description="What kernel benchmark numbers mean.")
    parser.add_argument("--version", action="version", version=f"roofline {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)

    command = commands.add_parser("balance", help="FLOP per byte at which compute and bytes take equally long")
    command.add_argument("--flops", type=flops, metavar="FLOP/s", help="e.g. 275e12")
    command.add_argument("--bandwidth", type=bandwidth, metavar="BYTES/s", help="of the link or memory, e.g. 100e9")
    command.set_defaults(run=_balance)

    account.add_command(commands)

    command = commands.add_parser("report", help="redraw the tables and plots of a run folder from its saved data")
    command.add_argument("folder", metavar="RUN", type=Path, help="a folder of results/local or results/reference")
    command.set_defaults(run=_report)

    comparing.add_command(commands)
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
    if not options.flops or not options.bandwidth:
        raise ValueError("give --flops and --bandwidth, as in: roofline balance --flops 275e12 --bandwidth 100e9")
    ridge = balance(options.flops, options.bandwidth)
    print(f"balance: {ridge:.6g} FLOP/byte = {options.flops:g} FLOP/s / {options.bandwidth:g} bytes/s")
    print(f"  work below {ridge:.6g} FLOP per byte waits for its bytes, work above it for its FLOP")
    # 2 FLOP for each weight and token, 2 bytes for each weight: the intensity of a gather is the tokens on a chip.
    print(f"  gathering 2-byte weights hides behind their matmul above {ridge:.6g} tokens on a chip")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from roofline import doctor

    return doctor.run(as_json=options.json)


def _report(options) -> int:
    from roofline.report.write import write

    for path in write(options.folder):
        print(path)
    return 0
