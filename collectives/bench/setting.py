"""One case that gathers over a wire: its operands, its link, the unsplit matmul, and how its arms are checked."""

import functools
import math
import zlib
from collections.abc import Callable

import torch

import kernels
from collectives import links
from collectives.bench.operands import chip_flops, computing, host_ahead, seconds, unsplit
from kernels import CONTENDERS
from kernels.bench import matmul
from roofline.analysis.overlap.arms import PERSISTENT, base_arm
from roofline.theory import wires
from roofline.theory.models import parse as parse_model

SETS = 2
"""Sets of operands in rotation: what a run finds in a buffer is of another one."""

OWN_MATMUL = "chunk_launches"
"""The arm that sums in fp32, by torch's matmuls, and not by the fastest."""

UNTIMED_BYTES_PER_S = 1e9
"""Of the link of a test that is not timed."""


def persistent_arms(arms: dict[str, Callable], device: str) -> dict[str, Callable]:
    """On a GPU, `arms` by our persistent matmul. The fastest is mostly the vendor's, whose programs leave the copier no
    room on an SM: they stay off those that it is on, and tiles that were dealt to them begin late."""
    return {arm + PERSISTENT: functools.partial(_by_persistent, run) for arm, run in arms.items() if device == "cuda"}


def _by_persistent(arm: Callable, operands, link):
    fastest = operands.matmul
    operands.matmul, operands.products = kernels.persistent.matmul, kernels.persistent.products
    try:
        return arm(operands, link)
    finally:
        operands.matmul, operands.products = fastest, None


class Setting:
    """What the arms of one case work on. `sets` are operands of `collectives`, `best` is the fastest unsplit contender
    and `t_gemm_s` about its time, `bytes_per_s` what the link is asked for (None where that is not ours to choose)."""

    def __init__(self, options, case):
        self.options, self.case, self.device = options, case, options.device
        self.wire = wires.parse(case.wire)
        self.seed = zlib.crc32(f"{options.seed} {case.op}".encode())
        self.sets = self._operands()
        self.unsplit = unsplit(self.device, *self._gemm(self.sets[0])[:2])
        times = {name: self._gemm_seconds(c) if options.timed else 1.0 for name, c in self.unsplit.items()}
        self.best = self.unsplit[min(times, key=times.get)]
        self.t_gemm_s = min(times.values())
        self.bytes_per_s = self._bytes_per_s()
        for operands in self.sets:
            operands.matmul = self.best.run

    def _bytes_per_s(self) -> float | None:
        if self.wire.kind in wires.LINKS:
            return None
        if not self.options.timed:
            return UNTIMED_BYTES_PER_S
        case, model = self.case, parse_model(self.case.model)
        rows = max(self.options.gather.rows, default=case.m)
        flops = chip_flops(self.device, case.dtype, rows, -(-model.d_ff // 4), model.d_model)
        return self.wire.bytes_per_s(chip_flops=flops, t_gemm_s=self.t_gemm_s, wire_bytes=case.work.wire_bytes)

    def _gemm_seconds(self, contender) -> float:
        return seconds(functools.partial(contender.run, *self._gemm(self.sets[0])), self.device)

    def link(self):
        """A link of its own for each call: its timeline is that call's."""
        kind = self.wire.kind if self.wire.kind in wires.LINKS else "paced"
        return links.make(kind, self.device, self.bytes_per_s, programs=self.options.copier_programs)

    @property
    def facts(self) -> dict:
        """Of the case, for the journal."""
        link = self.wire.kind if self.wire.kind in wires.LINKS else "paced"
        found = {"ranks": self.case.ranks, "wire": self.case.wire, "link": link}
        if self.device == "cuda" and link == "paced":
            found["copier_programs"] = self.link().programs
        return found | {"link_bytes_per_s_requested": self.bytes_per_s} | self._grid_facts()

    @property
    def t_comm_s(self) -> float:
        """About the time of the link alone."""
        if self.bytes_per_s:
            return self.case.work.wire_bytes / self.bytes_per_s
        if self.wire.kind == "preset" or not self.options.timed:
            return 0.0
        link, transfers = self.link(), self.transfers(self.sets[0])
        for _ in range(2):
            host_ahead(self.device)
            alone(link, transfers)
        return max(link.timeline().arrivals_s)

    @property
    def cache(self) -> str:
        """The state of the cache that a sample starts from, in words."""
        nbytes = self.case.gathered_bytes * self.gathered_copies
        state = "cold" if nbytes > 2 * matmul.cache_bytes(self.device) else "warm"
        return f"{state}: {nbytes / 2**20:.0f} MiB of shards and buffers, used by turns"

    def restore(self) -> None:
        """Bring what links bring, whatever has happened to it."""
        for operands in self.sets:
            for transfer in self.all_transfers(operands):
                transfer.target.copy_(transfer.source)

    def why_not(self, arm: str) -> str | None:
        """Why `arm` cannot take this case; None if it can."""
        base = base_arm(arm)
        if base != arm and self.matmul_of(arm) is self.best and base != OWN_MATMUL:
            return f"persistent is the fastest unsplit matmul, so that {base} has it already"
        return None if base == arm else self.matmul_of(arm).why_not(*self._gemm(self.sets[0])[:2])

    def matmul_of(self, arm: str):
        """The contender that `arm` multiplies by."""
        return self.best if base_arm(arm) == arm else CONTENDERS["persistent"]

    def matmuls_beside_link(self) -> dict[str, object]:
        """Name -> the matmuls that arms run, to be run while the link brings something else."""
        found, ours = {"gemm beside link": self.best}, self.unsplit.get("persistent", self.best)
        return found if ours is self.best else found | {"gemm persistent beside link": ours}

    @staticmethod
    def trace(arm: str, link) -> dict | None:
        """The timeline of a call of `arm` that is made for it; None if its samples have them."""

    @staticmethod
    def facts_of(arm: str) -> dict:
        """Further fields of `arm`'s entry in the journal."""
        return {}

    @property
    def pinned(self) -> bool:
        return self.wire.kind == "pcie"

    def relative_error(self, arm: Callable, link, operands) -> float:
        """Of the result of `arm`, from operands poisoned with NaN; NaN where that is left in it."""
        transfers = self.transfers(operands)
        for transfer in transfers:
            transfer.target.fill_(math.nan)
        operands.out.fill_(math.nan)
        if link.kind == "preset":
            link.fill(transfers)
        x, w = self._factors(operands)
        with computing(self.device):
            arm(operands, link)
        link.timeline()  # raises where the link is dead
        if operands.out.isnan().any() or any(not _same(transfer) for transfer in transfers):
            return math.nan
        rows = matmul.checked_rows(len(x))
        reference = matmul.reference_rows(x, w)
        return float((operands.out[rows].double() - reference).norm() / reference.norm())


def _same(transfer) -> bool:
    return torch.equal(transfer.target, transfer.source.to(transfer.target.device))


def alone(link, transfers) -> None:
    """The gather with nothing beside it."""
    link.start(transfers)
    link.wait(len(transfers))
    link.finish()


def contended(link, transfers, matmul) -> None:
    """A matmul while the link brings something else; its first wait begins when the matmul is done."""
    link.start(transfers)
    matmul()
    link.wait(len(transfers))
    link.finish()
