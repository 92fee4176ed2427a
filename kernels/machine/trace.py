"""A machine that is watched. It notes who accesses one place of memory and, for a trace, all that happens.

Runs are deterministic. The first run notes nothing; a run that showed something is run again to look closer. This
module models no part of PTX.
"""

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from .core.divergence import active
from .core.faults import UninitialisedError
from .core.launch import Cta
from .core.machine import Machine
from .core.memory import REGION_BITS, Noted
from .core.order import Attempt
from .core.program import Program, Ready, Step
from .core.ptx import Instruction
from .core.warp import Event, Warp

SHARED_BYTES = 1 << 24  # addresses of shared memory are below it, whatever window they are in
WIDEST = 32  # bytes that a lane accesses at once


@dataclass(frozen=True)
class Touch:
    """An access to the place that is watched."""

    writes: bool
    agent: int
    warp: Warp | None
    """None for the host."""
    inst: Instruction | None
    lanes: tuple[int, ...]
    """The lanes that access it; none where the instruction is one of the whole warp."""


class SeenError(Exception):
    """The run has shown what it was run for."""


class Observed(Machine):
    """A machine that notes each access to a place. `place` is the number of a memory, and a byte of it. A read of the
    place before anybody has written it is no fault: the run goes on up to the write. `is_traced`: everything that
    happens is kept, for `write_trace`."""

    def __init__(self, *args, place: tuple[int, int] | None = None, is_traced: bool = False):
        super().__init__(*args)
        self.place = place
        self.is_traced = is_traced
        self.ledger.bears = place is None
        self.touches: list[Touch] = []
        self.early: tuple[UninitialisedError, Touch] | None = None
        self.warp: Warp | None = None  # the one that goes on
        self.watched: Noted | None = None
        self.cta: Cta | None = None  # the one whose shared memory is watched
        self.trace: list[dict] = []
        self.tracks: set[Warp] = set()
        self.waits: dict[Warp, tuple[Instruction, int]] = {}
        self.under_way: dict[Event, Callable] = {}
        self.memory.add = partial(self._add_watched, self.memory.add)

    def _advance(self, warp: Warp) -> None:
        self.warp = warp
        super()._advance(warp)
        self.warp = None

    def _begin(self) -> None:
        super()._begin()
        for cta in self.ctas:
            self._watch(cta.shared)
            if cta.shared is self.watched:
                self.cta = cta

    def _add_watched(self, add: Callable, data: np.ndarray) -> int:
        address = add(data)
        self._watch(self.memory.regions[(address >> REGION_BITS) - 1])
        return address

    def _watch(self, memory: Noted) -> None:
        """Note the accesses to a memory if the place is in it."""
        if self.place and memory.number == self.place[0] and memory is not self.watched:
            self.watched = memory
            memory.note_read = partial(self._note, memory.note_read, False)
            memory.note_write = partial(self._note, memory.note_write, True)

    def _note(self, note: Callable, writes: bool, places, attempt: Attempt, *more) -> None:
        where, byte = self.place
        inst = attempt.instruction
        if not is_among(byte, places):
            return note(places, attempt, *more)
        agent = self.ledger.accesses[attempt.number].agent or self.warp.agent
        address = byte
        if where < 0:
            address += -where << REGION_BITS
        lanes = ()
        if isinstance(inst, Instruction):
            lanes = lanes_at(self.warp, inst, address)
        else:
            inst = None
        touch = Touch(writes, agent, self.warp, inst, lanes)
        self.touches.append(touch)
        if writes and self.early:
            raise SeenError
        try:
            note(places, attempt, *more)
            error = self.ledger.early
        except UninitialisedError as fault:
            error = fault
        if error and not self.early:
            self.early = error, touch

    # Chrome's trace format, which ui.perfetto.dev opens: a process for each CTA, a thread for each warp, a microsecond
    # for each instruction. What the hardware does in its own time is an asynchronous event, from b to e.

    def launch(self, program: Program, *args, **more) -> int:
        if self.is_traced:
            steps = []
            for inst, step in zip(program.kernel.code, program.steps, strict=True):
                run = partial(self._traced, inst, step)
                vars(run).update(vars(step.run) if step else {})  # as the lanes that have to come along
                steps.append(step and replace(step, run=run))
            program = copy.copy(program)
            program.steps = steps
        return super().launch(program, *args, **more)

    def _traced(self, inst: Instruction, step: Step, warp: Warp) -> Ready | None:
        begun = self.executed - (step.count or 1)
        _, since = self.waits.setdefault(warp, (inst, begun))
        ready = step.run(warp)
        if ready:
            return ready
        del self.waits[warp]
        name = inst.op
        if step.count:
            name = f"{step.count} of arithmetic"
        if since < begun:
            name = f"waits: {name}"
        self._add(warp, inst, name, "X", since, dur=self.executed - since)
        for event in self.events:
            if event not in self.under_way:
                note = partial(self._add, warp, inst, event.kind, cat=event.kind, id=len(self.trace))
                note("b", self.executed)
                self.under_way[event] = note

    def _turn(self) -> bool:
        goes_on = super()._turn()
        for event in [event for event in self.under_way if event.done]:
            self.under_way.pop(event)("e", self.executed)
        return goes_on

    def _add(self, warp: Warp, inst: Instruction | None, name: str, phase: str, ts: int = 0, **more) -> None:
        if warp not in self.tracks:
            self.tracks.add(warp)
            self._add(warp, None, "process_name", "M", args=dict(name=f"CTA {warp.cta.number}"))
            self._add(warp, None, "thread_name", "M", args=dict(name=f"warp {warp.number}"))
        event = dict(name=name, ph=phase, ts=ts, pid=warp.cta.first, tid=warp.number + 1, **more)
        if inst:
            event["args"] = dict(source=inst.source, ptx=str(inst))
        self.trace.append(event)

    def write_trace(self, path: str | Path, fault: Exception | None) -> None:
        for warp, (inst, since) in self.waits.items():
            self._add(warp, inst, f"waits: {inst.op}", "X", since, dur=self.executed - since)
        warp = self.warp or next(iter(self.tracks), None)
        if fault and warp:
            self._add(warp, None, str(fault), "i", self.executed, s="g")
        trace = dict(traceEvents=self.trace)
        Path(path).write_text(json.dumps(trace))


def is_among(byte: int, places: slice | np.ndarray) -> bool:
    if isinstance(places, slice):
        return places.start <= byte < places.stop
    return (places == byte).any()


def lanes_at(warp: Warp, inst: Instruction, address: int) -> tuple[int, ...]:
    """The lanes whose accesses have this address, in an instruction that is about to be executed; none where it is one
    of the whole warp."""
    if not re.match(r"(ld|st|atom|red|cp\.async\.c[ag])\.", inst.op):
        return ()
    takes_part = active(warp)
    for text in inst.args:
        if not text.startswith("["):
            continue
        at = warp.program.address(text)(warp)
        if address < SHARED_BYTES:
            at = at % SHARED_BYTES
        nearest = at[takes_part & (at <= address)].max(initial=-WIDEST)
        if address - nearest < WIDEST:
            lanes = np.flatnonzero(takes_part & (at == nearest))
            return tuple(lanes.tolist())
    return ()
