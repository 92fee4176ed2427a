"""Read the PTX that Triton emits for one kernel: its parameters, registers, labels and instructions.

PTX ISA 8.7, chapters 4 and 5, as far as Triton 3.7 to 3.9 use them: one entry function, statements one after another,
and braces around inline assembly, whose registers and labels are known inside them alone.
"""

import re
from dataclasses import dataclass, field

BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}
PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.[bfsu](?P<bits>\d+)[^,()]*?\s(?P<name>[\w$]+)(?:\[(?P<n>\d+)\])?\s*[,)]"
)
TOKEN = re.compile(
    r"(?P<skip>\s+|\.(?:file|version|target|address_size)\b[^\n]*)"
    r"|\.loc\s+(?P<file>\d+)\s+(?P<row>\d+)[^\n]*"
    r"|(?P<label>[\w$]+):(?!:)"
    r"|(?P<brace>[{}])"
)
NAME = re.compile(r"(?<![\w.%$:])%?[A-Za-z_$][\w$]*")


class UnknownError(Exception):
    """Something in the PTX that this machine does not know: it refuses to guess."""


@dataclass(frozen=True, slots=True)
class Instruction:
    op: str
    """With its modifiers: ld.global.v4.b32"""
    args: tuple[str, ...]
    guard: str | None = None
    """The predicate register that says which lanes do it, with ! before it where it is negated."""
    line: int = 0
    """In the PTX."""
    source: str = ""
    """file.py:line, of the kernel's source."""

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        source = f" ({self.source})" if self.source else ""
        return f"PTX line {self.line}{source}: {guard}{self.op} {', '.join(self.args)}"


@dataclass
class Kernel:
    name: str
    parameters: dict[str, int]
    """Bytes of each, in their order."""
    threads: int
    registers_a_thread: int
    """.maxnreg, or 0 where the PTX says nothing."""
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    """Of each, the number of the instruction behind it."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Types of registers, by name, or as `%r<` for all that are numbered: b32, pred, ..."""
    targets: dict[str, list[str]] = field(default_factory=dict)
    """Of .branchtargets, by label."""

    def kind(self, register: str) -> str | None:
        """Return the declared type of a register; None of what is none."""
        return self.kinds.get(register) or self.kinds.get(register.rstrip("0123456789") + "<")


def operands(text: str) -> tuple[str, ...]:
    """Return what commas divide, but for those inside brackets.

    >>> operands("{%r1, %r2}, [%rd1+8], 4")
    ('{%r1, %r2}', '[%rd1+8]', '4')
    """
    return tuple(
        part.strip()
        for part in re.findall(r"(?:[^,{\[(]|\{[^}]*\}|\[(?:[^\[\]{]|\{[^}]*\})*\]|\([^)]*\))+", text)
        if part.strip()
    )


def parse(text: str) -> Kernel:
    """Return the one kernel in `text`. Raises UnknownError where the form is none that Triton emits."""
    files = {number: path.rsplit("/", 1)[-1] for number, path in re.findall(r'\.file\s+(\d+)\s+"([^"]+)"', text)}
    text = re.sub(r"//[^\n]*", "", re.sub(r"\n\s*\.section\b.*", "\n", text, flags=re.DOTALL))
    start = text.find(".entry")
    if start < 0 or text.find(".func") >= 0 or text.find(".entry", start + 1) >= 0:
        raise UnknownError("the PTX has functions or several kernels; this machine runs one kernel, all inlined")
    body = text.index("{", start)
    kernel = _head(text[start:body])
    position, scopes, scope, source = body + 1, [], 0, ""
    line = text.count("\n", 0, position) + 1
    while position < len(text):
        if token := TOKEN.match(text, position):
            end = token.end()
            if token["row"]:
                source = f"{files.get(token['file'], '?')}:{token['row']}"
            elif token["label"]:
                kernel.labels[_scoped(token["label"], scopes)] = len(kernel.code)
            elif token["brace"] == "{":
                scope += 1
                scopes.append(
                    {name: f"{name}@{scope}" for name in _declare(kernel, text[end : text.index("}\n", end)], scope)}
                )
            elif token["brace"] == "}":
                if not scopes:
                    break
                scopes.pop()
        else:
            end = text.index(";", position) + 1
            statement = " ".join(text[position : end - 1].split())
            _statement(
                kernel, NAME.sub(lambda m: _scoped(m.group(), scopes), statement) if scopes else statement, line, source
            )
        line += text.count("\n", position, end)
        position = end
    return kernel


def _head(text: str) -> Kernel:
    def number(name: str) -> int:
        match = re.search(rf"\.{name}\s+(\d+)", text)
        return int(match[1]) if match else 0

    name = re.search(r"\.entry\s+([\w$]+)", text)[1]
    parameters = {p["name"]: BYTES[p["bits"]] * int(p["n"] or 1) for p in PARAMETER.finditer(text)}
    if not number("reqntid"):
        raise UnknownError(f"{name} has no .reqntid, by which this machine knows its threads")
    return Kernel(name, parameters, number("reqntid"), number("maxnreg"))


def _declare(kernel: Kernel, block: str, scope: int) -> list[str]:
    """Return names that inline assembly declares for itself: its registers, which get a type, and its labels."""
    registers = [
        (kind, name.strip())
        for kind, names in re.findall(r"\.reg\s+\.(\w+)\s+([^;]+);", block)
        for name in names.split(",")
    ]
    for kind, name in registers:
        kernel.kinds[f"{name}@{scope}"] = kind
    return [name for _, name in registers] + re.findall(r"(?:^|[\s;{])([A-Za-z_$][\w$]*):(?!:)", block)


def _scoped(name: str, scopes: list[dict[str, str]]) -> str:
    return next((names[name] for names in reversed(scopes) if name in names), name)


def _statement(kernel: Kernel, text: str, line: int, source: str) -> None:
    if text.startswith(".reg"):
        kind, names = re.match(r"\.reg \.(\w+) (.*)", text).groups()
        for name in names.split(","):
            if "@" not in name:  # of inline assembly: declared with its scope
                kernel.kinds[re.sub(r"<\d+>", "<", name.strip())] = kind
    elif text.startswith(".branchtargets"):
        label = max(kernel.labels, key=lambda name: (kernel.labels[name], list(kernel.labels).index(name)))
        kernel.targets[label] = [name.strip() for name in text.removeprefix(".branchtargets").split(",")]
    elif not text.startswith(".pragma") and text:
        guard, op, rest = re.match(r"(?:@(!?[\w%$@]+) )?(\S+) ?(.*)", text).groups()
        if op.startswith("."):
            raise UnknownError(f"PTX line {line}: {op} is no directive that this machine knows")
        kernel.code.append(Instruction(op, operands(rest), guard, line, source))
