"""What the roof of a machine is measured by, whatever the operation: its description, the probes, and a GPU's
instruments. Runners of what is made of matmuls begin here."""

import itertools
from collections.abc import Iterator
from functools import cache, partial
from importlib.util import find_spec

import torch
from torch import Tensor

from kernels.bench import checks
from kernels.contract import FP8, dtype_name, empty_out, empty_scales
from kernels.registry import CONTENDERS
from kernels.tiles import DTYPES
from roofline.host.machine import describe
from roofline.operations.contenders import reason
from roofline.theory.models import parse as parse_model
from roofline.worker import runner
from roofline.worker.alone import ALONE
from roofline.worker.ceilings import Probe

ROTATION = 8
"""Operands rotate through this many times the last-level cache: twice it would do if caches forgot the oldest first."""

PARTS = 4
"""Parts of the tensor that a CPU's probe of the read bandwidth reads, by turns."""

PROBE_SHARE = 24
"""A probe reads at most one part in so many of the memory."""

PROBED_SHAPES = {
    "cuda": ((4096, 4096, 4096), (8192, 8192, 8192), (4096, 13312, 16384), (2048, 2048, 13312)),
    "cpu": ((1024, 1024, 1024), (512, 3328, 1024), (256, 3328, 1024)),  # in bf16 few rows are the fastest
}
"""m, n and k of the matmuls that reach for a ceiling."""


class Runner(runner.Runner):
    """Has the probes of matmuls, and the instruments."""

    def probes(self) -> list[Probe]:
        """The probes of the roof; none on ranks, which have no roof of their own."""
        return probes(self.options) if self.ranks is ALONE else []

    def instruments(self) -> type | None:
        """The gate and the SM clock, which are Triton kernels, where a GPU is timed and Triton is there; else None."""
        if self.options.device != "cuda" or not self.options.timed or not find_spec("triton"):
            return None
        from kernels.bench.instruments import Instruments

        return Instruments


def require_fp32(case, *about) -> None:
    """Raise TypeError where NumPy cannot take the case."""
    if case.dtype != "fp32":
        raise TypeError(f"NumPy computes in fp32 here, and the case is {case.dtype}")


machine = cache(describe)
"""What `describe` says. Each shape asks for each other one, and a description looks up the version of every package."""


def cache_bytes(device: str) -> int:
    return machine(device)["cache_bytes"]


def beyond_cache_bytes(device: str) -> int:
    """The bytes of a tensor that the last-level cache does not answer for.

    On a GPU it has at least 2 GiB where the memory allows: they take a third of a millisecond, so that the launch
    weighs nothing. Four of them have to fit into the memory beside operands: a virtual machine may name the cache of
    its whole host, and a slice of a GPU may have 10 GB.
    """
    wanted = ROTATION * cache_bytes(device)
    if device == "cuda":
        wanted = max(wanted, 2**31)
    return min(wanted, machine(device)["memory_bytes"] // PROBE_SHARE)


def probes(options) -> list[Probe]:
    """Calls that reach for the ceilings: large matmuls of several shapes, several readers, a copy."""
    device = options.device
    contenders = []
    for contender in CONTENDERS.values():
        if contender.probes and device in contender.devices and not reason(contender.load):
            contenders.append(contender)
    calls = []
    for dtype, (m, n, k) in itertools.product(options.dtypes, PROBED_SHAPES[device]):
        x = torch.randn(m, k, device=device).to(DTYPES[dtype])
        w = torch.randn(n, k, device=device).to(DTYPES[dtype])
        operands = [x, w, empty_out(x, w)]
        if x.dtype == FP8:  # by row, also where the dtype has scales by block: it is the chip's roof
            operands.append([scales.fill_(1) for scales in empty_scales(x, w, by_block=False)])
        for contender in contenders:
            if "matmul" in contender.probes:
                calls.append(_probe("matmul", contender, f"{m}x{n}x{k}", 2 * m * n * k, [operands], dtype))
    # Tensors lie far beyond the last-level cache, which would answer for the memory. A CPU reads a part at a time, by
    # turns: a probe takes its turn beside calls of a fraction of a millisecond. Rows are as long as those of the
    # weights: that matters on a CPU.
    size = beyond_cache_bytes(device)
    count = 1 if device == "cuda" else PARTS
    model = parse_model(options.model)
    readers = [contender for contender in contenders if "read" in contender.probes]
    for k in (model.d_model, model.d_ff):
        matrix = torch.randn(max(count, size // 4 // k), k, device=device)
        parts = matrix.split(len(matrix) // count)[:count]
        turns = itertools.cycle(parts)
        nbytes = parts[0].nbytes
        shape = f"{len(parts[0])}x{k}"
        calls.append(Probe("read", f"sum {shape}", nbytes, partial(_sum_next, turns)))
        sets = [_matvec(part) for part in parts]
        calls += [_probe("read", reader, shape, nbytes, sets) for reader in readers if reader.kind != "triton"]
    for reader in readers:
        if reader.kind == "triton":  # Triton's reader takes 16 bits
            half = torch.randn(size // 2 // model.d_model, model.d_model, device=device, dtype=torch.bfloat16)
            shape = f"{len(half)}x{model.d_model} bf16"
            calls.append(_probe("read", reader, shape, half.nbytes, [_matvec(half)]))
    copy = torch.empty_like(matrix)
    calls.append(Probe("copy", "copy_", 2 * copy.nbytes, lambda: copy.copy_(matrix)))
    return calls


def _sum_next(turns: Iterator[Tensor]) -> Tensor:
    return next(turns).sum()


def _matvec(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x, w and out of a product with one row, which reads `matrix` once."""
    return torch.randn_like(matrix[:1]), matrix, matrix.new_zeros(1, len(matrix))


def _probe(kind: str, contender, shape: str, amount: int, sets: list, dtype: str | None = None) -> Probe:
    """The probe that multiplies `sets` of (x, w, out) in turn. It sets no ceiling where the contender cannot take them,
    or its result of the first is wrong."""
    run = contender.load()
    turns = itertools.cycle(sets)

    def problem() -> str | None:
        if lacking := contender.why_not(*sets[0]):
            return lacking
        x, w, _, *scales = sets[0]
        limit = checks.limit_of(contender, dtype_name(x, w, *scales))
        reference = checks.reference_sums(x, w, *scales)
        _, refused = checks.check(contender.name, run, sets[0], reference, limit)
        return refused.reason if refused else None

    return Probe(kind, f"{contender.name} {shape}", amount, lambda: run(*next(turns)), dtype, problem)
