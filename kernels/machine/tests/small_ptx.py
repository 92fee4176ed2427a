"""Kernels of a few lines of PTX, run on the machine under several orders of events.

In a body, %A, %B, ... are the addresses of the arrays, %M, %N of tensor maps; %t is the thread, %w its warp, %l its
lane, %c its CTA, %k its device; %one holds in the first of a
warp, %first in that of a CTA. %p, %h, %r and %d with a number are predicates and registers of 16, 32 and 64 bits.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import count

import numpy as np
import pytest

from kernels.machine import isa  # noqa: F401 (it registers all instructions)
from kernels.machine.core.faults import FaultError
from kernels.machine.core.machine import Machine
from kernels.machine.core.program import Program
from kernels.machine.core.ptx import parse
from kernels.machine.isa.tensor_map import KINDS, encode

SEEDS, BUDGET = range(3), 20_000
numbers = count()
ENTRY = """.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 global_smem[];
{}
.visible .entry kernel(
{}.param .u32 device
)
.reqntid {threads} {more}
{{
.reg .pred %p<400>, %one, %first; .reg .b16 %h<99>; .reg .b32 %r<999>, %t, %w, %l, %c, %k;
.reg .b64 %d<99>; {}
mov.u32 %t, %tid.x; shr.u32 %w, %t, 5; mov.u32 %l, %laneid; mov.u32 %c, %ctaid.x;
ld.param.b32 %k, [device]; setp.eq.u32 %one, %l, 0; setp.eq.u32 %first, %t, 0;
{}
ret;
}}
"""


@lru_cache
def program(body: str, names: str, threads: int = 32, shared: int = 0, more: str = "", module: str = "") -> Program:
    parameters = "".join(f".param .u64 .ptr .global .align 1 {name}, " for name in names)
    loads = "".join(f".reg .b64 %{name}; ld.param.b64 %{name}, [{name}]; " for name in names)
    return Program(parse(ENTRY.format(module, parameters, loads, body, threads=threads, more=more)), shared)


def by(register: str, *bodies: str) -> str:
    """Each warp (of %w), CTA (of %c) or device (of %k) does one of these."""
    labels = [f"SKIP{next(numbers)}" for _ in bodies]
    return "\n".join(
        f"setp.ne.u32 %p399, {register}, {i}; @%p399 bra {label};\n{body}\n{label}:"
        for i, (body, label) in enumerate(zip(bodies, labels, strict=True))
    )


def until(value: int, load: str) -> str:
    """Repeat what loads %r90 until it is `value`."""
    return f"{{\nAGAIN: {load}\nsetp.ne.u32 %p398, %r90, {value}; @%p398 bra AGAIN;\n}}\n"


def prepared(machine: Machine, arrays: Sequence[np.ndarray], maps: Sequence[tuple] = ()) -> list[int]:
    """Return addresses of arrays, then of the tensor maps of `maps`, each (number of an array, box, swizzle), and as a
    dictionary what else `encode` takes: else the map is of the whole array."""
    addresses = [machine.memory.add(array.view(np.uint8).reshape(-1)) for array in arrays]
    for number, box, swizzle, *more in maps:
        array = arrays[number]
        strides = [stride // array.itemsize for stride in array.strides]
        whole = dict(start=0, shape=array.shape, strides=strides, kind=f"u{8 * array.itemsize}")
        options = whole | (more[0] if more else {})
        address, kind = addresses[number] + options.pop("start"), KINDS.index(options.pop("kind"))
        addresses.append(machine.memory.add_map(encode(address, kind=kind, box=box, swizzle=swizzle, **options)))
    return addresses


def run(body, *arrays, grid=(1,), maps=(), seeds=SEEDS, slots=None, devices=1, **more) -> list[np.ndarray]:
    """Return the arrays as the kernel leaves them, which are the same under every order of events."""
    made = program(body, "ABCDEFG"[: len(arrays)] + "MNO"[: len(maps)], **more)
    first = None
    for seed in seeds:
        copied, machine = [array.copy() for array in arrays], Machine(seed, slots, BUDGET)
        for device in range(devices):
            machine.launch(made, grid, [*prepared(machine, copied, maps), device], device=device)
        machine.run()
        first = first or copied
        for expected, actual in zip(first, copied, strict=True):
            assert expected.tobytes() == actual.tobytes(), f"seed {seed} gives other results than seed {seeds[0]}"
    return first


def faults(match: str, body: str, *arrays, seeds=SEEDS, **more) -> None:
    """Under every order of events."""
    for seed in seeds:
        with pytest.raises(FaultError, match=match):
            run(body, *arrays, seeds=[seed], **more)


def holds(row: str, pieces: dict[str, str], start: str, *arrays, where="%w", **more) -> None:
    """A row has what is expected, then cases of it: `ok`, the number that the first array then begins with, or what the
    fault says. A case has names of `pieces`, or instructions without spaces; a / parts what each warp, CTA or device
    does."""
    expected, cases = row.rsplit(": ", 1)
    for case in cases.split(" | "):
        bodies = ["\n".join(pieces.get(word, word) for word in body.split()) for body in case.split("/")]
        body = start + (by(where, *bodies) if len(bodies) > 1 else bodies[0])
        count = {"%w": dict(threads=32 * len(bodies)), "%c": dict(grid=(len(bodies),)), "%k": dict(devices=len(bodies))}
        if expected != "ok" and not expected.isdigit():
            faults(expected, body, *arrays, **count[where] | more)
        else:
            out = run(body, *arrays, **count[where] | more)
            assert expected == "ok" or out[0].reshape(-1)[0] == int(expected), case


def words(count: int, value: int = 0) -> np.ndarray:
    return np.full(count, value, np.uint32)


FLAGS = [words(1)] * 4
TMA, BAR = "cp.async.bulk.tensor.2d", 4096  # where the mbarrier is
INIT = f"@%first mbarrier.init.shared::cta.b64 [{BAR}], 1; bar.sync 0;\n"


def load(x: int, y: int, size: int, to: int = 0) -> str:
    return f"""@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [{BAR}], {size};
    @%first {TMA}.shared::cta.global.mbarrier::complete_tx::bytes [{to}], [%M, {{{x}, {y}}}], [{BAR}];\n"""


LANDED = f"LANDED: mbarrier.try_wait.parity.shared::cta.b64 %p8, [{BAR}], 0; @!%p8 bra LANDED;\n"
