"""The runner of operations that gather over a wire: arms that were checked, and what to compare them with.

Beside the arms take turns: the unsplit matmul on data that is here (the vendor's and ours; the fastest is T_gemm), the
link alone (T_comm), and the unsplit matmul while the link brings something else, for what the two take from each other.
On a CPU all of them compute on all cores but one, which is the link's; the arm `ALL_CORES` alone takes that too.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch

from collectives import peer as peers
from collectives.bench.operands import by_turns, computing
from collectives.bench.setting import Setting
from collectives.transfers import LinkError, Preset, WarmUp, ended
from kernels.bench import roof
from kernels.registry import CONTENDERS
from roofline.operations import Contender, contenders
from roofline.operations.gathering import OFF_PACE
from roofline.theory.arms import ALL_CORES, BY_PERSISTENT, PEER, PERSISTENT, arms_of, base_arm
from roofline.worker.prepared import SKIPPED, TOLERANCE, Entrant, Rejection, verdict

LONGEST_GATHER_S = 2.0
TRIES = 3
"""A virtual machine may keep the link's thread from its core for a while."""


class Runner(roof.Runner):
    """Runs the arms of one operation, and their peer. A subclass says what they work on."""

    setting: type[Setting]
    own_arms: dict[str, Callable]
    """Name -> arm(operands, link), those that run on any device."""
    peer_operator: Callable | None = None
    """An operator of `collectives.peer`."""

    def arms(self, op: str, device: str) -> dict[str, Callable]:
        """Name -> arm(operands, link) of `op` on `device`. On a GPU those of `BY_PERSISTENT` also by our persistent
        matmul. The fastest is mostly the vendor's, whose programs leave the copier no room on an SM: they stay off
        those that it is on, and tiles that were dealt to them begin late."""
        if device == "cpu":
            return self.own_arms | {ALL_CORES: self.own_arms["serial"]}
        from collectives import on_device  # here, since it takes Triton

        ours = CONTENDERS["persistent"].load()
        arms = dict(self.own_arms)
        for name in BY_PERSISTENT:
            if name in self.own_arms:
                arms[name + PERSISTENT] = partial(self.own_arms[name], matmul=ours)
        return arms | {name: on_device.ARMS[name] for name in arms_of(op, gpu=True) if name in on_device.ARMS}

    def contenders(self, case):
        runs = self.arms(case.op, self.options.device) | {PEER: type(self).peer_operator}
        return {name: Contender(name, run) for name, run in runs.items()}

    def operands(self, prepared):
        options = self.options
        case = prepared.case
        prepared.is_guarded = False
        reason = self.ranks.world and self.ranks.world.why_not(case.wire)  # their GPUs may be unable to take it
        if options.device == "cpu" and case.dtype != "fp32":
            reason = f"on a CPU the arms take fp32, not {case.dtype}: torch's CPU matmul does not sum it in fp32"
        if reason:
            return Rejection(SKIPPED, reason)
        earlier = self.earlier.get(case.id)
        setting = self.setting(options, case, earlier, self.ranks)
        prepared.facts = setting.facts
        prepared.inputs = setting.inputs
        reason = contenders.reason(setting.link)
        if not reason and options.timed and not earlier:
            reason = off_pace(setting)
        if reason:
            return Rejection(SKIPPED, reason)
        prepared.cache = setting.cache
        return setting

    def why_not(self, contender, case, setting):
        name = contender.name
        reason = peers.why_not(self.ranks) if name == PEER else setting.why_not(name)
        return reason and f"{name}: {reason}"

    def candidate(self, contender, prepared, setting, _):
        """The arm, or the peer, if its result is right: twice on each set of operands; in a later process, on the first
        one once."""
        name = contender.name
        if name == PEER:
            return self.peer(contender.path, setting)
        case = setting.case
        all_cores = name == ALL_CORES
        arm = ended(setting.split(name, contender.path))
        kind = setting.gather if base_arm(name) == "serial" else None
        link = setting.link(kind, is_spread=setting.leaves_room(name))
        if setting.device == "cuda":  # compiles and loads, first what the arm has and then what the link has
            setting.relative_error(arm, WarmUp(), setting.sets[0])
            with suppress(LinkError):  # one that waits for what is computed may give up
                setting.relative_error(arm, link, setting.sets[0])
        checked = setting.sets[:1] if case.id in self.earlier else 2 * setting.sets
        error, where = setting.worst_error(computing(setting.device, all_cores=all_cores)(arm), link, checked)
        limit = TOLERANCE[case.dtype] * setting.limit_share
        if wrong := verdict(name, error, case.dtype, limit, where):
            return wrong
        call = by_turns([partial(arm, each, link) for each in setting.sets], setting.device, link, all_cores=all_cores)
        config, facts = setting.describe(name)
        if setting.device == "cuda" and link.kind == "paced":
            facts = facts | {"copier_programs": link.programs}
        look = setting.look_at(call, limit)
        return Entrant(name, call, config=config, relative_error=error, facts=facts, look=look)

    def peer(self, operator: Callable, setting: Setting) -> Entrant | Rejection:
        """torch's fused `operator(operands, ranks)`, if it is right twice on each set of operands. It brings its own
        transfers, whatever the wire of the case: its time stands beside the arms', and no hidden fraction."""
        case, ranks = setting.case, setting.ranks

        def checked(operands, link) -> None:
            torch.set_deterministic_debug_mode("warn")  # memory is handed out full of NaN
            try:
                operands.out.copy_(operator(operands, ranks))
            finally:
                torch.set_deterministic_debug_mode("default")

        error, where = setting.worst_error(checked, Preset(), 2 * setting.sets)
        # Each of P chunks rounds the sum once more, the first ones while it is small.
        limit = TOLERANCE[case.dtype] * math.sqrt((case.ranks + 1) / 2)
        if wrong := verdict(PEER, error, case.dtype, limit, where):
            return wrong
        call = by_turns([partial(operator, operands, ranks) for operands in setting.sets], setting.device)
        config = f"torch {torch.__version__}, sums in {case.dtype}"
        facts = {"link": f"fabric of {case.ranks} GPUs"}
        look = setting.look_at(call, limit, lambda operands, result: result)
        return Entrant(PEER, call, config=config, relative_error=error, facts=facts, look=look)

    def references(self, prepared, setting):
        for transfers in setting.gathers:
            WarmUp.fill(transfers)  # whatever a wrong arm left
        return setting.references() if self.options.timed else {}


def off_pace(setting) -> str | None:
    """Why the link voids the case: one gather takes longer than anybody means it to, or misses the bandwidth
    that it is asked for, `TRIES` times in a row. None if it keeps it, or none is asked for."""
    asked = setting.pace.bytes_per_s
    if not asked:
        return None
    wire_bytes = setting.case.work.wire_bytes
    if wire_bytes > LONGEST_GATHER_S * asked:
        return (
            f"one gather at {asked / 1e9:.3g} GB/s takes {wire_bytes / asked:.3g} s, and {LONGEST_GATHER_S:g} s is "
            "the limit: choose another bandwidth with --ffn-link-bandwidth"
        )
    for _ in range(TRIES):
        reached = wire_bytes / setting.gather_s()
        if abs(reached / asked - 1) <= OFF_PACE:
            return None
    return (
        f"the paced link reaches {reached / 1e9:.3g} GB/s alone, asked for are {asked / 1e9:.3g}, "
        f"and {100 * OFF_PACE:.0f} % is the limit: choose another with --ffn-link-bandwidth"
    )
