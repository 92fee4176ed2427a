"""The words of a verdict on a fault: where in the source, which thread, which element, and what is missing.

Chapter 8 of the PTX ISA 8.7 (memory consistency) says what orders two accesses. 9.7.9.25 (TMA, cp.async) and 9.7.15
(wgmma) say what orders those of the async proxy.
"""

import ast
import linecache
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from .arguments import Tensors
from .core.faults import FaultError, UnknownError
from .core.launch import Cta
from .core.machine import Machine
from .core.memory import REGION_BITS, Region, Shared
from .core.order import ACCEPTED, EQUAL
from .core.program import LANES, Ready, Until
from .core.ptx import Instruction, statements
from .core.warp import Warp
from .trace import Observed, Touch, lanes_at

Row = tuple[str, str]


def page(title: str, *rows: Row) -> str:
    """A title, and rows that each have a word and a text, which may have several lines."""
    lines = [title]
    for word, text in rows:
        lines.append(f"  {word:8}" + text.replace("\n", "\n" + 10 * " "))
    return "\n".join(lines)


def remarks(texts: Sequence[str]) -> list[Row]:
    """A row of notes on what is no fault of the kernel; no row where there are none."""
    if not texts:
        return []
    return [("note", "\n".join(["about this check, not your kernel:", *texts]))]


TOLD = {
    EQUAL: ("note", "race of equal values at {}: {}, with no order between"),
    ACCEPTED: ("accept", "{}: {} that count as ordered from then on"),
}


def told(races: Mapping[tuple[str, str], int]) -> list[Row]:
    """Rows on races that are no fault."""
    rows = []
    for (why, place), count in sorted(races.items()):
        word, text = TOLD[why]
        rows.append((word, text.format(place, f"{count} race{'s' * (count != 1)}")))
    return rows


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in few words.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if not spans or spans[-1][-1] != number - 1:
            spans.append([])
        spans[-1].append(number)
    words = []
    for first, *others in spans:
        word = str(first)
        if others:
            word += f"-{others[-1]}"
        words.append(word)
    return ", ".join(words)


def cta_name(cta: Cta) -> str:
    launch = cta.launch
    machine = cta.machine
    name = f"CTA {cta.number}"
    if launch.shape[2] > 1:
        name = f"CTA {cta.place}"
    elif launch.shape[1] > 1:
        name = f"CTA {cta.place[:2]}"
    if machine.devices > 1:
        name += f" of device {launch.device}"
    if len(machine.launches) > 1:
        name += f" of launch {machine.launches.index(launch) + 1}"
    return name


def where(warp: Warp, inst: Instruction, lanes: Sequence[int] = (), who: str = "") -> str:
    """The line of the source, if the PTX names one; the threads that execute it, or `who`; and the line of the PTX."""
    lines = []
    if inst.source:
        path = warp.program.kernel.paths[inst.source]
        row = int(inst.source.rpartition(":")[2])
        spans = statements(path)
        text = linecache.getline(path, row).strip()
        if row in spans and spans.get(row + 1) is spans[row]:  # it goes on in the next line
            text = textwrap.shorten(ast.unparse(spans[row]).partition("\n")[0], 120, placeholder=" ...")
        lines.append(f"{inst.source}  {text}")
    if not who:
        which = ""
        if lanes:
            which = f", lane {ranges(lanes)}"
        threads = ranges(warp.number * LANES + lane for lane in lanes or range(LANES))
        who = f"{cta_name(warp.cta)}, warp {warp.number}{which} (thread {threads})"
    ptx = re.sub(r"\{(%\w+),[^}]{40,}, *(%\w+)\}", r"{\1, ..., \2}", str(replace(inst, source="")))
    return "\n".join([*lines, who, ptx])


def touched(touch: Touch, more: str = "") -> Row:
    word = "reads"
    if touch.writes:
        word = "writes"
    text = "a kernel of torch's"
    if touch.inst:
        text = where(touch.warp, touch.inst, touch.lanes)
    return word, text + more


def place(tensors: Tensors, memory: Shared | Region, byte: int, machine: Machine) -> str:
    """The element of a tensor that a byte belongs to, as `out[3, 17]`, or what is nearest. A byte of shared memory is
    in that of the CTA that the machine watches."""
    size = f"({len(memory.data)} bytes)"
    if isinstance(memory, Shared):
        return f"byte {byte} of the shared memory of {cta_name(machine.cta)} {size}"
    near = []
    for name, tensor in tensors.items():
        if tensor.untyped_storage().data_ptr() == memory.start:
            near.append(beside(name, tensor, byte))
    if near:
        return min(near, key=lambda pair: pair[0])[1]
    what = "memory that Triton allots"
    for symbols in machine.symbols.values():
        for name, address in symbols.items():
            if address == -memory.number << REGION_BITS:
                what = f"the variable {name}"
    return f"byte {byte} of {what} {size}"


def beside(name: str, tensor: Tensor, byte: int) -> tuple[int, str]:
    """How many elements a byte is away from a tensor, and that in words; -1 where it belongs to an element."""
    number = byte // tensor.element_size() - tensor.storage_offset()
    strides = tensor.stride()
    index = [0] * tensor.dim()
    left = number
    for axis in sorted(range(tensor.dim()), key=strides.__getitem__, reverse=True):
        if strides[axis]:
            index[axis] = min(left // strides[axis], tensor.shape[axis] - 1)
            left -= index[axis] * strides[axis]
    if left == 0 and min(index, default=0) >= 0:
        return -1, f"{name}{index}"
    name = f"{name} {tuple(tensor.shape)}"
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    if number > last:
        return number - last, f"the element {number - last} behind the last of {name}"
    if number < 0:
        return -number, f"the element {-number} before the first of {name}"
    return 0, f"byte {byte} of the memory of {name}, beside its elements"


WAITS = {
    r"wgmma": "a wait for it by its own warpgroup (wgmma.wait_group; warpgroup_mma_wait)",
    r"cp\S*\.global\.shared": "a wait for it by the thread that issued it (cp.async.bulk.wait_group; tma.store_wait)",
    r"cp\.async\.bulk": "a wait for its mbarrier, in the phase that expects its bytes (mbarrier.expect, mbarrier.wait)",
    r"cp\.async": "a wait for it by the warp that issued it (cp.async.wait_group; async_copy.wait_group)",
}
"""The wait that has to be behind an asynchronous operation, by opcode."""
ASYNC_PROXY = r"wgmma|cp\.async\.bulk|cp\.reduce"
PROXY_FENCE = "a proxy fence behind the first (fence.proxy.async; fence_async_shared())"
BARRIER = "a barrier of the CTA between the two (bar.sync; gl.barrier(), tl.debug_barrier())"
WARP_BARRIER = "a barrier of the warp between the two (bar.warp.sync, __syncwarp(); gl.barrier(), tl.debug_barrier())"
SHUFFLE = "\na shuffle or a vote orders no accesses to memory (CUDA Programming Guide, warp functions)"
COMPILED = "\nunder @triton.jit that is the compiler's part: it is a miscompilation"
MBARRIER = "\nbetween partitions an mbarrier: one arrives behind its access, the other waits for it"


def missing(first: Touch, second: Touch, error: FaultError, is_gluon: bool) -> Row:
    """What would have ordered two accesses."""
    if not first.inst or first.warp.cta.launch is not second.warp.cta.launch:
        return "missing", "griddepcontrol.wait (gdc_wait) before the later one: launch_pdl lets them overlap"
    one = first.warp.cta
    other = second.warp.cta
    is_shared = isinstance(error.memory, Shared)
    scope = "gpu" if one.launch.device == other.launch.device else "sys"
    if first.warp is second.warp:
        order = WARP_BARRIER + SHUFFLE * (error.kind == "lanes")
        then = ""
    elif one is other:
        order = BARRIER + MBARRIER * is_gluon
        then = ", then a barrier of the CTA"
    elif is_shared:
        order = "a barrier of the cluster between the two"
        then = ", then a barrier of the cluster"
    else:
        order = f"a release by {cta_name(one)} behind its access, an acquire by {cta_name(other)} that reads it,\n"
        order += f"both of scope {scope}; in each CTA a barrier, where other warps take part;\n"
        order += f"or the other way round, if {cta_name(other)} is to come first"
        then = f", then a release, and an acquire by {cta_name(other)}, of scope {scope}"
    waits = [text for pattern, text in WAITS.items() if re.match(pattern, first.inst.op)]
    if "fence.proxy" in error.message:
        text = PROXY_FENCE
    elif "an mbarrier between them" in error.message:
        text = "the scope .cluster in its arrival, or the fence before it, and in the wait, or the fence behind it"
    elif "scopes" in error.message:
        text = f"a scope that reaches both: .{scope} in both instructions"
    elif waits:
        text = waits[0] + then
    elif re.match(ASYNC_PROXY, second.inst.op):
        text = PROXY_FENCE + then
    else:
        text = "a mask or another index, if only one is meant to write it; else\n" * (first.writes and second.writes)
        text += order
    if is_shared and not is_gluon:
        text += COMPILED
    return "missing", text


def fault(error: FaultError, machine: Observed, tensors: Tensors, is_gluon: bool) -> str:
    """The page on a fault. If the fault is about a place of memory, the machine has watched that place."""
    warp = machine.warp
    last = machine.touches[-1] if machine.touches else None
    if machine.early:
        error, reader = machine.early
        title = f"{place(tensors, error.memory, error.byte, machine)} is read, and nobody has written it"
        rows = [("missing", "a write before it")]
        if not last.writes:
            rows = [("missing", "a write: there is none in the whole run")]
        elif last.inst is not reader.inst:
            rows = [touched(last, "\nonly later"), missing(last, reader, error, is_gluon)]
        return page(title, touched(reader), *rows)
    touches = [touch for touch in machine.touches if touch.agent == error.agent]
    if warp is None and error.agent is not None and last:
        lacking = "a barrier of the cluster behind it (cluster.barrier(), barrier.cluster), before any CTA ends"
        if not is_gluon:
            lacking += COMPILED
        touch = touches[-1] if touches else last
        return page(error.message, touched(touch), ("missing", lacking))
    if error.agent is not None and last:
        conflicts = []
        for touch in touches:
            if (touch.writes or last.writes) and (touch.warp, touch.lanes) != (last.warp, last.lanes):
                conflicts.append(touch)
        first = conflicts[-1] if conflicts else last
        both = "written and read"
        if first.writes and last.writes:
            both = "written twice"
        title = f"{place(tensors, error.memory, error.byte, machine)} is {both}, and nothing orders the two"
        return page(title, touched(first), touched(last), missing(first, last, error, is_gluon))
    if warp is None:
        return str(error)
    inst = warp.program.fault_at(warp.pc, error)
    if error.kind == "bounds" and error.byte is not None:
        title, address = bounds(error, machine, tensors)
        writes = bool(re.match(r"st|red|atom|cp\S*\.global\.shared", inst.op))
        touch = Touch(writes, warp.agent, warp, inst, lanes_at(warp, inst, address))
        return page(title, touched(touch))
    lanes = []
    if warp.mask is not None:
        lanes = np.flatnonzero(warp.mask).tolist()
    text = where(warp, inst, lanes)
    if error.memory is warp.cta.shared:
        text += initialised(warp.cta, error.byte)
    return page(error.message, ("at", text))


def bounds(error: FaultError, machine: Observed, tensors: Tensors) -> tuple[str, int]:
    """A title that says how far an address is off, and the address."""
    memory = error.memory
    byte = address = error.byte
    if not isinstance(memory, Shared):
        if memory:
            address += -memory.number << REGION_BITS
        number = address + (1 << REGION_BITS - 1) >> REGION_BITS  # just below an array is far behind the one before it
        if not 0 < number <= len(machine.memory.regions):
            return f"address {address:#x} is of no tensor", address
        memory = machine.memory.regions[number - 1]
        byte = address - (number << REGION_BITS)
    title = place(tensors, memory, byte, machine)
    _, mark, problem = error.message.partition("; ")
    if mark:
        title += f": {problem}"
    return title, address


def lacking(error: UnknownError) -> str:
    return page(str(error), ("missing", f"in the machine; what it has: python -m {__package__} --coverage"))


def last_write(machine: Observed) -> Row:
    writes = [touch for touch in machine.touches if touch.writes]
    if not writes:
        return "written", "by nobody"
    _, text = touched(writes[-1], "\nlast of all")
    return "written", text


def hang(error: FaultError, machine: Machine, tensors: Tensors) -> str:
    """The page on a run that does not end: who waits for what. Warps that wait for the same stand together."""
    waits: dict[tuple, tuple[Instruction, list[Warp]]] = {}
    spinning = set()
    for warp in machine.warps:
        groups = [(warp.pc, warp.waits or warp.ready)]
        for group in warp.others:
            groups.append((group.pc, group.waits))
        for pc, ready in groups:
            inst = warp.program.kernel.code[pc]
            if ready is not None and not ready():
                key = "waits", waited_for(warp, inst, ready), inst
            else:
                seen = ", ".join(polled(warp, pc, tensors)) or "no memory"
                key = "spins", f"looks at {seen}", inst.place
                spinning.add((warp.cta, inst.place))
            _, warps = waits.setdefault(key, (inst, []))
            warps.append(warp)
    rows = []
    for (word, text, _), (inst, warps) in waits.items():
        if word == "waits" and all(warp.joined and (warp.cta, inst.source) in spinning for warp in warps):
            continue  # at a barrier inside of the loop that others of the CTA are in
        ctas = [*dict.fromkeys(cta_name(warp.cta) for warp in warps)]
        who = ", ".join(ctas[:4])
        if ctas[4:]:
            who += f" and {len(ctas) - 4} more"
        who += f", warp {ranges({warp.number for warp in warps})}"
        rows.append((word, where(warps[0], inst, (), who) + f"\n{text}"))
    for launch in machine.launches:
        waiting = len(launch.numbers) - launch.begun
        if waiting:
            text = f"{waiting} of {launch.grid} CTAs have not begun: the GPU holds {machine.slots} at a time"
            rows.append(("perhaps", f"{text};\nwhere all of them wait for each other, the grid must be no larger"))
    return page(error.message, *rows)


LONGEST = 50  # the most instructions of a loop that only waits


def polled(warp: Warp, pc: int, tensors: Tensors) -> list[str]:
    """The elements that the loop around an instruction looks at again and again, and what they hold."""
    kernel = warp.program.kernel
    machine = warp.cta.machine
    loops = [loop for loop in kernel.loops() if loop[0] <= pc <= min(loop[1], loop[0] + LONGEST - 1)]
    seen = {}
    for inst in kernel.code[slice(*loops[0])] if loops else ():
        if re.match(r"atom\.|ld\S*\.(acquire|relaxed|volatile)\.", inst.op):
            operand = next(text for text in inst.args if text.startswith("["))
            number, byte = divmod(int(warp.program.address(operand)(warp)[0]), 1 << REGION_BITS)
            if 0 < number <= len(machine.memory.regions):
                region = machine.memory.regions[number - 1]
                name = place(tensors, region, byte, machine)
                values = region.data[byte : byte + 4].view(np.int32)
                if len(values):
                    seen[name] = f"{name}, which holds {values[0]}"
    return [*seen.values()]


def waited_for(warp: Warp, inst: Instruction, ready: Ready) -> str:
    """What a warp waits for, and what of it is missing."""
    if not inst.op.startswith("mbarrier"):
        return f"for {ready if isinstance(ready, Until) else inst.op}"
    return f"for the {ready}" + initialised(warp.cta, warp.program.address(inst.args[1])(warp))


def initialised(cta: Cta, address: int | np.ndarray) -> str:
    """The place where the mbarrier at an address is initialised, if that instruction's address is still the same."""
    for inst in cta.program.kernel.code:
        if inst.op.startswith("mbarrier.init"):
            get = cta.program.address(inst.args[0])
            if any((get(warp) == address).any() for warp in cta.warps):
                return f"\nthe mbarrier is that of {inst.place}"
    return ""
