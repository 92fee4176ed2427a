"""One case that gathers over a wire: its operands, its link, the unsplit matmul, and how its arms are checked."""

import functools
import itertools
import math
import weakref
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import ClassVar

import torch

from collectives.bench.operands import (
    CALIBRATIONS,
    Call,
    buffer,
    chip_flops,
    computing,
    copy_bytes_per_s,
    host_ahead,
    normal,
    seconds_by_turns,
    shards_of,
    unsplit,
)
from collectives.paced import PacedThread
from collectives.ranks import Gloo
from collectives.transfers import Preset, Transfer, Transfers
from kernels.bench import checks, matmul
from kernels.contract import reason
from kernels.registry import CONTENDERS
from roofline.measure.prepared import TOLERANCE, Entrant
from roofline.measure.ranks import ALONE, Alone, Ranks
from roofline.store.run import REQUESTED
from roofline.theory import wires
from roofline.theory.arms import base_arm
from roofline.theory.models import parse as parse_model

SETS = 2
"""Sets of operands in rotation: what a run finds in a buffer is of another one."""

UNTIMED_BYTES_PER_S = 1e9
"""Of the link of a test that is not timed."""


class Setting:
    """What the arms of one case work on. `sets` are operands of `collectives`, `best` is the fastest unsplit contender
    and `t_gemm_s` about its time, `bytes_per_s` what the link is asked for (None where that is not ours to choose).

    A subclass makes the sets (`_operands`), and with them `gemms`, x, w and out of the unsplit matmul, to be run by
    turns. It says what an arm gathers (`transfers`), what a link may bring beside each of `gemms` (`unrelated`), what
    the product is to be of (`whole`), and what the arms that wait on the device need (`prepared`).
    """

    transfers: Callable[..., Transfers]
    """Of operands."""
    waiting_arms: ClassVar[dict[str, Callable]] = {}
    """On a GPU: name -> arm(operands, link), of kernels that wait for the link, or that the link waits for."""
    without_them = ""
    """What to take where those cannot run."""

    def __init__(self, options, case, earlier: dict | None = None, ranks: Alone | Ranks = ALONE):
        """`earlier` is what earlier shares of the run chose, as `measure.runner.Runner.earlier` has it."""
        self.options, self.case, self.device, self.ranks = options, case, options.device, ranks
        self.wire = wires.parse(case.wire)
        self.seed = zlib.crc32(f"{options.seed} {case.op}".encode())
        self.sets = self._operands()
        self.unsplit = unsplit(self.device, *self.factors)
        if earlier:
            facts = earlier["facts"]
            self.t_gemm_s, self.bytes_per_s = facts["t_gemm_planned_s"], facts[REQUESTED]
            fastest = facts["unsplit"]
        else:
            times = ranks.share(self._unsplit_s() if options.timed else dict.fromkeys(self.unsplit, 1.0))
            fastest = min(times, key=times.get)
            self.t_gemm_s = times[fastest]
            self.bytes_per_s = self._bytes_per_s()
        self._gemms_s, self._links = [], weakref.WeakSet()
        self.keeps_step = self.wire.kind == "ridge" and options.timed and not options.wires_of
        if self.keeps_step:
            before_s = earlier and earlier["medians_s"].get(f"gemm {fastest}")
            self.keep_step(before_s or self.t_gemm_s)
        self.gather = facts.get("gather", self.link_kind) if earlier else self.fastest_gather()
        self.best = self.unsplit[fastest]
        for operands in self.sets:
            operands.matmul = self.best.load()

    @classmethod
    def waiting(cls, device: str) -> dict[str, Callable]:
        """Return the arms that wait on `device`; none where kernels are not compiled."""
        return cls.waiting_arms if device == "cuda" and find_spec("triton") else {}

    def _bytes_per_s(self) -> float | None:
        if self.wire.kind in wires.LINKS:
            return None
        if not self.options.timed:
            return UNTIMED_BYTES_PER_S
        if pinned := dict(self.options.wires_of).get(self.case.id):
            return pinned
        case, model = self.case, parse_model(self.case.model)
        rows = max(self.options.gather.rows, default=case.m)
        flops = chip_flops(self.device, case.dtype, rows, -(-model.d_ff // 4), model.d_model)
        of_copy = {"copy_bytes_per_s": copy_bytes_per_s(self.device)} if self.wire.kind == "memory" else {}
        of_case = {"t_gemm_s": self.t_gemm_s, "wire_bytes": case.work.wire_bytes}
        return self.wire.bytes_per_s(chip_flops=flops, **of_case, **of_copy)

    def keep_step(self, gemm_s: float) -> None:
        """The fastest unsplit matmul took so long. The wire `ridge` is as fast as its median in this process's rounds
        and what was known before, as one more: a few calls at one moment may fall on busy neighbours, or on idle
        ones."""
        self._gemms_s.append(gemm_s)
        self.t_gemm_s = median(self._gemms_s)
        self.bytes_per_s = self.wire.value * self.case.work.wire_bytes / self.t_gemm_s
        for link in self._links:
            link.bytes_per_s = self.bytes_per_s

    def _unsplit_s(self) -> dict[str, float]:
        """Return about the time of each of `unsplit`."""
        # On each of `gemms` by turns: what it finds in a cache is then as in a run.
        turns = [itertools.cycle(self._gemms(contender)) for contender in self.unsplit.values()]
        calls = [functools.partial(lambda turn: next(turn)(), turn) for turn in turns]
        return dict(zip(self.unsplit, seconds_by_turns(calls, self.device), strict=True))

    @property
    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x and w of the unsplit matmul."""
        return self.gemms[0][:2]

    def _gemms(self, contender) -> list[Callable]:
        """Return the unsplit matmul by `contender`, on each of `gemms`."""
        return [functools.partial(contender.load(), *tensors) for tensors in self.gemms]

    @functools.cached_property
    def gathers(self) -> list[Transfers]:
        """Return all that a link brings, to be run by turns."""
        return [self.transfers(operands) for operands in self.sets]

    def fastest_gather(self) -> str:
        """Return the link that gathers for `serial`: between GPUs NCCL's all-gather, where that is faster."""
        world, transfers = self.ranks.world, self.gathers[0]
        all_gather = all(transfer.shard is not None for transfer in transfers) and not transfers.in_turn
        if not (world and self.options.timed and all_gather) or world.why_not("nccl"):
            return self.link_kind
        times = {kind: median(self.gathers_s(CALIBRATIONS, kind)) for kind in (self.link_kind, wires.ALL_GATHER)}
        times = self.ranks.share(times)
        return min(times, key=times.get)

    def link(self, kind: str | None = None):
        """Return a link of its own for each call: its timeline is that call's. `kind` is another than that of the
        wire."""
        kind = kind if kind and self.link_kind in wires.OF_RANKS else self.link_kind
        link = make_link(kind, self.device, self.bytes_per_s, self.ranks, self.options.copier_programs)
        self._links.add(link)
        return link

    @property
    def link_kind(self) -> str:
        return self.wire.kind if self.wire.kind in wires.LINKS else "paced"

    @property
    def facts(self) -> dict:
        """Of the case, for the journal."""
        facts = {"ranks": self.case.ranks, "wire": self.case.wire, "link": self.link_kind}
        facts |= {"unsplit": self.best.name, "t_gemm_planned_s": self.t_gemm_s, "gather": self.gather}
        if self.device == "cuda" and self.link_kind == "paced":
            facts["copier_programs"] = self.link().programs
        return facts | {REQUESTED: self.bytes_per_s} | self.grid_facts()

    @functools.cached_property
    def t_comm_s(self) -> float:
        """Return about the time of the link alone."""
        if self.bytes_per_s:
            return self.case.work.wire_bytes / self.bytes_per_s
        if self.wire.kind == "preset" or not self.options.timed:
            return 0.0
        return self.ranks.share(self.gathers_s(2)[-1])

    def gathers_s(self, count: int, kind: str | None = None) -> list[float]:
        """Return about the times of `count` gathers with nothing beside them."""
        link, transfers, times_s = self.link(kind), self.gathers[0], []
        for _ in range(count):
            host_ahead(self.device, len(transfers))
            alone(link, transfers)
            times_s.append(max(link.timeline().arrivals_s))
        return times_s

    @property
    def cache(self) -> str:
        """Return the state of the cache that a sample starts from, in words."""
        nbytes = 2 * len(self.gathers) * self.case.gathered_bytes  # each has a source and a target
        state = "cold" if nbytes > 2 * matmul.cache_bytes(self.device) else "warm"
        return f"{state}: {nbytes / 2**20:.0f} MiB of shards and buffers, used by turns"

    def restore(self) -> None:
        """Bring what links bring, whatever has happened to it."""
        for transfers in self.gathers:
            Preset.fill(transfers)

    def why_not(self, arm: str) -> str | None:
        """Return why `arm` cannot take this case; None if it can."""
        if arm in self.waiting(self.device):
            if self.link_kind == "nccl":
                return f"it is on every SM until its end, and NCCL's kernels need some; take {self.without_them}"
            return reason(lambda: [self.prepared(operands, arm) for operands in self.sets])
        base = base_arm(arm)
        if base != arm and self.matmul_of(arm) is self.best:
            return f"persistent is the fastest unsplit matmul, so that {base} has it already"
        return None if base == arm else self.matmul_of(arm).why_not(*self.factors)

    def matmul_of(self, arm: str):
        """Return the contender that `arm` multiplies by."""
        return self.best if base_arm(arm) == arm else CONTENDERS["persistent"]

    def config(self, arm: str) -> str:
        """Return how `arm` multiplies, in words."""
        return self.matmul_of(arm).describe(*self.factors)

    def references(self) -> dict[str, Entrant]:
        """Return what takes turns with the arms: over a link that brings nothing, neither that nor what is beside
        it."""
        calls = {f"gemm {name}": ("gemm", self._gemms(c), None) for name, c in self.unsplit.items()}
        beside = {"gemm beside link": self._gemms(self.best)}
        if "persistent" in self.unsplit and self.unsplit["persistent"] is not self.best:
            beside["gemm persistent beside link"] = self._gemms(self.unsplit["persistent"])
        if preset := self.preset_runs():
            calls["preset"], beside["preset beside link"] = ("preset", preset, None), preset
        if self.link_kind != "preset":
            link = self.link()
            calls["link"] = ("link", [functools.partial(alone, link, gather) for gather in self.gathers], link)
            unrelated = self.unrelated()
            for name, runs in beside.items():
                link = self.link()
                both = zip(itertools.cycle(unrelated), runs, strict=False)
                calls[name] = ("contended", [functools.partial(contended, link, *about) for about in both], link)
        entrants = {
            name: Entrant(name, Call(runs, self.device, link), role, self.config("serial"))
            for name, (role, runs, link) in calls.items()
        }
        if self.keeps_step:
            unsplit = entrants[f"gemm {self.best.name}"].call
            unsplit.listen, unsplit.notes = self.keep_step, lambda: {REQUESTED: self.bytes_per_s}
        return entrants

    def preset_runs(self) -> list[Callable]:
        """Of a kernel that waits, with nothing to wait for; none where there is no such kernel."""
        return []

    @staticmethod
    def scratch(operands) -> list[torch.Tensor]:
        """Return what an arm writes beside what arrives and `out`."""
        return []

    @property
    def limit(self) -> float:
        """Of a result's relative error."""
        return TOLERANCE[self.case.dtype]

    def arrived(self, transfer: Transfer) -> bool:
        """Return whether it brought what it should."""
        return torch.equal(transfer.target, transfer.source)

    def facts_of(self, arm: str) -> dict:
        """Return further fields of `arm`'s entry in the journal."""
        return {}

    def grid_facts(self) -> dict:
        """Return further fields of the case's, of how its matmul is cut."""
        return {}

    def normal(self, shape: tuple[int, int], seed: int, scale: float = 1.0) -> torch.Tensor:
        """Return zero-mean normal values, which cases of one shape and seed share."""
        return normal(shape, self.case.dtype, self.device, self.seed + seed, scale)

    def weights(self, shape: tuple[int, int], seed: int) -> torch.Tensor:
        """Return values whose product with `normal` ones is as large as these."""
        return self.normal(shape, seed, 1 / math.sqrt(shape[1]))

    def buffer(self, shape: tuple[int, int], number: int = SETS) -> torch.Tensor:
        """Return memory that cases of one shape share; by default such as no set has."""
        return buffer(shape, self.case.dtype, self.device, number)

    def shards_of(self, whole: torch.Tensor, axis: int) -> tuple[torch.Tensor, ...]:
        """Of the operand `whole`, lying where the link takes them from."""
        return shards_of(whole, self.case.ranks, axis, self.wire.kind, self.ranks)

    def relative_error(self, arm: Callable, link, operands, *, all_cores: bool = False) -> float:
        """Of the result of `arm`, from operands poisoned with NaN; NaN where that is left in it."""
        transfers = self.transfers(operands)
        for tensor in [*(transfer.target for transfer in transfers), *self.scratch(operands), operands.out]:
            tensor.fill_(math.nan)
        if link.kind == "preset":
            link.fill(transfers)
        x, w = self.whole(operands)
        with computing(self.device, all_cores=all_cores):
            arm(operands, link)
        link.timeline()  # raises where the link is dead
        if not all(map(self.arrived, transfers)):
            return math.nan
        return checks.error_of(operands.out, checks.reference_sums(x, w))


def make_link(kind: str, device: str, bytes_per_s: float | None, ranks: Alone | Ranks, programs: int | None = None):
    """Return the link of `kind` on `device`, `cpu` or `cuda`, to the one of `ranks` that this process is; `programs` of
    a GPU's copier, or its default."""
    if kind == "preset":
        return Preset()
    if kind == Gloo.kind:
        return Gloo(ranks)
    if kind != "paced":
        from collectives import device_ranks as gpus

        return {link.kind: link for link in (gpus.Nccl, gpus.NcclAllGather, gpus.Symmetric)}[kind](ranks)
    if device == "cpu":
        return PacedThread(bytes_per_s, ranks.rank)
    from collectives.device import PROGRAMS, PacedCopier

    half = torch.cuda.get_device_properties(0).multi_processor_count // 2  # what is sent is computed on the others
    return PacedCopier(bytes_per_s, ranks.rank, programs or min(PROGRAMS, half))


def alone(link, transfers: Transfers) -> None:
    """The gather with nothing beside it."""
    link.start(transfers)
    link.wait(len(transfers))
    link.finish()


def contended(link, transfers: Transfers, matmul: Callable) -> None:
    """A matmul while the link brings something else; its first wait begins when the matmul is done."""
    link.start(transfers)
    matmul()
    link.wait(len(transfers))
    link.finish()
