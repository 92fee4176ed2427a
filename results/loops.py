"""What differs in a kernel's loops from one Triton to another, no GPU needed: `python -m results.loops`.

    python -m results.loops --out FILE.json        # under the one Triton
    python -m results.loops --against FILE.json    # under the other: a table of what differs

It compiles the kernels of contenders and arms, with the tiles that a default run takes on an H100, and the copier. Of
each it has the instructions (SASS, by nvdisasm) of the loops in which a kernel spends its time, as multisets; and how
it waits for stores by TMA, which is outside of them: until these have `read` shared memory, or until the `whole` store
is in memory. Which of the differences costs time, no count says.

A loop is a natural one, with what is placed behind it, as the slow path of a wait. Those counted are the innermost ones
that multiply in tensor cores, and that load by TMA, as the producer's; where a kernel does not multiply, those that
load or store.
"""

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import triton

from kernels.contract import KernelLaunch
from kernels.inspect import Job, disassembly, example
from kernels.machine.compile import compile_for
from kernels.registry import LINKS, examples, load
from kernels.tiles import DTYPES, choose, table
from kernels.waves import GpuSpec
from roofline.host.arguments import Parser
from roofline.host.machine import ptxas_version
from roofline.operations.matmul import sweep
from roofline.operations.options import resolve
from roofline.theory import chips

MULTIPLY, TMA_LOAD, ANY_ACCESS = re.compile(r"[HQI]G?MMA"), re.compile(r"UTMALDG"), re.compile(r"(LD|ST)G")
"""What the counted loops do."""

NAMED = re.compile(r"[HQI]G?MMA|UTMA|SYNCS|BAR|WARP|DEPBAR|FENCE|MEMBAR|CCTL|(LD|ST)[GSL]|ATOM|RED")
"""Instructions that a table names: those that multiply, move data or wait. It sums the others."""

LINE = re.compile(r"^(\.L\w*):|^\s+/\*[0-9a-f]+\*/\s+(@\S+ )?\s*([A-Z][\w.]*)\s*([^;]*);", re.MULTILINE)
"""A label, or an instruction: predicate, name, operands."""


class Instruction(NamedTuple):
    name: str
    """With its modifiers. A wait has its operands, too: how much it leaves in flight."""
    next: list[int]
    """The places of those that may follow it."""


def parse(sass: str) -> list[Instruction]:
    """The instructions of a kernel from the text of `nvdisasm -c`. Where an indirect branch goes is not in it.

    >>> parse('''.L_x_0:
    ...         /*0000*/                   HGMMA.64x8x16.F32.BF16 R24, gdesc[UR8], R24 ;
    ...         /*0010*/               @P0 BRA `(.L_x_0) ;
    ...         /*0020*/                   EXIT ;''')[1]
    Instruction(name='BRA', next=[0, 2])
    """
    labels = {}
    lines = []
    for label, predicate, name, operands in LINE.findall(sass):
        if label:
            labels[label] = len(lines)
        else:
            lines.append((predicate, name, operands.strip()))
    code = []
    for place, (predicate, name, operands) in enumerate(lines):
        targets = []
        if not name.startswith("BSSY"):  # it only says where its threads meet again
            targets = [labels[label] for label in re.findall(r"`\((\.L\w*)\)", operands)]
        leaves = re.match(r"(EXIT|RET|BRX)\b|BRA `", f"{name} {operands}")
        if (predicate or not leaves) and place + 1 < len(lines):
            targets.append(place + 1)
        code.append(Instruction(f"{name} {operands}" if "DEPBAR." in name else name, targets))
    return code


def entries(code: Sequence[Instruction]) -> set[int]:
    """Where control comes in: the first instruction of the kernel, and of each part that an indirect branch goes to, as
    that of a role to its warps."""
    begins = set()
    reached = set()
    for place in range(len(code)):
        if place not in reached:
            begins.add(place)
        left = [place]
        while left:
            step = left.pop()
            if step not in reached:
                reached.add(step)
                left += code[step].next
    return begins


def loops(code: Sequence[Instruction]) -> list[set[int]]:
    """The natural loops of a kernel, as places of instructions: all that come to a branch back without passing the
    loop's first one."""
    before = defaultdict(list)
    for place, instruction in enumerate(code):
        for target in instruction.next:
            before[target].append(place)
    begins = entries(code)
    bodies = defaultdict(set)
    for first in [place for place, earlier in before.items() if earlier != [place - 1]]:
        for last in before[first]:
            body = {first}
            left = [last]
            while left:
                place = left.pop()
                if place not in body:
                    body.add(place)
                    left += before[place]
            if not body & begins - {first}:
                bodies[first] |= body
    return list(bodies.values())


def innermost(code: Sequence[Instruction], does: re.Pattern) -> dict[frozenset, str]:
    """{the innermost loop around an instruction that `does` fits: the instruction's name without modifiers}."""
    every = loops(code)
    found = {}
    for place, (name, _) in enumerate(code):
        around = [body for body in every if place in body]
        if around and does.match(name):
            found.setdefault(frozenset(min(around, key=len)), name.split(".")[0])
    return found


def hot_loops(code: Sequence[Instruction]) -> dict[str, Counter]:
    """The multiset of instructions of the loops that count, by what these do: {"HGMMA": of all that multiply}."""
    chosen = innermost(code, MULTIPLY)
    chosen = innermost(code, TMA_LOAD) | chosen if chosen else innermost(code, ANY_ACCESS)
    counted = defaultdict(Counter)
    for body, does in chosen.items():
        if not any(other < body for other in chosen):
            counted[does] += Counter(code[place].name for place in body)
    return counted


def store_waits(ptx: str) -> dict[str, int]:
    """The waits for stores by TMA, by what they wait for."""
    waits = re.findall(r"cp\.async\.bulk\.wait_group(\.read)?", ptx)
    return {"read": waits.count(".read"), "whole": waits.count("")}


def jobs(kernels: Sequence[str]) -> list[Job]:
    """Each of `kernels` with the tiles that a default run takes on an H100, in the kernel's first dtype. Tiles that
    differ in the order of tiles alone, or in their gang, have the same loops."""
    hopper = table("sm90")
    gpu = GpuSpec.of_chip(chips.find("H100 SXM"))
    options = resolve({}, device="cuda", timed=True, root=Path())
    found = []
    for kernel in kernels:
        entries = [entry for entry in hopper.entries if entry.kernel == kernel]
        dtype = entries[0].dtypes[0]
        most = max(entry.m_max or sys.maxsize for entry in entries)
        for case in sweep(options):
            if case.m <= most:
                config = choose(kernel, "sm90", case.m, case.n, case.k, DTYPES[dtype], gpu)
                shared_waves = min(config.shared_waves, 1)
                config = config.changed(group_m=8, raster="m", gang_m=1, gang_n=1, shared_waves=shared_waves)
                found.append(Job(kernel, config, dtype, hopper.target, hopper.shared_limit_bytes, None))
    return list(dict.fromkeys(found))


def profile(target: int, launch: KernelLaunch) -> dict:
    """The numbers of a launch: registers a thread, bytes of shared memory, waits for stores, loops."""
    kernel = compile_for(target, launch)
    usage, sass = disassembly(kernel)
    return {
        "registers": int(re.search(r"REG:(\d+)", usage)[1]),
        "shared_bytes": kernel.metadata.shared,
        "store_waits": store_waits(kernel.asm["ptx"]),
        "loops": hot_loops(parse(sass)),
    }


def name_of(job: Job) -> str:
    """Without the order of tiles, which is another for other shapes."""
    config = re.sub(r" (group\d+|gang\d+x\d+)", "", str(job.config))
    return " ".join(filter(None, [job.kernel, config, job.dtype]))


def profile_of(job: Job) -> dict:
    launch = load(LINKS[job.kernel])() if job.kernel in LINKS else example(job)
    return profile(job.target, launch)


def profiles(kernels: Sequence[str]) -> dict:
    """What `--out` writes: the versions of Triton and its assembler, and {kernel with its tile: its profile}."""
    hopper = table("sm90")
    todo = jobs([kernel for kernel in kernels if kernel not in LINKS])
    for kernel in kernels:
        if kernel in LINKS:
            todo.append(Job(kernel, "", "", hopper.target, hopper.shared_limit_bytes, None))
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        found = list(pool.map(profile_of, todo))
    return {
        "triton": triton.__version__,
        "ptxas": ptxas_version(hopper.target),
        "kernels": dict(zip(map(name_of, todo), found, strict=True)),
    }


def read(path: Path) -> dict:
    """What `--out` wrote to a file. Raises OSError and ValueError."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if "kernels" not in document:
        raise ValueError("it has no kernels")
    return document


def changes(before: dict[str, int], now: dict[str, int]) -> str:
    """What differs between two multisets of instructions: those that are `NAMED` by name, the others in one number."""
    lines = []
    others = [0, 0]
    for name in sorted({*before, *now}):
        counts = before.get(name, 0), now.get(name, 0)
        if not NAMED.match(name):
            others = [total + count for total, count in zip(others, counts, strict=True)]
        elif counts[0] != counts[1]:
            lines.append(f"`{name}` {arrow(*counts)}")
    if others[0] != others[1]:
        lines.append(f"others {arrow(*others)}")
    return ", ".join(lines)


def arrow(before, now) -> str:
    return f"{before}" if before == now else f"{before} → {now}"


def row(kernel: str, before: dict, now: dict) -> str:
    """The row of a kernel whose profile differs."""
    in_loops = []
    for does in sorted(before["loops"].keys() | now["loops"].keys()):
        counts = [profile["loops"].get(does, {}) for profile in (before, now)]
        size = f"{does} {arrow(*(sum(numbers.values()) for numbers in counts))}"
        in_loops.append(": ".join(filter(None, [size, changes(*counts)])))
    waits = []
    for kind in ("read", "whole"):
        counts = before["store_waits"][kind], now["store_waits"][kind]
        waits.append(arrow(*counts))
    numbers = [arrow(before[name], now[name]) for name in ("registers", "shared_bytes")]
    return f"| {' | '.join([kernel, '; '.join(in_loops), *numbers, *waits])} |"


def as_table(before: dict, now: dict) -> str:
    """What differs between two documents of `--out`, as a table in Markdown, and which kernels do not."""
    versions = [f"Triton {each['triton']} (ptxas {each['ptxas']})" for each in (before, now)]
    lines = [
        arrow(*versions),
        "",
        "| kernel | instructions in its loops | registers | bytes shared | waits: read | whole |",
        "| :-- | :-- | --: | --: | --: | --: |",
    ]
    both = [kernel for kernel in before["kernels"] if kernel in now["kernels"]]
    same = []
    for kernel in both:
        pair = before["kernels"][kernel], now["kernels"][kernel]
        if pair[0] == pair[1]:
            same.append(kernel)
        else:
            lines.append(row(kernel, *pair))
    lines += ["", f"No difference: {', '.join(same) or 'none'}."]
    for version, document in zip(versions, (before, now), strict=True):
        if alone := document["kernels"].keys() - both:
            lines.append(f"{version} alone: {', '.join(sorted(alone))}.")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m results.loops", description=__doc__.splitlines()[0])
    kernels = [*examples(), *LINKS]
    parser.add_argument("kernel", nargs="*", help=f"only these of {', '.join(kernels)}")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write them, for another Triton to be compared with")
    parser.add_argument("--against", type=Path, metavar="FILE", help="print what differs from those of this file")
    options = parser.parse_args(arguments)
    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set, so nothing would be compiled; run it under `env -u TRITON_INTERPRET`")
    if unknown := {*options.kernel} - {*kernels}:
        parser.error(f"argument KERNEL: no kernel {', '.join(sorted(unknown))}, there are {', '.join(kernels)}")
    if not (options.out or options.against):
        parser.error("there is nothing to do: write with --out FILE, or compare with --against FILE")
    before = None
    if options.against:
        try:
            before = read(options.against)
        except (OSError, ValueError) as error:
            parser.error(f"argument --against: {options.against} is none that --out has written: {error}")
    now = profiles(options.kernel or kernels)
    if options.out:
        options.out.write_text(json.dumps(now, indent=1, sort_keys=True), encoding="utf-8")
    if before:
        print(as_table(before, now))
    return 0


if __name__ == "__main__":
    sys.exit(main())
