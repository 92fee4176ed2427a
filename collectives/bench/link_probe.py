"""What each link of one GPU takes from a matmul, and loses to it: measured as a run begins, on its first gather."""

import ctypes
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from collectives import device, engines
from collectives.bench.operands import workers
from roofline.operations.contenders import reason
from roofline.theory.wires import COPIER, ENGINE, PCIE, parse

TURNS = 7


def measure(setting_of: Callable, options, case, clock) -> dict:
    """The slowdowns of each link and of a matmul beside it, on the sizes and the pace of `case`: the time of each
    beside the other over its time alone. Also the NUMA nodes of pinned pages and of the GPU, None where nobody says.
    `setting_of` makes a `Setting` of a case."""
    pace = replace(parse(case.wire), mover="")
    wires = []
    if pace.kind != PCIE:
        for mover in (f"{COPIER}32", f"{COPIER}{workers(options.device)}", ENGINE):
            wires.append(replace(pace, mover=mover).token)
    rows = []
    for wire in (*wires, PCIE):
        setting = setting_of(options, replace(case, wire=wire))
        rows.append(of_wire(setting, clock))
    return {"case": case.id, "links": rows, **numa_nodes()}


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


def numa_nodes() -> dict:
    name = ctypes.create_string_buffer(16)
    page = engines.in_host_memory(torch.zeros(4096, dtype=torch.uint8))
    device.call_driver("cuDeviceGetPCIBusId", name, len(name), 0)
    of_gpu = Path("/sys/bus/pci/devices", name.value.decode().lower() or "none", "numa_node")
    maps = Path("/proc/self/numa_maps")
    node = None
    if maps.exists():
        for line in maps.read_text().splitlines():
            if int(line.split()[0], 16) <= page.data_ptr():
                node = re.search(r" N(\d+)=", line)
    return {
        "pages_numa_node": int(node[1]) if node else None,
        "gpu_numa_node": int(of_gpu.read_text()) if of_gpu.exists() else None,
    }
