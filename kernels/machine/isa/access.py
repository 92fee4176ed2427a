"""Loads, stores and atomics by the lanes of a warp, and their cache hints.

PTX ISA 8.7: 6.4.1.1 (generic addresses), 8.4 and 8.7 (strong accesses), 9.7.9.8 (ld), 9.7.9.9 (ld.global.nc), 9.7.9.11
(st), 9.7.9.15 to 9.7.9.19 (prefetch, applypriority, createpolicy, isspacep), 9.7.13.5 (atom), 9.7.13.6 (red).
A warp is one agent: accesses by different lanes of it count as ordered.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..core.faults import BoundsError, RaceError, UnknownError
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
    granules,
    starts,
)
from ..core.order import GENERIC, SCOPES, Clock, joined
from ..core.program import LANE, WINDOW_BITS, effect, family, lanes_of
from ..core.registers import LANES, bits, element, numpy_name
from .floats import from_bf16, to_bf16
from .local import parameter, read_local, write_local

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
MODIFIERS = {
    "v2",
    "v4",
    "v8",
    "weak",
    "mmio",
    "nc",
    "ca",
    "cg",
    "cs",
    "cv",
    "lu",
    "wb",
    "wt",
    "L1::no_allocate",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "L2::cache_hint",
    "L1::evict_first",
    "L1::evict_last",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L2::evict_first",
    "L2::evict_last",
    "L2::evict_normal",
    "L2::evict_unchanged",
}

INSTRUCTIONS = """
{ld,st}[.weak][.{global,shared,shared::cta,shared::cluster}][cache operators and hints][.v2,.v4,.v8].{b,u,s,f}{8..64} \
| weak accesses; without a space generic
{ld,st}.{relaxed,acquire,release}.{cta,cluster,gpu,sys}[.{global,shared,shared::cta,shared::cluster}] \
| strong: scopes, releases, acquires
{ld,st}.volatile[.{global,shared,shared::cta,shared::cluster}], {ld,st}.mmio.relaxed.sys.global \
| as relaxed at system scope
{atom,red}[semantics][scope][.{global,shared,shared::cta,shared::cluster}].{add,min,max,and,or,xor,exch,cas,inc,dec} \
| exact; lanes in an order that a seed decides
{atom,red}...add[.noftz][.v2,.v4,.v8].{f16,bf16,f16x2,bf16x2,f32,f64} | each rounded to nearest even
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
        elif word not in MODIFIERS and word not in more:
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


def read_shared(w, at: Addresses, size: int, instruction, strong: Strong | None = None) -> Rows:
    data = np.zeros((len(at), size), np.uint8)
    for shared, which, places in w.cta.cluster.places(at, size, instruction):
        number = 0
        if strong:
            number = _begin(w, shared.releases, places, instruction, strong)
        shared.note_read(granules(places, size), w.clock, GENERIC, w.agent, w.epoch, instruction, number)
        data[which] = shared.load(places, size)
    return data


def write_shared(w, at: Addresses, data: Rows, instruction, strong: Strong | None = None) -> None:
    size = data.shape[1]
    for shared, which, places in w.cta.cluster.places(at, size, instruction):
        rows = data[which]
        number = _begin(w, shared.releases, places, instruction, strong, reads=False)
        known = _beside(w, shared, at[which] % (1 << WINDOW_BITS), rows, instruction)
        shared.note_write(granules(places, size), w.clock, GENERIC, number, instruction, known)
        shared.store(places, rows)
        _end(w, shared.releases, places, strong)


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


def read_global(w, at: Addresses, size: int, instruction, strong: Strong | None) -> Rows:
    memory = w.cta.machine.memory
    data = np.zeros((len(at), size), np.uint8)
    for region, which, places in memory.places(at, size, instruction):
        if not strong and w.cta.count > 1:
            _note_copy(w, at[which], places, instruction)
        number = _begin(w, region.releases, places, instruction, strong)
        g = granules(places, size)
        try:
            memory.note_read(region, g, w.clock, GENERIC, number, instruction)
        except RaceError:
            if strong:
                raise
            memory.note_read(region, g, _of_copies(w, at[which], places), GENERIC, number, instruction)
        data[which] = region.load(places, size)
    return data


def write_global(w, at: Addresses, data: Rows, instruction, strong: Strong | None) -> None:
    memory = w.cta.machine.memory
    size = data.shape[1]
    for region, which, places in memory.places(at, size, instruction):
        number = _begin(w, region.releases, places, instruction, strong, reads=False)
        g = granules(places, size)
        try:
            memory.note_write(region, g, w.clock, GENERIC, number, instruction)
        except RaceError:
            if strong:
                raise
            of_readers = _of_copies(w, at[which], places)
            memory.note_write(region, g, w.clock, GENERIC, number, instruction, of_readers)
        region.check_covered(places, instruction)
        region.store(places, data[which])
        _end(w, region.releases, places, strong)


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


def _begin(w, releases, places: Places, instruction, strong: Strong | None, *, reads: bool = True) -> int:
    """Note an access, and return its number. A strong read acquires what was released at its addresses, if the scopes
    meet; one without acquire semantics leaves that to a fence behind it."""
    if strong is None:
        return w.note(instruction)
    scope = w.scope(strong.reach)
    for address in starts(places, strong.size) if reads else ():
        released = releases.at.get(address, {})
        place = id(releases), address, strong
        if w.heard.get(place) is released:  # nothing new since it looked there last
            continue
        w.heard[place] = released
        for other, clock in released.items():
            if strong.semantics not in ("acquire", "acq_rel"):
                w.read[other] = joined([clock, w.read.get(other, clock)])
            elif scope.meets(other):
                w.join(clock)
    return w.note(instruction, scope=w.scope(strong.reach, strong.size))


def _end(w, releases, places: Places, strong: Strong | None, *, read: bool = False) -> None:
    """Publish what a strong write releases: all that the warp knew at its fences, at their scopes, and with release
    semantics all that it knows now."""
    if strong is None:
        return
    is_release = strong.semantics in ("release", "acq_rel")
    released = w.released
    if is_release:
        released = released | {w.scope(strong.reach): w.clock.copy()}
    for address in set(starts(places, strong.size)):
        releases.publish(address, released, read=read)
    if is_release:
        w.tick()


READ = {"global": read_global, "shared": read_shared, "local": read_local, "param": read_local}
WRITE = {"global": write_global, "shared": write_shared, "local": write_local, "param": write_local}


def _parts(w, space: str | None, at: Addresses) -> Iterator[tuple[str, Which, Addresses]]:
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


def _columns(w, gets: list) -> Rows:
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
    if space == "param":
        load_parameter = parameter(program, where_text, registers, kind)
        if load_parameter:
            return load_parameter
    where = program.address(where_text)
    puts = program.puts(registers, kind)
    dtype = np.dtype(numpy_name(kind))
    size = len(puts) * bits(kind) // 8

    def run(w):
        at = chosen(w, where(w))
        if space:
            data = READ[space](w, at, size, inst, strong)
        else:
            data = np.zeros((len(at), size), np.uint8)
            for part, which, offsets in _parts(w, space, at):
                data[which] = READ[part](w, offsets, size, inst, strong)
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
        data = chosen(w, _columns(w, gets))
        at = chosen(w, where(w))
        for part, which, offsets in _parts(w, space, at):
            WRITE[part](w, offsets, data[which], inst, strong)

    return run


def _flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)


CHANGES = {  # the first letters of the types that it takes, and the new value from the old one and the operands
    "add": ("usf", np.add),
    "min": ("us", np.minimum),
    "max": ("us", np.maximum),
    "and": ("b", np.bitwise_and),
    "or": ("b", np.bitwise_or),
    "xor": ("b", np.bitwise_xor),
    "exch": ("b", lambda old, new: new),
    "cas": ("b", lambda old, compared, new: np.where(old == compared, new, old)),
    "inc": ("u", lambda old, last: np.where(old >= last, 0, old + 1)),
    "dec": ("u", lambda old, last: np.where((old == 0) | (old > last), last, old - 1)),
}
ATOMIC = re.compile(r"[bus](16|32|64)|f(32|64)|b?f16(x2)?")
"""Types of atomics."""


def changed(operation: str, kind: str, flushes: bool, *rows: Rows) -> Rows:
    """The bytes that an atomic or a reduction leaves in each element. `rows`: the old bytes, then each operand's."""
    into = np.asarray
    out = np.asarray
    if flushes:
        into = _flushed
        out = _flushed
    if kind.startswith("bf"):
        into = from_bf16
        out = to_bf16
    dtype = numpy_name(kind)
    values = [into(np.ascontiguousarray(row).view(dtype)) for row in rows]
    _, change = CHANGES[operation]
    after = out(change(*values))
    return np.ascontiguousarray(after.astype(dtype)).view(np.uint8)


@lru_cache
def _order(lane: int) -> np.ndarray:
    """All lanes, in an order of its own for each `lane` that a machine may draw."""
    return (np.arange(LANES) * (2 * lane + 1) + lane) % LANES


@family("atom", "red")
def atomic(program, inst):
    """Lanes with the same address take turns in the machine's order, since PTX promises none."""
    name, *words = inst.op.split(".")
    kind = next(filter(ATOMIC.fullmatch, words), "")
    space, semantics, reach = qualified(inst, kind, "noftz", *CHANGES)
    operation = next((word for word in words if word in CHANGES), None)
    letter = kind[:1]
    if "f" in kind:
        letter = "f"
    if operation is None or letter not in CHANGES[operation][0]:
        raise UnknownError("an atomic that this machine does not know")
    width = bits(kind)
    target, where_text, *texts = inst.args if name == "atom" else ("_", *inst.args)
    count = 2 if operation == "cas" else 1
    operands = [program.gets(text, f"b{width}") for text in texts[:count]]
    where = program.address(where_text)
    puts = program.puts(target, f"b{width}")
    size = len(operands[0]) * width // 8
    strong = Strong(semantics or "relaxed", reach or "gpu", bits(element(kind)) // 8)

    def run(w):
        memory = w.cta.machine.memory
        lanes = _order(w.cta.machine.lane)
        if w.mask is not None:
            lanes = lanes[w.mask[lanes]]
        values = [_columns(w, gets) for gets in operands]
        before = np.zeros((LANES, size), np.uint8)
        for part, which, at in _parts(w, space, where(w)[lanes]):
            if part == "local":
                raise BoundsError("an atomic on local memory", None, at.item(0))
            spaces = w.cta.cluster if part == "shared" else memory
            for region, among, places in spaces.places(at, size, inst):
                here = lanes[which][among]
                g = granules(places, size)
                # red acquires nothing (8.11.1).
                number = _begin(w, region.releases, places, inst, strong, reads=name == "atom")
                if part == "shared":
                    region.note_read(g, w.clock, GENERIC, w.agent, w.epoch, inst, number)
                    region.note_write(g, w.clock, GENERIC, number, inst)
                else:
                    if region.empty is not None and operation != "exch":
                        memory.note_read(region, g, w.clock, GENERIC, number, inst)
                    memory.note_write(region, g, w.clock, GENERIC, number, inst)
                    region.check_covered(places, inst)
                flushes = kind == "f32" and part == "global"
                offsets = np.array(starts(places, size))
                left = range(len(here))
                while left:
                    first: dict[int, int] = {}  # the next lane at each address
                    for i in left:
                        first.setdefault(offsets.item(i), i)
                    now = list(first.values())
                    left = [i for i in left if i not in now]
                    at_once = each_byte(offsets[now], size)
                    before[here[now]] = old = region.data[at_once]
                    given = [rows[here[now]] for rows in values]
                    region.data[at_once] = changed(operation, kind, flushes, old, *given)
                if operation == "cas":  # a compare-and-swap that fails writes nothing
                    succeeds = (before[here] == values[0][here]).all(axis=1)
                    places = each_byte(offsets[succeeds], size)
                _end(w, region.releases, places, strong, read=True)
        words = np.ascontiguousarray(before.view(f"u{width // 8}").T)
        for put, word in zip(puts, words, strict=False):
            put(w, word)

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
