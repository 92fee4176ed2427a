"""Where a warp goes on: branches, the end, naps, and the registers that it has (PTX ISA 8.7, 9.7.12 and 9.7.19)."""

from kernels.machine.order import FaultError
from kernels.machine.program import LANES, effect, uniform


@effect("bra", "bra.uni", operands="*")
def branch(w, inst, label):
    if w.mask is not None:
        raise FaultError("a branch that not all lanes of the warp take: this machine keeps warps together")
    w.pc = w.program.kernel.labels[label] - 1  # 1 is added to it


@effect("brx.idx", operands="u32 *")
def branch_by_index(w, inst, which, targets):
    number, labels = uniform(w, which(w), "the index of brx.idx"), w.program.kernel.targets[targets]
    if number >= len(labels):
        raise FaultError(f"brx.idx {number} of {len(labels)} labels")
    w.pc = w.program.kernel.labels[labels[number]] - 1


@effect("ret", "exit")
def leave(w, inst):
    if w.mask is not None:
        raise FaultError("some lanes of a warp end, others do not")
    for groups, kind in ((w.wgmma, "wgmma"), (w.copies, "cp.async"), (w.stores, "bulk stores")):
        if groups.open or any(groups.closed[groups.waited :]):
            raise FaultError(f"ends while its {kind} are not waited for")
    w.alive = False


NAPPING = 0.1
"""The weight that a warp has at most once it has napped; else from 0.03 to 30."""


@effect("nanosleep.u32", operands="u32")
def nap(w, inst, *given):
    """Who naps gets fewer turns than most from then on: what it waits for must not starve."""
    w.weight = min(w.weight, NAPPING)


@effect("setmaxnreg.inc.sync.aligned.u32", "setmaxnreg.dec.sync.aligned.u32", operands="#")
def set_registers(w, inst, count):
    needed = (count - w.registers) * LANES
    if count % 8 or not 24 <= count <= 256:
        raise FaultError(f"setmaxnreg to {count}; multiples of 8 from 24 to 256 are allowed")
    if (needed > 0) if ".dec" in inst.op else (needed < 0):
        raise FaultError(f"{inst.op} to {count}, from {w.registers}")
    if needed > max(w.cta.spare_registers, 0):
        return lambda: needed <= w.cta.spare_registers
    w.cta.spare_registers -= needed
    w.registers = count
