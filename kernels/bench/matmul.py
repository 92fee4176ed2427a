"""How the operation `matmul` runs: its operands, and how its contenders are checked."""

import itertools
import math
import zlib
from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

import kernels
from kernels.bench import checks, roof
from kernels.contract import FP8, Scales, empty_scales, interpreted
from kernels.fp8 import LARGEST, quantise
from kernels.registry import Contender, baseline, of_run
from kernels.tiles import DTYPES, was_tuned
from roofline.host.machine import worker_bytes
from roofline.operations.contenders import reason
from roofline.operations.matmul import Matmul, sweep
from roofline.protocol.stop_rule import StopRule
from roofline.theory.work import ITEMSIZE
from roofline.worker import ceilings
from roofline.worker.ceilings import Probe

FEW_ROWS, SETS_OF_FEW_ROWS = 64, 6
"""Shapes of up to so many rows get at least so many sets, as far as they fit: a kernel there has the pace of the
memory. On an H200 the place of the operands in the memory explained nine tenths of the variation of a slow kernel."""

MOST_SETS = 8192
"""A tiny shape would want millions: with so many it stays in the cache, and says so."""

RUN, LARGEST_OF_RUN = 512, 3.2
"""The pool of fp8 holds runs of so many normal values. The largest of a run is about so large, and becomes 448 in the
pool."""

AT_ONCE = 2**20
"""Elements of that pool that are fp32 at a time."""

CHOOSING = StopRule(max_seconds=0.4, min_rounds=3, max_rounds=8, warmup_s=0.05)
"""The stop rule of the turns that choose a library's candidate for a shape."""

POOL = 0.6
"""A shape whose operands take more than this fraction of the memory gets tensors of its own: they may not fit, and
those of the others shall."""


class Runner(roof.Runner):
    """Runs single matmuls."""

    def contenders(self, case):
        return of_run(self.options)

    def baseline(self, case):
        return baseline(self.options)

    def operands(self, prepared):
        """Sets of operands on the device, in rotation. Contenders are checked on the first."""
        options = self.options
        case = prepared.case
        sets = operands(case, options)
        prepared.inputs = checks.Rotation(sets, options.seed)
        prepared.has_call_costs = options.device == "cuda" and case.m <= FEW_ROWS
        size = len(sets) * case.work.device_bytes
        prepared.cache = f"cold: {len(sets)} sets of operands in rotation, {size / 2**20:.0f} MiB in all"
        least = roof.ROTATION * roof.cache_bytes(options.device)
        if options.timed and size < least:
            lacking = f"not the {least / 2**20:.0f} that leave none in the cache"
            prepared.cache += f", {lacking}: the memory has no more room"
            if len(sets) == MOST_SETS:
                prepared.cache = f"warm: {len(sets)} sets of operands in rotation, {size / 2**20:.2g} MiB, {lacking}"
        return prepared.inputs

    def reference(self, case, rotation):
        x, w, _, *scales = rotation.sets[0]
        return checks.reference_sums(x, w, *scales)

    def why_not(self, contender, case, rotation):
        if contender.kind == "user":
            contender.load()  # one that cannot be loaded fails, where others are skipped
        return reason(require, contender, self.options, rotation.sets[0])

    def candidate(self, contender, prepared, rotation, reference):
        case = prepared.case
        name = contender.name
        run = contender.load()
        x, w, _, *scales = rotation.sets[0]
        config = run.describe(x, w, *scales)
        if self.options.timed and getattr(run, "candidates", None):
            number = self.fastest_candidate(case, name, run, rotation.sets)
            prepared.facts[candidate_of(name)] = number
            config = run.describe(x, w, *scales, candidate=number)
            run = partial(run, candidate=number)
        limit = checks.limit_of(contender, case.dtype)
        facts = {f"of_{contender.kind}": True} if contender.kind in ("user", "library") else {}
        if contender.kind == "triton":
            facts["tuned"] = was_tuned(name, x, w)
            if self.options.timed:
                prepared.facts["dispatched"] = dispatched(rotation.sets[0])
        check = partial(checks.check, name, run, rotation.sets[0], reference, limit)
        look = partial(rotation.look, limit)
        return rotation.entrant(name, run, check, config=config, facts=facts, look=look)

    def fastest_candidate(self, case: Matmul, name: str, run, sets: list[tuple]) -> int:
        """The number of a library's fastest candidate for a case.

        The first process that times the shape chooses it: processes that only check may run beside one another. The
        others take its choice.
        """
        earlier = self.earlier.get(case.id, {})
        if earlier.get("medians_s") and candidate_of(name) in earlier["facts"]:
            return earlier["facts"][candidate_of(name)]
        turn = itertools.cycle(sets)

        def probe(candidate: int) -> Probe:
            return Probe(name, str(candidate), case.work.flop, lambda: run(*next(turn), candidate=candidate))

        probes = [probe(candidate) for candidate in range(run.candidates(*sets[0]))]
        seed = self.options.seed
        device = self.options.device
        best, _ = ceilings.measure(probes, self.clock(), when="", seed=seed, device=device, rule=CHOOSING)
        return int(best[0]["probe"]) if best else 0

    def problem(self) -> str:
        users = (contender for contender in of_run(self.options).values() if contender.kind == "user")
        return next(filter(None, (reason(contender.load) for contender in users)), "")


def require(contender: Contender, options, operands: tuple) -> None:
    """Raise TypeError or ValueError where `contender` cannot take the operands, or must not be timed here."""
    if options.timed and options.device not in contender.devices:
        where = ", ".join(contender.devices)
        raise ValueError(f"{contender.name} is timed on {where} only; this run measures the {options.device}")
    run = contender.load()
    run.require(*operands)
    if options.timed and contender.kind == "triton" and interpreted():
        raise ValueError(f"{contender.name} is interpreted, which is never timed; unset TRITON_INTERPRET")


def dispatched(operands: tuple) -> str | None:
    """The contender that `kernels.matmul` takes; None where one that it asks cannot be loaded."""
    try:
        return kernels.contender_for(*operands)
    except Exception:  # of a contender's module, whose own row says why
        return None


def candidate_of(name: str) -> str:
    """The name of the fact that says which candidate of a library was chosen for a shape."""
    return f"{name}_candidate"


def operands(case: Matmul, options) -> list[tuple]:
    """Sets of (x[m, k], w[n, k], out[m, n]), in fp8 with scales as the fourth, enough of them to leave none in the
    cache. Around each tensor lies memory that checks look at.

    Zero-mean normal values, of a size that keeps `out` below about 1: zeros or ones run faster and lie. All shapes are
    cut from the same three tensors, so that many can be ready at once.
    """
    device = options.device
    room = POOL * min(roof.machine(device)["memory_bytes"], worker_bytes(device)) / len(options.dtypes)
    most_bytes = room

    def sets(other: Matmul) -> int:
        if not options.timed:
            return 1
        least = math.ceil(roof.ROTATION * roof.cache_bytes(device) / other.work.device_bytes)
        wanted = SETS_OF_FEW_ROWS if other.m <= FEW_ROWS else 2
        return max(2, min(max(least, wanted), MOST_SETS, int(most_bytes // other.work.device_bytes)))

    cases = []
    for other in sweep(options):
        if other.dtype == case.dtype and sets(other) * other.work.device_bytes <= room:
            cases.append(other)
    pool: Callable[..., Tensor] = _pool
    if case not in cases:
        cases = [case]
        pool = _pool.__wrapped__  # not kept for others
    shapes = {}
    for other in cases:
        shapes[other] = (other.m, other.k), (other.n, other.k), (other.m, other.n)

    def elements(number: int) -> int:
        return max(sets(other) * spacing(shapes[other][number]) for other in cases)

    dtypes = case.dtype, case.dtype, case.result_dtype
    taken = sum(ITEMSIZE[dtype] * elements(number) for number, dtype in enumerate(dtypes))
    most_bytes *= min(1.0, room / taken)  # one shape may have large x, and another large w
    scales = 1.0, 1 / math.sqrt(max(other.k for other in cases)), None
    tensors = []
    for number, shape in enumerate(shapes[case]):
        guard = max(spacing((checks.GUARD_ROWS, shapes[other][number][1])) for other in cases)
        seed = zlib.crc32(f"{options.seed} {number}".encode())
        whole = pool(2 * guard + elements(number), DTYPES[dtypes[number]], device, seed, scales[number])
        starts = [guard + index * spacing(shape) for index in range(sets(case))]
        tensors.append([whole[start : start + math.prod(shape)].view(shape) for start in starts])
    if DTYPES[case.dtype] == FP8:
        generator = torch.Generator(device).manual_seed(options.seed)
        by_block = case.dtype == "fp8_block"
        xs, ws, _ = tensors
        tensors.append([scales_of(x, w, by_block, generator) for x, w in zip(xs, ws, strict=True)])
    return list(zip(*tensors, strict=True))


def spacing(shape: tuple[int, int]) -> int:
    """Elements from one tensor to the next: a multiple of 512, which aligns the smallest type to 512 bytes."""
    return -(-math.prod(shape) // 512) * 512


@lru_cache(maxsize=9)
def _pool(elements: int, dtype: torch.dtype, device: str, seed: int, scale: float | None) -> Tensor:
    if scale is None:  # written once: the first call that writes a page would pay for it
        return torch.zeros(elements, dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    if dtype == FP8:
        whole = torch.empty(elements, dtype=dtype, device=device)
        for part in whole.split(AT_ONCE):
            normal = torch.randn((len(part) // RUN, RUN), generator=generator, device=device)
            part.copy_(quantise(normal)[0].view(-1))
        return whole
    return torch.randn(elements, generator=generator, device=device, dtype=dtype).mul_(scale)


def scales_of(x: Tensor, w: Tensor, by_block: bool, generator: torch.Generator) -> Scales:
    """Scales that make values of the pool of fp8 normal again, those of w over the root of K; each is half to one and a
    half of that."""
    scales = empty_scales(x, w, by_block)
    sizes = 1.0, 1 / math.sqrt(x.shape[1])
    for factors, size in zip(scales, sizes, strict=True):
        factors.uniform_(0.5, 1.5, generator=generator)
        factors.mul_(size * LARGEST_OF_RUN / LARGEST)
    return scales
