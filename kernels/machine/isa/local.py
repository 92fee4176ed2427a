"""Function calls and local memory (PTX ISA 8.7, 5.1.5, 5.1.6, 7.1 and 9.7.12.3).

Parameters and results of a call lie in local memory. Each function has one place for them, so that no function may call
itself. The machine itself has `vprintf`, which prints nothing, and `__assertfail`, which CUDA brings along.
"""

import re

import numpy as np

from ..core import divergence
from ..core.faults import AssertError, BoundsError, UnknownError
from ..core.memory import PARAMETERS, Addresses, Rows, each_byte
from ..core.program import family, lanes_of
from ..core.registers import LANES

Copies = tuple[tuple[int, int, int], ...]
"""(from, bytes, to) in local memory."""

INSTRUCTIONS = """
{ld,st}.{local,param}[.v2,.v4].{b,u,s,f}{8..64} | of each lane; and what a launch is given
call[.uni] | functions of the module, __assertfail, and vprintf, which is silent; nothing recurs
"""
"""The opcodes that this module models, and how: rows of the table that `--coverage` prints."""


def _places(w, at: Addresses, size: int, instruction) -> tuple[np.ndarray, np.ndarray]:
    """The index in local memory of `size` bytes at each address; each active lane has one address."""
    if at.min(initial=0) < 0 or at.max(initial=0) + size > w.local.shape[1]:
        raise BoundsError(f"{instruction}: local byte {at.max()}, a thread has {w.local.shape[1]}")
    return lanes_of(w)[:, None], each_byte(at, size)


def read_local(w, at: Addresses, size: int, instruction, *ignored) -> Rows:
    """[n, size] bytes for the n active lanes, from local memory, or from the launch's parameters if addresses are
    theirs."""
    if (at >= PARAMETERS).any():
        return read_parameters(w, at, size, instruction)
    return w.local[_places(w, at, size, instruction)]


def read_parameters(w, at: Addresses, size: int, instruction) -> Rows:
    """[n, size] bytes of a launch's parameters, among which a kernel may choose by address."""
    image = w.cta.launch.image
    offsets = at - PARAMETERS
    if offsets.min(initial=0) < 0 or offsets.max(initial=0) + size > len(image):
        raise BoundsError(f"{instruction}: {at.min():#x} is no address of a parameter")
    return image[each_byte(offsets, size)]


def write_local(w, at: Addresses, data: Rows, instruction, *ignored) -> None:
    w.local[_places(w, at, data.shape[1], instruction)] = data


def copy(w, copies: Copies) -> None:
    """Copy the parameters or the results of a call, in the active lanes."""
    lanes = lanes_of(w)
    for source, size, target in copies:
        w.local[lanes, target : target + size] = w.local[lanes, source : source + size]


VARIABLE = re.compile(r"[^\s(),]+")


@family("call")
def call(program, inst):
    if inst.op not in ("call", "call.uni"):
        raise UnknownError("a call of another form than call.uni")
    args = inst.args
    if len(args) == 1:
        args = (*args, "()")
    *results, name, parameters = args
    taken = VARIABLE.findall(parameters)
    given = VARIABLE.findall(" ".join(results))
    places = program.kernel.locals
    if name in program.kernel.functions:
        function = program.kernel.functions[name]

        def copies(sources, targets) -> Copies:
            pairs = zip(sources, targets, strict=True)
            return tuple((*places[source], places[target][0]) for source, target in pairs)

        into = copies(taken, function.parameters)
        back = copies(function.results, given)

        def enter(w):
            if any(function is outer for *_, outer in w.calls):
                raise UnknownError(f"{inst}: {name} calls itself")
            copy(w, into)
            calls = (*w.calls, (w.pc + 1, back, function))
            divergence.go(w, function.start, calls)

        return enter
    if name not in OUTSIDE:
        raise UnknownError(f"the function {name}, which this machine does not have")

    def ask(w):
        for lane in lanes_of(w):
            values = []
            for variable in taken:
                start, size = places[variable]
                data = w.local[lane, start : start + size].tobytes()
                values.append(int.from_bytes(data, "little"))
            OUTSIDE[name](w, lane, *values)

    return ask


def _text(w, address: int) -> str:
    """The characters at an address of global memory, up to a zero."""
    region = w.cta.machine.memory.region(address, "a string")
    data = region.data[address & 2**36 - 1 :].tobytes()
    return data[: data.find(0)].decode(errors="replace")


def fail(w, lane: int, message: int, file: int, line: int, function: int, size: int) -> None:
    """__assertfail: raise AssertError, with the place, the thread, the function and the message."""
    thread = w.number * LANES + lane
    raise AssertError(f"{_text(w, file)}:{line}: thread {thread}: {_text(w, function)}: {_text(w, message)}")


def print_nothing(w, lane: int, text: int, values: int) -> None:
    """vprintf: nobody reads what a kernel prints here."""


OUTSIDE = {"vprintf": print_nothing, "__assertfail": fail}
