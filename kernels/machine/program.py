"""A kernel made ready to run: each run of arithmetic one Python function, every other instruction a function of a warp.

An *effect* is an instruction that others may notice or that waits: a function of a warp which returns None once it is
done, or, where the warp has to wait, what must hold before it is tried again. Families of effects stand in files of
their own.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .alu import LANES, NAMES, bits, names_in, numpy_name, value
from .memory import EMPTY
from .order import FaultError
from .ptx import Instruction, Kernel, UnknownError, literal_bits

LANE = np.arange(LANES, dtype=np.uint32)
ALL_LANES, NO_LANES = (np.full(LANES, is_on).tobytes() for is_on in (True, False))  # masks, the fastest way to tell
Ready = Callable[[], bool]
"""Whether a warp that waits may go on: most often an `Until`."""
Effect = Callable[[Any], Ready | None]
MAKERS: dict[str, Callable[["Program", Instruction], Effect]] = {}
WINDOW_BITS = 24  # of a shared address: where in its CTA's shared memory; above them is the CTA's rank in the cluster
IN_LOOPS = 16  # mbarriers at most that one instruction initialises, where it is in a loop
QUIET: set[str] = set()
"""What nobody else notices: the scheduler need not look after them."""

SPECIAL_ROWS = """
%tid.* | w.program.tid[w.number][#]
%ntid.* | full(w.program.block[#])
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
"""Special registers (10), and their source in Python: of x, y and z where a row has *, numbered by #."""
for _row in SPECIAL_ROWS.strip().splitlines():
    _name, _source = _row.split(" | ")
    for _number, _axis in enumerate("xyz"):
        SPECIAL[_name.replace("*", _axis)] = _source.replace("#", str(_number))


def full(number: int, dtype=np.uint32) -> np.ndarray:
    array = np.empty(LANES, dtype)
    array.fill(number)
    return array


def lanes_of(w) -> np.ndarray:
    """The lanes that take part."""
    return np.arange(LANES) if w.mask is None else np.flatnonzero(w.mask)


def check_whole(w) -> None:
    if w.mask is not None:
        raise FaultError("not all lanes of the warp take part in it")


def effect(*opcodes: str, operands: str = "", quiet: bool = False) -> Callable:
    """Register a function of a warp, the instruction and its operands for these opcodes. `operands` says what becomes
    of each: of a type its value, of =type what writes it (both functions of a warp), of @ addresses, of S those in the
    CTA's own shared memory, of # a number, of * the text; with a ? behind it may be missing."""

    def register(function: Callable) -> Callable:
        def maker(program: "Program", inst: Instruction) -> Effect:
            given = program.given(inst.args, operands.split())
            return lambda w: function(w, inst, *given)

        family(*opcodes, quiet=quiet)(maker)
        return function

    return register


def family(*words: str, quiet: bool = False) -> Callable:
    """Register a maker, (program, instruction) -> Effect, for opcodes, or for all that begin with such words: the
    longest that fits decides."""

    def register(maker: Callable) -> Callable:
        MAKERS.update(dict.fromkeys(words, maker))
        QUIET.update(words if quiet else ())
        return maker

    return register


class Until(NamedTuple):
    """What a warp waits for, and what that is in words."""

    holds: Ready
    words: Callable[[], str]

    def __call__(self) -> bool:
        return self.holds()

    def __str__(self) -> str:
        return self.words()


@dataclass(slots=True)
class Step:
    """An instruction, or a run of `count` of them that are arithmetic."""

    run: Callable
    count: int = 0
    """0: an effect."""
    guard: Callable | None = None
    """Of a warp: the lanes that take part."""
    visible: bool = False
    together: bool = False
    """All lanes of a warp execute it at once."""
    targets: tuple[int, ...] = ()
    """Registers that a run writes."""


class Program:
    """Raises UnknownError for what the machine does not know, by name."""

    def __init__(self, kernel: Kernel, shared_bytes: int):
        self.kernel, self.shared_bytes, self.threads, self.block = kernel, shared_bytes, kernel.threads, kernel.block
        self.warps, self.cluster = -(-self.threads // LANES), kernel.cluster
        self.clusters = self.cluster, 1, 1
        jumps = [(kernel.labels[inst.args[0]], at) for at, inst in enumerate(kernel.code) if inst.op.startswith("bra")]
        inits = [at for at, inst in enumerate(kernel.code) if inst.op.startswith("mbarrier.init")]
        self.barriers = sum(IN_LOOPS if any(start <= at <= end for start, end in jumps) else 1 for at in inits)
        self.agents = 5 * self.warps + self.barriers
        """Of a CTA: its warps; their wgmma; reads, then writes, of their bulk stores; their cp.async; its mbarriers."""
        self.numbers: dict[str, int] = {}
        self.constants: list[np.ndarray] = []
        self.names = NAMES | dict(c=self.constants, full=full, LANE=LANE, BIT=1 << LANE)
        self.steps: list[Step | None] = [None] * len(kernel.code)
        self._compile()
        threads = np.arange(self.warps * LANES, dtype=np.uint32).reshape(-1, LANES)
        x, y, _ = self.block
        self.tid = [*zip(threads % x, threads // x % y, threads // (x * y), strict=True)]
        """Of each warp the x, y and z of its lanes."""
        self.local = np.full((LANES, kernel.local_bytes), EMPTY, np.uint8)
        self.empty = [
            np.zeros(LANES, bool) if kind == "pred" else full(-1 % 2 ** bits(kind), numpy_name(f"u{bits(kind)}"))
            for kind in map(kernel.kind, self.numbers)
        ]

    def _compile(self) -> None:
        starts, run = set(self.kernel.labels.values()), []
        starts |= {function.start for function in self.kernel.functions.values()}
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
        """Make one function of a run. Line n + 2 of it is instruction n: so a fault finds its way back."""
        text = "def run(w):\n" + "".join(f" {line}\n" for _, line, _ in run)
        names = dict(self.names)
        exec(compile(text, "<run>", "exec"), names)
        targets = dict.fromkeys(self.register(name) for *_, targets in run for name in targets)
        self.steps[run[0][0]] = Step(names["run"], len(run), targets=tuple(targets))

    def _arithmetic(self, inst: Instruction) -> tuple[str, list[str]] | None:
        """Return the line of Python that an instruction becomes, and the registers that it writes."""
        if (assignments := value(inst, self.read)) is None:
            return None
        guard = self.read(inst.guard, "pred") if inst.guard else None
        lines = [self._assignment(*assignment, guard) for assignment in assignments]
        if len(assignments) > 1:  # all is read before anything is written
            names = [f"v{number}" for number in range(len(assignments))]
            lines = [f"{', '.join(names)}, guard = {', '.join(source for *_, source in assignments)}, {guard}"] + [
                self._assignment(target, kind, name, "guard" if guard else None)
                for (target, kind, _), name in zip(assignments, names, strict=True)
            ]
        return "; ".join(lines), [name for name, *_ in assignments if name != "_"]

    def _assignment(self, name: str, kind: str, source: str, guard: str | None) -> str:
        if name == "_":
            return "pass"
        place, declared = f"w.r[{self.register(name)}]", self.kernel.kind(name)
        storage = numpy_name("pred" if declared == "pred" else f"u{bits(declared)}")
        if numpy_name(kind) != storage:
            change = "view" if bits(kind) == bits(declared) else "astype"
            source = f"({source}).{change}({storage})"
        return f"{place} = where({guard}, {source}, {place})" if guard else f"{place} = {source}"

    def _effect(self, inst: Instruction) -> Step:
        words = inst.op.split(".")
        prefixes = (".".join(words[:count]) for count in range(len(words), 0, -1))
        if (word := next((prefix for prefix in prefixes if prefix in MAKERS), None)) is None:
            raise UnknownError("no instruction that this machine knows")
        guard = self.get(inst.guard, "pred") if inst.guard else None
        together = words[0] in ("bar", "barrier") or not {"sync", "aligned"}.isdisjoint(words)
        return Step(MAKERS[word](self, inst), 0, guard, word not in QUIET, together)

    # Operands.

    def register(self, name: str) -> int:
        if self.kernel.kind(name) is None:
            raise UnknownError(f"{name} is no register")
        return self.numbers.setdefault(name, len(self.numbers))

    def read(self, text: str, kind: str) -> str:
        """Return the source of an operand's value."""
        if text.startswith("!"):
            return f"~{self.read(text[1:], 'pred')}"
        if text in SPECIAL:
            return SPECIAL[text]
        name, _, offset = text.partition("+")
        if (address := self.symbol(name)) and kind != "pred":
            return f"full({address} + {int(offset or '0', 0)}, i8).astype({numpy_name(kind)})"
        wanted = numpy_name(kind)
        if declared := self.kernel.kind(text):
            source = f"w.r[{self.register(text)}]"
            if (declared == "pred") != (kind == "pred"):
                raise UnknownError(f"{text} is a .{declared}, not a .{kind}")
            if bits(declared) != bits(kind):  # the low bits, or with zeros above
                source += f".astype(u{bits(kind) // 8})"
            return source if wanted in ("b1", f"u{bits(kind) // 8}") else f"{source}.view({wanted})"
        self.constants.append(_constant(text, kind))
        return f"c[{len(self.constants) - 1}]"

    def symbol(self, name: str) -> str | None:
        """Return the source of the address of a variable or of a parameter; None of what is neither."""
        if name in self.kernel.globals:
            return f"w.cta.launch.symbols[{name!r}]"
        if name in self.kernel.parameters:
            return f"w.cta.launch.addresses[{name!r}]"
        if name in self.kernel.shared:
            return f"{self.kernel.shared[name]}" + f" + (w.cta.rank << {WINDOW_BITS})" * (self.cluster > 1)
        return str(self.kernel.locals[name][0]) if name in self.kernel.locals else None

    def get(self, text: str, kind: str) -> Callable[[Any], np.ndarray]:
        """Of a warp: an operand's value."""
        return eval(f"lambda w: {self.read(text, kind)}", self.names)

    def put(self, name: str, kind: str) -> Callable[[Any, np.ndarray], None]:
        """Of a warp and a value: write it to a register, in the lanes that take part."""
        whole = self._assignment(name, kind, "value", None)
        lines = f"def put(w, value):\n if w.mask is None: {whole}\n"
        if name != "_":
            place = f"w.r[{self.register(name)}]"
            lines += f" else:\n  before = {place}; {whole}; {place} = where(w.mask, {place}, before)\n"
        names = dict(self.names)
        exec(lines, names)
        return names["put"]

    def given(self, texts: Sequence[str], kinds: Sequence[str]) -> list:
        """Operands, as `effect` has them."""
        if not sum(not kind.endswith("?") for kind in kinds) <= len(texts) <= len(kinds):
            raise UnknownError(f"{len(texts)} operands")
        ways = {"@": self.address, "S": self.shared_address, "#": lambda text: int(text, 0), "*": str}
        operands: list = [None] * len(kinds)
        for i, (text, kind) in enumerate(zip(texts, (kind.rstrip("?") for kind in kinds), strict=False)):
            if kind in ways:
                operands[i] = ways[kind](text)
            else:
                operands[i] = self.put(text, kind[1:]) if kind[0] == "=" else self.get(text, kind)
        return operands

    def gets(self, vector: str, kind: str) -> list[Callable]:
        return [self.get(name, kind) for name in names_in(vector)]

    def puts(self, vector: str, kind: str) -> list[Callable]:
        return [self.put(name, kind) for name in names_in(vector)]

    def address(self, text: str) -> Callable[[Any], np.ndarray]:
        """Of a warp: the addresses, int64, that `[register + offset]` or `[number]` stands for."""
        match = re.fullmatch(r"\[\s*([%\w$@]+)\s*(?:\+\s*(-?\w+))?\s*\]", text)
        if not match:
            raise UnknownError(f"address {text} is unknown")
        base, offset = match[1], int(match[2] or "0", 0)
        start = base if base.isdigit() else self.symbol(base)
        if start and " " not in start and "w." not in start:
            fixed = np.full(LANES, int(start) + offset, np.int64)
            return lambda w: fixed
        if start:
            return eval(f"lambda w: full({start} + {offset}, i8)", self.names)
        self.register(base)
        register = self.get(base, f"b{bits(self.kernel.kind(base))}")
        if bits(self.kernel.kind(base)) == 32:  # the sum has 32 bits too
            return lambda w: (register(w) + np.uint32(offset % 2**32)).view(np.int32).astype(np.int64)
        if not offset:
            return lambda w: register(w).view(np.int64)
        return lambda w: register(w).view(np.int64) + offset

    def shared_address(self, text: str) -> Callable[[Any], np.ndarray]:
        """Of a warp: where in its own CTA's shared memory the addresses lie."""
        get = self.address(text)
        return get if self.cluster == 1 else lambda w: get(w) - (w.cta.rank << WINDOW_BITS)

    def fault_at(self, step: int, error: BaseException) -> Instruction:
        """Return the instruction that raised: of an effect this one, of a run it or one behind it."""
        trace, line = error.__traceback__, 2
        while trace:
            if trace.tb_frame.f_code.co_filename == "<run>":
                line = trace.tb_lineno
            trace = trace.tb_next
        return self.kernel.code[step + line - 2]


def _constant(text: str, kind: str) -> np.ndarray:
    if kind == "pred":
        return np.full(LANES, literal_bits(text, 32) != 0)
    array = full(literal_bits(text, bits(kind)), numpy_name(f"u{bits(kind)}")).view(numpy_name(kind))
    array.flags.writeable = False
    return array


def uniform(w, values: np.ndarray, about: str) -> int:
    """Return what all lanes that take part agree on."""
    values = values if w.mask is None else values[w.mask]
    if values.tobytes() != values[:1].tobytes() * len(values):
        raise FaultError(f"{about} differs between the lanes of a warp")
    return int(values[0])
