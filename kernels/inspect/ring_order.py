"""Whether a compiled kernel with a ring of stages kept its order: told from the text of its TTGIR and its PTX.

`kernels.warpgroup` says in its source who waits for what; a compiler that moved an operation across a wait, or left out
a barrier between threads, would make a data race of it that passes most tests. The checks are for the forms that Triton
3.6 and 3.7 emit, and strict: another form is a finding, to be looked at. What is beyond a text is whether the protocol
itself is right: the tests run it on a machine of their own.

`misplaced` looks at operations of a partition, `unsynchronised` at barriers between its threads, which Triton adds
below TTGIR. A wait for TMA stores, say, is one of the thread that issued them: the others know by a barrier alone.
`unfenced` is for the rings of any kernel that Triton itself pipelines with cp.async.
"""

import re
from collections.abc import Iterable, Iterator

from kernels.inspect.load_order import Op, operations, precedes

SLOT = re.compile(r"(%\w+) = ttg\.memdesc_index %\w+\[(%\w+)\]")
VIEW = re.compile(r"(%\w+) = ttg\.memdesc_(?:subslice|trans) (%\w+)")
LOAD = re.compile(r"ttng\.async_tma_copy_global_to_local %\w+\[[^]]*\] (?P<into>%\w+), (?P<barrier>%\w+)")
DOT = re.compile(r"ttng\.warp_group_dot (?P<a>%\w+), (?P<b>%\w+),")
DOT_WAIT = re.compile(r"ttng\.warp_group_dot_wait .*pendings = (\d+)")
WAIT = re.compile(r"ttng\.wait_barrier (?P<barrier>%\w+)")
EXPECT = re.compile(r"ttng\.barrier_expect (?P<barrier>%\w+)")
ARRIVE = re.compile(r"ttng\.arrive_barrier (?P<barrier>%\w+)")
NEVER = re.compile(r"ttng\.arrive_barrier %\w+, \d+, %false")
STORE = re.compile(r"ttg\.local_store %\w+, (?P<into>%\w+)")
FENCE = re.compile(r"ttng\.fence_async_shared")
TMA_STORE = re.compile(r"ttng\.async_tma_copy_local_to_global %\w+\[[^]]*\] (?P<source>%\w+)")
STORE_WAIT = re.compile(r"ttng\.async_tma_store_wait .*pendings = (\d+)")
LEAST = {"TMA load": LOAD, "wgmma": DOT, "release of a stage": ARRIVE, "TMA store": TMA_STORE}

# Instructions of PTX that are in step with other threads, a letter each; first match.
EVENTS = (
    ("B", re.compile(r"\bbar\.sync\b")),  # the threads of one partition
    ("G", re.compile(r"\bwgmma\.mma_async\b")),
    ("W", re.compile(r"\bwgmma\.wait_group\b")),
    ("A", re.compile(r"\bmbarrier\.arrive\.(?!expect_tx)")),
    ("S", re.compile(r"\bstmatrix\b|\bst\.shared\.v4\b")),
    ("F", re.compile(r"\bfence\.proxy\.async\b")),
    ("T", re.compile(r"\bcp\.async\.bulk\.tensor\.\w+\.global\.shared")),
    ("R", re.compile(r"\bcp\.async\.bulk\.wait_group\.read\b")),
)
# Likewise, for what cp.async writes and wgmma reads.
BY_CP_ASYNC = (
    ("C", re.compile(r"\bcp\.async\.c[ag]\.shared\b")),
    ("P", re.compile(r"\bcp\.async\.wait_(?:group|all)\b")),
    ("L", re.compile(r"^\$L__BB")),
    *((letter, kind) for letter, kind in EVENTS if letter in "BFG"),
)


class Partition:
    """The operations of one partition, with the stage (an SSA value) that each view of shared memory is of."""

    def __init__(self, found: list[Op]):
        self.found = found
        self.stages: dict[str, str | None] = {}
        for op in found:
            if slot := SLOT.search(op.text):
                self.stages[slot[1]] = slot[2]
            elif view := VIEW.search(op.text):
                self.stages[view[1]] = self.stages.get(view[2])

    def all(self, kind: re.Pattern) -> list[tuple[Op, re.Match]]:
        return [(op, match) for op in self.found if (match := kind.search(op.text))]

    def ahead(self, op: Op, kind: re.Pattern) -> list[re.Match]:
        """Those of a kind that come before `op` in the same iteration of the loop directly around it."""
        return [m for other, m in self.all(kind) if other.loops[-1:] == op.loops[-1:] and precedes(other, op)]

    def last(self, op: Op, wanted: re.Pattern, other: re.Pattern) -> re.Match | None:
        """The last one of `wanted` before `op` in the text, if none of `other` follows it."""
        found = {at.number: match for kind in (wanted, other) for at, match in self.all(kind) if at.number < op.number}
        return found[max(found)] if found and found[max(found)].re is wanted else None


def misplaced(ttgir: str) -> list[str]:
    """A sentence for each operation that is not behind what it must be behind: line, expectation. Empty: sound."""
    partitions = _partitions(ttgir)
    said = [
        f"has no {name} in a partition of ttg.warp_specialize, 1 is the least; add the operation to ring_order"
        for name, kind in LEAST.items()
        if not any(partition.all(kind) for partition in partitions)
    ]
    faults = [fault for partition in partitions for check in CHECKS for fault in check(partition)]
    return said + [
        f"is out of order: line {op.number}, `{op.text.split(' : ')[0]}`, expected {fault}; put it there"
        for op, fault in faults
    ]


def unsynchronised(ptx: str) -> list[str]:
    """A sentence for each kind of instruction that lacks a barrier between the threads of its partition."""
    events = _events(ptx, EVENTS)
    rest = re.sub(r"RB+S+FB+T", "", events)
    said = []
    if "S" in rest or "T" in rest or rest == events:
        said.append(
            "has stores to shared memory or TMA stores out of order; expected is wait for reads, barrier, store, "
            "fence, barrier, TMA store"
        )
    rest = re.sub(r"WB+A", "", events)
    if "A" in rest or rest == events:
        said.append("releases a stage out of order; expected is wait for wgmma, barrier, arrival of one thread")
    return said


def unfenced(ptx: str) -> list[str]:
    """A sentence where wgmma may read what cp.async wrote through another proxy, with no fence between. Expected ahead
    of each wgmma: wait for cp.async, then barrier and fence, in the same block."""
    events = _events(ptx, BY_CP_ASYNC)
    if "C" not in events or "G" not in re.sub(r"P(?:B+F|F+B)[BF]*G+", "", events):
        return []
    return [
        "multiplies by wgmma what cp.async wrote, with no fence.proxy.async behind the wait and the barrier; put one "
        "ahead of tl.dot (kernels.tiled.fence)"
    ]


def _events(ptx: str, kinds: Iterable[tuple[str, re.Pattern]]) -> str:
    return "".join(next((letter for letter, kind in kinds if kind.search(line)), "") for line in ptx.splitlines())


def _partitions(ttgir: str) -> list[Partition]:
    """Those of ttg.warp_specialize, a region each."""
    found: dict[int, list[Op]] = {}
    for op in operations(ttgir):
        outer = next((i for i, around in enumerate(op.around) if "ttg.warp_specialize(" in around.text), None)
        if outer is not None:
            found.setdefault(op.place[2 * outer + 1], []).append(op)
    return [Partition(own) for own in found.values()]


def _loads(partition: Partition) -> Iterator[tuple[Op, str]]:
    for op, load in partition.all(LOAD):
        stage, stage_of = partition.stages.get(load["into"]), partition.stages.get
        if stage is None or stage not in [stage_of(wait["barrier"]) for wait in partition.ahead(op, WAIT)]:
            yield op, "behind a wait for the stage that it fills"
        if load["barrier"] not in [expect["barrier"] for expect in partition.ahead(op, EXPECT)]:
            yield op, "behind the expectation of its bytes, at the barrier that it arrives at"
        if stage_of(load["barrier"]) != stage:
            yield op, "to arrive at the barrier of the stage that it fills"


def _dots(partition: Partition) -> Iterator[tuple[Op, str]]:
    for op, dot in partition.all(DOT):
        waited = [partition.stages.get(wait["barrier"]) for wait in partition.ahead(op, WAIT)]
        if any(partition.stages.get(dot[operand]) not in waited[-1:] for operand in "ab"):
            yield op, "behind a wait for the stage that it reads"


def _releases(partition: Partition) -> Iterator[tuple[Op, str]]:
    for op, arrive in partition.all(ARRIVE):
        if NEVER.search(op.text):  # a loop of one iteration, unrolled
            continue
        wait, dots = partition.last(op, DOT_WAIT, DOT), partition.ahead(op, DOT)
        in_flight = int(wait[1]) if wait else None
        if in_flight is None or in_flight > (1 if dots else 0):
            yield op, "behind a wait that leaves one wgmma group in flight, or none where no other follows"
        elif in_flight and partition.stages.get(arrive["barrier"]) in [partition.stages.get(dot["a"]) for dot in dots]:
            yield op, "to release another stage than the one whose wgmma is in flight"


def _stores(partition: Partition) -> Iterator[tuple[Op, str]]:
    for op, store in partition.all(STORE):
        if not partition.last(op, STORE_WAIT, TMA_STORE):
            yield op, f"behind a wait for the store that read {store['into']} last"
    for op, store in partition.all(TMA_STORE):
        if not partition.last(op, FENCE, STORE):
            yield op, f"behind a fence that follows the stores to {store['source']}"
    if stores := partition.all(TMA_STORE):
        waits = [match for op, match in partition.all(STORE_WAIT) if op.number > stores[-1][0].number]
        if not waits or int(waits[-1][1]):
            yield stores[-1][0], "ahead of a wait for all stores at the end"


CHECKS = (_loads, _dots, _releases, _stores)
