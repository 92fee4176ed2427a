"""The `roofline` command. Imports only what the command at hand needs: `bench` alone needs torch."""

import argparse
import os
import shlex
import sys
from importlib import import_module
from pathlib import Path

from roofline import __version__
from roofline.account import command as account
from roofline.host.arguments import BENCH, Parser
from roofline.host.container import settle
from roofline.report import compare as comparing


def main(arguments: list[str] | None = None) -> int:
    """Run the command line `arguments`; returns the exit code (0 done, 1 slower or not all counted, 2 bad input)."""
    parser = Parser(prog="roofline", description="What kernel benchmark numbers mean.")
    parser.add_argument("--version", action="version", version=f"roofline {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)

    bench = commands.add_parser("bench", help="measure, from any folder: pytest's options and the --ffn-... ones")
    bench.set_defaults(run=_bench)

    command = commands.add_parser("report", help="redraw the tables and plots of run folders from their saved data")
    command.add_argument(
        "folders", metavar="RUN", type=Path, nargs="+", help="a folder of results/local or results/reference"
    )
    command.add_argument(
        "--operations",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="that declares operations of yours: its figures are drawn too",
    )
    command.set_defaults(run=_report)

    comparing.add_command(commands)

    command = commands.add_parser("csv", help="a run's data: a row for each case, for a spreadsheet or a frame")
    command.add_argument("folder", metavar="RUN", type=Path, help="a run folder; results/README.md has the columns")
    command.add_argument("--by-tokens", action="store_true", help="a row for each M and dtype, the means over shapes")
    command.set_defaults(run=_csv)

    command = commands.add_parser("counters", help="what a call moves, counted by Nsight Compute, into a run's journal")
    command.add_argument("folder", metavar="RUN", type=Path, help="a run of this machine's GPU")
    command.add_argument(
        "cases", metavar="CASE", nargs="*", help="an id, as `roofline csv` prints it (default: 8 of the matmuls)"
    )
    command.set_defaults(run=_by_module)

    account.add_command(commands)

    command = commands.add_parser("shapes", help="the names that --ffn-shapes takes, and what each has")
    command.set_defaults(run=_shapes)

    command = commands.add_parser("doctor", help="what this machine lacks for a whole benchmark run, and the way out")
    command.set_defaults(run=_by_module)

    words = sys.argv[1:] if arguments is None else [*arguments]
    options = parser.parse_args(words[:1] if words[:1] == ["bench"] else words)
    options.words = words[1:]
    try:
        settle()
        if hasattr(sys.stdout, "reconfigure"):  # a path may have what the locale lacks
            sys.stdout.reconfigure(errors="backslashreplace")
        code = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, as `head`, has read enough; nothing is left to flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        problem = str(error)
    except ModuleNotFoundError as error:
        problem = f"it needs {error.name}, which this Python lacks: python3 -m pip install {error.name}"
    except Exception as error:  # whoever reads a journal trusts the types of its fields
        from roofline.host.device_errors import reason

        problem = f"{reason(error)}: what it reads is damaged, or this is a fault of roofline's"
    print(f"roofline {options.command}: {problem}", file=sys.stderr)
    return 2


def _bench(options: argparse.Namespace) -> int:
    import roofline_pytest

    words, _ = roofline_pytest.joined(options.words)
    paths = [word.partition("::")[0] for word in words if not word.startswith("-")]
    has_tests = any(Path(path).exists() for path in paths)
    is_module = sys.argv[0].endswith("__main__.py")
    os.environ[BENCH] = "python3 -m roofline" if is_module else shlex.quote(sys.argv[0])
    roofline_pytest.begin(Path(__file__).parents[2], ["--benchmark-only", *words], has_tests)


def _csv(options: argparse.Namespace) -> int:
    from roofline.analysis import records, tokens
    from roofline.store import journal

    run = journal.load(options.folder)
    table = records.frame(run)
    if options.by_tokens:
        table = tokens.by_tokens(run, table)
    table.to_csv(sys.stdout, index=False)
    return 0


def _shapes(options: argparse.Namespace) -> int:
    from roofline.operations import shapes

    for name, path in shapes.KNOWN.items():
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        print(f"{name}: {first.strip('# ')}\n    {path}")
    return 0


def _by_module(options: argparse.Namespace) -> int:
    """Run the module of a command, which is imported for that command alone."""
    return import_module(f"roofline.commands.{options.command}").run(options)


def _report(options) -> int:
    from roofline.operations.contenders import module_of
    from roofline.report import html
    from roofline.report.write import write

    for file in options.operations:
        module_of(file.resolve())
    for folder in options.folders:
        for path in write(folder):
            print(path)
    if html.LACKING:
        print(html.LACKING, file=sys.stderr)
    return 0
