"""Whether a compiled kernel may load a chunk before it has read the chunk's flag: told from the text of its TTGIR.

Triton's pipeliner moves loads some iterations ahead, and knows nothing of flags. In a flat loop over K, `if k == 0:
wait(flag)` and then a load, it puts the first loads before the loop and the others ahead of the next wait: a data race
that passes most tests (seen with 3.6.0 and 3.7.1). So flagged kernels nest: a loop over chunks waits, and a loop over K
inside it loads. Only the inner loop is pipelined, and its first loads stay behind the wait.

The check is for that form, and strict: a load of the gathered operand is sound

- in a loop that reads no flag, directly inside a loop that reads one earlier in the same iteration, or
- directly in the loop that reads a flag, behind the read and ahead of all that is multiplied from then on, where that
  loop multiplies nothing itself (the first loads of the pipelined loop over K lie there).

A flat loop is a finding even where this compiler left it in order: nothing keeps the next one from it. What is beyond
a text is whether the flag is the right one, and whether a wait in a branch is taken when it has to be.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

READ = re.compile(r"\btt\.atomic_(?:rmw|cas)\b.*\b(?:acquire|acq_rel), sys\b")  # a writer elsewhere: system scope
DOT = re.compile(r"\b(?:tt\.dot|ttng\.warp_group_dot)\s")
LOOP = re.compile(r"\bscf\.(?:for|while)\b")
FROM_DESCRIPTOR = re.compile(r"\bttng\.async_tma_copy_global_to_local (%\w+)\[")
# A tensor of two dimensions and more: one that can be multiplied.
FROM_POINTERS = re.compile(r"\bttg\.async_copy_global_to_local\b|\btt\.load\b.* tensor<\d+x\d+x.*!tt\.ptr")


@dataclass(frozen=True)
class Op:
    """One operation, on one line. `place` alternates between its number in a region and the region's in the operation
    around, outermost first."""

    number: int
    text: str
    place: tuple[int, ...]
    around: tuple["Op", ...]

    @property
    def loops(self) -> list["Op"]:
        """Around it, outermost first."""
        return [op for op in self.around if LOOP.search(op.text)]


def early_loads(ttgir: str, gathered: str = "x_desc") -> list[str]:
    """A sentence for each load that may be issued before its flag was read: the line, what was expected, the way out.
    Empty: sound.

    `gathered`: the kernel's argument that is waited for, a TMA descriptor. Other arguments may be loaded at any time.
    If no descriptor of that name is an argument, every load of a matrix counts. A kernel that reads no flag, or loads
    nothing that counts, is a finding as well.
    """
    everything = list(operations(ttgir))
    reads, dots = ([op for op in everything if kind.search(op.text)] for kind in (READ, DOT))
    loads = [op for op in everything if _counts(op, gathered)]
    if not loads:
        return [f"loads no {gathered} by an operation that load_order knows, 1 is the least; add it there"]
    if not reads:
        return [
            f"reads no flag before its {len(loads)} loads of {gathered}, one acquire at system scope is the least; "
            'wait with tl.atomic_add(flag, 0, sem="acquire", scope="sys")'
        ]
    return [
        f"may load ahead of its flag: line {load.number}, `{load.text.split(' : ')[0]}`, {fault}; "
        "wait in a loop over chunks and load in a loop over K inside it"
        for load in loads
        if (fault := _fault(load, reads, dots))
    ]


def _counts(op: Op, gathered: str) -> bool:
    """Whether it loads the gathered operand, or might."""
    from_descriptor = FROM_DESCRIPTOR.search(op.text)
    if not from_descriptor and not FROM_POINTERS.search(op.text):
        return False
    heads = [outer.text for outer in op.around if "tt.func" in outer.text]
    if not heads or f"%{gathered}: !tt.tensordesc" not in heads[-1]:
        return True
    if not from_descriptor:
        return False
    source = from_descriptor.group(1)
    return source == f"%{gathered}" or f"{source}: " not in heads[-1]


def _fault(load: Op, reads: list[Op], dots: list[Op]) -> str | None:
    """What is wrong with where a load stands; None: nothing."""
    loops = load.loops
    own = bool(loops) and any(loops[-1] in read.around for read in reads)
    around = loops[-1:] if own else loops[-2:-1]
    behind = [read for read in reads if around and around[0] in read.around and precedes(read, load)]
    if not behind:
        return "expected behind a flag read in the same iteration of its loop, or of the one directly around that"
    if own:
        if any(dot.loops and dot.loops[-1] == loops[-1] for dot in dots):
            return "expected in a loop that does not both read flags and multiply"
        if any(loops[-1] in dot.around and precedes(behind[-1], dot) and precedes(dot, load) for dot in dots):
            return "expected behind the next flag read, not behind what is multiplied after the last one"
    return None


def precedes(a: Op, b: Op) -> bool:
    """Whether `a` comes before `b` wherever both run in one iteration of all loops around both. The branches of one
    scf.if have no order; the condition of an scf.while comes before its body."""
    for depth, (i, j) in enumerate(zip(a.place, b.place, strict=False)):
        if i != j:
            return i < j and (depth % 2 == 0 or "scf.while" in a.around[depth // 2].text)
    return False


def operations(ttgir: str) -> Iterator[Op]:
    """All operations of the text, in its order.

    >>> [(op.text, op.place) for op in operations("scf.if %a {\\n  b {c = 1}\\n} else {\\n  d\\n}")]
    [('scf.if %a {', (0,)), ('b {c = 1}', (0, 0, 0)), ('d', (0, 1, 0))]
    """
    inside: list[tuple[Op, int]] = []  # the open regions: the operation around, and the number among its regions
    last: list[Op | None] = [None]  # the latest operation in the text, and in each open region
    for number, line in enumerate(ttgir.splitlines(), 1):
        text = re.sub(r'"(?:\\.|[^"\\])*"', '""', line)  # strings may hold anything
        text = re.sub(r"\s*\bloc\(.*?\)+\s*$", "", text).strip()
        # Further regions of one operation: `} else {`, `} do {`, `}, {`, and those of ttg.warp_specialize.
        further = re.match(r"\}|default \{|partition\d+\(", text)
        if text and not further:
            index = last[-1].place[-1] + 1 if last[-1] else 0
            before = (*inside[-1][0].place, inside[-1][1]) if inside else ()
            last[-1] = Op(number, text, (*before, index), tuple(op for op, _ in inside))
            yield last[-1]
            region = 0
        for brace in re.findall(r"[{}]", text):  # attributes too: as regions with nothing inside
            if brace == "}":
                region = inside.pop()[1] + 1
                last.pop()
            else:
                inside.append((last[-1], region))
                last.append(None)
