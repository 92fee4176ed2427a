"""How the operation `matmul` runs: operands, checked contenders, probes."""

import itertools
import math
import zlib
from collections.abc import Callable
from functools import cache, lru_cache, partial
from importlib.util import find_spec

import torch
from torch import Tensor

import kernels
from kernels.bench import checks
from kernels.contract import FP8, Scales, dtype_name, empty_out, empty_scales, interpreted, reason
from kernels.fp8 import LARGEST, quantise
from kernels.registry import CONTENDERS, baseline, of_run
from kernels.tiles import DTYPES, was_tuned
from roofline.operations.contenders import FIRST_CALL_S
from roofline.operations.matmul import Matmul, sweep
from roofline.theory.models import parse as parse_model
from roofline.theory.work import ITEMSIZE
from roofline.worker import ceilings, runner
from roofline.worker.alone import ALONE
from roofline.worker.ceilings import Probe
from roofline.worker.machine import describe, worker_bytes
from roofline.worker.prepared import SKIPPED, TOLERANCE, VENDOR_TOLERANCE, Entrant, PreparedCase, Rejection, unwatched
from roofline.worker.rounds import StopRule

ROTATION = 8
"""Operands rotate through this many times the last-level cache: twice it would do if caches forgot the oldest first."""

FEW_ROWS, SETS_OF_FEW_ROWS = 64, 6
"""Shapes of up to so many rows get at least so many sets, as far as they fit: a kernel there has the pace of the
memory. On an H200 the place of the operands in the memory explained nine tenths of the variation of a slow kernel."""

RUN, LARGEST_OF_RUN = 512, 3.2
"""The pool of fp8 holds runs of so many normal values. The largest of a run is about so large, and becomes 448 in the
pool."""

AT_ONCE = 2**20
"""Elements of that pool that are fp32 at a time."""

PARTS = 4
"""Parts of the tensor that a CPU's probe of the read bandwidth reads, by turns."""

CHOOSING = StopRule(max_seconds=0.4, min_rounds=3, max_rounds=8, warmup_s=0.05)
"""The stop rule of the turns that choose a library's candidate for a shape."""

PROBE_SHARE = 24
"""A probe reads at most one part in so many of the memory."""

PROBED_SHAPES = {
    "cuda": ((4096, 4096, 4096), (8192, 8192, 8192), (4096, 13312, 16384), (2048, 2048, 13312)),
    "cpu": ((1024, 1024, 1024), (512, 3328, 1024), (256, 3328, 1024)),  # in bf16 few rows are the fastest
}
"""m, n and k of the matmuls that reach for a ceiling."""

POOL = 0.6
"""A shape whose operands take more than this fraction of the memory gets tensors of its own: they may not fit, and
those of the others shall."""


class Runner(runner.Runner):
    """Runs single matmuls. Its probes and instruments serve whatever is made of matmuls."""

    def prepare(self, case: Matmul, names: list[str], first_call=unwatched) -> PreparedCase:
        """Make sets of operands on the device and check each contender on the first of them; where timed, the baseline
        among them. The right ones enter, and take the sets in rotation."""
        options = self.options
        contenders = of_run(options)
        prepared = PreparedCase(case, baseline(options), options.device, first_call=first_call)
        sets = operands(case, options)
        rotation = checks.Rotation(sets, options.seed)
        prepared.inputs = rotation
        x, w, _, *scales = sets[0]
        reference = checks.reference_sums(x, w, *scales)

        def entrant(name: str) -> Entrant | Rejection:
            contender = contenders[name]
            if contender.kind == "user":
                contender.load()  # one that cannot be loaded fails, where others are skipped
            if lacking := why_not(contender, options, sets[0]):
                return Rejection(SKIPPED, lacking)
            run = contender.load()
            config = run.describe(x, w, *scales)
            if options.timed and getattr(run, "candidates", None):
                number = self.fastest_candidate(case, name, run, sets)
                prepared.facts[candidate_of(name)] = number
                config = run.describe(x, w, *scales, candidate=number)
                run = partial(run, candidate=number)
            limit = limit_of(contender, case.dtype)
            check = partial(checks.check, name, run, sets[0], reference, limit)
            facts = {f"of_{contender.kind}": True} if contender.kind in ("user", "library") else {}
            if contender.kind == "triton":
                facts["tuned"] = was_tuned(name, x, w)
            look = partial(rotation.look, limit)
            error, refused = check()
            call = rotation.rotated(run)
            return refused or Entrant(name, call, "", config, error, facts, lambda: check()[1], look=look)

        kinds = {name: contender.first_call for name, contender in contenders.items()}
        self.enter(prepared, names, entrant, kinds)
        if options.timed and any(contenders[name].kind == "triton" for name in prepared.entrants):
            prepared.facts["dispatched"] = dispatched(sets[0])
        prepared.has_call_costs = options.device == "cuda" and case.m <= FEW_ROWS
        size = len(sets) * case.work.device_bytes
        prepared.cache = f"cold: {len(sets)} sets of operands in rotation, {size / 2**20:.0f} MiB in all"
        least = ROTATION * cache_bytes(options.device)
        if options.timed and size < least:
            prepared.cache += f", not the {least / 2**20:.0f} that leave none in the cache: the memory has no more room"
        return prepared

    def enter(self, prepared: PreparedCase, names: list[str], entrant: Callable, first_calls: dict[str, str]) -> None:
        """Enter what `entrant(name)` returns, for each contender once. A run that is timed has the baseline among them,
        as the first. `first_calls` names an entry of `FIRST_CALL_S` for contenders whose first call may take longer
        than usual."""
        first = [prepared.baseline] if self.options.timed else []
        for name in dict.fromkeys([*first, *names]):
            prepared.enter(name, partial(entrant, name), FIRST_CALL_S.get(first_calls.get(name)))

    def fastest_candidate(self, case: Matmul, name: str, run, sets: list[tuple]) -> int:
        """The number of a library's fastest candidate for a case.

        The first process that times the shape chooses it: processes that only check may run beside one another. The
        others take its choice.
        """
        earlier = self.earlier.get(case.id, {})
        if earlier.get("medians_s") and candidate_of(name) in earlier["facts"]:
            return earlier["facts"][candidate_of(name)]
        turn = itertools.cycle(sets)
        probes = []
        for candidate in range(run.candidates(*sets[0])):
            called = partial(run, candidate=candidate)
            probes.append(Probe(name, str(candidate), case.work.flop, lambda called=called: called(*next(turn))))
        seed = self.options.seed
        device = self.options.device
        best, _ = ceilings.measure(probes, self.clock(), when="", seed=seed, device=device, rule=CHOOSING)
        return int(best[0]["probe"]) if best else 0

    def problem(self) -> str:
        users = (contender for contender in of_run(self.options).values() if contender.kind == "user")
        return next(filter(None, (reason(contender.load) for contender in users)), "")

    def probes(self) -> list[Probe]:
        """The probes of the roof; none on ranks, which have no roof of their own."""
        return probes(self.options) if self.ranks is ALONE else []

    def instruments(self) -> type | None:
        """The gate and the SM clock, which are Triton kernels, where a GPU is timed and Triton is there; else None."""
        if self.options.device != "cuda" or not self.options.timed or not find_spec("triton"):
            return None
        from kernels.bench.instruments import Instruments

        return Instruments


def dispatched(operands: tuple) -> str | None:
    """The contender that `kernels.matmul` takes; None where one that it asks cannot be loaded."""
    try:
        return kernels.contender_for(*operands)
    except Exception:  # of a contender's module, whose own row says why
        return None


def candidate_of(name: str) -> str:
    """The name of the fact that says which candidate of a library was chosen for a shape."""
    return f"{name}_candidate"


def limit_of(contender, dtype: str) -> float:
    """The largest relative error at which a result of `contender` is right."""
    if contender.kind in ("vendor", "library"):
        return VENDOR_TOLERANCE[dtype]
    return getattr(contender.load(), "tolerance", None) or TOLERANCE[dtype]


def why_not(contender, options, operands: tuple) -> str | None:
    """Why `contender` cannot run, or must not be timed, here; None if it can."""
    if options.timed and options.device not in contender.devices:
        kind = "a Triton kernel, " if contender.kind == "triton" else ""
        where = ", ".join(contender.devices)
        return f"{contender.name} is {kind}timed on {where} only; this run measures the {options.device}"
    if lacking := contender.why_not(*operands):
        return lacking
    if options.timed and contender.kind == "triton" and interpreted(contender.load().jit):
        return f"{contender.name} is interpreted, which is never timed; unset TRITON_INTERPRET"
    return None


def not_for(name: str, case, options, timed: tuple[str, ...]) -> str | None:
    """Why a contender cannot take a case on this device, where those of `timed` are timed; None if it can."""
    if options.timed and name not in timed:
        return f"it is not timed on the {options.device}; take {', '.join(timed)}"
    if name == "numpy" and case.dtype != "fp32":
        return f"NumPy computes in fp32 here, and the case is {case.dtype}"
    return None


def operands(case: Matmul, options) -> list[tuple]:
    """Sets of (x[m, k], w[n, k], out[m, n]), in fp8 with scales as the fourth, enough of them to leave none in the
    cache. Around each tensor lies memory that checks look at.

    Zero-mean normal values, of a size that keeps `out` below about 1: zeros or ones run faster and lie. All shapes are
    cut from the same three tensors, so that many can be ready at once.
    """
    device = options.device
    room = POOL * min(machine(device)["memory_bytes"], worker_bytes(device)) / len(options.dtypes)
    most_bytes = room

    def sets(other: Matmul) -> int:
        if not options.timed:
            return 1
        least = math.ceil(ROTATION * cache_bytes(device) / other.work.device_bytes)
        wanted = SETS_OF_FEW_ROWS if other.m <= FEW_ROWS else 2
        return max(2, min(max(least, wanted), int(most_bytes // other.work.device_bytes)))

    cases = []
    for other in sweep(options):
        if other.dtype == case.dtype and sets(other) * other.work.device_bytes <= room:
            cases.append(other)
    pool = _pool
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
        calls.append(Probe("read", f"sum {shape}", nbytes, lambda turns=turns: next(turns).sum()))
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
        limit = limit_of(contender, dtype_name(x, w, *scales))
        reference = checks.reference_sums(x, w, *scales)
        _, refused = checks.check(contender.name, run, sets[0], reference, limit)
        return refused and refused.reason

    return Probe(kind, f"{contender.name} {shape}", amount, lambda: run(*next(turns)), dtype, problem)
