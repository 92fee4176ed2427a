"""Read the PTX of one kernel: its parameters, registers, labels, variables and instructions.

PTX ISA 8.7, chapters 4, 5 and 7, as far as Triton 3.7 to 3.9, NVRTC, tilelang and CUTLASS use them: an entry function
and those that it calls, statements one after another, and braces, whose names are known inside them alone.
"""

import ast
import linecache
import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

TOP = re.compile(r"\.(entry|func|global|const|shared)\b")
ENTRY = re.compile(r"\.entry\s+(?P<name>[\w$]+)")
FUNCTION = re.compile(r"\.func\s*(?:\((?P<results>[^)]*)\))?\s*(?P<name>[\w$]+)\s*(?:\((?P<parameters>[^)]*)\))?")
VARIABLE = re.compile(
    r"(?<!\w)\.(?P<space>param|local|global|const|shared)(?P<words>(?:\s*\.\w+(?:\s+\d+\b)?)*)\s+(?P<name>[\w$%]+)"
    r"(?P<sizes>(?:\s*\[\s*\d*\s*\])*)\s*(?:=\s*(?P<values>[^;]*))?"
)
ELEMENT = re.compile(r"(?:\.v(?P<count>[248])\s*)?\.(?P<letter>[bfsu])(?P<bits>8|16|32|64)\b")
FLOAT = re.compile(r"0[fF](?P<single>\w{8})|0[dD](?P<double>\w{16})|-?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?")
"""A literal (4.5.2): in hexadecimal its bits, else decimal."""
TOKEN = re.compile(
    r"(?P<skip>\s+|\.(?:file|version|target|address_size)\b[^\n]*)"
    r"|\.loc\s+(?P<file>\d+)\s+(?P<row>\d+)\s+(?P<column>\d+)(?:[^\n]*inlined_at\s+(?P<caller>\d+ \d+ \d+))?[^\n]*"
    r"|(?P<label>[\w$]+):(?!:)"
    r"|(?P<brace>[{}])"
)
LIBRARY = r"/triton/(language|experimental)/"
"""In the paths of Triton's own functions: what is inlined from there is told by the line that calls it."""
CALLED = r"(\.loc\s+(\d+) [^\n/]*)//([^\n]*@\[[^\n]*)"
"""Before Triton 3.9 a comment alone says which line calls: // standard.py:229:27 @[ mine.py:57:15 ]"""
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
    """file.py:line, of the kernel's source: the first line of a statement over several."""

    @property
    def place(self) -> str:
        return self.source or f"PTX line {self.line}"

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
    parameter_kinds: dict[str, str]
    """u32, f32, ... or "" of a structure."""
    block: tuple[int, int, int]
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
    shared: dict[str, int] = field(default_factory=dict)
    """First byte of each variable in shared memory."""
    shared_bytes: int = 0
    """Of these, without those whose size the launch says."""
    globals: dict[str, bytes] = field(default_factory=dict)
    """Contents of the module's variables, .global and .const."""
    paths: dict[str, str] = field(default_factory=dict)
    """Of what instructions have as their source, the file's."""
    local_bytes: int = 0
    scopes: int = 0
    """Blocks in braces so far, by whose number their names are told apart."""

    @property
    def threads(self) -> int:
        return math.prod(self.block)

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


def parse(text: str, entry: str | None = None, block: Sequence[int] = ()) -> Kernel:
    """Return one kernel in `text`: the only one, or that of this name. `block` is its size, where .reqntid has none.

    Raises ValueError where it lies in the arguments, and UnknownError where the form is none that this machine reads.
    """
    files = dict(re.findall(r'\.file\s+(\d+)\s+"([^"]+)"', text))
    # LLVM counts lines inside of inline assembly as if they were the kernel's.
    text = re.sub(
        "// begin inline asm.*?// end inline asm", lambda m: m[0].replace(".loc", "//"), text, flags=re.DOTALL
    )
    text = re.sub(CALLED, lambda m: _calling(m, files), text)
    text = re.sub(r"//[^\n]*", "", re.sub(r"\n\s*\.section\b.*", "\n", text, flags=re.DOTALL))
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    variables, dynamic, entries, functions, position = [], [], {}, {}, 0
    named = dict(entry=(ENTRY, entries), func=(FUNCTION, functions))
    while match := TOP.search(text, position):
        position, start = _first("{;", text, match.end()), match.start()
        if match[1] not in named:
            position = _first(";", text, position)
            is_dynamic = match[1] == "shared" and text[:start].rstrip().endswith(".extern")
            (dynamic if is_dynamic else variables).extend(variables_in(text[start:position]))
        elif text[position] == "{":  # else it is declared alone
            head, body, position = text[start:position], position + 1, _closing(text, position)
            form, places = named[match[1]]
            places[form.match(head)["name"]] = head, text[body:position], text.count("\n", 0, body) + 1
    name = entry or ", ".join(entries)
    if name not in entries:
        raise ValueError(f"entry {entry}: the PTX has {', '.join(entries) or 'none'}")
    head, body, line = entries[name]
    kernel = _head(name, head, block)
    for variable in variables:
        _add(kernel, variable.name, variable)
    _body(kernel, body, line, files)
    bodies = [body]
    for body in bodies:
        for called in re.findall(r"[\w$]+", body):
            if called in functions:
                function = functions.pop(called)
                bodies.append(function[1])
                _function(kernel, *function, files)
    for variable in dynamic:  # all of them begin at one place, behind the others
        kernel.shared_bytes = _aligned(kernel.shared_bytes, max(variable.alignment for variable in dynamic))
        kernel.shared[variable.name] = kernel.shared_bytes
    for inst in kernel.code:
        if inst.op.startswith("bra") and not kernel.labels.keys() >= {*inst.args}:
            raise UnknownError(f"{inst}: there is no such label")
    return kernel


def _calling(match: re.Match, files: dict[str, str]) -> str:
    """The .loc of the line that calls, of what is inlined from Triton's own functions."""
    directive, number, comment = match.groups()
    if re.search(LIBRARY, files.get(number, "")):
        numbers = {path.rsplit("/", 1)[-1]: number for number, path in files.items() if not re.search(LIBRARY, path)}
        for name, row, column in re.findall(r"@\[ ([^\s:]+):(\d+):(\d+)", comment):
            if name in numbers:
                return f".loc {numbers[name]} {row} {column}"
    return directive


def statements(path: str) -> dict[int, ast.stmt]:
    """By line of a file of Python, the innermost statement that it is in; of one with a body, in front of that."""
    linecache.checkcache(path)
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:  # of another language
        return {}
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            found |= dict.fromkeys(range(node.lineno, max(last, node.lineno) + 1), node)
    return found


def _first(characters: str, text: str, position: int) -> int:
    if match := re.compile(f"[{characters}]").search(text, position):
        return match.start()
    raise UnknownError(f"PTX line {text.count(chr(10), 0, position) + 1}: nothing ends what begins here")


def _closing(text: str, position: int) -> int:
    """Return where the brace that opens at `position` closes."""
    depth = 0
    for brace in re.compile("[{}]").finditer(text, position):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.start()
    raise UnknownError("a brace that does not close")


@dataclass(frozen=True)
class Variable:
    space: str
    name: str
    kind: str
    """Of an element: u32, f16, ..."""
    is_array: bool
    size: int
    """All of its bytes."""
    alignment: int
    values: str


def variables_in(text: str) -> Iterator[Variable]:
    for match in VARIABLE.finditer(text):
        if not (element := ELEMENT.search(match["words"])):
            raise UnknownError(f"the variable {' '.join(match[0].split()):.60} has no form that this machine knows")
        sizes, given = re.findall(r"\[\s*(\d*)", match["sizes"]), re.search(r"\.align\s+(\d+)", match["words"])
        unit = int(element["bits"]) // 8 * int(element["count"] or 1)
        yield Variable(
            match["space"], match["name"], element["letter"] + element["bits"], bool(sizes or element["count"]),
            unit * math.prod(int(size or 0) for size in sizes), int(given[1]) if given else unit, match["values"] or "",
        )  # fmt: skip


def _initialised(variable: Variable) -> bytes:
    width, written = int(variable.kind[1:]), b""
    for number in re.sub(r"[{}\s]", "", variable.values).split(","):
        try:
            value = literal_bits(number or "0", width)
        except UnknownError:
            message = f"{variable.name} is initialised by something else than numbers: {number}"
            raise UnknownError(message) from None
        written += value.to_bytes(width // 8, "little")
    if variable.values.count("{") > 1 and len(written) < variable.size:
        raise UnknownError(f"{variable.name} is initialised in part, in braces inside of braces")
    return written.ljust(variable.size, b"\0")


def literal_bits(text: str, width: int) -> int:
    """Return the bits of a number of this width (4.5)."""
    if re.fullmatch(r"-?(0[xX][0-9A-Fa-f]+|0|[1-9]\d*)U?", text):
        return int(text.rstrip("U"), 0) % 2**width
    literal = FLOAT.fullmatch(text)
    if literal is None:
        raise UnknownError(f"operand {text} is unknown")
    digits = literal["single"] or literal["double"]
    if digits and 4 * len(digits) == width:
        return int(digits, 16)
    if width not in (32, 64):
        raise UnknownError(f"a float {literal[0]} of {width} bits")
    if digits:
        (number,) = struct.unpack(">f" if literal["single"] else ">d", bytes.fromhex(digits))
    else:
        number = float(literal[0])
    with np.errstate(over="ignore"):
        return int(np.float32(number).view(np.uint32) if width == 32 else np.float64(number).view(np.uint64))


def _function(kernel: Kernel, head: str, body: str, line: int, files: dict[str, str]) -> None:
    """Add one that is called, as a block of its own: so its names are no other's."""
    scope, match = kernel.scopes + 1, FUNCTION.match(head)

    def names(of: str) -> tuple[str, ...]:
        every = [*variables_in(match[of] or "")]
        for variable in every:
            _add(kernel, f"{variable.name}@{scope}", variable)
        return tuple(f"{variable.name}@{scope}" for variable in every)

    parameters, results = names("parameters"), names("results")
    kernel.functions[match["name"]] = Function(len(kernel.code), parameters, results)
    outer = {name.partition("@")[0]: name for name in (*parameters, *results)}
    _body(kernel, f"{{{body}}}", line, files, outer)


def _aligned(at: int, alignment: int) -> int:
    return -(-at // alignment) * alignment


def _add(kernel: Kernel, name: str, variable: Variable) -> None:
    """Give a variable its place."""
    if variable.space in ("global", "const"):
        kernel.globals[name] = _initialised(variable)
    elif variable.space == "shared":
        kernel.shared[name] = _aligned(kernel.shared_bytes, variable.alignment)
        kernel.shared_bytes = kernel.shared[name] + variable.size
    else:
        kernel.locals[name] = kernel.local_bytes, variable.size
        kernel.local_bytes += _aligned(variable.size, 16)


def _body(kernel: Kernel, text: str, line: int, files: dict[str, str], *outer: dict[str, str]) -> None:
    position, scopes, source, callers, spans = 0, [*outer], "", {}, {}
    while position < len(text):
        if token := TOKEN.match(text, position):
            end = token.end()
            if token["row"] and token["row"] != "0":  # else it has no line, and what is before it is nearest
                place = token["file"], token["row"], token["column"]
                callers[place] = tuple(token["caller"].split()) if token["caller"] else None
                while re.search(LIBRARY, files.get(place[0], "")) and callers.get(place):
                    place = callers[place]
                path, row = files.get(place[0], "?"), int(place[1])
                if path not in spans:
                    spans[path] = statements(path)
                row = spans[path][row].lineno if row in spans[path] else row
                kernel.paths[source := f"{path.rsplit('/', 1)[-1]}:{row}"] = path
            elif token["label"]:
                label = _scoped(token["label"], scopes)
                if label in kernel.labels:
                    raise UnknownError(f"PTX line {line}: the label {label} is there twice")
                kernel.labels[label] = len(kernel.code)
            elif token["brace"] == "{":
                kernel.scopes += 1
                declared = _declare(kernel, text[end : _closing(text, token.start("brace"))])
                scopes.append({name: f"{name}@{kernel.scopes}" for name in declared})
            elif token["brace"] == "}":
                scopes.pop()
        else:
            end = _first(";", text, position) + 1
            statement = " ".join(text[position : end - 1].split())
            if scopes:
                statement = NAME.sub(lambda m: _scoped(m.group(), scopes), statement)
            at = line + text.count("\n", position, end)
            try:
                _statement(kernel, statement, at, source)
            except (AttributeError, IndexError, TypeError, ValueError):
                raise UnknownError(f"PTX line {at}: {statement:.60} has no form that this machine knows") from None
        line += text.count("\n", position, end)
        position = end


def _head(name: str, text: str, block: Sequence[int]) -> Kernel:
    def numbers(name: str) -> list[int]:
        match = re.search(rf"\.{name}\s+([\d\s,]+)", text)
        return [int(number) for number in match[1].split(",")] if match else []

    required, most = numbers("reqntid"), numbers("maxntid")
    if not (required or block):
        raise UnknownError(f"{name} has no .reqntid, by which this machine knows its threads")
    block = tuple((*(block or required), 1, 1)[:3])
    if (required and block != (*required, 1, 1)[:3]) or (most and math.prod(block) > math.prod(most)):
        raise ValueError(f"the block {block}: {name} has .reqntid {required or 'none'}, .maxntid {most or 'none'}")
    if max(numbers("reqnctapercluster")[1:], default=1) > 1:
        raise UnknownError(f"{name} has clusters of more than one dimension")
    variables = [*variables_in(text)]
    sizes = {variable.name: variable.size for variable in variables}
    kinds = {variable.name: "" if variable.is_array else variable.kind for variable in variables}
    registers, cluster = (numbers("maxnreg") or [0])[0], (numbers("reqnctapercluster") or [1])[0]
    return Kernel(name, sizes, kinds, block, registers, cluster)


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
    variables = {variable.name: variable for variable in variables_in(block)}
    for name, variable in variables.items():
        _add(kernel, f"{name}@{kernel.scopes}", variable)
    return [name for _, name in registers] + [*variables] + re.findall(r"(?:^|[\s;{])([A-Za-z_$][\w$]*):(?!:)", block)


def _scoped(name: str, scopes: list[dict[str, str]]) -> str:
    return next((names[name] for names in reversed(scopes) if name in names), name)


def _statement(kernel: Kernel, text: str, line: int, source: str) -> None:
    if text.startswith(".reg"):
        kind, names = re.match(r"\.reg \.(\w+) (.*)", text).groups()
        for name in names.split(","):
            if "@" not in name:  # of inline assembly: declared with its scope
                kernel.kinds[re.sub(r"<\d+>", "<", name.strip())] = kind
    elif text.startswith((".local", ".param", ".shared")):
        if "@" not in text:  # else declared with its scope
            (variable,) = variables_in(text)
            _add(kernel, variable.name, variable)
    elif text.startswith(".branchtargets"):
        label = max(kernel.labels, key=lambda name: (kernel.labels[name], list(kernel.labels).index(name)))
        kernel.targets[label] = [name.strip() for name in text.removeprefix(".branchtargets").split(",")]
    elif not text.startswith(".pragma") and text:
        guard, op, rest = re.match(r"(?:@(!?[\w%$@]+) )?(\S+) ?(.*)", text).groups()
        if op.startswith("."):
            raise UnknownError(f"PTX line {line}: {op} is no directive that this machine knows")
        kernel.code.append(Instruction(op, operands(rest), guard, line, source))
