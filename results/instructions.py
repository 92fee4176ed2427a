"""What a change of a kernel changes in its code, no GPU needed: `python -m results.instructions`.

    python -m results.instructions --out FILE.json        # in the checkout before
    python -m results.instructions --against FILE.json    # in the one behind: what differs, and 1 where something does

Of every configuration it has the instructions of PTX, as a multiset; and registers, shared memory and spills of the
binary. Both are under one Triton.
"""

import json
import re
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import triton

from kernels.inspect import Job, cubin_of, example, jobs
from kernels.machine.compile import compile_for
from roofline.host.arguments import Parser

OPCODE = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]+)[\s;]", re.MULTILINE)


def code_of(job: Job) -> dict:
    """The instructions and the numbers of a configuration."""
    kernel = compile_for(job.target, example(job))
    numbers = asdict(cubin_of(kernel))
    names = "registers", "stack_bytes", "local_accesses", "shared_bytes"
    return {"instructions": Counter(OPCODE.findall(kernel.asm["ptx"]))} | {name: numbers[name] for name in names}


def differences(before: dict, after: dict) -> list[str]:
    """What differs in the code of a configuration, one line each.

    >>> code = {"instructions": {"add.s32": 2}, "registers": 168}
    >>> differences(code, code), differences(code, {"instructions": {"add.s32": 3}, "registers": 168})
    ([], ['add.s32 2 -> 3'])
    """
    before = dict(before)
    after = dict(after)
    counts = before.pop("instructions"), after.pop("instructions")
    lines = []
    for one, other in (counts, (before, after)):
        for name in sorted({*one, *other}):
            if one.get(name, 0) != other.get(name, 0):
                lines.append(f"{name} {one.get(name, 0)} -> {other.get(name, 0)}")
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m results.instructions", description=__doc__.splitlines()[0])
    parser.add_argument("kernel", nargs="*", help="only these; all by default")
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--out", type=Path, metavar="FILE", help="write what this checkout's kernels compile to")
    way.add_argument("--against", type=Path, metavar="FILE", help="print what differs from that")
    options = parser.parse_args(arguments)
    todo = jobs(options.kernel)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        codes = dict(zip([f"{job} {job.dtype}" for job in todo], pool.map(code_of, todo), strict=True))
    document = {"triton": triton.__version__, "codes": codes}
    if options.out:
        options.out.write_text(json.dumps(document))
        return 0
    before = json.loads(options.against.read_text())
    if before["triton"] != document["triton"]:
        parser.error(f"{options.against} is of Triton {before['triton']}, and this is {document['triton']}")
    common = [title for title in codes if title in before["codes"]]
    count = 0
    for title in common:
        lines = differences(before["codes"][title], codes[title])
        count += bool(lines)
        if lines:
            print(title, *lines, sep="\n    ")
    others = len({*codes} ^ {*before["codes"]})
    print(f"triton {triton.__version__}: {len(common)} configurations, {count} differ; {others} are in one alone")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
