"""Matrices of a warp: ldmatrix and stmatrix, which move them from and to shared memory, and movmatrix, which transposes
them (PTX ISA 8.7, 9.7.14.5.15 to 9.7.14.5.17). Their elements have 16 bits; those of fewer bits need sm_100.
"""

import re
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from ..core.faults import FaultError, UnknownError
from ..core.program import check_whole, effect, family
from ..core.ptx import Instruction
from ..core.registers import LANES, names_in
from .access import read, write

FORM = re.compile(r"aligned b16 m8n8 shared(?:::cta)? sync(?P<trans> trans)? x(?P<count>[124])")
"""The qualifiers in alphabetical order, since CUTLASS has them in another order than the PTX ISA."""

INSTRUCTIONS = """
ldmatrix.sync.aligned.m8n8.{x1,x2,x4}[.trans].shared[::cta].b16 \
| weak reads by the warp, of 16 bytes at each of 8 addresses a matrix
stmatrix.sync.aligned.m8n8.{x1,x2,x4}[.trans].shared[::cta].b16 \
| weak writes by the warp, of 16 bytes at each of 8 addresses a matrix
movmatrix.sync.aligned.m8n8.trans.b16 | exact
"""
"""The opcodes that this module models, and how: rows of the table that `--coverage` prints."""


WORD = re.compile(r"[^\s{},\[\]+]+")
"""A register or a number in an operand."""


def at_once(program, inst: Instruction, prepare: Callable[[Sequence[Instruction]], tuple], run: Callable) -> Callable:
    """The effect `run(w, *prepare(instructions))` of an instruction, together with those of the same opcode that follow
    it, as long as none reads what an earlier one writes (its first operand). If one of them is a fault, they run one by
    one."""
    alone = prepare([inst])
    following = []

    def prepared(start: int) -> tuple:
        instructions = []
        written: set[str] = set()
        for other in program.kernel.code[start:]:
            if instructions and (other.op != inst.op or other.guard or inst.guard):
                break
            target, *read = map(WORD.findall, other.args)
            if not written.isdisjoint(chain(*read)):
                break
            instructions.append(other)
            written.update(target)
        return len(instructions), prepare(instructions)

    def effect(w):
        check_whole(w)
        if not following:
            following.append(prepared(w.pc))
        count, operands = following[0]
        ledger = w.cta.machine.ledger
        early = ledger.early
        try:
            run(w, *operands)
            is_fault = ledger.early is not early
        except FaultError:
            is_fault = True
        if is_fault:
            ledger.early = early
            count = 1
            run(w, *alone)
        w.pc += count - 1  # 1 is added to it
        w.cta.machine.executed += count - 1

    return effect


def form_of(inst: Instruction) -> tuple[int, bool]:
    """The number of matrices that an instruction moves, and whether it transposes them."""
    _, *qualifiers = inst.op.split(".")
    match = FORM.fullmatch(" ".join(sorted(qualifiers)))
    if not match:
        raise UnknownError("matrices of another form than m8n8 of 16 bits in shared memory")
    return int(match["count"]), bool(match["trans"])


def turn(words: np.ndarray) -> np.ndarray:
    """Matrices of 8 rows of 16 bytes, transposed."""
    elements = words.view(np.uint16).reshape(-1, 8, 8)
    return np.ascontiguousarray(elements.transpose(0, 2, 1))


@family("ldmatrix", quiet=True)
def load(program, inst):
    count, turned = form_of(inst)

    def prepare(instructions):
        places = [program.address(each.args[1]) for each in instructions]
        return places, [program.register(name) for each in instructions for name in names_in(each.args[0])]

    def run(w, places, targets):
        at = np.concatenate([place(w)[: 8 * count] for place in places])
        rows = read(w, at, 16, inst, None, "shared", together=True)
        if turned:
            rows = turn(rows)
        for target, word in zip(targets, rows.view(np.uint32).reshape(-1, LANES), strict=True):
            w.r[target] = word

    return at_once(program, inst, prepare, run)


@family("stmatrix", quiet=True)
def store(program, inst):
    count, turned = form_of(inst)
    place = program.address(inst.args[0])
    gets = program.gets(inst.args[1], "b32")

    def run(w):
        check_whole(w)
        words = np.stack([get(w) for get in gets])
        if turned:
            words = turn(words)
        rows = words.view(np.uint8).reshape(-1, 16)
        write(w, place(w)[: 8 * count], rows, inst, None, "shared", together=True)

    return run


@effect("movmatrix.sync.aligned.m8n8.trans.b16", operands="=b32 b32", quiet=True)
def move(w, inst, put, value):
    check_whole(w)
    put(w, turn(value(w)).view(np.uint32).reshape(LANES))
