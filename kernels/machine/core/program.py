"""A kernel made ready to run: each run of arithmetic is one Python function, every other instruction an effect.

An *effect* is an instruction that other agents may notice, or that waits. It is a function of a warp. It returns None
once it is done, or, where the warp has to wait, the condition that must hold before it is tried again. Families of
effects stand in files of their own.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .faults import FaultError, UnknownError
from .memory import EMPTY
from .order import Agent
from .ptx import Instruction, Kernel, literal_bits
from .registers import LANES, NAMES, bits, names_in, numpy_name

LANE = np.arange(LANES, dtype=np.uint32)
EACH = np.arange(LANES)
ALL_LANES = np.ones(LANES, bool).tobytes()  # masks as bytes, which are the fastest to compare
NO_LANES = np.zeros(LANES, bool).tobytes()
Ready = Callable[[], bool]
"""A condition that a warp waits for: whether it may go on. Most often it is an `Until`."""
Effect = Callable[[Any], Ready | None]
Get = Callable[[Any], np.ndarray]
"""A function of a warp that gives the value of an operand."""
MAKERS: dict[str, tuple[Callable[["Program", Instruction], Effect], bool]] = {}
"""Makers of effects by opcode, and whether nobody else notices these effects. If so, the scheduler need not look after
them."""
TRANSLATORS: list[Callable] = []
"""Functions that turn arithmetic into Python: (instruction, `Program.read`) -> the target, the type and the source of
each result; None for another instruction."""
TOGETHER = {"sync", "aligned", "bar", "barrier"}
"""Words in the opcodes of instructions that all lanes of a warp execute together."""
WINDOW_BITS = 24  # the lowest of a shared address: an offset in a CTA's memory; above is its rank in the cluster
IN_LOOPS = 16  # the most mbarriers that one instruction in a loop initialises

SPECIAL_ROWS = """
%tid.* | w.program.tid[w.number][#]
%ntid.* | full(w.program.kernel.block[#])
%ctaid.* | full(w.cta.place[#])
%nctaid.* | full(w.cta.launch.shape[#])
%clusterid.* | full(w.cta.place[#] // w.program.clusters[#])
%nclusterid.* | full(w.cta.launch.shape[#] // w.program.clusters[#])
%cluster_ctaid.* | full(w.cta.place[#] % w.program.clusters[#])
%cluster_nctaid.* | full(w.program.clusters[#])
%cluster_ctarank | full(w.cta.rank)
%cluster_nctarank | full(w.program.cluster)
%laneid | LANE
%warpid | full(w.number)
%smid | full(w.cta.number % w.cta.machine.sms)
%nsmid | full(w.cta.machine.sms)
%lanemask_eq | BIT
%lanemask_lt | BIT - 1
%lanemask_le | BIT + BIT - 1
%lanemask_gt | -BIT - BIT
%lanemask_ge | -BIT
%dynamic_smem_size | full(w.program.shared_bytes - w.program.kernel.shared_bytes)
%clock | full(w.cta.machine.cycles % 2**32)
%clock64 | full(w.cta.machine.cycles, u8)
%globaltimer | full(w.cta.machine.time_ns, u8)
"""
SPECIAL = {}
"""The Python source of each special register (10). A row with * is for x, y and z, which # numbers."""
for _row in SPECIAL_ROWS.strip().splitlines():
    _name, _source = _row.split(" | ")
    for _number, _axis in enumerate("xyz"):
        SPECIAL[_name.replace("*", _axis)] = _source.replace("#", str(_number))


def storage(kind: str) -> str:
    """The name in `NAMES` of how registers of a type are kept: unsigned, or bool for a predicate."""
    return numpy_name("pred" if kind == "pred" else f"u{bits(kind)}")


def full(number: int, dtype=np.uint32) -> np.ndarray:
    array = np.empty(LANES, dtype)
    array.fill(number)
    return array


def lanes_of(w) -> np.ndarray:
    """The numbers of the active lanes."""
    return EACH if w.mask is None else np.flatnonzero(w.mask)


def check_whole(w) -> None:
    if w.mask is not None:
        raise FaultError("not all lanes of the warp take part in it")


def effect(*opcodes: str, operands: str = "", quiet: bool = False) -> Callable:
    """Register `function(w, inst, *operands)` for opcodes, where `w` is a warp.

    `operands` has a word for each operand, which says what the function gets. A type: a function of a warp that gives
    the value. =type: one that writes the value. @: one that gives addresses. S: one that gives addresses in the CTA's
    own shared memory. #: a number. *: the text. An operand with a ? behind its word may be missing.
    """

    def register(function: Callable) -> Callable:
        def maker(program: "Program", inst: Instruction) -> Effect:
            given = program.given(inst.args, operands.split())
            return lambda w: function(w, inst, *given)

        family(*opcodes, quiet=quiet)(maker)
        return function

    return register


def family(*words: str, quiet: bool = False) -> Callable:
    """Register a maker, (program, instruction) -> Effect, for opcodes, or for all opcodes that begin with these words.
    The longest that fits decides."""

    def register(maker: Callable) -> Callable:
        for word in words:
            MAKERS[word] = maker, quiet
        return maker

    return register


class Until(NamedTuple):
    """The condition that a warp waits for, and what that is in words."""

    holds: Ready
    words: Callable[[], str]

    def __call__(self) -> bool:
        return self.holds()

    def __str__(self) -> str:
        return self.words()


@dataclass(slots=True)
class Step:
    """An effect, or a run of `count` instructions of arithmetic."""

    run: Callable
    count: int = 0
    """0 for an effect."""
    guard: Callable | None = None
    """A function of a warp that gives the lanes for which the guard predicate holds."""
    visible: bool = False
    together: bool = False
    """Whether all lanes of a warp execute it together."""
    targets: tuple[int, ...] = ()
    """The registers that a run of arithmetic writes."""


class Program:
    """A kernel that is ready to run. Raises UnknownError for what the machine does not know, by name."""

    def __init__(self, kernel: Kernel, shared_bytes: int):
        self.kernel = kernel
        self.shared_bytes = shared_bytes
        self.threads = kernel.threads
        self.warps = -(-self.threads // LANES)
        self.cluster = kernel.cluster
        self.clusters = kernel.cluster, 1, 1
        loops = kernel.loops()
        self.barriers = 0
        for number, inst in enumerate(kernel.code):
            if inst.op.startswith("mbarrier.init"):
                is_repeated = any(start <= number <= end for start, end in loops)
                self.barriers += IN_LOOPS if is_repeated else 1
        self.agents = Agent.MBARRIER * self.warps + self.barriers
        """The number of agents of a CTA."""
        self.numbers: dict[str, int] = {}
        self.constants: list[np.ndarray] = []
        self.names = NAMES | dict(c=self.constants, full=full, LANE=LANE, BIT=1 << LANE)
        self.steps: list[Step | None] = [None] * len(kernel.code)
        self._compile()
        threads = np.arange(self.warps * LANES, dtype=np.uint32).reshape(-1, LANES)
        x, y, _ = kernel.block
        self.tid = [*zip(threads % x, threads // x % y, threads // (x * y), strict=True)]
        """The x, y and z of each warp's lanes."""
        self.local = np.full((LANES, kernel.local_bytes), EMPTY, np.uint8)
        self.empty = []
        for kind in map(kernel.kinds.get, self.numbers):
            start = 0 if kind == "pred" else -1 % 2 ** bits(kind)
            self.empty.append(full(start, storage(kind)))

    def _compile(self) -> None:
        starts = set(self.kernel.labels.values())
        starts.update(function.start for function in self.kernel.functions.values())
        run = []
        for number, inst in enumerate(self.kernel.code):
            try:
                arithmetic = self._arithmetic(inst)
                if run and (arithmetic is None or number in starts):
                    self._close(run)
                    run = []
                if arithmetic is not None:
                    run.append((number, *arithmetic))
                else:
                    self.steps[number] = self._effect(inst)
            except UnknownError as error:
                raise UnknownError(f"{inst}: {error}") from None
            except (AttributeError, IndexError, KeyError, TypeError, ValueError):
                raise UnknownError(f"{inst}: operands that this machine does not know") from None
        if run:
            self._close(run)

    def _close(self, run: list[tuple[int, str, list[str]]]) -> None:
        """Make one function of a run. Its line n + 2 is instruction n, by which `fault_at` finds the instruction."""
        lines = ["def run(w):"]
        targets = {}  # in their order
        for _, line, names in run:
            lines.append(f" {line}")
            targets |= dict.fromkeys(map(self.register, names))
        function = self._executed("\n".join(lines), "run")
        first, *_ = run[0]
        self.steps[first] = Step(function, len(run), targets=tuple(targets))

    def _executed(self, text: str, name: str) -> Callable:
        """The function of this name that a text of Python defines."""
        names = dict(self.names)
        exec(compile(text, f"<{name}>", "exec"), names)
        return names[name]

    def _arithmetic(self, inst: Instruction) -> tuple[str, list[str]] | None:
        """The line of Python that an instruction becomes, and the registers that it writes; None for an effect."""
        translated = (translate(inst, self.read) for translate in TRANSLATORS)
        assignments = next(filter(None, translated), None)
        if assignments is None:
            return None
        guard = self.read(inst.guard, "pred") if inst.guard else None
        targets = [name for name, *_ in assignments if name != "_"]
        if len(assignments) == 1:
            return self._assignment(*assignments[0], guard), targets
        before = [f"guard = {guard}"]  # all is read before anything is written
        after = []
        for number, (target, kind, source) in enumerate(assignments):
            before.append(f"v{number} = {source}")
            after.append(self._assignment(target, kind, f"v{number}", guard and "guard"))
        return "; ".join(before + after), targets

    def _assignment(self, name: str, kind: str, source: str, guard: str | None) -> str:
        if name == "_":
            return "pass"
        place = f"w.r[{self.register(name)}]"
        declared = self.kernel.kinds.get(name)
        if numpy_name(kind) != storage(declared):
            change = "view" if bits(kind) == bits(declared) else "astype"
            source = f"({source}).{change}({storage(declared)})"
        return f"{place} = where({guard}, {source}, {place})" if guard else f"{place} = {source}"

    def _effect(self, inst: Instruction) -> Step:
        opcode = inst.op
        while opcode not in MAKERS:
            opcode = opcode.rpartition(".")[0]
            if not opcode:
                raise UnknownError("no instruction that this machine knows")
        maker, quiet = MAKERS[opcode]
        guard = self.get(inst.guard, "pred") if inst.guard else None
        together = not TOGETHER.isdisjoint(inst.op.split("."))
        return Step(maker(self, inst), 0, guard, not quiet, together)

    # Operands.

    def register(self, name: str) -> int:
        if self.kernel.kinds.get(name) is None:
            raise UnknownError(f"{name} is no register")
        return self.numbers.setdefault(name, len(self.numbers))

    def read(self, text: str, kind: str) -> str:
        """The source of an operand's value."""
        if text.startswith("!"):
            return f"~{self.read(text[1:], 'pred')}"
        if text in SPECIAL:
            return SPECIAL[text]
        wanted = numpy_name(kind)
        name, _, offset = text.partition("+")
        address = self.symbol(name)
        if address and kind != "pred":
            return f"full({address} + {int(offset or '0', 0)}, i8).astype({wanted})"
        declared = self.kernel.kinds.get(text)
        if declared is None:
            self.constants.append(_constant(text, kind))
            return f"c[{len(self.constants) - 1}]"
        source = f"w.r[{self.register(text)}]"
        if (declared == "pred") != (kind == "pred"):
            raise UnknownError(f"{text} is a .{declared}, not a .{kind}")
        if bits(declared) != bits(kind):  # the low bits, or with zeros above
            source += f".astype({storage(kind)})"
        return source if wanted == storage(kind) else f"{source}.view({wanted})"

    def symbol(self, name: str) -> str | None:
        """The source of the address of a variable or of a parameter; None where the name is neither."""
        if name in self.kernel.globals:
            return f"w.cta.launch.symbols[{name!r}]"
        if name in self.kernel.parameters:
            return f"w.cta.launch.addresses[{name!r}]"
        if name in self.kernel.shared:
            return f"{self.kernel.shared[name]}" + f" + (w.cta.rank << {WINDOW_BITS})" * (self.cluster > 1)
        if name in self.kernel.locals:
            return str(self.kernel.locals[name][0])
        return None

    def get(self, text: str, kind: str) -> Get:
        """A function of a warp that gives an operand's value."""
        return eval(f"lambda w: {self.read(text, kind)}", self.names)

    def put(self, name: str, kind: str) -> Callable[[Any, np.ndarray], None]:
        """A function of a warp and a value that writes the value to a register, in the active lanes."""
        whole = self._assignment(name, kind, "value", None)
        lines = f"def put(w, value):\n if w.mask is None: {whole}\n"
        if name != "_":
            place = f"w.r[{self.register(name)}]"
            lines += f" else:\n  before = {place}; {whole}; {place} = where(w.mask, {place}, before)\n"
        return self._executed(lines, "put")

    def given(self, texts: Sequence[str], kinds: Sequence[str]) -> list:
        """Operands as a function gets them. `kinds` are the words that `effect` explains."""
        required = [kind for kind in kinds if not kind.endswith("?")]
        if not len(required) <= len(texts) <= len(kinds):
            raise UnknownError(f"{len(texts)} operands")
        ways = {"@": self.address, "S": self.shared_address, "#": lambda text: int(text, 0), "*": str}
        operands: list = [None] * len(kinds)
        for i, text in enumerate(texts):
            kind = kinds[i].rstrip("?")
            if kind in ways:
                operands[i] = ways[kind](text)
            elif kind.startswith("="):
                operands[i] = self.put(text, kind[1:])
            else:
                operands[i] = self.get(text, kind)
        return operands

    def gets(self, vector: str, kind: str) -> list[Callable]:
        return [self.get(name, kind) for name in names_in(vector)]

    def puts(self, vector: str, kind: str) -> list[Callable]:
        return [self.put(name, kind) for name in names_in(vector)]

    def address(self, text: str) -> Get:
        """A function of a warp that gives the addresses, int64, of `[register + offset]` or `[number]`."""
        match = re.fullmatch(r"\[\s*([%\w$@]+)\s*(?:\+\s*(-?\w+))?\s*\]", text)
        if not match:
            raise UnknownError(f"address {text} is unknown")
        base = match[1]
        offset = int(match[2] or "0", 0)
        start = base if base.isdigit() else self.symbol(base)
        if start and start.isdigit():
            fixed = np.full(LANES, int(start) + offset, np.int64)
            return lambda w: fixed
        if start:
            return eval(f"lambda w: full({start} + {offset}, i8)", self.names)
        self.register(base)
        width = bits(self.kernel.kinds.get(base))
        register = self.get(base, f"b{width}")
        if width == 32:  # the sum has 32 bits too
            return lambda w: (register(w) + np.uint32(offset % 2**32)).view(np.int32).astype(np.int64)
        if not offset:
            return lambda w: register(w).view(np.int64)
        return lambda w: register(w).view(np.int64) + offset

    def shared_address(self, text: str) -> Get:
        """A function of a warp that gives the offsets of the addresses in its own CTA's shared memory."""
        get = self.address(text)
        return get if self.cluster == 1 else lambda w: get(w) - (w.cta.rank << WINDOW_BITS)

    def fault_at(self, step: int, error: BaseException) -> Instruction:
        """The instruction that raised: the one at `step`, or in a run of arithmetic perhaps one behind it."""
        trace = error.__traceback__
        line = 2
        while trace:
            if trace.tb_frame.f_code.co_filename == "<run>":
                line = trace.tb_lineno
            trace = trace.tb_next
        return self.kernel.code[step + line - 2]


def _constant(text: str, kind: str) -> np.ndarray:
    if kind == "pred":
        return np.full(LANES, literal_bits(text, 32) != 0)
    array = full(literal_bits(text, bits(kind)), storage(kind)).view(numpy_name(kind))
    array.flags.writeable = False
    return array


def uniform(w, values: np.ndarray, about: str) -> int:
    """The value that all active lanes agree on. Raises FaultError where they do not."""
    values = values if w.mask is None else values[w.mask]
    if values.tobytes() != values[:1].tobytes() * len(values):
        raise FaultError(f"{about} differs between the lanes of a warp")
    return int(values[0])
