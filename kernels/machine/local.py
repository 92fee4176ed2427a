"""Functions that are called, and memory that each lane has for itself (PTX ISA 8.7, 5.1.5, 5.1.6, 7.1 and 9.7.12.3).

Parameters and results of a call lie in local memory, at places that each function has once: nothing recurs. What CUDA
brings along, `vprintf` and `__assertfail`, is done by the machine.
"""

import re
import struct
from collections.abc import Iterator

import numpy as np

from . import divergence
from .alu import LANES, bits, names_in, numpy_name
from .memory import LOCAL_WINDOW, PARAMETER_BYTES, PARAMETERS, spread
from .order import AssertError, BoundsError
from .program import family
from .ptx import UnknownError

Copies = tuple[tuple[int, int, int], ...]
"""(from, to, bytes) in local memory."""


def instructions() -> Iterator[tuple[str, str]]:
    """Yield what is modelled: (opcode, how)."""
    yield (
        "{ld,st}.{local,param}[.v2,.v4].{b,u,s,f}{8..64}",
        "of each lane; a launch has the parameters that Triton passes",
    )
    yield "call[.uni]", f"functions of the module, {' and '.join(OUTSIDE)}; nothing recurs"


def _places(w, at: np.ndarray, size: int, instruction) -> tuple[np.ndarray, np.ndarray]:
    """Return an index of local memory: of so many bytes at these addresses, one of each lane that takes part."""
    if at.min(initial=0) < 0 or at.max(initial=0) + size > w.local.shape[1]:
        raise BoundsError(f"{instruction}: local byte {at.max()}, a thread has {w.local.shape[1]}")
    lanes = np.arange(LANES) if w.mask is None else np.flatnonzero(w.mask)
    return lanes[:, None], spread(at, size)


def read_local(w, at: np.ndarray, size: int, instruction) -> np.ndarray:
    """Return [n, size] bytes of the n lanes that take part."""
    return w.local[_places(w, at, size, instruction)]


def read_parameters(w, at: np.ndarray, size: int, instruction) -> np.ndarray:
    """Return [n, size] bytes of a launch's parameters, which a kernel may choose among by their addresses."""
    values, chosen = list(w.cta.launch.parameters.values()), (at - PARAMETERS) // PARAMETER_BYTES
    if chosen.min() < 0 or chosen.max() >= len(values):
        raise BoundsError(f"{instruction}: {at.min():#x} is no address of a parameter")
    rows = np.array([values[number] % 2**64 for number in chosen], np.uint64).view(np.uint8).reshape(-1, 8)
    return rows[np.arange(len(at))[:, None], spread(at % PARAMETER_BYTES, size)]


def write_local(w, at: np.ndarray, data: np.ndarray, instruction) -> None:
    w.local[_places(w, at, data.shape[1], instruction)] = data


def copy(w, copies: Copies) -> None:
    """Hand over what a call takes or gives, in the lanes that take part."""
    lanes = np.arange(LANES) if w.mask is None else np.flatnonzero(w.mask)
    for source, target, size in copies:
        w.local[lanes, target : target + size] = w.local[lanes, source : source + size]


@family("ld.local", "st.local", "ld.param", "st.param", quiet=True)
def access(program, inst):
    name, _, *words, kind = inst.op.split(".")
    if set(words) - {"v2", "v4"}:
        raise UnknownError("a modifier that this machine does not know")
    where_text, registers = (inst.args[1], inst.args[0]) if name == "ld" else inst.args
    count, size = len(names_in(registers)), bits(kind) // 8
    match = re.fullmatch(r"\[\s*([\w$@]+)\s*(?:\+\s*(\d+))?\s*\]", where_text)
    if match and match[1] in program.kernel.parameters:
        puts, first = program.puts(registers, kind), int(match[2] or 0)
        if first + count * size > program.kernel.parameters[match[1]]:
            raise UnknownError(f"bytes from {first} of parameter {match[1]}")

        def numbers(launch) -> list[np.ndarray]:
            value, dtype = launch.parameters[match[1]] >> 8 * first, np.dtype(numpy_name(f"u{bits(kind)}"))
            parts = [(value >> 8 * size * i) % 2 ** bits(kind) for i in range(count)]
            return [np.full(LANES, part, dtype).view(numpy_name(kind)) for part in parts]

        def load_parameter(w):
            launch = w.cta.launch
            if numbers not in launch.loaded:
                launch.loaded[numbers] = numbers(launch)
            for put, values in zip(puts, launch.loaded[numbers], strict=True):
                put(w, values)

        return load_parameter
    where, puts = program.address(where_text), program.puts(registers, kind) if name == "ld" else None
    gets = None if puts else program.gets(registers, f"b{bits(kind)}")

    def taking_part(w, values):
        return values if w.mask is None else values[w.mask]

    def load(w):
        rows, at = np.zeros((LANES, count * size), np.uint8), taking_part(w, where(w))
        read = read_parameters if (at >= PARAMETERS).any() else read_local
        rows[slice(None) if w.mask is None else w.mask] = read(w, at, count * size, inst)
        for put, word in zip(puts, np.ascontiguousarray(rows.view(numpy_name(kind)).T), strict=True):
            put(w, word)

    def store(w):
        rows = np.ascontiguousarray(np.array([get(w) for get in gets]).T).view(np.uint8)
        write_local(w, taking_part(w, where(w)), taking_part(w, rows), inst)

    return load if puts else store


@family("call")
def call(program, inst):
    if not re.fullmatch(r"call(\.uni)?", inst.op):
        raise UnknownError("a call of another form than call.uni")
    *results, name, parameters = inst.args if len(inst.args) > 1 else (*inst.args, "()")
    taken = [variable.strip() for variable in parameters.strip("()").split(",") if variable.strip()]
    given = [variable.strip() for text in results for variable in text.strip("()").split(",")]
    places = program.kernel.locals
    if name in program.kernel.functions:
        function = program.kernel.functions[name]

        def copies(sources, targets) -> Copies:
            pairs = zip(sources, targets, strict=True)
            return tuple((places[source][0], places[target][0], places[source][1]) for source, target in pairs)

        into, back = copies(taken, function.parameters), copies(function.results, given)

        def enter(w):
            copy(w, into)
            divergence.go(w, function.start, (*w.calls, (w.pc + 1, back)))

        return enter
    if name not in OUTSIDE:
        raise UnknownError(f"the function {name}, which this machine does not have")

    def ask(w):
        for lane in range(LANES) if w.mask is None else np.flatnonzero(w.mask):
            values = [w.local[lane, places[v][0] :][: places[v][1]].tobytes() for v in taken]
            OUTSIDE[name](w, lane, *(int.from_bytes(value, "little") for value in values))

    return ask


def _text(w, address: int) -> str:
    """Return the characters at an address of global memory, up to a zero."""
    region = w.cta.machine.memory.region(address, "a string")
    data = region.data[address & 2**36 - 1 :].tobytes()
    return data[: data.find(0)].decode(errors="replace")


def print_formatted(w, lane: int, text: int, values: int) -> None:
    """vprintf: numbers lie one behind another, each at a multiple of its size."""
    at, buffer = values - LOCAL_WINDOW, w.local[lane].tobytes()

    def written(match: re.Match) -> str:
        nonlocal at
        flags, length, kind = match.groups()
        if kind == "%":
            return "%"
        form = "d" if kind in "fge" else "q" if kind in "ps" or "l" in (length or "") else "i"
        at = -(-at // (size := struct.calcsize(form))) * size
        (value,) = struct.unpack_from(form, buffer, at)
        at += size
        if kind == "s":
            return f"%{flags}s" % _text(w, value)
        return f"%{flags}{kind}" % (value % 2 ** (8 * size) if kind in "uxXop" else value)

    line = re.sub(r"%([-+ 0#]*\d*(?:\.\d+)?)(hh|h|ll|l)?([%a-zA-Z])", written, _text(w, text))
    w.cta.machine.printed.append(line)


def fail(w, lane: int, message: int, file: int, line: int, function: int, size: int) -> None:
    """__assertfail."""
    thread = w.number * LANES + lane
    raise AssertError(f"{_text(w, file)}:{line}: thread {thread}: {_text(w, function)}: {_text(w, message)}")


OUTSIDE = {"vprintf": print_formatted, "__assertfail": fail}
