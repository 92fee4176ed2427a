"""The table of instructions that the machine models, made from its code, which `--coverage` prints. After a change:

    PYTHONPATH=. python tests/machine/instruction_table.py > kernels/machine/instructions.md

Each module of instructions lists its own, by `instructions()`: opcodes, with alternatives in braces and what may be
left out in brackets, and how they are modelled. Tests are the files here whose text has such an opcode.
"""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import kernels.machine

HEAD = """# What the machine models

Made by tests/machine/instruction_table.py. Alternatives stand in braces, what may be left out in brackets. Tests
are files of [tests/machine](../../tests/machine) whose text has such an opcode; what compiled kernels have is not
listed.

| instruction | modelled how | tested by |
|---|---|---|
"""


def pattern(opcodes: str) -> str:
    """Return a regular expression for what a row has, or for how it begins where that has two words. In tables of
    tests, K is each of several types.

    >>> [bool(re.search(pattern("{ld,st}[.weak].v2, shfl.sync.{up,down}.b32"), text)) for text in ("ld.v2 %r", "st.v4")]
    [True, False]
    """
    patterns = []
    for opcode in re.findall(r"(?:[^,{\[]|\{[^}]*\}|\[(?:[^\[\]]|\[[^\]]*\])*\])+", opcodes):
        form = re.sub(r"\[(?!\.)[^\]]*\]|\.\.\.|\*", "ANY", opcode.strip().replace("{8..64}", "ANY"))
        form = re.sub(r"\{([^}]*)\}", lambda m: f"(?:{m[1].replace(',', '|')}|K)", form.replace(".", r"\."))
        form = form.replace("[", "(?:").replace("]", ")?").replace(",", "|").replace("ANY", r"[\w.:]*")
        head = re.match(r"[\w.:]*", opcode.strip())[0].rstrip(".")
        patterns += [form, *[re.escape(head)] * ("." in head)]
    return rf"(?<![\w.])(?:{'|'.join(patterns)})(?!\w)"


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield instructions, how they are modelled, and the names of test files, module by module."""
    others = "test_check", "test_package"
    paths = [path for path in sorted(Path(__file__).parent.glob("test_*.py")) if path.stem not in others]
    tests = {path.stem.removeprefix("test_"): path.read_text() for path in paths}
    for module in pkgutil.iter_modules(kernels.machine.__path__, "kernels.machine."):
        for listed, how in getattr(importlib.import_module(module.name), "instructions", tuple)():
            opcodes = re.sub(r"\w+(?:\|\w+)+", lambda m: f"{{{m[0].replace('|', ',')}}}", listed)
            files = [name for name, text in tests.items() if re.search(pattern(opcodes), text)]
            yield opcodes, how, ", ".join(files)


def table() -> str:
    return HEAD + "".join(f"| `{opcodes}` | {how} | {tests} |\n" for opcodes, how, tests in rows())


if __name__ == "__main__":
    print(table(), end="")
