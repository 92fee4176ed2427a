"""The table of `--coverage`: what the machine handles is in it."""

import re
from collections.abc import Iterator

from kernels.machine import isa  # noqa: F401 (it registers all instructions)
from kernels.machine.command import coverage
from kernels.machine.core.program import MAKERS
from kernels.machine.isa.alu import TABLE

WORDS = 2
"""Of an opcode, that a row names; what follows are modifiers."""


def forms(row: str) -> Iterator[str]:
    """
    >>> [*forms("{ld,st}[.weak].b8")]
    ['ld.weak.b8', 'ld.b8', 'st.weak.b8', 'st.b8']
    """
    if not (match := re.search(r"\{([^{}]*)\}|\[([^\[\]{}]*)\]", row)):
        yield row
        return
    choices = match[1].split(",") if match[2] is None else [*match[2].split(","), ""]
    for choice in choices:
        yield from forms(row[: match.start()] + choice + row[match.end() :])


def test_each_opcode_that_is_handled_is_in_the_table():
    title, _, head, line, *rows = coverage()
    assert title.startswith("Alternatives")
    assert head.count("|") == line.count("|") == 3
    named = set()
    for row in rows:
        opcodes = re.fullmatch(r"\| `([^|]+)` \| [^|]+ \|", row)[1]
        for opcode in re.split(r", (?=[a-z])", opcodes):
            named.update(".".join(form.split(".")[:WORDS]) for form in forms(opcode))
    handled = {".".join(opcode.split(".")[:WORDS]) for opcode in [*MAKERS, *(opcode for opcode, _ in TABLE)]}
    assert len(handled) > 80
    missing = [opcode for opcode in handled if not any(name.startswith(opcode) for name in named)]
    assert not missing
