"""One case that gathers over a wire: its operands, the unsplit matmul, and how its arms are checked."""

import itertools
import math
import zlib
from collections.abc import Callable
from functools import cached_property, partial

import torch

from collectives.bench.links import contended, make_link, seconds_alone
from collectives.bench.operands import OURS, Turns, buffer, by_turns, normal, seconds_by_turns, unsplit, workers
from collectives.bench.pace import Pace, asked_of
from collectives.transfers import Transfers
from kernels.bench import checks, roof
from kernels.registry import CONTENDERS
from roofline.operations.contenders import reason
from roofline.store.run import REQUESTED
from roofline.theory import wires
from roofline.theory.arms import ARMS, base_arm
from roofline.worker.alone import ALONE, Alone
from roofline.worker.clocks import Call
from roofline.worker.prepared import Entrant, Inputs
from roofline.worker.ranks import Ranks

SETS = 2
"""Sets of operands in rotation: what a run finds in a buffer is of another one."""

WAITING = {name for name, spec in ARMS.items() if spec.table}
"""Arms of `collectives.on_device`."""


class Setting:
    """What the arms of one case work on. `sets` are operands of `collectives`, `gemms` are (x, w, out) of the unsplit
    matmul, to be run by turns. `best` is the fastest unsplit contender. A subclass has the methods that
    raise NotImplementedError here."""

    rotation = SETS
    """So many sets there are."""
    limit_share = 1.0
    """The relative error that a result may have, over the limit of its dtype."""

    def make(self, number: int):
        """Operands, the set of this number."""
        raise NotImplementedError

    def gemms_of(self, operands) -> list[tuple]:
        """Those of `gemms` that are of operands."""
        raise NotImplementedError

    def transfers(self, operands) -> Transfers:
        """The transfers of a link for operands."""
        raise NotImplementedError

    def unrelated(self) -> list[Transfers]:
        """Those that it may make beside each of `gemms`."""
        raise NotImplementedError

    def whole(self, operands) -> tuple:
        """x and w, of operands, whose product is right."""
        raise NotImplementedError

    def changing(self, operands) -> list:
        """Tensors of operands that change between rounds; none where other ranks would have to know."""
        raise NotImplementedError

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
        inputs, turns = self.inputs, call.run
        if not (isinstance(inputs, checks.Signs) and isinstance(turns, Turns)):
            return None

        def look(result) -> Callable[[], str]:
            operands = self.sets[turns.last % len(self.sets)]
            x, w = self.multiplied(operands)
            return checks.glance(result_of(operands, result), x, w, limit, inputs.numbers)

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
        self._values: set[torch.Tensor] = set()
        self.sets = [self.make(number) for number in range(self.rotation)]
        self.gemms: list[tuple] = []
        for operands in self.sets:
            self.gemms += self.gemms_of(operands)
        x, w, *_ = self.gemms[0]
        self.unsplit = unsplit(options, x, w, self.link_kind)
        self.earlier = earlier or {"facts": {}, "medians_s": {}}
        fastest = self._recall(earlier["facts"]) if earlier else self._choose()
        self.keeps_step = self.wire.kind == "ridge" and options.timed and not options.wires_of
        if self.keeps_step:
            self.pace.keep_step(self.earlier["medians_s"].get(f"gemm {fastest}", self.pace.t_gemm_s))
        self.best = self.unsplit[fastest]
        for operands in self.sets:
            operands.matmul = self.best.load()
        self.facts = {
            "ranks": case.ranks,
            "wire": case.wire,
            "link": self.link_kind,
            "unsplit": fastest,
            "t_gemm_planned_s": self.pace.t_gemm_s,
            "gather": self.gather,
            REQUESTED: self.pace.bytes_per_s,
        }
        if self.link_kind == wires.PCIE:
            self.facts["t_comm_planned_s"] = self.t_comm_s
        self.facts.update(self.cut())

    def _recall(self, facts: dict) -> str:
        """Take what an earlier worker chose. Returns the fastest of `unsplit`."""
        self.pace = Pace(self.case, facts["t_gemm_planned_s"], facts[REQUESTED])
        if self.link_kind == wires.PCIE:
            self.t_comm_s = facts["t_comm_planned_s"]
        self.gather = facts["gather"]
        return facts["unsplit"]

    def _choose(self) -> str:
        """Choose the bandwidth and the gather, by the fastest of `unsplit`, which is returned."""
        times_s = self._unsplit_s()
        fastest = min(times_s, key=lambda name: times_s[name])
        asked = asked_of(self.case, self.options, times_s[fastest])
        self.pace = Pace(self.case, times_s[fastest], asked)
        self.gather = self.fastest_gather()
        return fastest

    def _unsplit_s(self) -> dict[str, float]:
        """About the time of each of `unsplit` on rank 0; where nothing is timed, 1 s."""
        times_s = dict.fromkeys(self.unsplit, 1.0)
        if self.options.timed:
            calls = [by_turns(self.multiplied_by(contender), self.device) for contender in self.unsplit.values()]
            times_s = dict(zip(self.unsplit, seconds_by_turns(calls, self.device), strict=True))
        return self.ranks.broadcast(times_s)

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
        is_all_gather = all(transfer.shard is not None for transfer in transfers)
        if not (world and self.options.timed and is_all_gather) or world.why_not("nccl"):
            return self.link_kind
        times_s = {kind: self.gather_s(kind) for kind in (self.link_kind, wires.ALL_GATHER)}
        times_s = self.ranks.broadcast(times_s)
        return min(times_s, key=times_s.get)

    def link(self, kind: str | None = None, *, is_spread: bool = False):
        """A new link, for one call: its timeline is that call's. `kind` is that of the wire, or of what gathers for
        `serial` in its place. One that `is_spread` has a program of the copier on each SM."""
        programs = self.wire.programs
        if is_spread:
            programs = programs or workers(self.device)
        link = make_link(kind or self.link_kind, self.device, self.pace.bytes_per_s, self.ranks, programs)
        self.pace.links.append(link)
        return link

    @cached_property
    def t_comm_s(self) -> float:
        """About the time of the link alone."""
        if self.pace.bytes_per_s:
            return self.case.work.wire_bytes / self.pace.bytes_per_s
        if self.wire.kind == "preset" or not self.options.timed:
            return 0.0
        return self.ranks.broadcast(self.gather_s())

    def gather_s(self, kind: str | None = None) -> float:
        return seconds_alone(self.link(kind), self.gathers[0], self.device)

    @property
    def cache(self) -> str:
        """The state of the cache that a sample starts from, in words."""
        nbytes = 2 * len(self.gathers) * self.case.gathered_bytes  # each has a source and a target
        state = "cold" if nbytes > 2 * roof.cache_bytes(self.device) else "warm"
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
                        on_device.prepare(operands, arm, self.link_kind, self.pace.t_gemm_s, self.t_comm_s)

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
        return arm in WAITING or self.matmul_of(arm).name in OURS

    def matmul_of(self, arm: str):
        """The contender that `arm` multiplies by."""
        return self.best if base_arm(arm) == arm else CONTENDERS["persistent"]

    def references(self) -> dict[str, Entrant]:
        """The entrants that take turns with the arms. Over a link that brings nothing these are without the link, and
        without a matmul beside it."""
        entrants = {}
        config = self.describe("serial")[0]

        def enter(name: str, role: str, runs: list[Callable], link=None) -> None:
            entrants[name] = Entrant(name, by_turns(runs, self.device, link), role, config)

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
                link = self.link(is_spread=name != "gemm" or self.best.name in OURS)
                both = zip(itertools.cycle(unrelated), runs, strict=False)
                enter(f"{name} beside link", "contended", [partial(contended, link, *pair) for pair in both], link)
        if self.keeps_step:
            call = entrants[best].call
            call.listen = self.pace.keep_step
            call.notes = lambda: {REQUESTED: self.pace.bytes_per_s}
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

    def worst_error(self, arm: Callable, link, sets: list) -> tuple[float, str]:
        """The worst `relative_error` on `sets`, and where a result has its first NaN, in words."""
        errors = []
        where = ""
        for operands in sets:
            errors.append(self.relative_error(arm, link, operands))
            where = where or checks.first_nan(out=operands.out)
        return checks.worst(errors), where

    def relative_error(self, arm: Callable, link, operands) -> float:
        """The relative error of the result of `arm`, with NaN in all that it fills before; NaN where that is left."""
        transfers = self.transfers(operands)
        filled = [transfer.target for transfer in transfers]
        filled += self.written(operands)
        for tensor in filled:
            tensor.fill_(math.nan)
        if link.kind == "preset":
            link.fill(transfers)
        x, w = self.whole(operands)
        arm(operands, link)
        link.timeline()  # raises where the link is dead
        return checks.error_of(operands.out, checks.reference_sums(x, w))
