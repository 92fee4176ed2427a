"""Control flow of a warp, nanosleep, and the number of its registers (PTX ISA 8.7, 9.7.12 and 9.7.19)."""

from ..core import divergence
from ..core.faults import AssertError, FaultError
from ..core.program import LANES, effect, uniform
from . import local, sync

INSTRUCTIONS = """
bra[.uni], brx.idx[.uni], ret[.uni], exit | lanes may part, and meet again in orders that a seed decides
trap, brkpt | a fault: the kernel asserts
nanosleep.u32 | who naps gets fewer turns from then on
setmaxnreg.{inc,dec}.sync.aligned.u32 | with .maxnreg: waits for registers that others gave up
"""
"""The opcodes that this module models, and how: rows of the table that `--coverage` prints."""


@effect("bra", "bra.uni", operands="*")
def branch(w, inst, label):
    divergence.go(w, w.program.kernel.labels[label], w.calls)


@effect("brx.idx", "brx.idx.uni", operands="u32 *")
def branch_by_index(w, inst, which, targets):
    number = uniform(w, which(w), "the index of brx.idx")
    labels = w.program.kernel.targets[targets]
    if number >= len(labels):
        raise FaultError(f"brx.idx {number} of {len(labels)} labels")
    divergence.go(w, w.program.kernel.labels[labels[number]], w.calls)


@effect("ret", "ret.uni", "exit")
def leave(w, inst):
    if w.calls and inst.op != "exit":
        *calls, (pc, copies, _) = w.calls
        local.copy(w, copies)
        divergence.go(w, pc, tuple(calls))
    elif divergence.end(w):
        for kind, groups in w.groups.items():
            if set(groups.under_way) - groups.tracked:
                raise FaultError(f"ends while its {kind} are not waited for")
        w.alive = False
        for barrier in list(w.cta.named):
            sync.finish(w.cta, barrier)


@effect("trap", "brkpt")
def trap(w, inst):
    raise AssertError("the kernel traps")


NAPPING = 0.1
"""The largest weight, in the scheduler's draws, of a warp that has napped. Other warps have 0.03 to 30."""


@effect("nanosleep.u32", operands="u32")
def nap(w, inst, *given):
    """A warp that has napped gets fewer turns than most from then on, so that what it waits for does not starve."""
    w.weight = min(w.weight, NAPPING)


@effect("setmaxnreg.inc.sync.aligned.u32", "setmaxnreg.dec.sync.aligned.u32", operands="#")
def set_registers(w, inst, count):
    needed = (count - w.registers) * LANES
    if count % 8 or not 24 <= count <= 256:
        raise FaultError(f"setmaxnreg to {count}; multiples of 8 from 24 to 256 are allowed")
    if not w.program.kernel.registers_a_thread:  # what ptxas gives a thread at first is not known
        return None
    if (needed > 0) if ".dec" in inst.op else (needed < 0):
        raise FaultError(f"{inst.op} to {count}, from {w.registers}")
    if needed > max(w.cta.spare_registers, 0):
        return lambda: needed <= w.cta.spare_registers
    w.cta.spare_registers -= needed
    w.registers = count
    return None
