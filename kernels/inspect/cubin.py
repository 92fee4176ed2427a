"""Compile a launch, of Triton or of Gluon, with no GPU; read registers, spills, shared memory, MMA and TMA from the
machine code.

The launch goes through `JITFunction.warmup`, Triton's own path up to the point where it would touch a device, under a
driver that knows a target and nothing else. So the signature, the divisibility of every argument and the descriptors
are those of a real launch, on any Triton version. The numbers come from the cubin itself, by the cuobjdump and nvdisasm
inside the Triton wheel.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import triton
from triton.backends.compiler import GPUTarget

from kernels.contract import KernelLaunch, interpreted
from kernels.hopper import WARP_SIZE

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True)
class Cubin:
    """What the compiler made of one launch. `mma` counts instructions by name, e.g. {"wgmma.m64n256k16": 8}; {"fma": n}
    when there are none of the tensor cores. A spill shows as stack bytes, as local loads and stores, or as both."""

    registers: int  # per thread at the start of the kernel
    stack_bytes: int
    local_accesses: int
    shared_bytes: int
    mma: dict[str, int]
    tma_loads: int
    tma_stores: int
    wgmma_waits: tuple[int, ...] = ()  # wgmma groups that waits leave in flight, each number once
    register_counts: tuple[int, ...] = ()  # per thread, that setmaxnreg asks for, each number once
    ttgir: str = field(default="", repr=False)  # the last IR in which loops and loads can be told
    ptx: str = field(default="", repr=False)  # where barriers between threads stand

    @property
    def spills(self) -> bool:
        return bool(self.stack_bytes or self.local_accesses)


@contextmanager
def offline(target: int) -> Iterator[None]:
    """Make Triton compile for compute capability `target` (90 for 9.0) inside the block."""
    driver = triton.runtime.driver
    before = driver._active  # no public getter leaves a driver uncreated, and creating one without a GPU raises
    # As much of a driver as compiling asks for. Triton keys compiled kernels by device: a name that no device has keeps
    # ours apart from those of a GPU in this process.
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", target, WARP_SIZE),
            get_current_device=lambda: f"offline-{target}",
            get_current_stream=lambda device: 0,
        )
    )
    try:
        yield
    finally:
        driver.set_active(before)


def compile_launch(launch: KernelLaunch, target: int) -> Cubin:
    """Compile for `target` and read the result. RuntimeError under the interpreter; compiler errors pass through."""
    if interpreted(launch.kernel) or triton.knobs.runtime.interpret:  # Gluon's kernels are never interpreted
        raise RuntimeError("TRITON_INTERPRET is set, so there is no compiler; unset it before kernels is imported")
    with offline(target):
        kernel = launch.kernel.warmup(grid=launch.grid, **launch.args)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(kernel.asm["cubin"])
        usage = _tool("cuobjdump", "-res-usage", str(path))
        sass = _tool("nvdisasm", "-c", "-ndf", str(path))  # no data flow, which takes a quarter of the time
    return replace(read(usage, sass, kernel.metadata.shared), ttgir=kernel.asm["ttgir"], ptx=kernel.asm["ptx"])


def read(usage: str, sass: str, shared_bytes: int) -> Cubin:
    """Return a Cubin from the text of `cuobjdump -res-usage` and `nvdisasm -c`.

    >>> sass = "/*0*/ HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24 ;  /*10*/ UTMALDG.2D [UR8], [UR4] ;"
    >>> read("Function k: REG:154 STACK:0 SHARED:0", sass, 1024).mma
    {'wgmma.m64n256k16': 1}
    """
    registers, stack = (int(re.search(rf"{name}:(\d+)", usage).group(1)) for name in ("REG", "STACK"))
    opcodes = Counter(re.findall(r"\b([A-Z][A-Z0-9]{2,}(?:\.[A-Za-z0-9_]+)*)\s", sass))

    def numbers(pattern: str) -> tuple[int, ...]:
        return tuple(sorted({int(n, 16) for n in re.findall(pattern, sass)}))

    def count(*stems: str) -> int:
        return sum(n for op, n in opcodes.items() if op.split(".")[0] in stems)

    return Cubin(
        registers=registers,
        stack_bytes=stack,
        local_accesses=count("LDL", "STL"),
        shared_bytes=shared_bytes,
        mma=_mma(opcodes) or ({"fma": count("FFMA")} if count("FFMA") else {}),
        tma_loads=count("UTMALDG"),
        tma_stores=count("UTMASTG"),
        wgmma_waits=numbers(r"\bWARPGROUP\.DEPBAR\.LE gsb\d+, (0x[0-9a-f]+)"),
        register_counts=numbers(r"\bUSETMAXREG\.\S+ (?:UP\d+, )?(0x[0-9a-f]+)"),
    )


def _mma(opcodes: Counter) -> dict[str, int]:
    """Count tensor core instructions by PTX name: SASS writes HGMMA.64x256x16 for wgmma and HMMA.16816 for mma.sync."""
    counts: Counter[str] = Counter()
    for opcode, n in opcodes.items():
        if match := re.match(r"[HIQ]GMMA\.(?:SP\.)?(\d+)x(\d+)x(\d+)", opcode):
            counts["wgmma.m{}n{}k{}".format(*match.groups())] += n
        elif opcode.startswith(("HMMA.16816", "HMMA.1688")):
            counts["mma.m16n8k16" if opcode.startswith("HMMA.16816") else "mma.m16n8k8"] += n
        elif re.match(r"[A-Z]{1,2}G?MMA\b", opcode):
            counts[opcode] += n  # no name for it yet: shown as it is, so that no declaration matches it
    return dict(counts)


def _tool(name: str, *arguments: str) -> str:
    return subprocess.run([TOOLS / name, *arguments], check=True, capture_output=True, text=True).stdout
