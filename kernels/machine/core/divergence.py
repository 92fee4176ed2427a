"""Divergence: lanes of a warp that are at different places (PTX ISA 8.7, 3.1 and 9.7.12).

A branch that only some lanes take splits the lanes into groups. The groups of a warp take turns. Mostly the one that is
furthest behind goes on, so that groups meet again where their paths do. At an instruction that lanes execute together
(.sync, .aligned, bar) a group waits until the other groups, or all lanes that its member mask names, have come there
too, or until the others can go no further. The instruction then decides whether the group may go on without them.
"""

from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from .program import LANE, LANES, Ready

HURRY = 0.9  # the chance that the group furthest behind goes on, rather than a random one


@dataclass(eq=False)
class Group:
    """Lanes that are at one place, called from the same places."""

    pc: int
    lanes: np.ndarray
    calls: tuple
    waits: Ready | None = None


def here(w) -> np.ndarray:
    """The lanes of the current group, or all lanes where they are together."""
    if w.lanes is None:
        return np.ones(LANES, bool)
    return w.lanes


def active(w) -> np.ndarray:
    """The active lanes, which execute the current instruction."""
    if w.mask is None:
        return here(w)
    return w.mask


def go(w, pc: int, calls: tuple) -> None:
    """Send the active lanes to `pc`; the other lanes of their group go on behind the instruction."""
    if w.mask is not None:
        stay = here(w) & ~w.mask
        if stay.any():
            w.others = [*w.others, Group(pc, w.mask, calls)]
            w.lanes = stay
            return
    w.pc = pc - 1  # 1 is added to it
    w.calls = calls


def end(w) -> bool:
    """End the active lanes, and return whether they were the last of the warp."""
    if w.lanes is None and w.mask is None:
        return True
    w.lanes = here(w) & ~active(w)
    return not w.lanes.any() and not w.others


def not_ended(w) -> np.ndarray:
    lanes = here(w)
    for group in w.others:
        lanes = lanes | group.lanes
    return lanes


def all_here(w) -> bool:
    """Whether all lanes that have not ended execute the current instruction."""
    return w.mask is None or not (not_ended(w) & ~w.mask).any()


def is_complete(w, group: Group) -> bool:
    """Whether the group's next instruction needs no lane that is elsewhere."""
    step = w.program.steps[group.pc]
    if not step.together or not hasattr(step.run, "members"):
        return not step.together
    lanes = group.lanes
    if step.guard:
        lanes = lanes & step.guard(w)
    members = np.bitwise_or.reduce(step.run.members(w)[lanes])
    missing = (members >> LANE & 1).astype(bool) & not_ended(w) & ~group.lanes
    return not missing.any()


def choose(w) -> bool:
    """Let one group of a warp go on: its pc and lanes become the warp's. False where all groups wait."""
    meeting: dict[tuple, Group] = {}
    for group in (Group(w.pc, w.lanes, w.calls, w.waits), *w.others):
        if group.lanes.any():
            met = meeting.setdefault((group.pc, group.calls), group)
            met.lanes = met.lanes | group.lanes
    groups = list(meeting.values())
    able = [group for group in groups if group.waits is None or group.waits()]
    going = [group for group in able if is_complete(w, group)]
    if not going and len(able) < len(groups):

        def ready() -> bool:
            return any(group.waits and group.waits() for group in groups)

        w.ready = ready
        return False
    chosen = min(going or able, key=attrgetter("pc"))
    random = w.cta.machine.rng
    if going and random.random() > HURRY:
        chosen = random.choice(going)
    groups.remove(chosen)
    w.others = groups
    w.pc = chosen.pc
    w.calls = chosen.calls
    w.waits = None
    w.lanes = None
    if not chosen.lanes.all():
        w.lanes = chosen.lanes
    return True


def run_in_lanes(w, step) -> None:
    """Run arithmetic in the lanes of the current group alone."""
    before = [w.r[number] for number in step.targets]
    step.run(w)
    for number, value in zip(step.targets, before, strict=True):
        w.r[number] = np.where(w.lanes, w.r[number], value)
