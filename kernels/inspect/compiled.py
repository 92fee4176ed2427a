"""What the compiler made of every kernel and configuration, no GPU needed: `python -m kernels.inspect`.

One line per kernel, configuration and dtype of the checked-in tables: registers, spills, shared memory, the MMA
instruction found beside the one the table declares, TMA loads and stores. One that has `problems` is wrong however it
measures, and the command exits with 1. What shares an SM with a link's copier must leave room for that and for the
link's waits (`kernels.hopper.room`). `--table FILE` looks at candidates before they are measured.

How a cubin is read stands in `cubin`, tables in `kernels.tiles`, which kernels there are in `kernels.registry`. Whether
what synchronises is right a look cannot tell: `kernels.machine` runs the same code.
"""

import json
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import triton

from kernels.hopper import WARP_SIZE, allotted, room
from kernels.inspect.cubin import Cubin, compile_launch
from kernels.registry import BESIDE_LINK, examples, load
from kernels.tiles import DTYPE_NAMES, Config, Entry, Table, architectures, read, table
from roofline.arguments import Parser

SCHEMA = "kernels.compiled/3"
SETMAXNREG = "CONSUMER_REGISTERS", "PRODUCER_REGISTERS"
"""Arguments of a launch whose warps are specialised."""


@dataclass(frozen=True)
class Job:
    """One configuration in one dtype, compiled for one target."""

    kernel: str
    table: str
    config: Config
    dtype: str
    target: int
    shared_limit_bytes: int
    mma: str


@dataclass(frozen=True)
class Finding:
    """A job and what came out: a cubin, or the compiler's error. Sound when `problems()` is empty."""

    job: Job
    cubin: Cubin | None
    error: str | None = None
    least_tma: tuple[int, int] = (0, 0)
    """TMA loads and stores that the launch has descriptors for."""
    register_counts: tuple[int, ...] = ()
    """Registers a thread that setmaxnreg must give the consumers and the producer, if the warps are specialised."""

    @property
    def mma(self) -> str:
        return "+".join(sorted(self.cubin.mma)) or "none" if self.cubin else "-"

    def problems(self) -> list[str]:
        """Return each broken promise in a sentence: value, limit, way out."""
        if self.cubin is None:
            return [f"does not compile: {self.error}"]
        job, cubin, beside_link = self.job, self.cubin, self.job.kernel in BESIDE_LINK
        registers, (registers_left, bytes_left) = allotted(cubin.registers, job.config.num_warps), room()
        limit, who = job.shared_limit_bytes, ""
        if beside_link and limit > bytes_left:
            limit, who = bytes_left, " beside the copier"
        loads, stores = self.least_tma
        checks = (
            (cubin.spills,
             f"spills: {cubin.stack_bytes} bytes of stack, {cubin.local_accesses} local accesses, 0 allowed; "
             "take more warps or a smaller tile"),
            (cubin.shared_bytes > limit,
             f"needs {cubin.shared_bytes} bytes of shared memory, limit {limit}{who}; "
             "take fewer stages or subtile the epilogue"),
            (beside_link and registers > registers_left,
             f"holds {registers} registers, {cubin.registers} a thread, limit {registers_left} beside the copier; "
             "take a smaller tile"),
            (self.mma != job.mma,
             f"compiles to {self.mma}, declared is {job.mma}; change the tile or the declaration"),
            ("wgmma" in self.mma and 1 not in cubin.wgmma_waits,
             f"waits until {cubin.wgmma_waits or 'no'} wgmma groups are in flight, 1 is needed between stages; "
             "look for what ptxas serialised (ptxas -v says so, C7510 and on)"),
            (cubin.tma_loads < loads or cubin.tma_stores < stores,
             f"has {cubin.tma_loads} TMA loads and {cubin.tma_stores} stores, {loads} and {stores} are the least; "
             "check the descriptors"),
        )  # fmt: skip
        sentences = [sentence for broken, sentence in checks if broken]
        if self.register_counts:
            sentences += _unspecialised(cubin, job.config.num_warps, *self.register_counts)
        return sentences

    def as_row(self) -> dict:
        cubin = {} if self.cubin is None else asdict(self.cubin) | {"mma_counts": self.cubin.mma}
        for text in ("ttgir", "ptx"):  # for reading here, not for a row
            cubin.pop(text, None)
        names = {"config": str(self.job.config), "mma_expected": self.job.mma, "mma": self.mma}
        verdict = {"triton": triton.__version__, "error": self.error, "problems": self.problems()}
        return asdict(self.job) | cubin | names | verdict


def _unspecialised(cubin: Cubin, consumer_warps: int, consumer: int, producer: int) -> list[str]:
    """Return what a kernel with `consumer_warps` and a producer lacks; `consumer` and `producer` are registers a
    thread."""
    sentences = []
    if missing := sorted({consumer, producer} - set(cubin.register_counts)):
        sentences.append(
            f"sets register counts {cubin.register_counts}, {missing} is missing; look at worker_num_regs and the "
            "register limit"
        )
    # setmaxnreg waits until the pool that the program was launched with has what it asks for; a producer takes the
    # registers of a whole warpgroup.
    pool = cubin.registers * WARP_SIZE * (consumer_warps + 4)
    wanted = WARP_SIZE * (consumer_warps * consumer + 4 * producer)
    if wanted > pool:
        sentences.append(
            f"asks for {wanted} registers, it is launched with {pool} and would hang; give the consumers fewer"
        )
    return sentences


def jobs(tables: Iterable[Table], kernels: Iterable[str] = ()) -> list[Job]:
    """Return every entry of the compiled tables in each of its dtypes."""
    tables = tuple(tables)
    if unknown := {entry.kernel for t in tables for entry in t.entries} - examples().keys():
        raise ValueError(
            f"no kernels {sorted(unknown)}, there are {', '.join(examples())}; enter them in kernels/registry.py"
        )
    entries = [
        Job(entry.kernel, t.arch, config, dtype, t.target, t.shared_limit_bytes, entry.mma)
        for t in tables
        if t.target is not None
        for entry in t.entries
        for dtype in entry.dtypes
        for config in _variants(entry, t, dtype)
        if not kernels or entry.kernel in kernels
    ]
    return list(dict.fromkeys(entries))


def _variants(entry: Entry, of: Table, dtype: str) -> list[Config]:
    """Return what the table has, and in its first dtype what the model of waves may make of what was not measured."""
    if "flatten" not in of.modelled.get(entry.kernel, ()) or dtype != entry.dtypes[0] or entry.measured:
        return [entry.config]
    return [entry.config, replace(entry.config, flatten=True)]


def inspect(job: Job) -> Finding:
    """Compile one job. A compiler error becomes part of the finding: one bad candidate must not hide the others."""
    dtype = {name: dtype for dtype, name in DTYPE_NAMES.items()}[job.dtype]
    try:
        launch = load(examples()[job.kernel])(job.config, dtype)
        least_tma = 1 if "x_desc" in launch.args else 0, 1 if "out_desc" in launch.args else 0
        registers = [launch.args[name] for name in SETMAXNREG if name in launch.args]
        return Finding(job, compile_launch(launch, job.target), None, least_tma, tuple(registers))
    except Exception as error:  # Triton raises RuntimeError, CompilationError, PTXASError and others here
        return Finding(job, None, f"{type(error).__name__}: {error}".splitlines()[0])


def inspect_all(todo: list[Job], workers: int) -> list[Finding]:
    """Return all findings, in the order of the jobs. Fresh processes: a fork would inherit torch's threads in an
    unknown state."""
    if workers <= 1 or len(todo) <= 2:
        return [inspect(job) for job in todo]
    with ProcessPoolExecutor(min(workers, len(todo)), mp_context=get_context("spawn")) as pool:
        return list(pool.map(inspect, todo))


def as_text(findings: list[Finding]) -> str:
    """Return an aligned table, then the problems."""
    numeric = ("registers", "stack_B", "local_accesses", "shared_B", "tma_loads", "tma_stores")
    head = ["kernel", "target", "config", "dtype", *numeric[:4], "mma", "expected", *numeric[4:], "verdict"]
    rows = [head]
    for finding in findings:
        job, c = finding.job, finding.cubin
        numbers = [c.registers, c.stack_bytes, c.local_accesses, c.shared_bytes] if c else "----"
        instructions = [finding.mma, job.mma, *([c.tma_loads, c.tma_stores] if c else "--")]
        verdict = "BAD" if finding.problems() else "ok"
        rows.append([job.kernel, f"sm_{job.target}", job.config, job.dtype, *numbers, *instructions, verdict])
    columns = [[str(cell) for cell in column] for column in zip(*rows, strict=True)]
    for name, column in zip(head, columns, strict=True):
        width = max(map(len, column))
        column[:] = [cell.rjust(width) if name in numeric else cell.ljust(width) for cell in column]
    lines = ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
    for f in findings:
        lines += [f"{f.job.kernel} {f.job.config} {f.job.dtype}: {problem}" for problem in f.problems()]
    bad = sum(bool(f.problems()) for f in findings)
    return "\n".join([*lines, f"triton {triton.__version__}: {len(findings)} compiled, {bad} bad"])


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m kernels.inspect", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document in place of the table")
    parser.add_argument(
        "--kernel", action="append", choices=sorted(examples()), default=[], help="only this kernel (may be repeated)"
    )
    parser.add_argument(
        "--table", type=Path, action="append", help="a table of candidates in place of the checked-in ones"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that compile at the same time")
    options = parser.parse_args(arguments)
    if options.workers < 1:
        parser.error(f"argument --workers: {options.workers} is not 1 or more")
    try:
        tables = [read(path) for path in options.table] if options.table else [table(arch) for arch in architectures()]
        todo = jobs(tables, options.kernel)
    except (OSError, ValueError) as error:
        parser.error(f"argument --table: {error}")
    if os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y"):
        print(
            "TRITON_INTERPRET is set, so nothing would be compiled; "
            "run `env -u TRITON_INTERPRET python -m kernels.inspect`",
            file=sys.stderr,
        )
        return 2
    findings = inspect_all(todo, options.workers)
    if options.json:
        rows = [finding.as_row() for finding in findings]
        document = {"schema": SCHEMA, "triton": triton.__version__, "findings": rows}
        print(json.dumps(document, indent=1))
    else:
        print(as_text(findings))
    return 1 if any(f.problems() for f in findings) else 0
