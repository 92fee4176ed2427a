"""What lanes of a warp tell each other: shfl (PTX ISA 8.7, 9.7.9.6), elect and redux (9.7.13)."""

import numpy as np

from kernels.machine.order import FaultError
from kernels.machine.program import LANE, LANES, effect, family, uniform
from kernels.machine.ptx import UnknownError


def whole_warp(inst) -> bool:
    return inst.args[-1] in ("-1", "0xffffffff")


@family("elect", quiet=True)
def elect(program, inst):
    if not whole_warp(inst):
        raise UnknownError("an election by some lanes of a warp")
    leader, is_leader = program.given(inst.args[0].split("|"), ["=b32", "=pred"])

    def choose(w):
        lane = w.cta.machine.lane  # any lane, the same one each time (9.7.13.14)
        leader(w, np.full(LANES, lane, np.uint32))
        is_leader(w, lane == LANE)

    return choose


SHUFFLES = [f"shfl.sync.{mode}.b32" for mode in ("idx", "bfly", "up", "down")]


def among_all(inst) -> bool:
    return inst.args[3] == ("0" if ".up" in inst.op else "31") and whole_warp(inst)


@effect(*SHUFFLES, operands="=b32 b32 u32 # *", only=among_all, quiet=True)
def shuffle(w, inst, put, value, by, clamp, members):
    step, mode = by(w).astype(np.int64) % LANES, inst.op.split(".")[2]
    source = {"idx": step, "bfly": LANE ^ step, "up": LANE - step, "down": LANE + step}[mode]
    put(w, value(w)[np.where((source < 0) | (source >= LANES), LANE, source).astype(np.int64)])


REDUCTIONS = {
    f"redux.sync.{name}.{kind}": ufunc
    for name, ufunc in dict(add=np.add, min=np.minimum, max=np.maximum).items()
    for kind in ("u32", "s32")
}


@family(*REDUCTIONS, quiet=True)
def reduce(program, inst):
    kind = inst.op.rpartition(".")[2]
    put, value, members = program.given(inst.args, [f"={kind}", kind, "b32"])

    def over_members(w):
        mask = uniform(w, members(w), "the member mask of redux.sync")
        active = np.ones(LANES, bool) if w.mask is None else w.mask
        if ((mask >> LANE & 1) != active).any():
            raise FaultError(f"member mask {mask:#x} of redux.sync names other lanes than reach it")
        lanes = value(w)[active]
        put(w, np.full(LANES, REDUCTIONS[inst.op].reduce(lanes, dtype=lanes.dtype)))

    return over_members
