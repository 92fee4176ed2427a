"""Read the PTX of one kernel: its parameters, registers, labels, variables and instructions.

PTX ISA 8.7, chapters 4, 5 and 7, as far as Triton 3.7 to 3.9, NVRTC, tilelang and CUTLASS use them: an entry function
and those that it calls, statements one after another, and blocks in braces, whose names are known inside them alone.
"""

import ast
import linecache
import math
import re
from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from .faults import UnknownError

TOP = re.compile(r"\.(entry|func|global|const|shared)\b")
FUNCTION = re.compile(
    r"\.(?:entry|func)\s*(?:\((?P<results>[^)]*)\))?\s*(?P<name>[\w$]+)\s*(?:\((?P<parameters>[^)]*)\))?"
)
VARIABLE = re.compile(
    r"(?<!\w)\.(?P<space>param|local|global|const|shared)(?P<words>(?:\s*\.\w+(?:\s+\d+\b)?)*)\s+(?P<name>[\w$%]+)"
    r"(?P<sizes>(?:\s*\[\s*\d*\s*\])*)\s*(?P<values>(?:=[^;]*)?)"
)
ELEMENT = re.compile(r"(?:\.v(?P<count>[248])\s*)?\.(?P<letter>[bfsu])(?P<bits>8|16|32|64)\b")
FLOAT = re.compile(r"0[fF](?P<single>\w{8})|0[dD](?P<double>\w{16})|-?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?")
"""A floating-point literal (4.5.2): its bits in hexadecimal, or a decimal."""
TOKEN = re.compile(
    r"(?P<skip>\s+|\.(?:file|version|target|address_size)\b[^\n]*)"
    r"|\.loc\s+(?P<file>\d+)\s+(?P<row>\d+)\s+(?P<column>\d+)(?:[^\n]*inlined_at\s+(?P<caller>\d+ \d+ \d+))?[^\n]*"
    r"|(?P<label>[\w$]+):(?!:)"
    r"|(?P<brace>[{}])"
)
LIBRARY = r"/triton/(language|experimental)/"
"""A part of the paths of Triton's own functions. Code that is inlined from there goes by the line that calls it."""
CALLED = r"(\.loc\s+(\d+) [^\n/]*)//([^\n]*@\[[^\n]*)"
"""Before Triton 3.9 only a comment says which line calls: // standard.py:229:27 @[ mine.py:57:15 ]"""
NAME = re.compile(r"(?<![\w.%$:])%?[A-Za-z_$][\w$]*")
LABEL = re.compile(r"(?:^|[\s;{])([A-Za-z_$][\w$]*):(?!:)")


@dataclass(frozen=True, slots=True)
class Instruction:
    op: str
    """The opcode with its modifiers: ld.global.v4.b32"""
    args: tuple[str, ...]
    guard: str | None = None
    """The predicate register that says which lanes execute it, with ! before it where it is negated."""
    line: int = 0
    """Its line in the PTX."""
    source: str = ""
    """file.py:line, its place in the kernel's source: the first line of a statement over several."""

    @property
    def place(self) -> str:
        return self.source or f"PTX line {self.line}"

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        source = f" ({self.source})" if self.source else ""
        return f"PTX line {self.line}{source}: {guard}{self.op} {', '.join(self.args)}"


@dataclass(frozen=True)
class Function:
    """A function that is called: the number of its first instruction, and the names of its parameters and results."""

    start: int
    parameters: tuple[str, ...]
    results: tuple[str, ...]


@dataclass
class Kernel:
    name: str
    parameters: dict[str, "Variable"]
    """In their order."""
    block: tuple[int, int, int]
    registers_a_thread: int
    """.maxnreg, or 0 where the PTX says nothing."""
    cluster: int = 1
    """CTAs of a cluster, all along x."""
    code: list[Instruction] = field(default_factory=list)
    """The instructions of the entry, then those of its functions."""
    labels: dict[str, int] = field(default_factory=dict)
    """The number of the instruction behind each label."""
    kinds: dict[str, str] = field(default_factory=lambda: {"CC.CF": "pred"})
    """Types of registers, by name: b32, pred, ..."""
    vectors: dict[str, str] = field(default_factory=dict)
    """The registers of each vector that was declared as one, in braces."""
    targets: dict[str, list[str]] = field(default_factory=dict)
    """The labels of each .branchtargets, by its own label."""
    functions: dict[str, Function] = field(default_factory=dict)
    locals: dict[str, tuple[int, int]] = field(default_factory=dict)
    """First byte and size of each variable that a thread has for itself: .local, and .param of calls."""
    shared: dict[str, int] = field(default_factory=dict)
    """First byte of each variable in shared memory."""
    shared_bytes: int = 0
    """Bytes of these variables, without those whose size the launch says."""
    globals: dict[str, bytes] = field(default_factory=dict)
    """Contents of the module's variables, .global and .const."""
    paths: dict[str, str] = field(default_factory=dict)
    """The path of the file for each `source` of an instruction."""
    local_bytes: int = 0
    scopes: int = 0
    """The number of blocks in braces so far. A block's number tells its names apart from those of other blocks."""

    @property
    def threads(self) -> int:
        return math.prod(self.block)

    def loops(self) -> list[tuple[int, int]]:
        """First and last instruction of each loop: the target of a branch that goes back, and the branch."""
        loops = []
        for at, inst in enumerate(self.code):
            if inst.op.startswith("bra") and self.labels[inst.args[0]] < at:
                loops.append((self.labels[inst.args[0]], at))
        return loops


def operands(text: str) -> tuple[str, ...]:
    """The parts between commas, other than commas inside brackets.

    >>> operands("{%r1, %r2}, [%rd1+8], 4")
    ('{%r1, %r2}', '[%rd1+8]', '4')
    """
    parts = re.findall(r"(?:[^,{\[(]|\{[^}]*\}|\[(?:[^\[\]{]|\{[^}]*\})*\]|\([^)]*\))+", text)
    return tuple(filter(None, map(str.strip, parts)))


def parse(text: str, entry: str | None = None, block: Sequence[int] = ()) -> Kernel:
    """Read one kernel in `text`: the one named `entry`, or the only one. `block` is its size where it has no .reqntid.

    Raises ValueError where the arguments are wrong, and UnknownError where the PTX has a form that this machine does
    not read.
    """
    files = dict(re.findall(r'\.file\s+(\d+)\s+"([^"]+)"', text))
    # LLVM counts lines inside of inline assembly as if they were the kernel's.
    inline = re.compile("// begin inline asm.*?// end inline asm", re.DOTALL)
    text = inline.sub(lambda m: m[0].replace(".loc", "//"), text)
    text = re.sub(CALLED, lambda m: _calling(m, files), text)
    text = re.sub(r"\n\s*\.section\b.*", "\n", text, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    variables = []
    dynamic = []
    entries = {}
    functions = {}
    position = 0
    while match := TOP.search(text, position):
        start = match.start()
        position = _first("{;", text, match.end())
        if match[1] not in ("entry", "func"):
            position = _first(";", text, position)
            is_dynamic = match[1] == "shared" and text[:start].rstrip().endswith(".extern")
            (dynamic if is_dynamic else variables).extend(variables_in(text[start:position]))
        elif text[position] == "{":  # else it is only declared
            head = FUNCTION.match(text[start:position])
            body = position + 1
            position = _closing(text, position)
            bodies = entries if match[1] == "entry" else functions
            bodies[head["name"]] = head, text[body:position], text.count("\n", 0, body) + 1
    name = entry or ", ".join(entries)
    if name not in entries:
        raise ValueError(f"entry {entry}: the PTX has {', '.join(entries) or 'none'}")
    head, body, line = entries[name]
    kernel = _head(head, block)
    names = ChainMap({OWN: ""})
    for variable in variables:
        _add(kernel, variable, names)
    _body(kernel, body, line, files, names)
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
    """The .loc of code that is inlined from Triton's own functions, changed to the line that calls them. Any other .loc
    stays as it is."""
    directive, number, comment = match.groups()
    if re.search(LIBRARY, files.get(number, "")):
        numbers = {path.rpartition("/")[2]: number for number, path in files.items() if not re.search(LIBRARY, path)}
        for name, row, column in re.findall(r"@\[ ([^\s:]+):(\d+):(\d+)", comment):
            if name in numbers:
                return f".loc {numbers[name]} {row} {column}"
    return directive


def statements(path: str) -> dict[int, ast.stmt]:
    """The innermost statement at each line of a Python file. The lines of a statement with a body end before the body.

    Empty for a file of another language.
    """
    linecache.checkcache(path)
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return {}
    by_line = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            for line in range(node.lineno, max(last, node.lineno) + 1):
                by_line[line] = node
    return by_line


def _first(characters: str, text: str, position: int) -> int:
    if match := re.compile(f"[{characters}]").search(text, position):
        return match.start()
    raise UnknownError(f"PTX line {text.count(chr(10), 0, position) + 1}: nothing ends what begins here")


def _closing(text: str, position: int) -> int:
    """Where the brace that opens at `position` closes."""
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
    """The type of an element: u32, f16, ..."""
    is_array: bool
    size: int
    """The bytes of the whole variable."""
    alignment: int
    values: str

    @property
    def form(self) -> str:
        return f"{self.size} bytes" if self.is_array else self.kind


def variables_in(text: str) -> Iterator[Variable]:
    for match in VARIABLE.finditer(text):
        element = ELEMENT.search(match["words"])
        if not element:
            raise UnknownError(f"the variable {' '.join(match[0].split()):.60} has no form that this machine knows")
        sizes = re.findall(r"\[\s*(\d*)", match["sizes"])
        unit = int(element["bits"]) // 8 * int(element["count"] or 1)
        given = re.search(r"\.align\s+(\d+)", match["words"])
        yield Variable(
            space=match["space"],
            name=match["name"],
            kind=element["letter"] + element["bits"],
            is_array=bool(sizes or element["count"]),
            size=unit * math.prod(int(size or 0) for size in sizes),
            alignment=int(given[1]) if given else unit,
            values=match["values"],
        )


def _initialised(variable: Variable) -> bytes:
    width = int(variable.kind[1:])
    contents = b""
    for number in re.sub(r"[={}\s]", "", variable.values).split(","):
        try:
            value = literal_bits(number or "0", width)
        except UnknownError:
            message = f"{variable.name} is initialised by something else than numbers: {number}"
            raise UnknownError(message) from None
        contents += value.to_bytes(width // 8, "little")
    if variable.values.count("{") > 1 and len(contents) < variable.size:
        raise UnknownError(f"{variable.name} is initialised in part, in braces inside of braces")
    return contents.ljust(variable.size, b"\0")


def literal_bits(text: str, width: int) -> int:
    """The bits of a literal of this width (4.5)."""
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
    number = np.frombuffer(bytes.fromhex(digits), f">f{len(digits) // 2}")[0] if digits else float(literal[0])
    size = width // 8
    with np.errstate(over="ignore"):
        return int(np.array(number, f"f{size}").view(f"u{size}"))


OWN = "@"
"""A key among the names of a block. Its value is appended to each name that the block declares, so that the name is no
other block's; "" for the entry itself."""


def _block(kernel: Kernel, text: str, outer: ChainMap) -> ChainMap:
    """The names of a block in braces: at first its labels, which may be used before they are defined."""
    kernel.scopes += 1
    names = outer.new_child({OWN: f"@{kernel.scopes}"})
    for label in LABEL.findall(text):
        names[label] = label + names[OWN]
    return names


def _declare(kernel: Kernel, text: str, names: ChainMap) -> None:
    """Give the registers of a declaration their type, or its variable a place."""
    if not text.startswith(".reg"):
        (variable,) = variables_in(text)
        _add(kernel, variable, names)
        return
    parts, kind, registers = re.match(r"\.reg ?(?:\.v([24]) ?)?\.(\w+) (.*)", text).groups()
    for base, count in re.findall(r"([%\w$]+)(?:<(\d+)>)?", registers):
        numbers = range(int(count)) if count else [""]
        for number in numbers:
            register = f"{base}{number}"
            name = names[register] = register + names[OWN]
            if parts:
                parts_of = [f"{name}.{letter}" for letter in "xyzw"[: int(parts)]]
                kernel.vectors[name] = f"{{{', '.join(parts_of)}}}"
            for part in parts_of if parts else [name]:
                kernel.kinds[part] = kind


def _function(kernel: Kernel, head: re.Match, body: str, line: int, files: dict[str, str]) -> None:
    """Add a function that is called, as a block."""
    names = _block(kernel, body, ChainMap())
    places = {}
    for group in ("parameters", "results"):
        variables = variables_in(head[group] or "")
        places[group] = tuple(_add(kernel, variable, names) for variable in variables)
    kernel.functions[head["name"]] = Function(len(kernel.code), **places)
    _body(kernel, body, line, files, names)


def _aligned(at: int, alignment: int) -> int:
    return -(-at // alignment) * alignment


def _add(kernel: Kernel, variable: Variable, names: ChainMap) -> str:
    """Give a variable of a block its place, and return its name in the kernel."""
    name = names[variable.name] = variable.name + names[OWN]
    if variable.space in ("global", "const"):
        kernel.globals[name] = _initialised(variable)
    elif variable.space == "shared":
        kernel.shared[name] = _aligned(kernel.shared_bytes, variable.alignment)
        kernel.shared_bytes = kernel.shared[name] + variable.size
    else:
        kernel.locals[name] = kernel.local_bytes, variable.size
        kernel.local_bytes += _aligned(variable.size, 16)
    return name


def _body(kernel: Kernel, text: str, line: int, files: dict[str, str], names: ChainMap) -> None:
    position = 0
    source = ""
    callers = {}
    spans = {}
    while position < len(text):
        token = TOKEN.match(text, position)
        end = token.end() if token else _first(";", text, position) + 1
        if not token:
            statement = " ".join(text[position : end - 1].split())
            _statement(kernel, statement, line + text.count("\n", position, end), source, names)
        elif token["row"] and token["row"] != "0":  # row 0 is no line: then the line before is nearest
            place = token["file"], token["row"], token["column"]
            callers[place] = tuple((token["caller"] or "").split())
            while callers.get(place) and re.search(LIBRARY, files.get(place[0], "")):
                place = callers[place]
            path = files.get(place[0], "?")
            if path not in spans:
                spans[path] = statements(path)
            row = int(place[1])
            row = getattr(spans[path].get(row), "lineno", row)
            source = f"{path.rpartition('/')[2]}:{row}"
            kernel.paths[source] = path
        elif token["label"]:
            label = names.get(token["label"], token["label"])
            kernel.labels[label] = len(kernel.code)
        elif token["brace"] == "{":
            names = _block(kernel, text[end : _closing(text, end - 1)], names)
        elif token["brace"] == "}":
            names = names.parents
        line += text.count("\n", position, end)
        position = end


def _head(head: re.Match, block: Sequence[int]) -> Kernel:
    name = head["name"]
    numbers = {}
    for directive, digits in re.findall(r"\.(reqntid|maxntid|maxnreg|reqnctapercluster)\s+([\d\s,]+)", head.string):
        numbers[directive] = [*map(int, digits.split(","))]
    required = numbers.get("reqntid")
    most = numbers.get("maxntid")
    clusters = numbers.get("reqnctapercluster", [1])
    if not (required or block):
        raise UnknownError(f"{name} has no .reqntid, by which this machine knows its threads")
    threads = (*(block or required), 1, 1)[:3]
    if (required and threads != (*required, 1, 1)[:3]) or (most and math.prod(threads) > math.prod(most)):
        raise ValueError(f"the block {threads}: {name} has .reqntid {required or 'none'}, .maxntid {most or 'none'}")
    if max(clusters[1:], default=1) > 1:
        raise UnknownError(f"{name} has clusters of more than one dimension")
    parameters = {variable.name: variable for variable in variables_in(head.string)}
    return Kernel(name, parameters, threads, numbers.get("maxnreg", [0])[0], clusters[0])


def _statement(kernel: Kernel, text: str, line: int, source: str, names: ChainMap) -> None:
    try:
        if text.startswith((".reg", ".local", ".param", ".shared")):
            _declare(kernel, text, names)
            return
        if names[OWN]:  # else the block's names are the kernel's
            text = NAME.sub(lambda m: names.get(m[0], m[0]), text)
        if text.startswith(".branchtargets"):
            labels = text.removeprefix(".branchtargets").split(",")
            kernel.targets[[*kernel.labels][-1]] = [*map(str.strip, labels)]
        elif text and not text.startswith(".pragma"):
            guard, op, rest = re.match(r"(?:@(!?[\w%$@]+) )?(\S+) ?(.*)", text).groups()
            if op.startswith("."):
                raise UnknownError(f"PTX line {line}: {op} is no directive that this machine knows")
            args = tuple(kernel.vectors.get(operand, operand) for operand in operands(rest))
            kernel.code.append(Instruction(op, args, guard, line, source))
    except (AttributeError, IndexError, TypeError, ValueError):
        raise UnknownError(f"PTX line {line}: {text:.60} has no form that this machine knows") from None
