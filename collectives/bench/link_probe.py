"""What each link of one GPU takes from a matmul, and loses to it: measured as a run begins, on its first gather."""

from collections.abc import Callable
from dataclasses import replace
from statistics import median

from collectives.bench.operands import workers
from roofline.operations.contenders import reason
from roofline.theory.wires import COPIER, ENGINE, PCIE, parse

TURNS = 7


def measure(setting_of: Callable, options, case, clock) -> dict:
    """The slowdowns of each link and of a matmul beside it, on the sizes and the pace of `case`: the time of each
    beside the other over its time alone. `setting_of` makes a `Setting` of a case."""
    pace = replace(parse(case.wire), mover="")
    wires = []
    if pace.kind != PCIE:
        for mover in (f"{COPIER}32", f"{COPIER}{workers(options.device)}", ENGINE):
            wires.append(replace(pace, mover=mover).token)
    rows = []
    for wire in (*wires, PCIE):
        setting = setting_of(options, replace(case, wire=wire))
        rows.append(of_wire(setting, clock))
    return {"case": case.id, "links": rows}


def of_wire(setting, clock) -> dict:
    row = {"wire": setting.case.wire, "link": setting.link_kind}
    if refusal := reason(setting.link):
        return {**row, "refusal": refusal}
    entrants = setting.references()
    calls = [entrants[name].call for name in (f"gemm {setting.best.name}", "link", "gemm beside link")]
    clock.warm(calls)
    slowdowns = []
    link_slowdowns = []
    for _ in range(TURNS):
        gemm_s = clock.turn(calls)[0]
        alone, beside = (call.notes() for call in calls[1:])
        if gemm_s:
            slowdowns.append(beside["first_wait_s"] / gemm_s)
        link_slowdowns.append(beside["last_arrival_s"] / alone["last_arrival_s"])
    matmul_slowdown = median(slowdowns) if slowdowns else None
    return {**row, "matmul_slowdown": matmul_slowdown, "link_slowdown": median(link_slowdowns)}
