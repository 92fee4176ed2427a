"""Communication between the lanes of a warp (PTX ISA 8.7): shfl.sync (9.7.9.6), bar.warp.sync (9.7.13.2), vote.sync,
match.sync, activemask, redux.sync and elect.sync (9.7.13.9 to 9.7.13.14).

Lanes that execute one of these wait for all lanes of its member mask that have not ended: `divergence` lets them come.
Lanes that are still missing then never come.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from ..core.divergence import active, not_ended
from ..core.faults import FaultError
from ..core.program import LANE, LANES, effect, family
from ..core.registers import numpy_name

ALL = np.ones(LANES, bool)
ALL_MEMBERS = np.full(LANES, -1, np.int32).tobytes()

INSTRUCTIONS = """
shfl.sync.{up,down,bfly,idx}.b32 | exact; to read a lane that takes no part is a fault
vote.sync.{all,any,uni}.pred, vote.sync.ballot.b32 | exact
match.{any,all}.sync.{b32,b64} | exact
redux.sync.{add,min,max}.{u32,s32}, redux.sync.{and,or,xor}.b32 | exact
elect.sync | any of the lanes, which a seed decides; the same each time
bar.warp.sync | orders the accesses of its members, all of whom have to come, as to all of these
activemask.b32 | the lanes that are at this place
"""
"""The opcodes that this module models, and how: rows of the table that `--coverage` prints."""


def number(lanes: np.ndarray) -> int:
    """The mask of the lanes, with a bit for each."""
    return int(np.packbits(lanes, bitorder="little").view(np.uint32)[0])


def groups(w, members: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the lanes of each member mask. `members`: the mask that each lane has.

    Raises FaultError where the lanes that execute the instruction are not those of their mask.
    """
    if w.mask is None and members.tobytes() == ALL_MEMBERS:
        yield ALL
        return
    here = active(w)
    for mask in sorted(set(members[here].tolist())):
        lanes = (mask >> LANE & 1).astype(bool) & not_ended(w)
        come = here & (members == mask)
        if (lanes != come).any():
            raise FaultError(f"lanes {number(come):#x} come with member mask {mask:#x}")
        yield lanes


def exchange(*opcodes: str, kinds: str) -> Callable:
    """Register `function(w, inst, lanes, *operands)` for opcodes; `lanes` are those of a member mask. It returns the
    values of the target and of the predicate beside it, one for each lane or one for all. `kinds`: the types of the
    target and of the operands, without the last operand, the member mask."""
    target, *types = kinds.split()

    def register(function: Callable) -> Callable:
        def maker(program, inst):
            name, _, predicate_name = inst.args[0].partition("|")
            put = program.put(name, target)
            put_predicate = program.put(predicate_name or "_", "pred")
            *gets, members = program.given(inst.args[1:], [*types, "b32"])

            def run(w):
                values = [get(w) for get in gets]
                results = np.zeros(LANES, numpy_name(target))
                predicates = np.zeros(LANES, bool)
                for lanes in groups(w, members(w)):
                    result, predicate = function(w, inst, lanes, *values)
                    np.copyto(results, result, "unsafe", lanes)
                    np.copyto(predicates, predicate, where=lanes)
                put(w, results)
                put_predicate(w, predicates)
                w.among.shuffle(w)

            run.members = members
            return run

        family(*opcodes, quiet=True)(maker)
        return function

    return register


@lru_cache(maxsize=4096)
def _sources(mode: str, by: bytes, bounds: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The lane that each lane reads, and whether that is inside of its segment. If it is not, a lane reads itself."""
    steps = np.frombuffer(by, np.uint32).astype(np.int64) & 31
    numbers = np.frombuffer(bounds, np.uint32).astype(np.int64)
    clamp = numbers & 31
    segment = numbers >> 8 & 31
    lane = LANE.astype(np.int64)
    lowest = lane & segment
    highest = lowest | clamp & ~segment
    sources = {"up": lane - steps, "down": lane + steps, "bfly": lane ^ steps, "idx": lowest | steps & ~segment}
    source = sources[mode]
    is_inside = source >= highest if mode == "up" else source <= highest
    return np.where(is_inside, source, lane), is_inside


@exchange("shfl.sync.up.b32", "shfl.sync.down.b32", kinds="b32 b32 b32 b32")
@exchange("shfl.sync.bfly.b32", "shfl.sync.idx.b32", kinds="b32 b32 b32 b32")
def shuffle(w, inst, lanes, value, by, bounds):
    source, is_inside = _sources(inst.op.split(".")[2], by.tobytes(), bounds.tobytes())
    if lanes is not ALL and not lanes[source[lanes]].all():
        raise FaultError("a lane reads from another that takes no part")
    return value[source], is_inside


VOTES = {
    "all": np.all,
    "any": np.any,
    "uni": lambda votes: votes.all() == votes.any(),
}


@exchange("vote.sync.all.pred", "vote.sync.any.pred", "vote.sync.uni.pred", kinds="pred pred")
def vote(w, inst, lanes, votes):
    return VOTES[inst.op.split(".")[2]](votes[lanes]), False


@exchange("vote.sync.ballot.b32", kinds="b32 pred")
def ballot(w, inst, lanes, votes):
    return number(votes & lanes), False


@exchange("match.any.sync.b32", kinds="b32 b32")
@exchange("match.any.sync.b64", kinds="b32 b64")
def match_any(w, inst, lanes, value):
    return np.packbits((value[:, None] == value) & lanes, axis=1, bitorder="little").view(np.uint32)[:, 0], False


@exchange("match.all.sync.b32", kinds="b32 b32")
@exchange("match.all.sync.b64", kinds="b32 b64")
def match_all(w, inst, lanes, value):
    is_same = (value[lanes] == value[lanes][0]).all()
    return number(lanes) if is_same else 0, is_same


REDUCTIONS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@exchange("redux.sync.add.u32", "redux.sync.min.u32", "redux.sync.max.u32", kinds="u32 u32")
@exchange("redux.sync.add.s32", "redux.sync.min.s32", "redux.sync.max.s32", kinds="s32 s32")
@exchange("redux.sync.and.b32", "redux.sync.or.b32", "redux.sync.xor.b32", kinds="b32 b32")
def reduce(w, inst, lanes, value):
    return REDUCTIONS[inst.op.split(".")[2]].reduce(value[lanes], dtype=value.dtype), False


@exchange("elect.sync", kinds="b32")
def elect(w, inst, lanes):
    members = np.flatnonzero(lanes)
    leader = members[w.cta.machine.lane % len(members)]  # any lane, the same one each time
    return leader, leader == LANE


@effect("activemask.b32", operands="=b32", quiet=True)
def active_mask(w, inst, put):
    put(w, np.full(LANES, number(active(w)), np.uint32))


@family("bar.warp.sync")
def meet(program, inst):
    (members,) = program.given(inst.args, ["b32"])

    def run(w):
        for lanes in groups(w, members(w)):
            w.among.meet(lanes, w.epoch)
        w.tick()

    run.members = members
    return run
