"""What the benchmarks bring to the harness: cases, operands, the reference, and the probes for the ceilings."""

import functools
import itertools
import math
import zlib

import pytest
import torch

from roofline.measure.ceilings import Probe
from roofline.measure.lineup import Lineup, verdict
from roofline.plugin import STATE
from roofline.theory.models import parse as parse_model
from roofline.theory.work import Matmul

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

ROTATION = 8
"""Operands rotate through this many times the last-level cache: twice it would do if caches forgot the oldest first."""

CHECKED_ROWS = 32
"""One row in each run of this many is compared with the reference: no tile is smaller, so every tile is looked at."""


def known_contenders() -> dict:
    """Name -> `kernels.Contender`. Imported late: pytest may load this file before the plugin has switched Triton's
    interpreter on, which must come before Triton is imported."""
    from kernels import CONTENDERS

    return CONTENDERS


def pytest_generate_tests(metafunc):
    if {"shape", "contender"} <= set(metafunc.fixturenames):
        options = metafunc.config.stash[STATE].options
        names = contenders_of(options)
        pairs = [(case.id, name) for case in options.matmuls for name in names]
        metafunc.parametrize("shape, contender", pairs, ids=["-".join(pair) for pair in pairs])


def contenders_of(options) -> list[str]:
    """Names to run: those asked for, else the device's own; a plain CPU test also takes the kernels, interpreted."""
    if options.contenders:
        if strange := [name for name in options.contenders if name not in known_contenders()]:
            raise pytest.UsageError(f"--ffn-contenders {strange[0]!r}: known are {', '.join(known_contenders())}")
        return list(options.contenders)
    return [
        name
        for name, contender in known_contenders().items()
        if contender.default
        and (contender.device == options.device or (not options.timed and contender.kind == "triton"))
    ]


@pytest.fixture
def case(request, shape) -> Matmul:
    """The matmul that the id `shape` names."""
    return next(case for case in request.config.stash[STATE].options.matmuls if case.id == shape)


@pytest.fixture
def prepare(request):
    """`prepare(case, names)`: operands on the device, every contender checked, the right ones ready to be timed."""
    options = request.config.stash[STATE].options

    def prepare(case: Matmul, names: list[str]) -> Lineup:
        vendor = next(n for n, c in known_contenders().items() if c.kind == "vendor" and c.device == options.device)
        lineup = Lineup(vendor)
        sets = operands(case, options)
        reference = reference_rows(*sets[0][:2])
        turn = itertools.cycle(sets)
        for name in dict.fromkeys([vendor, *names] if options.timed else names):
            contender = known_contenders()[name]
            if reason := _unable(name, options, *sets[0][:2]):
                lineup.unable[name] = reason
                continue
            error = relative_error(contender.run, *sets[0], reference)
            if reason := verdict(name, error, case.dtype):
                lineup.wrong[name] = reason
                continue
            lineup.config[name] = contender.config(*sets[0][:2])
            lineup.relative_error[name] = error
            lineup.ready[name] = lambda run=contender.run: run(*next(turn))
        size = len(sets) * case.work.device_bytes
        lineup.cache = f"cold: {len(sets)} sets of operands in rotation, {size / 2**20:.0f} MiB in all"
        return lineup

    return prepare


def _unable(name: str, options, x, w) -> str | None:
    contender = known_contenders()[name]
    if options.timed and contender.device != options.device:
        kind = "a Triton kernel, " if contender.kind == "triton" else ""
        return f"{name} is {kind}timed on {contender.device} only; this run measures the {options.device}"
    return contender.why_not(x, w)


def operands(case: Matmul, options) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Sets of (x[m, k], w[n, k], out[m, n]) with equal values, enough of them to leave none in the cache.

    Zero-mean normal values, of the size that keeps `out` near 1: zeros or ones run faster and lie.
    """
    generator = torch.Generator(options.device).manual_seed(zlib.crc32(f"{options.seed} {case.id}".encode()))
    dtype = DTYPES[case.dtype]
    x = torch.randn(case.m, case.k, generator=generator, device=options.device, dtype=dtype)
    w = torch.randn(case.n, case.k, generator=generator, device=options.device, dtype=dtype).div_(math.sqrt(case.k))
    copies = max(2, math.ceil(ROTATION * cache_bytes(options.device) / case.work.device_bytes)) if options.timed else 1
    others = [(x.clone(), w.clone(), x.new_empty(case.m, case.n)) for _ in range(copies - 1)]
    return [(x, w, x.new_empty(case.m, case.n)), *others]


@functools.cache
def cache_bytes(device: str) -> int:
    from roofline.measure.machine import describe

    return describe(device)["cache_bytes"]


def reference_rows(x, w) -> torch.Tensor:
    """x @ w.T in float64 for one row of x in each run of CHECKED_ROWS, [rows, n]."""
    rows = x[_rows(len(x))].double()
    return torch.cat([rows @ part.double().T for part in w.split(8192)], dim=1)


def _rows(m: int) -> torch.Tensor:
    """One row in each run of CHECKED_ROWS, each time another of it, the last row among them; all of them if few."""
    if m <= 256:
        return torch.arange(m)
    starts = torch.arange(0, m, CHECKED_ROWS)
    return torch.cat([(starts + torch.arange(len(starts)) % CHECKED_ROWS).clamp(max=m - 1), torch.tensor([m - 1])])


def relative_error(run, x, w, out, reference) -> float:
    """Relative Frobenius error of `run` on a NaN-poisoned `out`; NaN if any element of it was left unwritten."""
    out.fill_(math.nan)
    result = run(x, w, out)
    if result.isnan().any():
        return math.nan
    return float((result[_rows(len(x))].double() - reference).norm() / reference.norm())


@pytest.fixture(scope="session")
def ffn_probes(request) -> list[Probe]:
    """Calls that reach for the ceilings: large matmuls of several shapes, several readers, a copy."""
    options = request.config.stash[STATE].options
    device = options.device
    if device == "cuda":
        shapes = ((4096, 4096, 4096), (8192, 8192, 8192), (4096, 13312, 16384), (2048, 2048, 13312))
    else:
        shapes = ((1024, 1024, 1024), (512, 3328, 1024), (1024, 1024, 3328))
    probes = [probe for dtype in options.dtypes for probe in _matmul_probes(shapes, dtype, device)]
    # Far beyond the last-level cache, which would answer for the memory. On a GPU at least 2 GiB: a third of a
    # millisecond, so that the launch weighs nothing. Rows as long as those of the weights: on a CPU that matters.
    size = max(ROTATION * cache_bytes(device), 2**31 if device == "cuda" else 0)
    model = parse_model(options.model)
    matrices = [torch.randn(size // 4 // k, k, device=device) for k in (model.d_model, model.d_ff)]
    for matrix in matrices:
        probes += _read_probes(matrix, device)
    other = torch.empty_like(matrices[0])
    probes.append(Probe("copy", "copy_", 2 * other.nbytes, lambda: other.copy_(matrices[0])))
    return probes


def _read_probes(matrix: torch.Tensor, device: str) -> list[Probe]:
    shape = "x".join(map(str, matrix.shape))
    vector = torch.randn(1, matrix.shape[1], device=device)
    product = torch.empty(1, matrix.shape[0], device=device)
    calls = {name: functools.partial(run, vector, matrix, product) for name, run in _libraries(device).items()}
    calls["sum"] = functools.partial(torch.sum, matrix)
    return [Probe("read", f"{name} {shape}", matrix.nbytes, call) for name, call in calls.items()]


def _libraries(device: str) -> dict:
    """Name -> run(x, w, out) of the vendors' and libraries' matmuls that are timed on `device` by default."""
    known = known_contenders()
    return {n: c.run for n, c in known.items() if c.device == device and c.default and c.kind != "triton"}


def _matmul_probes(shapes, dtype: str, device: str) -> list[Probe]:
    probes = []
    for m, n, k in shapes:
        x, w = (torch.randn(rows, k, device=device, dtype=DTYPES[dtype]) for rows in (m, n))
        out = x.new_empty(m, n)
        for name, run in _libraries(device).items():
            call = functools.partial(run, x, w, out)
            probes.append(Probe("matmul", f"{name} {m}x{n}x{k}", 2 * m * n * k, call, dtype))
    return probes
