"""Delays at the synchronisation points of compiled kernels, so that a GPU tries other orders of events.

The machine tries orders where its model reaches. Behind it, `python -m tests.hopper --perturb SEED` compiles the
same launches with a `nanosleep` before or behind half of their barriers, waits, fences, atomics and bulk copies. Each
warp of each CTA sleeps for a time of its own, up to some 16 us. A right kernel stays exact to the bit; one that counts
on an order perhaps does not.
"""

import gc
import random
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import triton
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import JITFunction

POINTS = (
    r"bar\.|barrier\.|mbarrier\.(?!init)|fence|membar|atom\.|red\.|cp\.async\.(?:wait|mbarrier|bulk)|cp\.reduce|"
    r"wgmma\.wait_group|griddepcontrol|(?:ld|st)\S*\.(?:volatile|acquire|release)"
)
"""What orders warps, or waits for what the hardware does in its own time."""
LINE = re.compile(rf"^\s*(?:@!?%?\w+\s+)?(?P<op>(?:{POINTS})\S*)[^;{{}}]*(?:\{{[^}}]*\}}[^;]*)*;\s*$")
"""A statement that has a line for itself."""
BITS = 6, 14
"""A warp sleeps for less than 2 to the power of so many nanoseconds."""


def perturbed(ptx: str, seed: int) -> str:
    """The text with delays: the same for the same seed."""
    chance, lines = random.Random(seed), []
    for line in ptx.splitlines():
        if not LINE.match(line) or chance.random() < 0.5:
            lines.append(line)
            continue
        delay = sleep(chance.getrandbits(32) | 1, chance.randint(*BITS))
        lines += [line, delay] if chance.random() < 0.5 else [delay, line]
    return "\n".join(lines) + "\n"


def sleep(factor: int, bits: int) -> str:
    """One line of PTX, by which each warp of each CTA sleeps for its own time: the upper bits of a product."""
    return (
        "{ .reg .b32 %perturb_warp, %perturb_cta; mov.u32 %perturb_warp, %tid.x; mov.u32 %perturb_cta, %ctaid.x; "
        "shr.u32 %perturb_warp, %perturb_warp, 5; mad.lo.u32 %perturb_warp, %perturb_cta, 31, %perturb_warp; "
        f"mad.lo.u32 %perturb_warp, %perturb_warp, {factor}, {factor}; "
        f"shr.u32 %perturb_warp, %perturb_warp, {32 - bits}; nanosleep.u32 %perturb_warp; }}"
    )


@contextmanager
def perturbing(seed: int) -> Iterator[list[int]]:
    """Everything that is compiled inside has delays. It yields how many each kernel got. Triton's caches know nothing
    of them: that on disk is another one inside, those in memory are emptied."""
    make, counts = CUDABackend.make_ptx, []

    def make_perturbed(backend, *arguments, **options):
        ptx = perturbed(make(backend, *arguments, **options), seed)
        counts.append(ptx.count("nanosleep.u32 %perturb_warp"))
        return ptx

    with (
        patch.object(CUDABackend, "make_ptx", make_perturbed),
        tempfile.TemporaryDirectory() as folder,
        triton.knobs.cache.scope(),
    ):
        triton.knobs.cache.dir = folder
        forget()
        yield counts
    forget()


def forget() -> None:
    """Have every kernel compile anew."""
    for kernel in gc.get_objects():
        if issubclass(type(kernel), JITFunction):
            kernel.device_caches.clear()
