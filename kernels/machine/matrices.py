"""Matrices between registers and shared memory: ldmatrix and stmatrix (PTX ISA 8.7, 9.7.14.5.15 and 9.7.14.5.16)."""

import numpy as np

from kernels.machine.access import read_shared, write_shared
from kernels.machine.alu import LANES
from kernels.machine.program import family
from kernels.machine.ptx import UnknownError


@family("ldmatrix", "stmatrix", quiet=True)
def matrix(program, inst):
    words = inst.op.split(".")
    if words[1:4] != ["sync", "aligned", "m8n8"] or words[-2:] not in (["shared", "b16"], ["shared::cta", "b16"]):
        raise UnknownError("matrices of another form than m8n8 of 16 bits")
    count, turned = int(words[4][1]), "trans" in words
    where, registers = (inst.args[1], inst.args[0]) if words[0] == "ldmatrix" else inst.args
    where = program.address(where)
    puts, gets = (
        (program.puts(registers, "b32"), None) if words[0] == "ldmatrix" else (None, program.gets(registers, "b32"))
    )

    def load(w):
        rows = read_shared(w, where(w)[: 8 * count], 16, inst).view(np.uint16).reshape(count, 8, 8)
        rows = rows.transpose(0, 2, 1) if turned else rows
        for put, row in zip(puts, rows, strict=True):
            put(w, np.ascontiguousarray(row).reshape(LANES, 2).view(np.uint32).reshape(LANES))

    def store(w):
        rows = np.stack([np.ascontiguousarray(get(w)).view(np.uint16).reshape(8, 8) for get in gets])
        rows = np.ascontiguousarray(rows.transpose(0, 2, 1) if turned else rows).reshape(8 * count, 8)
        write_shared(w, where(w)[: 8 * count], rows.view(np.uint8), inst)

    return load if puts else store
