"""One case that gathers over a wire: its operands, its links, the unsplit matmul, and how its arms are checked."""

import itertools
import math
import zlib
from collections.abc import Callable
from functools import cached_property, partial
from statistics import median

import torch

from collectives.bench.operands import (
    CALIBRATIONS,
    Call,
    buffer,
    chip_flops,
    computing,
    copy_bytes_per_s,
    normal,
    seconds_by_turns,
    unsplit,
    workers,
)
from collectives.paced import PacedThread
from collectives.ranks import Gloo
from collectives.transfers import SLICE_BYTES, Preset, Transfers
from kernels.bench import checks, matmul
from kernels.contract import reason
from kernels.registry import CONTENDERS
from roofline.store.run import REQUESTED
from roofline.theory import wires
from roofline.theory.arms import ARMS, base_arm
from roofline.theory.models import parse as parse_model
from roofline.worker.alone import ALONE, Alone
from roofline.worker.prepared import Entrant
from roofline.worker.ranks import Ranks
from roofline.worker.rounds import Inputs

SETS = 2
"""Sets of operands in rotation: what a run finds in a buffer is of another one."""

UNTIMED_BYTES_PER_S = 1e9
"""The bandwidth of the link in a test that is not timed."""

HOLD_CYCLES, TRANSFER_CYCLES, SLICE_CYCLES = 4_000_000, 400_000, 40_000
"""Cycles of an SM, some 2 ms, 0.2 and 0.02: longer than the host takes to enqueue an arm, each transfer of its link,
and each slice of that. Without them a link's time begins with its stamp, tenths of a millisecond before the host has
launched the copies. A copy engine gets a wait and a copy for every two slices: a host took 9 us for them, without the
driver's own time."""

WAITING = {name for name, spec in ARMS.items() if spec.table}
"""Arms of `collectives.on_device`."""


class Setting:
    """What the arms of one case work on. `sets` are operands of `collectives`, `gemms` are (x, w, out) of the unsplit
    matmul, to be run by turns. `best` is the fastest unsplit contender, `t_gemm_s` about its time, and `bytes_per_s`
    the bandwidth that the link is asked for (None where that is not ours to choose).

    A subclass has

        make(number)            operands, the set of this number
        gemms_of(operands)      those of `gemms` that are of operands
        transfers(operands)     the transfers of a link for operands
        unrelated()             those that it may make beside each of `gemms`
        whole(operands)         x and w, of operands, whose product is right
        changing(operands)      tensors of operands that change between rounds; nothing where other ranks would have to
                                know
    """

    rotation = SETS
    """So many sets there are."""
    limit_share = 1.0
    """The relative error that a result may have, over the limit of its dtype."""

    def written(self, operands) -> list[torch.Tensor]:
        """The tensors that an arm writes, beside the targets of transfers."""
        return [operands.out]

    @staticmethod
    def now_here(sets: list) -> None:
        """Copy changed inputs to where no link brings them."""

    def multiplied(self, operands) -> tuple[torch.Tensor, torch.Tensor]:
        """x and w, whose product the last call has computed."""
        return self.whole(operands)

    @cached_property
    def inputs(self) -> Inputs:
        """The inputs that change between rounds: none over a link that brings nothing."""
        changing = []
        if self.link_kind != "preset":
            for operands in self.sets:
                changing += self.changing(operands)
        if not changing:
            return Inputs()
        return checks.Signs(changing, self.options.seed, partial(self.now_here, self.sets))

    def look_at(self, call: Call, limit: float, result_of: Callable = lambda operands, result: operands.out):
        """The `look` of an entrant with this `call`; None where no input changes."""
        if not isinstance(self.inputs, checks.Signs):
            return None

        def look(result) -> Callable[[], str]:
            operands = self.sets[call.last % len(self.sets)]
            x, w = self.multiplied(operands)
            return checks.glance(result_of(operands, result), x, w, limit, self.inputs.numbers)

        return look

    def cut(self) -> dict:
        """Cut the operands. Returns the fields of the case's line in the journal that say how its matmul is cut."""
        return {}

    def split(self, name: str, arm: Callable) -> Callable:
        """`arm`, cut as suits the case."""
        return arm

    def describe(self, arm: str) -> tuple[str, dict]:
        """How `arm` multiplies, in words, and further fields of its entry in the journal."""
        if ready := self.sets[0].prepared.get(arm):
            return ready.config, ready.facts
        return self.matmul_of(arm).load().describe(*self.gemms[0][:2]), {}

    def preset_runs(self) -> list[Callable]:
        """Runs of a kernel that waits, with nothing to wait for; none where there is no such kernel."""
        return []

    def __init__(self, options, case, earlier: dict | None = None, ranks: Alone | Ranks = ALONE):
        """`earlier` is what earlier workers of the run chose, as `worker.runner.Runner.earlier` has it."""
        self.options = options
        self.case = case
        self.device = options.device
        self.ranks = ranks
        self.wire = wires.parse(case.wire)
        self.link_kind = self.wire.link
        self.seed = zlib.crc32(f"{options.seed} {case.op}".encode())
        self._values = set()
        self._gemms_s = []
        self._links = []
        self.sets = [self.make(number) for number in range(self.rotation)]
        self.gemms = []
        for operands in self.sets:
            self.gemms += self.gemms_of(operands)
        self.unsplit = unsplit(options, *self.gemms[0][:2], self.link_kind)
        self.earlier_facts = earlier["facts"] if earlier else {}
        fastest = self._recall() if earlier else self._choose()
        self.keeps_step = self.wire.kind == "ridge" and options.timed and not options.wires_of
        if self.keeps_step:
            before_s = earlier and earlier["medians_s"].get(f"gemm {fastest}")
            self.keep_step(before_s or self.t_gemm_s)
        self.best = self.unsplit[fastest]
        for operands in self.sets:
            operands.matmul = self.best.load()
        self.facts = {
            "ranks": case.ranks,
            "wire": case.wire,
            "link": self.link_kind,
            "unsplit": fastest,
            "t_gemm_planned_s": self.t_gemm_s,
            "gather": self.gather,
            REQUESTED: self.bytes_per_s,
        }
        if self.link_kind == wires.PCIE:
            self.facts["t_comm_planned_s"] = self.t_comm_s
        self.facts.update(self.cut())

    def _recall(self) -> str:
        """Take what an earlier worker chose. Returns the fastest of `unsplit`."""
        facts = self.earlier_facts
        self.t_gemm_s = facts["t_gemm_planned_s"]
        self.bytes_per_s = facts[REQUESTED]
        self.gather = facts["gather"]
        if self.link_kind == wires.PCIE:
            self.t_comm_s = facts["t_comm_planned_s"]
        return facts["unsplit"]

    def _choose(self) -> str:
        """Choose the bandwidth and the gather, by the fastest of `unsplit`, which is returned."""
        times_s = self._unsplit_s() if self.options.timed else dict.fromkeys(self.unsplit, 1.0)
        times_s = self.ranks.broadcast(times_s)
        fastest = min(times_s, key=times_s.get)
        self.t_gemm_s = times_s[fastest]
        self.bytes_per_s = self._bytes_per_s()
        self.gather = self.fastest_gather()
        return fastest

    def _bytes_per_s(self) -> float | None:
        if self.wire.kind in wires.LINKS:
            return None
        if not self.options.timed:
            return UNTIMED_BYTES_PER_S
        if pinned := dict(self.options.wires_of).get(self.case.id):
            return pinned
        case = self.case
        model = parse_model(case.model)
        rows = max(self.options.gather.rows, default=case.m)
        known = {
            "chip_flops": chip_flops(self.device, case.dtype, rows, -(-model.d_ff // 4), model.d_model),
            "t_gemm_s": self.t_gemm_s,
            "wire_bytes": case.work.wire_bytes,
        }
        if self.wire.kind == "memory":
            known["copy_bytes_per_s"] = copy_bytes_per_s(self.device)
        return self.wire.bytes_per_s(**known)

    def keep_step(self, gemm_s: float) -> None:
        """Note that the fastest unsplit matmul took so long, and give the wire `ridge` the pace of the median. That is
        over the rounds of this process, and what was known before as one more: a few calls at one moment may fall on
        busy neighbours, or on idle ones."""
        self._gemms_s.append(gemm_s)
        self.t_gemm_s = median(self._gemms_s)
        self.bytes_per_s = self.wire.value * self.case.work.wire_bytes / self.t_gemm_s
        for link in self._links:
            link.bytes_per_s = self.bytes_per_s

    def _unsplit_s(self) -> dict[str, float]:
        """About the time of each of `unsplit`."""
        calls = [Call(self.multiplied_by(contender), self.device) for contender in self.unsplit.values()]
        return dict(zip(self.unsplit, seconds_by_turns(calls, self.device), strict=True))

    def multiplied_by(self, contender) -> list[Callable]:
        """The unsplit matmul by `contender`, on each of `gemms`."""
        return [partial(contender.load(), *tensors) for tensors in self.gemms]

    @cached_property
    def gathers(self) -> list[Transfers]:
        """The transfers of each set of operands, to be run by turns."""
        return [self.transfers(operands) for operands in self.sets]

    def fastest_gather(self) -> str:
        """The kind of link that gathers for `serial`: between GPUs NCCL's all-gather, where that is faster."""
        world = self.ranks.world
        transfers = self.gathers[0]
        is_all_gather = all(transfer.shard is not None for transfer in transfers) and not transfers.in_turn
        if not (world and self.options.timed and is_all_gather) or world.why_not("nccl"):
            return self.link_kind
        times_s = {kind: self.gather_s(kind) for kind in (self.link_kind, wires.ALL_GATHER)}
        times_s = self.ranks.broadcast(times_s)
        return min(times_s, key=times_s.get)

    def link(self, kind: str | None = None, *, is_spread: bool = False):
        """A new link, for one call: its timeline is that call's. `kind` is that of the wire, or of what gathers for
        `serial` in its place. One that `is_spread` has a program of the copier on each SM."""
        programs = self.wire.programs or self.options.copier_programs
        if is_spread:
            programs = programs or workers(self.device)
        link = make_link(kind or self.link_kind, self.device, self.bytes_per_s, self.ranks, programs)
        self._links.append(link)
        return link

    @cached_property
    def t_comm_s(self) -> float:
        """About the time of the link alone."""
        if self.bytes_per_s:
            return self.case.work.wire_bytes / self.bytes_per_s
        if self.wire.kind == "preset" or not self.options.timed:
            return 0.0
        return self.ranks.broadcast(self.gather_s())

    def gather_s(self, kind: str | None = None) -> float:
        """About the time of a gather with nothing beside it."""
        link = self.link(kind)
        transfers = self.gathers[0]
        times_s = []
        for _ in range(CALIBRATIONS):
            if self.device == "cuda":
                torch.cuda._sleep(held_cycles(transfers))
            contended(link, transfers)
            times_s.append(max(link.timeline().arrivals_s))
        return median(times_s)

    @property
    def cache(self) -> str:
        """The state of the cache that a sample starts from, in words."""
        nbytes = 2 * len(self.gathers) * self.case.gathered_bytes  # each has a source and a target
        state = "cold" if nbytes > 2 * matmul.cache_bytes(self.device) else "warm"
        return f"{state}: {nbytes / 2**20:.0f} MiB of shards and buffers, used by turns"

    def why_not(self, arm: str) -> str | None:
        """Why `arm` cannot take this case; None if it can."""
        if arm in WAITING:
            if self.link_kind == "nccl":
                return "it is on every SM until its end, and NCCL's kernels need some; take an arm of launches"
            from collectives import on_device  # here, since it takes Triton

            def prepare() -> None:
                for operands in self.sets:
                    if arm not in operands.prepared:
                        on_device.prepare(operands, arm, self.link_kind, self.t_gemm_s, self.t_comm_s)

            return reason(prepare)
        base = base_arm(arm)
        if base == arm:
            return None
        ours = self.matmul_of(arm)
        if ours is self.best:
            return f"persistent is the fastest unsplit matmul, so that {base} has it already"
        return ours.why_not(*self.gemms[0][:2])

    def leaves_room(self, arm: str) -> bool:
        """Whether the kernel of `arm` leaves the copier room on every SM: ours do, the vendor's may not.

        The copier then has a program on each SM, so that what it takes is taken from all alike. On an H200, of 132 SMs,
        a matmul of 1.14 ms beside a gather of 0.87 took 1.32 ms so, and 1.42 beside 32 programs: tiles are dealt out
        evenly, and the SMs with a program held up the rest (results/reference: copier_programs.txt).
        """
        return arm in WAITING or self.matmul_of(arm) is CONTENDERS["persistent"]

    def matmul_of(self, arm: str):
        """The contender that `arm` multiplies by."""
        return self.best if base_arm(arm) == arm else CONTENDERS["persistent"]

    def references(self) -> dict[str, Entrant]:
        """The entrants that take turns with the arms. Over a link that brings nothing these are without the link, and
        without a matmul beside it."""
        entrants = {}
        config = self.describe("serial")[0]

        def enter(name: str, role: str, runs: list[Callable], link=None) -> None:
            entrants[name] = Entrant(name, Call(runs, self.device, link), role, config)

        gemms = {f"gemm {name}": self.multiplied_by(contender) for name, contender in self.unsplit.items()}
        for name, runs in gemms.items():
            enter(name, "gemm", runs)
        best = f"gemm {self.best.name}"
        ours = "gemm persistent"
        beside = {"gemm": gemms[best]}
        if ours in gemms and ours != best:
            beside[ours] = gemms[ours]
        if preset := self.preset_runs():
            enter("preset", "preset", preset)
            beside["preset"] = preset
        if self.link_kind != "preset":
            link = self.link()
            enter("link", "link", [partial(contended, link, gather) for gather in self.gathers], link)
            unrelated = self.unrelated()
            for name, runs in beside.items():
                link = self.link(is_spread=name != "gemm" or best == ours)
                both = zip(itertools.cycle(unrelated), runs, strict=False)
                enter(f"{name} beside link", "contended", [partial(contended, link, *pair) for pair in both], link)
        if self.keeps_step:
            call = entrants[best].call
            call.listen = self.keep_step
            call.notes = lambda: {REQUESTED: self.bytes_per_s}
        return entrants

    def normal(self, shape: tuple[int, int], seed: int, scale: float = 1.0) -> torch.Tensor:
        """Zero-mean normal values, which cases of one shape and seed share. They stay until all arms of this case are
        checked."""
        values = normal(shape, self.case.dtype, self.device, self.seed + seed, scale)
        self._values.add(values)
        return values

    def weights(self, shape: tuple[int, int], seed: int) -> torch.Tensor:
        """Values whose product with `normal` ones is as large as these."""
        return self.normal(shape, seed, 1 / math.sqrt(shape[1]))

    def buffer(self, shape: tuple[int, int], number: int = SETS) -> torch.Tensor:
        """Memory that cases of one operation and shape share; by default none that a set has."""
        return buffer(self.case.op, shape, self.case.dtype, self.device, number)

    def worst_error(self, arm: Callable, link, sets: list, **about) -> tuple[float, str]:
        """The worst `relative_error` on `sets`, and where a result has its first NaN, in words."""
        errors = []
        where = ""
        for operands in sets:
            errors.append(self.relative_error(arm, link, operands, **about))
            where = where or checks.first_nan(out=operands.out)
        return checks.worst(errors), where

    def relative_error(self, arm: Callable, link, operands, *, all_cores: bool = False) -> float:
        """The relative error of the result of `arm`, with NaN in all that it fills before; NaN where that is left."""
        transfers = self.transfers(operands)
        filled = [transfer.target for transfer in transfers]
        filled += self.written(operands)
        for tensor in filled:
            tensor.fill_(math.nan)
        if link.kind == "preset":
            link.fill(transfers)
        x, w = self.whole(operands)
        with computing(self.device, all_cores=all_cores):
            arm(operands, link)
        link.timeline()  # raises where the link is dead
        return checks.error_of(operands.out, checks.reference_sums(x, w))


def held_cycles(transfers: Transfers) -> int:
    """How long the stream is held before a link of `transfers` begins, while the host enqueues it."""
    slices = sum(len(transfer.slices(SLICE_BYTES)) for transfer in transfers)  # no link has smaller ones
    return HOLD_CYCLES + len(transfers) * TRANSFER_CYCLES + slices * SLICE_CYCLES


def make_link(kind: str, device: str, bytes_per_s: float | None, ranks: Alone | Ranks, programs: int | None = None):
    """The link of `kind` on `device`, `cpu` or `cuda`, to the one of `ranks` that this process is. A GPU's copier has
    `programs`, or as many as it needs."""
    if kind == "preset":
        return Preset()
    if kind == Gloo.kind:
        return Gloo(ranks)
    if device == "cpu":
        return PacedThread(bytes_per_s, ranks.rank)
    from collectives import device_ranks as gpus
    from collectives import engines
    from collectives.device import PacedCopier, programs_for

    if kind == wires.PCIE:
        return engines.Pcie(ranks.rank)
    if kind == wires.PACED_ENGINE:
        return engines.PacedEngine(bytes_per_s, ranks.rank)
    for link in (gpus.Nccl, gpus.NcclAllGather, gpus.Symmetric):
        if kind == link.kind:
            return link(ranks)
    half = workers(device) // 2  # what is sent is computed on the others
    return PacedCopier(bytes_per_s, ranks.rank, programs or min(programs_for(bytes_per_s), half))


def contended(link, transfers: Transfers, matmul: Callable = lambda: None) -> None:
    """The gather alone, or beside a `matmul`: its first wait begins when that is done."""
    link.start(transfers)
    matmul()
    link.wait(len(transfers))
    link.finish()
