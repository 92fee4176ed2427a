"""What of a run is left to measure: functions of the run, and of its plan."""

from collections.abc import Container

from roofline.store.run import INTERRUPTED, Run, Shape
from roofline.store.stats import grouped

MOST_TIMES = 3
"""A run with decisions takes up to so many times the time of its plan."""

Case = tuple[str, str]
"""A shape, and a contender of it."""
Cases = dict[str, list[str]]
"""{shape: contenders}."""


def left(run: Run, planned: Cases, out: Container[str]) -> Cases:
    """What of `planned` is left to measure together: of shapes that are not whole all but the cases that are `out`, and
    those that were measured apart."""
    cases = {}
    for shape, names in planned.items():
        made = run.made(shape)
        if made and made.stopped_by != INTERRUPTED:
            continue
        names = [name for name in names if f"{shape}-{name}" not in out and not run.made(shape, name)]
        if names:
            cases[shape] = names
    return cases


def left_alone(run: Run, planned: Cases) -> list[Case]:
    """The shapes and contenders of a run that was cut off, of which a trial has not ended, or not begun."""
    cases = []
    for shape, names in planned.items():
        together = run.made(shape)
        for name in names:
            alone = run.made(shape, name)
            was_left_out = together and together.passes and name not in together.late
            is_left = alone.stopped_by == INTERRUPTED if alone else was_left_out
            if is_left and f"{shape}-{name}" not in run.outcomes:
                cases.append((shape, name))
    return cases


def passes_made(run: Run, shapes: Cases) -> dict[str, int]:
    """{shape: passes} that all made together over each of the shapes by now."""
    made = {}
    for name in shapes:
        shape = run.made(name)
        made[name] = shape.passes if shape else 0
    return made


def passes_left(made: dict[str, int], passes: int) -> dict[str, int]:
    """{shape: passes} that the next process still has to make, where each process makes so many."""
    left = {}
    for shape, done in made.items():
        if done // passes == min(made.values()) // passes:  # others are a process ahead
            left[shape] = passes - done % passes
    return left


def undecided(run: Run, planned: Cases, passes: int) -> list[Shape]:
    """The shapes that have the passes of the plan, and are not over."""
    shapes = [run.shapes[name] for name in run.interrupted if name in planned]
    return [shape for shape in shapes if shape.passes >= passes]


def is_time_up(run: Run) -> bool:
    """Whether the next process would take the run farther from `MOST_TIMES` its plan than it is now."""
    seconds = grouped((line["planned"], line["seconds"]) for line in run.processes)
    further = seconds.get(False, [0.0])
    return sum(further) + further[-1] / 2 > (MOST_TIMES - 1) * sum(seconds.get(True, []))
