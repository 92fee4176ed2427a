"""What the compiler made of every kernel and configuration, no GPU needed: `python -m kernels.inspect`.

It prints one line per kernel, configuration and dtype of the tables; for a matmul of yours, `FILE::NAME`, one per
launch that it makes. A kernel that has `problems` is wrong however it measures, and the command exits with 1. No look
at a binary tells whether it synchronises rightly: `kernels.machine` executes the same one.

The numbers come from the cubin itself, by the cuobjdump and nvdisasm inside the Triton wheel. Where wgmma is
serialised, ptxas says so in a log that Triton throws away. So kernels with wgmma are assembled once more, for the log.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any

import triton
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability
from triton.compiler import CompiledKernel
from triton.runtime.cache import get_cache_manager

from kernels.contract import FP8, KernelLaunch, empty_scales, example_operands
from kernels.hopper import ROOM, SM_REGISTERS, allotted
from kernels.machine.compile import compile_for
from kernels.recording import launches_of
from kernels.registry import BESIDE_LINK, PROMOTED, examples, load
from kernels.tiles import DTYPES, Config, architectures, table
from roofline.host.arguments import Parser, sizes
from roofline.operations import contenders

MODELLED: dict[str, dict[str, int]] = {"flatten": {"flatten": True}, "gang": {"shared_waves": 1}}
"""{field that a table leaves to the model of waves: the change of a configuration that compiles to other code}."""

REGISTER_COUNTS = "CONSUMER_REGISTERS", "PRODUCER_REGISTERS"
"""Arguments of a kernel whose warps are specialised: registers a thread that setmaxnreg must give them."""

SERIALISED = re.compile(r"\(C751[0-4]\).* serialized due to .*")
"""A line of ptxas's log: "(C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to
insufficient register resources for the wgmma pipeline in the function 'k'"."""


@dataclass(frozen=True)
class Cubin:
    """The machine code of one launch in numbers. `mma` counts instructions by name: {"wgmma.m64n256k16": 8}, or {"fma":
    8} where none are for the tensor cores. A spill shows as stack bytes, as local accesses, or as both."""

    registers: int  # per thread at the start of the kernel
    stack_bytes: int
    local_accesses: int
    shared_bytes: int
    mma: dict[str, int]
    tma_loads: int
    tma_stores: int
    wgmma_waits: tuple[int, ...] = ()  # wgmma groups that waits leave in flight, each number once
    register_counts: tuple[int, ...] = ()  # per thread, that setmaxnreg asks for, each number once
    warps: int = 4  # of a launch, with those that warp_specialize adds

    @property
    def spills(self) -> bool:
        return bool(self.stack_bytes or self.local_accesses)

    @property
    def instruction(self) -> str:
        return "+".join(sorted(self.mma)) or "none"


def cubin_of(kernel: CompiledKernel) -> Cubin:
    """The numbers of its disassembly."""
    cubin = read(*disassembly(kernel), kernel.metadata.shared)
    return replace(cubin, warps=kernel.metadata.num_warps)


def disassembly(kernel: CompiledKernel) -> tuple[str, str]:
    """What cuobjdump says of its usage, and nvdisasm of its code. Triton's cache holds the cubin under a key of
    Triton's version, the kernel's source and the specialisation of its arguments."""
    path = get_cache_manager(kernel.hash).get_file(f"{kernel.src.name[:150]}.cubin")
    usage = _tool("cuobjdump", "-res-usage", path)
    return usage, _tool("nvdisasm", "-c", "-ndf", path)  # no data flow, which takes a quarter of the time


def serialised(kernel: CompiledKernel) -> tuple[str, ...]:
    """Lines of ptxas's log on wgmma that it serialised."""
    ptx = kernel.asm["ptx"]
    arch = kernel.metadata.target.arch
    if "wgmma.mma_async" not in ptx:
        return ()
    options = ["-v", "--regAllocOptLevel=2", f"--gpu-name={sm_arch_from_capability(arch)}"]  # as Triton calls it
    command = [get_ptxas(arch).path, *options, "/dev/stdin", "-o", "/dev/null"]
    log = subprocess.run(command, input=ptx, check=True, capture_output=True, text=True).stderr
    return tuple(SERIALISED.findall(log))


def read(usage: str, sass: str, shared_bytes: int) -> Cubin:
    """A Cubin from the text of `cuobjdump -res-usage` and `nvdisasm -c`.

    >>> sass = "/*0*/ HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24 ;  /*10*/ UTMALDG.2D [UR8], [UR4] ;"
    >>> read("Function k: REG:154 STACK:0 SHARED:0", sass, 1024).mma
    {'wgmma.m64n256k16': 1}
    """
    registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", usage)[0]
    opcodes = Counter(re.findall(r"\b([A-Z][A-Z0-9]{2,}(?:\.[A-Za-z0-9_]+)*)\s", sass))

    def numbers(pattern: str) -> tuple[int, ...]:
        return tuple(sorted({int(n, 16) for n in re.findall(pattern, sass)}))

    def total(*stems: str) -> int:
        return sum(count for opcode, count in opcodes.items() if opcode.split(".")[0] in stems)

    mma = _mma(opcodes)
    if not mma and total("FFMA"):
        mma = {"fma": total("FFMA")}
    return Cubin(
        registers=int(registers),
        stack_bytes=int(stack),
        local_accesses=total("LDL", "STL"),
        shared_bytes=shared_bytes,
        mma=mma,
        tma_loads=total("UTMALDG"),
        tma_stores=total("UTMASTG"),
        wgmma_waits=numbers(r"\bWARPGROUP\.DEPBAR\.LE gsb\d+, (0x[0-9a-f]+)"),
        register_counts=numbers(r"\bUSETMAXREG\.\S+ (?:UP\d+, )?(0x[0-9a-f]+)"),
    )


def _mma(opcodes: Counter) -> dict[str, int]:
    """Count tensor core instructions by PTX name: SASS writes HGMMA.64x256x16 for wgmma, QGMMA.64x256x32 for wgmma in
    fp8, and HMMA.16816 for mma.sync."""
    counts: Counter[str] = Counter()
    for opcode, n in opcodes.items():
        if match := re.match(r"[HQ]GMMA\.(\d+)x(\d+)x(\d+)", opcode):
            counts["wgmma.m{}n{}k{}".format(*match.groups())] += n
        elif re.match(r"[A-Z]{1,2}G?MMA\b", opcode):  # others are shown as they are, and no declaration matches them
            counts["mma.m16n8k16" if opcode.startswith("HMMA.16816") else opcode] += n
    return dict(counts)


def _tool(name: str, *arguments: str) -> str:
    program = getattr(triton.knobs.nvidia, name).path
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout


@dataclass(frozen=True)
class Job:
    """One configuration in one dtype, compiled for one target."""

    kernel: str
    config: Config | str
    dtype: str
    target: int
    shared_limit_bytes: int
    mma: str | None
    """The instruction that it is declared to compile to; None for a user's kernel, which declares none."""

    def __str__(self) -> str:
        return f"{self.kernel} {self.config}"


@dataclass(frozen=True)
class Finding:
    """A job and what came out."""

    job: Job
    cubin: Cubin | None
    problems: list[str]
    """Each broken promise in a sentence: value, limit, way out; or the compiler's error. Sound when there is none."""


def problems_of(job: Job, cubin: Cubin, args: dict[str, Any], serialised: Sequence[str]) -> list[str]:
    """The broken promises of a launch with these arguments. `serialised` are lines of ptxas's log."""
    most_registers = SM_REGISTERS
    most_bytes = job.shared_limit_bytes
    beside = ""
    if job.kernel in BESIDE_LINK:
        most_registers, bytes_left = ROOM
        most_bytes = min(most_bytes, bytes_left)
        beside = " beside the copier"
    problems = []
    if cubin.spills:
        problems.append(
            f"spills: {cubin.stack_bytes} bytes of stack, {cubin.local_accesses} local accesses, 0 allowed; "
            "take more warps or a smaller tile"
        )
    if cubin.shared_bytes > most_bytes:
        problems.append(
            f"needs {cubin.shared_bytes} bytes of shared memory, limit {most_bytes}{beside}; "
            "take fewer stages or subtile the epilogue"
        )
    registers = allotted(cubin.registers, cubin.warps)
    if registers > most_registers:
        problems.append(
            f"holds {registers} registers, {cubin.registers} a thread, limit {most_registers}{beside}; "
            "take a smaller tile"
        )
    if job.mma and cubin.instruction != job.mma:
        problems.append(f"compiles to {cubin.instruction}, declared is {job.mma}; change the tile or the declaration")
    if job.mma and "wgmma" in cubin.instruction and 1 not in cubin.wgmma_waits and job.kernel not in PROMOTED:
        problems.append(
            f"waits until {cubin.wgmma_waits or 'no'} wgmma groups are in flight, 1 is needed between stages; "
            "look for what ptxas serialised"
        )
    if serialised:
        problems.append(
            f"ptxas serialises wgmma: {'; '.join(serialised)}; wait before sums are touched, or free registers"
        )
    asked = {args[name] for name in REGISTER_COUNTS if name in args}
    if missing := sorted(asked - {*cubin.register_counts}):
        problems.append(f"sets register counts {cubin.register_counts}, {missing} is missing; look at worker_num_regs")
    return problems


def jobs(kernels: Sequence[str] = ()) -> list[Job]:
    """Every entry of the compiled tables in each of its dtypes; of `kernels` alone, where some are named."""
    todo = []
    for of in map(table, architectures()):
        for entry in of.entries:
            if not of.target or (kernels and entry.kernel not in kernels):
                continue
            compiled = [(entry.config, dtype) for dtype in entry.dtypes]
            # Configurations that the model of waves may make of an entry that was not measured.
            if not entry.measured and not entry.config.is_odd:
                for free in MODELLED.keys() & of.modelled.get(entry.kernel, ()):
                    compiled.append((entry.config.changed(**MODELLED[free]), entry.dtypes[0]))
            for config, dtype in compiled:
                todo.append(Job(entry.kernel, config, dtype, of.target, of.shared_limit_bytes, entry.mma))
    return list(dict.fromkeys(todo))


def example(job: Job) -> KernelLaunch:
    """The launch that stands for a job."""
    return load(examples()[job.kernel])(job.config, DTYPES[job.dtype])


def inspect(job: Job, launch: KernelLaunch | None = None) -> Finding:
    """Compile one job, by its example or another `launch`. A compiler error becomes part of the finding: one bad
    candidate must not hide the others."""
    try:
        launch = launch or example(job)
        kernel = compile_for(job.target, launch)
        cubin = cubin_of(kernel)
        return Finding(job, cubin, problems_of(job, cubin, launch.args, serialised(kernel)))
    except Exception as error:  # Triton raises RuntimeError, CompilationError, PTXASError and others here
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        return Finding(job, None, [f"does not compile: {first}"])


def inspect_user(place: str, shape: tuple[int, int, int], dtype: str) -> list[Finding]:
    """Compile for Hopper the launches of a user's matmul on (m, n, k). Raises ValueError where there are none."""
    x, w, out = example_operands(DTYPES[dtype], *shape)
    scales = {"scales": empty_scales(x, w, dtype == "fp8_block")} if x.dtype == FP8 else {}
    findings = []
    hopper = table("sm90")
    function = contenders.load(contenders.parse(place))
    for launch in launches_of(function, x, w, out, **scales):
        warps = launch.args.get("num_warps", 4)
        stages = launch.args.get("num_stages", 3)
        config = f"warps{warps} stages{stages}"
        job = Job(launch.kernel.__name__, config, dtype, hopper.target, hopper.shared_limit_bytes, None)
        findings.append(inspect(job, launch))
    return findings


def inspect_all(todo: Sequence[Job]) -> list[Finding]:
    """All findings, in the order of the jobs. They come from fresh processes: a fork would inherit torch's threads in
    an unknown state."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        return list(pool.map(inspect, todo))


def as_text(findings: Sequence[Finding]) -> str:
    """An aligned table, then the problems."""
    import pandas  # its import takes longer than all that the machine wants of this module

    rows = []
    problems = []
    for finding in findings:
        job = finding.job
        row = {"kernel": job.kernel, "target": f"sm_{job.target}", "config": job.config, "dtype": job.dtype}
        if finding.cubin:
            row |= asdict(finding.cubin)
            row["mma"] = finding.cubin.instruction
        rows.append(row | {"expected": job.mma or "-", "verdict": "BAD" if finding.problems else "ok"})
        problems += [f"{job} {job.dtype}: {problem}" for problem in finding.problems]
    bad = sum(row["verdict"] == "BAD" for row in rows)
    table = pandas.DataFrame(rows, dtype=object).to_string(index=False, na_rep="-")
    return "\n".join([table, *problems, f"triton {triton.__version__}: {len(findings)} compiled, {bad} bad"])


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m kernels.inspect", description=__doc__.splitlines()[0])
    parser.add_argument("kernel", nargs="*", help=f"only these of {', '.join(sorted(examples()))}; or your FILE::NAME")
    parser.add_argument("--shape", type=sizes, default="4096,4096,4096", metavar="M,N,K", help="of yours (4096,...)")
    parser.add_argument("--dtype", choices=[*DTYPES], default="bf16", help="of yours (bf16)")
    options = parser.parse_args(arguments)
    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set, so nothing would be compiled; run it under `env -u TRITON_INTERPRET`")
    users = [kernel for kernel in options.kernel if ":" in kernel]
    kernels = [kernel for kernel in options.kernel if kernel not in users]
    if unknown := {*kernels} - examples().keys():
        parser.error(f"argument KERNEL: no kernel {', '.join(sorted(unknown))}, there are {', '.join(examples())}")
    try:
        findings = [finding for user in users for finding in inspect_user(user, options.shape, options.dtype)]
    except ValueError as error:
        parser.error(str(error))
    findings += inspect_all(jobs(kernels)) if kernels or not users else []
    print(as_text(findings))
    return 1 if any(finding.problems for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
