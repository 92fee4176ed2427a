"""Matrices of a warp: to and from shared memory by ldmatrix and stmatrix, and turned by movmatrix (PTX ISA 8.7,
9.7.14.5.15 to 9.7.14.5.17). Their elements have 16 bits; those of fewer bits need sm_100.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np

from .access import read_shared, write_shared
from .alu import LANES, names_in
from .order import FaultError
from .program import check_whole, effect, family
from .ptx import Instruction, UnknownError

FORM = re.compile(r"aligned b16 m8n8 shared(?:::cta)? sync(?P<trans> trans)? x(?P<count>[124])")
"""Of the qualifiers in the order of the alphabet: CUTLASS has another than PTX ISA."""

INSTRUCTIONS = """
ldmatrix.sync.aligned.m8n8.{x1,x2,x4}[.trans].shared[::cta].b16 \
| weak reads by the warp, of 16 bytes at each of 8 addresses a matrix
stmatrix.sync.aligned.m8n8.{x1,x2,x4}[.trans].shared[::cta].b16 \
| weak writes by the warp, of 16 bytes at each of 8 addresses a matrix
movmatrix.sync.aligned.m8n8.trans.b16 | exact
"""
"""What is modelled: opcodes, and how."""


def at_once(program, inst: Instruction, prepare: Callable[[Sequence[Instruction]], tuple], run: Callable) -> Callable:
    """Return the effect `run(w, *prepare(instructions))`: at once for those of one opcode that follow each other, as
    long as none reads what another one writes (its first operand). If a fault is among them, they take turns."""
    alone, following = prepare([inst]), []

    def prepared(start: int) -> tuple:
        instructions, written = [], set()
        for other in program.kernel.code[start:]:
            if instructions and (other.op != inst.op or other.guard or inst.guard):
                break
            target, *read = (set(re.findall(r"[^\s{},\[\]+]+", text)) for text in other.args)
            if written & set().union(*read):
                break
            instructions.append(other)
            written |= target
        return len(instructions), prepare(instructions)

    def effect(w):
        check_whole(w)
        if not following:
            following.append(prepared(w.pc))
        count, operands = following[0]
        try:
            run(w, *operands)
        except FaultError:
            count = 1
            run(w, *alone)
        w.pc += count - 1  # 1 is added to it
        w.cta.machine.executed += count - 1

    return effect


def form_of(inst: Instruction) -> tuple[int, bool]:
    """Return how many matrices it moves, and whether it turns them."""
    if not (match := FORM.fullmatch(" ".join(sorted(inst.op.split(".")[1:])))):
        raise UnknownError("matrices of another form than m8n8 of 16 bits in shared memory")
    return int(match["count"]), bool(match["trans"])


def turn(words: np.ndarray) -> np.ndarray:
    """Return matrices of 8 rows of 16 bytes transposed."""
    return np.ascontiguousarray(words.view(np.uint16).reshape(-1, 8, 8).transpose(0, 2, 1))


@family("ldmatrix", quiet=True)
def load(program, inst):
    count, turned = form_of(inst)

    def prepare(instructions):
        places = [program.address(each.args[1]) for each in instructions]
        return places, [program.register(name) for each in instructions for name in names_in(each.args[0])]

    def run(w, places, targets):
        rows = read_shared(w, np.concatenate([place(w)[: 8 * count] for place in places]), 16, inst)
        words = (turn(rows) if turned else rows).view(np.uint32).reshape(-1, LANES)
        for target, word in zip(targets, words, strict=True):
            w.r[target] = word

    return at_once(program, inst, prepare, run)


@family("stmatrix", quiet=True)
def store(program, inst):
    count, turned = form_of(inst)
    place, gets = program.address(inst.args[0]), program.gets(inst.args[1], "b32")

    def run(w):
        check_whole(w)
        words = np.stack([get(w) for get in gets])
        rows = (turn(words) if turned else words).view(np.uint8).reshape(-1, 16)
        write_shared(w, place(w)[: 8 * count], rows, inst)

    return run


@effect("movmatrix.sync.aligned.m8n8.trans.b16", operands="=b32 b32", quiet=True)
def move(w, inst, put, value):
    check_whole(w)
    put(w, turn(value(w)).view(np.uint32).reshape(LANES))
