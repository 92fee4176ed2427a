"""Loads and stores by the lanes of a warp, and their cache hints.

PTX ISA 8.7: 6.4.1.1 (generic addresses), 8.4 and 8.7 (strong accesses), 9.7.9.8 (ld), 9.7.9.9 (ld.global.nc), 9.7.9.11
(st), 9.7.9.15 to 9.7.9.19 (prefetch, applypriority, createpolicy, isspacep).
For others a warp is one agent; its own lanes are told apart (core/lanes.py).
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ..core.faults import BoundsError, RaceError, UnknownError
from ..core.lanes import COLLECTIVE
from ..core.memory import (
    EVERY,
    LOCAL_WINDOW,
    MAPS,
    PARAMETERS,
    SHARED_WINDOW,
    Addresses,
    Places,
    Rows,
    Which,
    each_byte,
    starts,
)
from ..core.order import SCOPES, Attempt, Clock, joined
from ..core.program import LANE, WINDOW_BITS, effect, family, lanes_of
from ..core.registers import LANES, bits, numpy_name
from .local import read_local, write_local

SPACES = {
    "global": "global",
    "const": "global",
    "local": "local",
    "param": "param",
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "shared",
}
WINDOWS = {0: "global", PARAMETERS: "param", SHARED_WINDOW: "shared", LOCAL_WINDOW: "local"}
SEMANTICS = {"relaxed", "acquire", "release", "acq_rel", "volatile"}
MODIFIER = re.compile(
    r"v[248]|weak|mmio|nc|c[agsv]|lu|w[bt]|L2::(64B|128B|256B|cache_hint)|L1::no_allocate"
    r"|L[12]::evict_(first|last|normal|unchanged)"
)

INSTRUCTIONS = """
{ld,st}[.weak][.{global,shared,shared::cta,shared::cluster}][cache operators and hints][.v2,.v4,.v8].{b,u,s,f}{8..64} \
| weak accesses; without a space generic
{ld,st}.{relaxed,acquire,release}.{cta,cluster,gpu,sys}[.{global,shared,shared::cta,shared::cluster}] \
| strong: scopes, releases, acquires
{ld,st}.volatile[.{global,shared,shared::cta,shared::cluster}], {ld,st}.mmio.relaxed.sys.global \
| as relaxed at system scope
isspacep.{global,local,shared,shared::cta,shared::cluster}, cvta \
| shared memory and local memory are windows of generic addresses
prefetch, prefetchu, applypriority, createpolicy | nothing but time depends on it
"""
"""The opcodes that this module models, and how: rows of the table that `--coverage` prints."""


class Strong(NamedTuple):
    """The semantics of a strong access, its scope, and the bytes of each element."""

    semantics: str
    reach: str
    size: int


def qualified(inst, *more: str) -> tuple[str | None, str | None, str | None]:
    """The space, semantics and scope of an access. The space is None where the address decides it.

    Raises UnknownError for a modifier that the machine does not know.
    """
    space = semantics = reach = None
    for word in inst.op.split(".")[1:]:
        if word in SPACES:
            space = SPACES[word]
        elif word in SEMANTICS:
            semantics = word
        elif word in SCOPES:
            reach = word
        elif word not in more and not MODIFIER.fullmatch(word):
            raise UnknownError(f".{word} is no modifier that this machine knows")
    if semantics == "volatile":
        reach = "sys"
    return space, semantics, reach


def chosen(w, values: np.ndarray) -> np.ndarray:
    """The values of the active lanes."""
    if w.mask is None:
        return values
    return values[w.mask]


def numbers(w, get: Callable) -> list[int]:
    """An operand's values in the active lanes."""
    return chosen(w, get(w)).tolist()


def in_lanes(w, rows: Rows) -> Rows:
    """[32, bytes]: the rows of the active lanes in their places, and zeros for the other lanes."""
    if w.mask is None:
        return rows
    everywhere = np.zeros((LANES, rows.shape[1]), np.uint8)
    everywhere[w.mask] = rows
    return everywhere


def spaces(w, space: str):
    """What finds the memories that addresses of a space are in."""
    return w.cta.cluster if space == "shared" else w.cta.machine.memory


def read(w, at: Addresses, size: int, instruction, strong: Strong | None, space: str, together: bool = False) -> Rows:
    """[n, size] bytes of shared or global memory. `together`: all lanes read all of them."""
    who = np.full(len(at), COLLECTIVE) if together else lanes_of(w)
    data = np.zeros((len(at), size), np.uint8)
    for memory, which, places in spaces(w, space).places(at, size, instruction):
        may_be_copies = space == "global" and not strong
        if may_be_copies and w.cta.count > 1:
            _note_copy(w, at[which], places, instruction)
        attempt = begin(w, memory, places, instruction, strong)
        try:
            memory.note_read(places, attempt)
        except RaceError:
            if not may_be_copies:
                raise
            memory.note_read(places, attempt._replace(clock=_of_copies(w, at[which], places)))
        w.among.access(memory, places, who[which], attempt, writes=False)
        data[which] = memory.load(places, size)
    return data


def write(w, at: Addresses, data: Rows, instruction, strong: Strong | None, space: str, together: bool = False) -> None:
    """`together`: all lanes write all of it."""
    who = np.full(len(at), COLLECTIVE) if together else lanes_of(w)
    size = data.shape[1]
    for memory, which, places in spaces(w, space).places(at, size, instruction):
        rows = data[which]
        attempt = begin(w, memory, places, instruction, strong, reads=False, stored=rows)
        known = None
        if space == "shared":
            known = _beside(w, memory, at[which] % (1 << WINDOW_BITS), rows, instruction)
        try:
            memory.note_write(places, attempt, known)
        except RaceError:
            if strong or space == "shared":
                raise
            memory.note_write(places, attempt, _of_copies(w, at[which], places))
        memory.check_covered(places, instruction)
        w.among.access(memory, places, who[which], attempt, writes=True)
        memory.store(places, rows)
        end(w, memory, places, strong)


def _beside(w, shared, at: Addresses, data: Rows, instruction) -> Clock | None:
    """A clock that also knows of other warps that stored the same bytes at the same addresses, in the same turn of the
    same instruction. None where no warp has, or where memory no longer holds these bytes."""
    content = hash((at.tobytes(), data.tobytes()))
    others = shared.replicas.before(id(instruction), w.agent, w.agent, content)
    if not others:
        return None
    _, from_behind = np.unique(at[::-1], return_index=True)
    last = len(at) - 1 - from_behind  # the last of the lanes that store at one address
    before = shared.data[each_byte(at[last], data.shape[1])]
    if before.tobytes() == data[last].tobytes():
        return w.clock.knowing(others)
    return None


def _elements(at: Addresses, places: Places) -> bytes:
    """The addresses, in ascending order and each once, as bytes."""
    if not isinstance(places, slice):
        at = np.unique(at)
    return at.tobytes()


def _note_copy(w, at: Addresses, places: Places, load) -> None:
    """Remember the warps that have loaded these elements by this load, which is now the elements' latest. A scalar has
    no copies: all lanes of all warps load it, and act on it."""
    loads = w.cta.loads_by
    elements = _elements(at, places)
    agents = loads.get((load.line, elements), ())
    if len(at) == len(LANE) and (at == at[0]).all():
        agents = ()
    elif w.agent not in agents:
        agents = (*agents, w.agent)
    loads[elements] = loads[load.line, elements] = agents


def _of_copies(w, at: Addresses, places: Places) -> Clock:
    """A clock that also covers all accesses of the other warps to which the latest load of these elements gave copies.

    Layouts replicate small tensors over warps. A store in place is then done by one warp, perhaps before the others
    have loaded. Results show whether their copies matter.
    """
    copies = w.cta.loads_by.get(_elements(at, places), ())
    return w.clock.knowing(copies) if w.agent in copies else w.clock


def begin(
    w, memory, places: Places, instruction, strong: Strong | None, *, reads: bool = True, stored: Rows | None = None
) -> Attempt:
    """Begin an access. A strong read acquires what was released at its addresses, if the scopes
    meet; one without acquire semantics leaves that to a fence behind it."""
    if strong is None:
        return w.attempt(instruction, stored=stored)
    scope = w.scope(strong.reach)
    for address in starts(places, strong.size) if reads else ():
        released = memory.released.get(address, {})
        place = memory, address, strong
        if w.heard.get(place) is released:  # nothing new since it looked there last
            continue
        w.heard[place] = released
        for other, clock in released.items():
            if strong.semantics not in ("acquire", "acq_rel"):
                w.read[other] = joined([clock, w.read.get(other, clock)])
            elif scope.meets(other):
                w.join(clock)
    return w.attempt(instruction, w.scope(strong.reach, strong.size))


def end(w, memory, places: Places, strong: Strong | None, *, read: bool = False) -> None:
    """Publish what a strong write releases: all that the warp knew at its fences, at their scopes, and with release
    semantics all that it knows now."""
    if strong is None:
        return
    is_release = strong.semantics in ("release", "acq_rel")
    released = {scope: w.among.released(clock, w.mask) for scope, clock in w.released.items()}
    if is_release:
        released[w.scope(strong.reach)] = w.among.released(w.clock, w.mask).copy()
    for address in set(starts(places, strong.size)):
        memory.publish(address, released, read=read)
    if is_release:
        w.tick()


READ = {"global": read, "shared": read, "local": read_local, "param": read_local}
WRITE = {"global": write, "shared": write, "local": write_local, "param": write_local}


def parts(w, space: str | None, at: Addresses) -> Iterator[tuple[str, Which, Addresses]]:
    """Yield each space that addresses are in, which of the addresses these are, and where in the space they lie. Until
    the next space is asked for, only the lanes of these addresses are active."""
    if space:
        yield space, EVERY, at
        return
    mask = w.mask
    lanes = lanes_of(w)
    windows = np.where((at >= PARAMETERS) & (at < MAPS), PARAMETERS, at & -SHARED_WINDOW)
    for window in sorted(set(windows.tolist())):
        which = windows == window
        if window not in WINDOWS:
            address = at[which].item(0)
            raise BoundsError(f"generic address {address:#x} is in no window", None, address)
        w.mask = np.isin(LANE, lanes[which])
        offsets = at[which]
        if window != PARAMETERS:
            offsets = offsets - window
        yield WINDOWS[window], which, offsets
    w.mask = mask


def columns(w, gets: list) -> Rows:
    """[32, bytes]: the registers of a vector operand, side by side for each lane."""
    values = np.array([get(w) for get in gets])
    return np.ascontiguousarray(values.T).view(np.uint8)


def _form(inst) -> tuple[str, str | None, Strong | None]:
    """The type of an access's elements, its space, and its `Strong`; None where it is weak."""
    kind = inst.op.rpartition(".")[2]
    space, semantics, reach = qualified(inst, kind)
    if semantics is None:
        return kind, space, None
    if reach is None:
        raise UnknownError("a strong access of no scope")
    return kind, space, Strong(semantics, reach, bits(kind) // 8)


@family("ld")
@family("ld.local", "ld.param", quiet=True)
def load(program, inst):
    kind, space, strong = _form(inst)
    registers, where_text = inst.args[:2]
    where = program.address(where_text)
    puts = program.puts(registers, kind)
    dtype = np.dtype(numpy_name(kind))
    size = len(puts) * bits(kind) // 8

    def run(w):
        at = chosen(w, where(w))
        data = np.zeros((len(at), size), np.uint8)
        for part, which, offsets in parts(w, space, at):
            data[which] = READ[part](w, offsets, size, inst, strong, part)
        words = np.ascontiguousarray(in_lanes(w, data).view(dtype).T)
        for put, word in zip(puts, words, strict=True):
            put(w, word)

    return run


@family("st")
@family("st.local", "st.param", quiet=True)
def store(program, inst):
    kind, space, strong = _form(inst)
    where = program.address(inst.args[0])
    gets = program.gets(inst.args[1], f"b{bits(kind)}")

    def run(w):
        data = chosen(w, columns(w, gets))
        at = chosen(w, where(w))
        for part, which, offsets in parts(w, space, at):
            WRITE[part](w, offsets, data[which], inst, strong, part)

    return run


@effect("isspacep.global", "isspacep.local", operands="=pred u64", quiet=True)
@effect("isspacep.shared", "isspacep.shared::cta", "isspacep.shared::cluster", operands="=pred u64", quiet=True)
def is_in_space(w, inst, put, address):
    space = inst.op.removeprefix("isspacep.")
    at = address(w).astype(np.int64)
    window = next(window for window, name in WINDOWS.items() if name == SPACES[space])
    is_inside = (at & -SHARED_WINDOW) == window
    if space in ("shared", "shared::cta"):
        is_inside &= (at % SHARED_WINDOW >> WINDOW_BITS) == w.cta.rank
    put(w, is_inside)


@family("prefetch", "prefetchu", "cp.async.bulk.prefetch", "applypriority", "createpolicy", quiet=True)
def hint(program, inst):
    """A hint changes nothing but time. A cache policy is a number that no program looks into."""
    target = "_"
    if inst.op.startswith("createpolicy"):
        target = inst.args[0]
    put = program.put(target, "b64")
    return lambda w: put(w, np.zeros(LANES, np.uint64))
