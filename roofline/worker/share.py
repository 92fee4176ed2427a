"""A share of a run: cases that one process prepares, checks and times, telling what it does as it goes on.

`run` is a plain function. It knows no pytest, no journal and no other process: what it learns it hands to `tell`, and
goes on once that returns. `worker.process` makes a process of it.

What it tells are `worker.messages`.
"""

import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from roofline import operations
from roofline.operations.format import time_text
from roofline.operations.gathering import links_text
from roofline.store.run import PROBE, Shape
from roofline.store.stats import grouped, time_of
from roofline.theory import floor
from roofline.worker import (
    METHOD_VERSION,
    call_costs,
    ceilings,
    device_errors,
    launches,
    machine,
    process_state,
    runner,
    steady,
    telemetry,
)
from roofline.worker.clocks import empty_call_s
from roofline.worker.machine import anonymous
from roofline.worker.messages import (
    Broke,
    Done,
    JournalLine,
    Kind,
    MachineFound,
    Rejected,
    Request,
    ShapeChecked,
    ShapePrepared,
    Step,
    StepBegan,
    Turns,
    is_of_contender,
)
from roofline.worker.prepared import FAILED, SKIPPED, Broken, Entrant, PreparedCase, Rejection, rejection, stop_if_lost
from roofline.worker.ranks import ALONE
from roofline.worker.rounds import UNWATCHED, CallError, Rounds, StopRule

LATE = "the host was late for every sample; close the programs that keep it busy"
WAITS = (
    "each call waits for the device, as by .item(), synchronize() or a copy to the host: then the host is late for "
    "every sample; have it enqueue its work and return"
)
"""Why an entrant of a GPU has no samples."""
ON_STREAM = {"cpu": "", "cuda": ", on the current stream or behind it: what it hands to another has to wait for that"}
"""Work on a stream that does not wait is over before the sample begins."""

Tell = Callable[[object], None]


def run(request: Request, tell: Tell, runners: operations.Runners, mark: bytearray = UNWATCHED) -> None:
    """Do what `request` says, and tell what comes of it. `mark[0]` is kept at the number of the entrant that is being
    called while entrants take turns, from 1, in the order of the last `StepBegan`; 0 between calls.

    Raises what `tell` raises, and KeyboardInterrupt where a signal asks for the end: whole rounds are told before.
    """
    share = Share(request, tell, runners, mark)
    try:
        does = {Kind.HELLO: share.greet, Kind.CHECK: share.check, Kind.MEASURE: share.measure}
        does[Kind.NAMES] = partial(launches.name_kernels, share)
        does[request.kind]()
    except Broken as broken:
        name, rejected = broken.args
        tell(Broke(name, rejected.outcome, rejected.reason))
    tell(Done())


@dataclass
class Entered:
    """A shape whose entrants are prepared, between the passes over it."""

    shape: str
    prepared: PreparedCase
    rounds: Rounds
    passes: int
    seed: int
    telemetry: dict = field(default_factory=dict)
    """Of the last pass."""
    rounds_told: int = 0
    late_told: dict[str, int] = field(default_factory=dict)


class Share:
    """A request as it goes on."""

    def __init__(self, request: Request, tell: Tell, runners: operations.Runners, mark: bytearray):
        self.request, self.tell, self.runners, self.mark = request, tell, runners, mark
        self.options, self.device = runners.options, runners.options.device
        of_shape = {shape: runners.of(operations.find(shape.partition("-")[0])) for shape in request.cases}
        for shape, chosen in request.chosen.items():
            of_shape[shape].earlier[shape] = chosen

    def begin(self, step: str, shape: str = "", **more) -> None:
        """Tell what the share does next; `more` are further fields of `StepBegan`."""
        self.tell(StepBegan(step, shape, **more))

    def journal(self, kind: str, **fields) -> None:
        """Tell a line for the journal."""
        self.tell(JournalLine({"kind": kind} | fields))

    def reject(self, shape: str, name: str, rejected: Rejection) -> None:
        self.tell(Rejected(shape, name, rejected.outcome, rejected.reason))

    def prepare(self, shape: str, names: list[str]) -> PreparedCase:
        """Return what the runner prepares. Of what fails before any contender is called, all are rejected."""

        def first_call(name: str, within_s: float | None = None) -> None:
            if reason := self.request.refused.get(f"{shape}-{name}"):
                raise RuntimeError(reason)
            self.begin(Step.CALL, shape, name=name, seconds=within_s)

        self.begin(Step.PREPARE, shape)
        case, _ = operations.parse(shape)
        prepared = PreparedCase(case, baseline="", device=self.device)
        if case.sets * case.work.device_bytes > machine.share_bytes(self.device):
            reason = f"{prepared.memory}: choose fewer --ffn-tokens, a larger --ffn-tp or a smaller --ffn-model"
            prepared.rejected = {name: Rejection(SKIPPED, f"{name}: {reason}") for name in names}
            return prepared
        try:
            return self.runners.prepare(shape, names, first_call)
        except BaseException as error:  # operands that do not fit, for one
            if not is_of_contender(error):
                raise
            stop_if_lost(self.device, error)
            for name in names:
                prepared.refuse(name, error)
            return prepared

    def tell_rejected(self, shape: str, prepared: PreparedCase) -> None:
        """Tell who was rejected, and who changed what others share, once."""
        for name, words in prepared.changes.items():
            self.note(f"changes {name}", f"{name} changed what others share: {words}.")
        prepared.changes.clear()
        for name, rejected in prepared.rejected.items():
            self.reject(shape, name, rejected)
        prepared.rejected.clear()

    def greet(self) -> None:
        """Tell what this machine is, and the clock that times the contenders on it."""
        problem = machine.unusable_gpu() if self.device == "cuda" else None
        if problem := problem or next(filter(None, (of.problem() for of in self.runners.loaded.values())), None):
            return self.tell(MachineFound({"problem": problem}))
        first = next(iter(self.runners.loaded.values()))
        clock = first.clock()
        about = {"timer": clock.timer, "passes": clock.passes, "processes": clock.processes}
        about |= {"machine": machine.describe(self.device), "method_version": METHOD_VERSION}
        about["share_bytes"] = machine.share_bytes(self.device)
        self.tell(MachineFound(about | first.ranks.metadata()))

    def check(self) -> None:
        """Prepare each shape with its contenders, and call once more who is right."""
        for shape, names in self.request.cases.items():
            prepared = self.prepare(shape, names)
            seconds = {}
            for name in prepared.contenders:
                self.begin(Step.CALL, shape, name=name)
                seconds[name] = self.call_again(prepared, name)
            self.tell_rejected(shape, prepared)
            facts = prepared.case.facts | prepared.facts
            self.tell(ShapeChecked(shape, seconds.get(prepared.baseline, 0.0), facts))
            prepared.let_go()

    def call_again(self, prepared: PreparedCase, name: str) -> float:
        """Return the seconds of a call of `name`, which may be rejected by it."""
        entrant, began = prepared.entrants[name], time.monotonic()

        def called() -> Entrant:
            entrant.call()
            synchronize(self.device)
            return entrant

        prepared.take(name, called)
        return time.monotonic() - began

    def measure(self) -> None:
        """Make the passes that were asked for, of all shapes by turns."""
        first = next(iter(self.runners.loaded.values()))
        self.clock, self.telemetry = first.clock(), telemetry.for_device(self.device)
        self.machine = machine.describe(self.device)
        if lacking := runner.equip(self.clock, first.instruments()):
            self.note("instruments", lacking)
        self.clock.while_busy = self.telemetry.read
        if self.request.when == "start":
            self.begin(Step.IDLE, once=True)
            idle_power_w = telemetry.idle_power_w(self.telemetry)
            self.journal("idle", empty_call_s=empty_call_s(self.clock), idle_power_w=idle_power_w)
        self.measure_ceilings(first)
        if self.request.when == "start" and self.device == "cuda" and first.ranks is ALONE:
            self.measure_links()
        entered: dict[str, Entered] = {}
        for index in range(1, max(self.request.passes.values()) + 1):
            for shape, passes in self.request.passes.items():
                if index == 1:
                    entered[shape] = self.enter(shape)
                if index <= passes:
                    # Of a shape that is done nothing is kept: its operands' memory is the next one's.
                    self.run_pass(entered.pop(shape) if index == passes else entered[shape], index)

    def note(self, about: str, text: str) -> None:
        self.journal("note", about=about, text=anonymous(text))

    def measure_ceilings(self, first: runner.Runner) -> None:
        """Make the probes of the ceilings, and measure these, unless an earlier share did. Where that fails, shares of
        the roof are unknown, and the share goes on."""
        self.probes, self.ceilings, reasons = [], list(self.request.ceilings), {}
        self.begin(Step.CEILINGS)
        try:
            self.probes = first.probes() if self.request.when or self.ceilings else []
            if self.request.when:
                self.begin(Step.CEILINGS, once=True)
                seconds = min(ceilings.STOP_RULE.max_seconds, self.options.max_seconds)
                about = {"when": self.request.when, "seed": self.options.seed, "device": self.device}
                about["rule"] = replace(ceilings.STOP_RULE, max_seconds=seconds)
                best, reasons = ceilings.measure(self.probes, self.clock, **about)
                for ceiling in map(asdict, best):
                    self.ceilings.append(ceiling)
                    self.journal("ceiling", **ceiling)
        except Exception as error:
            stop_if_lost(self.device, error)
            self.probes, reason = [], f"the ceilings could not be measured: {device_errors.reason(error)}"
            self.note("ceilings", f"No shares of the roof: {reason}.")
        if reasons:
            named = grouped((why, probe) for probe, why in reasons.items()).items()
            self.note("ceilings", f"No probe: {'; '.join(': '.join([', '.join(of), why]) for why, of in named)}.")

    def measure_links(self) -> None:
        """Tell what links take from the matmul of the first gather, and lose to it. The share goes on without that."""
        gather = next((shape for shape in self.request.cases if shape.startswith("all_gather_matmul-")), None)
        if not gather:
            return
        case, _ = operations.parse(gather)
        try:
            found = self.runners.of(operations.find(case.op)).links(case, self.clock)
        except Exception as error:
            stop_if_lost(self.device, error)
            return self.note("links", f"Links were not probed: {device_errors.reason(error)}.")
        self.journal("links", **found)
        self.note("links", links_text(found))

    def enter(self, shape: str) -> Entered:
        """Prepare `shape`, with what takes turns beside its contenders."""
        request = self.request
        prepared = self.prepare(shape, request.cases[shape])
        if prepared.analysis == "throughput" and prepared.contenders:
            probe = ceilings.beside(prepared.case, self.probes, self.ceilings)
            prepared.entrants |= {probe.name: probe} if probe else {}
        if shape in request.entrants:  # who is out, is out
            still_in = request.entrants[shape]
            prepared.entrants = {name: entrant for name, entrant in prepared.entrants.items() if name in still_in}
        seed = zlib.crc32(f"{self.options.seed} {shape}".encode())
        passes = request.passes[shape]
        whole = StopRule.share(self.options.max_seconds, request.processes, self.device)
        calls = {name: entrant.call for name, entrant in prepared.entrants.items()}
        rule = whole.part(passes, self.clock.passes)
        if self.options.decide and prepared.analysis == "throughput":  # which says when it is enough
            rule = replace(rule, width=0.0)
        looks = {name: entrant.look for name, entrant in prepared.entrants.items() if entrant.look}
        about = {"seed": seed + request.process, "passes": passes, "mark": self.mark}
        rounds = Rounds(calls, self.clock, rule, inputs=prepared.inputs, looks=looks, **about)
        entered = Entered(shape, prepared, rounds, passes, seed)
        if prepared.contenders:
            self.tell(ShapePrepared(shape_of(entered).line()))
        return entered

    def run_pass(self, entered: Entered, index: int) -> None:
        """Make a pass over a shape. Who raises is taken out, and the others begin the pass again."""
        prepared, rounds, shape = entered.prepared, entered.rounds, entered.shape
        last = index == entered.passes
        while prepared.contenders:
            self.telemetry.start()
            self.begin(Step.TURNS, shape, entrants=rounds.names, seconds=rounds.longest_pass_s)
            before = process_state.noted() if prepared.is_guarded else []
            try:
                rounds.run_pass()
                self.refuse_who_changes(entered, before)
                self.refuse_who_was_wrong(entered)
                entered.telemetry = self.telemetry.summary()
                if last:
                    self.finish(entered)
            except KeyboardInterrupt:
                self.tell_turns(entered, whole=False)
                raise
            except Exception as error:
                raised = error.name if isinstance(error, CallError) else ""
                stop_if_lost(self.device, error, raised if raised in prepared.contenders else "")
                for name in [raised] if raised else list(prepared.entrants):
                    prepared.refuse(name, error)
                    rounds.drop(name)
                continue
            self.tell_turns(entered, whole=True)
            break
        self.tell_rejected(shape, prepared)
        if last:
            prepared.let_go()

    def refuse_who_changes(self, entered: Entered, before: list) -> None:
        """Put back what the calls of a pass have changed of the process, and take out who does so again."""
        changed, _ = process_state.put_back(before)
        if not changed:
            return
        what = ", ".join(changed)
        self.note("process", f"Timed calls of {entered.shape} changed what others share, and felt it: {what}.")
        for name in entered.prepared.contenders:
            entered.prepared.take(name, partial(called_again, entered.prepared.entrants[name]))
            if name in entered.prepared.rejected:
                entered.rounds.drop(name)

    def refuse_who_was_wrong(self, entered: Entered) -> None:
        """Take out whose timed calls computed something else than was asked for, on any rank."""
        for wrong in getattr(self.clock, "ranks", ALONE).gather(entered.rounds.wrong, "results of timed calls"):
            for name, reason in [*wrong.items()]:
                entered.prepared.entrants.pop(name, None)
                entered.prepared.rejected[name] = Rejection(FAILED, reason)
                entered.rounds.drop(name)

    def is_first(self, shape: str) -> bool:
        """Return whether no earlier share measured it."""
        return shape not in self.request.entrants

    def tell_turns(self, entered: Entered, *, whole: bool) -> None:
        """Tell the rounds since this was done last, and with the last ones their timelines."""
        rounds = entered.rounds
        new = rounds.rounds[entered.rounds_told :]
        late = {name: count - entered.late_told.get(name, 0) for name, count in rounds.late.items()}
        entered.rounds_told, entered.late_told = len(rounds.rounds), dict(rounds.late)
        timelines = typical_timelines(entered) if rounds.stopped_by and self.is_first(entered.shape) else []
        read = entered.telemetry or self.telemetry.summary()
        self.tell(Turns(entered.shape, whole, rounds.stopped_by, new, late, timelines, read))

    def finish(self, entered: Entered) -> None:
        """End a shape after its last pass: who has no sample, was faster than the chip can be, or computes something
        else by now, gets no number.

        What is long enough then runs alone for a while."""
        prepared, rounds = entered.prepared, entered.rounds
        for name in [name for name, times in rounds.times_s.items() if not times]:
            waits = getattr(self.clock, "waits", lambda call: False)  # which no call of a CPU does
            reason = WAITS if waits(prepared.entrants[name].call) else LATE
            prepared.rejected[name] = Rejection(FAILED, f"{name}: {reason}")
        self.refuse_impossible_times(entered)
        for name in [name for name in prepared.contenders if prepared.entrants[name].recheck]:
            self.begin(Step.RECHECK, entered.shape, name=name)
            prepared.take(name, partial(checked_again, prepared.entrants[name]))
            if name in prepared.rejected:
                rounds.drop(name)
        if self.is_first(entered.shape) and prepared.has_call_costs:
            self.measure_call_costs(entered)
        if self.is_first(entered.shape) and (self.device == "cuda" or self.options.steady):
            self.measure_steady_state(entered)

    def refuse_impossible_times(self, entered: Entered) -> None:
        """Take out each contender whose typical time is below the floor of its work: it did not do all of that."""
        prepared, rounds = entered.prepared, entered.rounds
        limits = floor.rates(self.machine, prepared.case.dtype, self.ceilings + ceilings_beside(entered))
        if isinstance(limits, str):
            return self.note("floor", f"No floor under times of {prepared.case.dtype}: {limits}.")
        least = floor.floor(prepared.case.work, limits)
        for name, times_s in rounds.times_s.items():
            if name not in prepared.contenders or not times_s:
                continue
            time_s = time_of(times_s).value
            if time_s < least.seconds:
                prepared.entrants.pop(name)
                prepared.rejected[name] = Rejection(
                    FAILED,
                    f"{name}: faster than the chip can be: {time_text(time_s)}, where {least.why} take "
                    f"{time_text(least.seconds)}; have each call do all of its work{ON_STREAM[self.device]}",
                )
                rounds.drop(name)

    def measure_call_costs(self, entered: Entered) -> None:
        """Tell what a call of each contender takes of its host, and in a CUDA graph. What fails here keeps its
        rounds."""
        shape, prepared = entered.shape, entered.prepared
        self.tell_turns(entered, whole=False)  # the journal knows the shape before its costs
        for name in prepared.contenders:
            self.begin(Step.CALL, shape, name=name, once=True)
            call, costs = prepared.entrants[name].call, {}
            for cost, measured in (("host_s", call_costs.host_s), ("graph_s", call_costs.graph_s)):
                try:
                    costs[cost] = measured(call, self.clock)
                except BaseException as error:  # not every contender can be captured
                    if not is_of_contender(error):
                        raise
                    stop_if_lost(self.device, error, name)
                    self.note("calls", f"No {cost} of {shape}-{name}: {device_errors.reason(error)}.")
            self.journal("costs", shape=shape, contender=name, costs=costs)

    def measure_steady_state(self, entered: Entered) -> None:
        """Run blocks of the kernels that are long enough. What fails here keeps its rounds."""
        prepared, rounds, shape = entered.prepared, entered.rounds, entered.shape
        times = rounds.times_s
        groups = {round_.index: (round_.process, round_.pass_index) for round_ in rounds.rounds}
        anchor = times.get(prepared.baseline)
        medians = {
            name: time_of(times_s, groups, anchor or times_s).value for name, times_s in times.items() if times_s
        }
        if not (names := steady.chosen(prepared, medians, self.options)):
            return
        self.tell_turns(entered, whole=False)  # blocks are of a shape that is known

        def failed(name: str, error: Exception) -> None:
            stop_if_lost(self.device, error, f"{name}-steady")
            self.reject(shape, f"{name}-steady", rejection(error))

        calls = {name: prepared.entrants[name].call for name in names}
        count = self.options.steady or steady.BLOCKS
        about = {"seed": entered.seed, "count": count, "failed": failed}
        about["begins"] = lambda name: self.begin(
            Step.STEADY, shape, name=name, seconds=steady.DROPPED_S + steady.COUNTED_S, once=True
        )
        try:
            for block in steady.blocks(calls, medians, self.clock, self.telemetry, **about):
                self.journal("steady", shape=shape, **block)
        except Exception as error:  # of the clock
            self.reject(shape, "steady", Rejection(FAILED, device_errors.reason(error)))


def shape_of(entered: Entered) -> Shape:
    """Return the shape as it is prepared, without anything of its rounds."""
    prepared, case = entered.prepared, entered.prepared.case
    return Shape(
        id=entered.shape,
        op=case.op,
        analysis=prepared.analysis,
        params=asdict(case),
        dtype=case.dtype,
        work=case.work,
        baseline=prepared.baseline,
        cache=prepared.cache,
        entrants={
            name: {"config": entrant.config, "relative_error": entrant.relative_error}
            | ({"role": entrant.role} if entrant.role else {})
            | entrant.facts
            for name, entrant in prepared.entrants.items()
        },
        seed=entered.seed,
        facts=case.facts | prepared.facts,
    )


def typical_timelines(entered: Entered) -> list[dict]:
    """Return a timeline of each entrant that noted some: that of the sample nearest to its median."""
    lines = []
    for name, times in entered.rounds.times_s.items():
        ranked = sorted(times, key=times.get)
        middle = ranked[len(ranked) // 2] if ranked else None
        if timeline := entered.rounds.timelines.get((name, middle)):
            about = {"kind": "timeline", "shape": entered.shape, "contender": name, "round": middle}
            lines.append(about | timeline)
    return lines


def ceilings_beside(entered: Entered) -> list[dict]:
    """Return what the probe beside a shape reached in its rounds, as a ceiling: the machine may have been busy when
    the ceilings of the run were measured."""
    reached = []
    for name, entrant in entered.prepared.entrants.items():
        times_s = entered.rounds.times_s.get(name)
        if entrant.role == PROBE and times_s:
            kind = entrant.facts["ceiling"]
            dtype = entered.prepared.case.dtype if kind == "matmul" else None
            value = entrant.facts["amount"] / time_of(times_s).value
            reached.append({"ceiling": kind, "dtype": dtype, "value": value})
    return reached


def called_again(entrant: Entrant) -> Entrant:
    """Return the entrant, once it was called."""
    entrant.call()
    return entrant


def checked_again(entrant: Entrant) -> Entrant | Rejection:
    """Return the entrant, or why what it computes is no longer right."""
    try:
        return entrant.recheck() or entrant
    except Exception as error:
        if device_errors.lack(error):  # of memory, by now: that says nothing of what was timed
            return entrant
        raise


def synchronize(device: str) -> None:
    """Wait for all that was enqueued."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
