"""Read the PTX that Triton emits for one kernel: its parameters, registers, labels, variables and instructions.

PTX ISA 8.7, chapters 4, 5 and 7, as far as Triton 3.7 to 3.9 use them: one entry function and those that it calls,
statements one after another, and braces around inline assembly and calls, whose names are known inside them alone.
"""

import re
from dataclasses import dataclass, field

BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}
TOP = re.compile(r"\.(entry|func|global|const)\b")
FUNCTION = re.compile(r"\.func\s*(?:\((?P<results>[^)]*)\))?\s*(?P<name>[\w$]+)\s*(?:\((?P<parameters>[^)]*)\))?")
VARIABLE = re.compile(
    r"\.(?:param|local|global|const)\s+(?:\.align\s+\d+\s+)?\.[bfsu](?P<bits>\d+)(?:\s+\.align\s+\d+|\s+\.\w+)*\s+"
    r"(?P<name>[\w$]+)(?:\[(?P<n>\d+)\])?(?:\s*=\s*\{?(?P<values>[^};]*))?"
)
TOKEN = re.compile(
    r"(?P<skip>\s+|\.(?:file|version|target|address_size)\b[^\n]*)"
    r"|\.loc\s+(?P<file>\d+)\s+(?P<row>\d+)\s+(?P<column>\d+)(?:[^\n]*inlined_at\s+(?P<caller>\d+ \d+ \d+))?[^\n]*"
    r"|(?P<label>[\w$]+):(?!:)"
    r"|(?P<brace>[{}])"
)
LIBRARY = r"/triton/(language|experimental)/"
"""In the paths of Triton's own functions: what is inlined from there is told by the line that calls it."""
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


@dataclass(frozen=True)
class Function:
    """What is called: the number of its first instruction, and where its parameters and results lie."""

    start: int
    parameters: tuple[str, ...]
    results: tuple[str, ...]


@dataclass
class Kernel:
    name: str
    parameters: dict[str, int]
    """Bytes of each, in their order."""
    threads: int
    registers_a_thread: int
    """.maxnreg, or 0 where the PTX says nothing."""
    cluster: int = 1
    """CTAs of one, all along x."""
    code: list[Instruction] = field(default_factory=list)
    """Of the entry, then of its functions."""
    labels: dict[str, int] = field(default_factory=dict)
    """Of each, the number of the instruction behind it."""
    kinds: dict[str, str] = field(default_factory=lambda: {"CC.CF": "pred"})
    """Types of registers, by name, or as `%r<` for all that are numbered: b32, pred, ..."""
    targets: dict[str, list[str]] = field(default_factory=dict)
    """Of .branchtargets, by label."""
    functions: dict[str, Function] = field(default_factory=dict)
    locals: dict[str, tuple[int, int]] = field(default_factory=dict)
    """First byte and size of each variable that a thread has for itself: .local, and .param of calls."""
    globals: dict[str, bytes] = field(default_factory=dict)
    """Contents of the module's variables, .global and .const."""
    paths: dict[str, str] = field(default_factory=dict)
    """Of what instructions have as their source, the file's."""
    local_bytes: int = 0
    scopes: int = 0
    """Blocks in braces so far, by whose number their names are told apart."""

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
    files = dict(re.findall(r'\.file\s+(\d+)\s+"([^"]+)"', text))
    # LLVM counts lines inside of inline assembly as if they were the kernel's.
    text = re.sub(
        "// begin inline asm.*?// end inline asm", lambda m: m[0].replace(".loc", "//"), text, flags=re.DOTALL
    )
    text = re.sub(r"//[^\n]*", "", re.sub(r"\n\s*\.section\b.*", "\n", text, flags=re.DOTALL))
    variables, entries, functions, position = {}, [], [], 0
    while match := TOP.search(text, position):
        position = re.compile("[{;]").search(text, match.end()).start()
        if match[1] in ("global", "const"):
            position = text.index(";", position)
            variables.update(map(_initialised, VARIABLE.finditer(text[match.start() : position])))
        elif text[position] == "{":  # else it is declared alone
            body, position = position, _closing(text, position)
            place = text[match.start() : body], text[body + 1 : position], text.count("\n", 0, body + 1) + 1
            (entries if match[1] == "entry" else functions).append(place)
    if len(entries) != 1:
        raise UnknownError(f"the PTX has {len(entries)} kernels; this machine runs one")
    ((head, body, line),) = entries
    kernel = _head(head)
    kernel.globals = variables
    _body(kernel, body, line, files)
    for number, (head, body, line) in enumerate(functions, 1):
        _function(kernel, number, FUNCTION.match(head), body, line, files)
    return kernel


def _closing(text: str, position: int) -> int:
    """Return where the brace that opens at `position` closes."""
    depth = 0
    for brace in re.compile("[{}]").finditer(text, position):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.start()
    raise UnknownError("a brace that does not close")


def _size(variable: re.Match) -> int:
    return BYTES[variable["bits"]] * int(variable["n"] or 1)


def _initialised(variable: re.Match) -> tuple[str, bytes]:
    size = BYTES[variable["bits"]]
    try:
        values = [int(value.strip().rstrip("U"), 0) for value in (variable["values"] or "").split(",") if value.strip()]
    except ValueError:
        raise UnknownError(f"{variable['name']} is initialised by something else than whole numbers") from None
    written = b"".join((value % 256**size).to_bytes(size, "little") for value in values)
    return variable["name"], written.ljust(_size(variable), b"\0")


def _function(kernel: Kernel, number: int, head: re.Match, body: str, line: int, files: dict[str, str]) -> None:
    """Add one that is called. Its registers and its result get names that no other function has."""

    def variables(of: str) -> tuple[str, ...]:
        every = {f"{v['name']}@{number}": _size(v) for v in VARIABLE.finditer(head[of] or "")}
        for name, size in every.items():
            _add_local(kernel, name, size)
        return tuple(every)

    parameters, results = variables("parameters"), variables("results")
    kernel.functions[head["name"]] = Function(len(kernel.code), parameters, results)
    registers = "|".join(re.findall(r"%(\w+)", " ".join(re.findall(r"\.reg[^;]*;", body))))
    body = re.sub(rf"%(?=({registers or '-'})(?:[\d<]|\b))", f"%F{number}", body)
    for name in (*parameters, *results):
        body = re.sub(rf"(?<![\w$]){re.escape(name.partition('@')[0])}(?![\w$])", name, body)
    _body(kernel, body, line, files)


def _add_local(kernel: Kernel, name: str, size: int) -> None:
    kernel.locals[name] = kernel.local_bytes, size
    kernel.local_bytes += -(-size // 16) * 16


def _body(kernel: Kernel, text: str, line: int, files: dict[str, str]) -> None:
    position, scopes, source, callers = 0, [], "", {}
    while position < len(text):
        if token := TOKEN.match(text, position):
            end = token.end()
            if token["row"] and token["row"] != "0":  # else it has no line, and what is before it is nearest
                place = token["file"], token["row"], token["column"]
                callers[place] = tuple(token["caller"].split()) if token["caller"] else None
                while re.search(LIBRARY, files.get(place[0], "")) and callers.get(place):
                    place = callers[place]
                path = files.get(place[0], "?")
                kernel.paths[source := f"{path.rsplit('/', 1)[-1]}:{place[1]}"] = path
            elif token["label"]:
                kernel.labels[_scoped(token["label"], scopes)] = len(kernel.code)
            elif token["brace"] == "{":
                kernel.scopes += 1
                declared = _declare(kernel, text[end : _closing(text, token.start("brace"))])
                scopes.append({name: f"{name}@{kernel.scopes}" for name in declared})
            elif token["brace"] == "}":
                scopes.pop()
        else:
            end = text.index(";", position) + 1
            statement = " ".join(text[position : end - 1].split())
            if scopes:
                statement = NAME.sub(lambda m: _scoped(m.group(), scopes), statement)
            _statement(kernel, statement, line + text.count("\n", position, end), source)
        line += text.count("\n", position, end)
        position = end


def _head(text: str) -> Kernel:
    def number(name: str) -> int:
        match = re.search(rf"\.{name}\s+(\d+)", text)
        return int(match[1]) if match else 0

    name = re.search(r"\.entry\s+([\w$]+)", text)[1]
    parameters = {variable["name"]: _size(variable) for variable in VARIABLE.finditer(text)}
    if not number("reqntid"):
        raise UnknownError(f"{name} has no .reqntid, by which this machine knows its threads")
    if re.search(r"\.reqnctapercluster\s+\d+\s*,[\s\d,]*([2-9]|1\d)", text):
        raise UnknownError(f"{name} has clusters of more than one dimension")
    return Kernel(name, parameters, number("reqntid"), number("maxnreg"), number("reqnctapercluster") or 1)


def _declare(kernel: Kernel, block: str) -> list[str]:
    """Return names that a block declares for itself: registers, which get a type, variables and labels."""
    registers = [
        (kind, name)
        for kind, names in re.findall(r"\.reg\s+\.(\w+)\s+([^;]+);", block)
        for base, count in re.findall(r"([%\w$]+)(?:<(\d+)>)?", names)
        for name in ([f"{base}{i}" for i in range(int(count))] if count else [base])
    ]
    for kind, name in registers:
        kernel.kinds[f"{name}@{kernel.scopes}"] = kind
    variables = {variable["name"]: _size(variable) for variable in VARIABLE.finditer(block)}
    for name, size in variables.items():
        _add_local(kernel, f"{name}@{kernel.scopes}", size)
    return [name for _, name in registers] + [*variables] + re.findall(r"(?:^|[\s;{])([A-Za-z_$][\w$]*):(?!:)", block)


def _scoped(name: str, scopes: list[dict[str, str]]) -> str:
    return next((names[name] for names in reversed(scopes) if name in names), name)


def _statement(kernel: Kernel, text: str, line: int, source: str) -> None:
    if text.startswith(".reg"):
        kind, names = re.match(r"\.reg \.(\w+) (.*)", text).groups()
        for name in names.split(","):
            if "@" not in name:  # of inline assembly: declared with its scope
                kernel.kinds[re.sub(r"<\d+>", "<", name.strip())] = kind
    elif text.startswith((".local", ".param")):
        variable = VARIABLE.match(text)
        if variable and "@" not in text:  # else declared with its scope
            _add_local(kernel, variable["name"], _size(variable))
    elif text.startswith(".branchtargets"):
        label = max(kernel.labels, key=lambda name: (kernel.labels[name], list(kernel.labels).index(name)))
        kernel.targets[label] = [name.strip() for name in text.removeprefix(".branchtargets").split(",")]
    elif not text.startswith(".pragma") and text:
        guard, op, rest = re.match(r"(?:@(!?[\w%$@]+) )?(\S+) ?(.*)", text).groups()
        if op.startswith("."):
            raise UnknownError(f"PTX line {line}: {op} is no directive that this machine knows")
        kernel.code.append(Instruction(op, operands(rest), guard, line, source))
