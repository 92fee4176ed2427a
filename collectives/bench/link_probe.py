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
from kernels import contract
from roofline.theory.wires import COPIER, ENGINE, PCIE, parse

TURNS = 7


def measure(setting_of: Callable, options, case, clock) -> dict:
    """The slowdowns of each link and of a matmul beside it, on the sizes and the pace of `case`: the time of each
    beside the other over its time alone. Also the NUMA nodes of pinned pages and of the GPU, None where nobody says.
    `setting_of` makes a `Setting` of a case."""
    pace = replace(parse(case.wire), mover="")
    movers = f"{COPIER}32", f"{COPIER}{workers(options.device)}", ENGINE
    wires = [PCIE] if pace.kind == PCIE else [*(replace(pace, mover=mover).token for mover in movers), PCIE]
    rows = [of_wire(setting_of(options, replace(case, wire=wire)), clock) for wire in wires]
    return {"case": case.id, "links": rows} | numa_nodes()


def of_wire(setting, clock) -> dict:
    row = {"wire": setting.case.wire, "link": setting.link_kind}
    if refusal := contract.reason(setting.link):
        return row | {"refusal": refusal}
    entrants = setting.references()
    calls = [entrants[name].call for name in (f"gemm {setting.best.name}", "link", "gemm beside link")]
    clock.warm(calls)
    matmul, link = [], []
    for _ in range(TURNS):
        gemm_s = clock.turn(calls)[0]
        alone, beside = (call.notes() for call in calls[1:])
        matmul += [beside["first_wait_s"] / gemm_s] if gemm_s else []
        link.append(beside["last_arrival_s"] / alone["last_arrival_s"])
    return row | {"matmul_slowdown": median(matmul) if matmul else None, "link_slowdown": median(link)}


def numa_nodes() -> dict:
    name, page = ctypes.create_string_buffer(16), engines.in_host_memory(torch.zeros(4096, dtype=torch.uint8))
    device.call_driver("cuDeviceGetPCIBusId", name, len(name), 0)
    of_gpu = Path("/sys/bus/pci/devices", name.value.decode().lower() or "none", "numa_node")
    maps, node = Path("/proc/self/numa_maps"), None
    for line in maps.read_text().splitlines() if maps.exists() else ():
        if int(line.split()[0], 16) <= page.data_ptr():
            node = re.search(r" N(\d+)=", line)
    return {
        "pages_numa_node": int(node[1]) if node else None,
        "gpu_numa_node": int(of_gpu.read_text()) if of_gpu.exists() else None,
    }
