"""Whether this machine can measure what was selected. What cannot come out is refused before anything is measured."""

from functools import partial

from roofline import operations
from roofline.operations.options import Options, one_of, read
from roofline.report.tables import named
from roofline.theory import wires


def check(options: Options, runners: operations.Runners, cases: list) -> None:
    """Refuse a selection of which nothing can be measured. Raises ValueError."""
    if options.operations and not cases:
        _operations(options, runners)
    if runners.planners and (options.contenders or options.baseline or options.arm_matmul):
        _contenders(options, runners)
    if options.timed:
        _wires_of(options, cases)


def _operations(options: Options, runners: operations.Runners) -> None:
    """Say why the operations that were chosen have no case, where one of them knows."""
    for operation in map(operations.find, runners.planners):
        reason = operation.why_not(options)
        if options.timed and options.world > 1 and not operation.between_ranks:
            reason = "torchrun started several ranks, and it is not between ranks: leave torchrun out"
        if reason:
            raise ValueError(f"--ffn-operations: {operation.name} has no case: {reason}")


def _wires_of(options: Options, cases: list) -> None:
    """Refuse wires of another run that lacks some of those that are made for the machine's pace."""
    lacking = []
    for case in cases if options.wires_of else ():
        is_made = hasattr(case, "wire") and wires.parse(case.wire).kind not in (*wires.LINKS, "fixed")
        if is_made and case.id not in dict(options.wires_of):
            lacking.append(case.id)
    if lacking:
        way_out = "select the cases that it has (-k), or leave the option out"
        raise ValueError(f"--ffn-wires-of: that run has no wire of {named(lacking)}; {way_out}")


def _contenders(options: Options, runners: operations.Runners) -> None:
    """Refuse names that no operation has, and a baseline that is not timed on the device."""
    choices: dict[str, None] = {}
    for operation in operations.OPERATIONS.values():
        choices |= dict.fromkeys(runners.planner(operation).choices())
    for name in options.contenders or ():
        read("contenders", name, partial(one_of, choices))
    matmuls = runners.planner(operations.find("matmul"))
    for option, name in (("baseline", options.baseline), ("arm_matmul", options.arm_matmul)):
        if name:
            read(option, name, partial(one_of, matmuls.timed_names()))
