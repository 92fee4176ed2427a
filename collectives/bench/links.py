"""The links of a case: how each kind is made, and how a gather over one is called and timed by itself."""

from collections.abc import Callable
from pkgutil import resolve_name
from statistics import median

import torch

from collectives.bench.operands import CALIBRATIONS, workers
from collectives.transfers import SLICE_BYTES, Transfers
from roofline.theory import wires

LINKS = {
    "preset": ("collectives.transfers:Preset",),
    "gloo": ("collectives.ranks:Gloo", "ranks"),
    "nccl": ("collectives.device_ranks:Nccl", "ranks"),
    wires.ALL_GATHER: ("collectives.device_ranks:NcclAllGather", "ranks"),
    "symmetric": ("collectives.device_ranks:Symmetric", "ranks"),
    wires.PCIE: ("collectives.engines:Pcie", "rank"),
    wires.PACED_ENGINE: ("collectives.engines:PacedEngine", "bytes_per_s", "rank"),
    wires.PACED: ("collectives.paced:PacedThread", "bytes_per_s", "rank"),
}
"""{kind: where its class is, and what it is made with}, but for the copier. Those of a GPU take Triton."""

HOLD_CYCLES, TRANSFER_CYCLES, SLICE_CYCLES = 4_000_000, 400_000, 40_000
"""Cycles of an SM, some 2 ms, 0.2 and 0.02: longer than the host takes to enqueue an arm, each transfer of its link,
and each slice of that. Without them a link's time begins with its stamp, tenths of a millisecond before the host has
launched the copies. A copy engine gets a wait and a copy for every two slices: a host took 9 us for them, without the
driver's own time."""


def make_link(kind: str, device: str, bytes_per_s: float | None, ranks, programs: int | None = None):
    """The link of `kind` on `device`, `cpu` or `cuda`, to the one of `ranks` that this process is. A GPU's copier has
    `programs`, or as many as it needs."""
    given = {"ranks": ranks, "rank": ranks.rank, "bytes_per_s": bytes_per_s}
    if kind == wires.PACED and device == "cuda" and bytes_per_s:
        from collectives import device as of_gpu

        half = workers(device) // 2  # what is sent is computed on the others
        return of_gpu.PacedCopier(bytes_per_s, ranks.rank, programs or min(of_gpu.programs_for(bytes_per_s), half))
    path, *names = LINKS[kind]
    return resolve_name(path)(*[given[name] for name in names])


def held_cycles(transfers: Transfers) -> int:
    """How long the stream is held before a link of `transfers` begins, while the host enqueues it."""
    slices = sum(len(transfer.slices(SLICE_BYTES)) for transfer in transfers)  # no link has smaller ones
    return HOLD_CYCLES + len(transfers) * TRANSFER_CYCLES + slices * SLICE_CYCLES


def contended(link, transfers: Transfers, matmul: Callable = lambda: None) -> None:
    """The gather alone, or beside a `matmul`: its first wait begins when that is done."""
    link.start(transfers)
    matmul()
    link.wait(len(transfers))
    link.finish()


def seconds_alone(link, transfers: Transfers, device: str) -> float:
    """About the time of a gather with nothing beside it."""
    times_s = []
    for _ in range(CALIBRATIONS):
        if device == "cuda":
            torch.cuda._sleep(held_cycles(transfers))
        contended(link, transfers)
        times_s.append(max(link.timeline().arrivals_s))
    return median(times_s)
