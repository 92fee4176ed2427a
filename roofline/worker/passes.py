"""The passes of a worker over one shape: its entrants take turns, and whose results or times cannot be is taken out.

`worker.worker` makes the passes of all shapes by turns. Here is what a shape keeps between them.
"""

import zlib
from dataclasses import asdict, replace
from statistics import median

from roofline.host import telemetry
from roofline.host.device_errors import CallError
from roofline.protocol.messages import Broken, JournalLines, Rejected, Step
from roofline.protocol.stop_rule import StopRule
from roofline.store.outcome import FAILED, Outcome
from roofline.store.run import INTERRUPTED
from roofline.store.stats import time_of
from roofline.theory import floor
from roofline.worker import call_costs, ceilings, process_state, steady
from roofline.worker.prepared import rejection, stop_if_lost
from roofline.worker.rounds import Rounds

LATE = (
    "the host was late for every sample: a call that waits for the device, as by .item(), synchronize() or a copy to "
    "the host, is to enqueue its work and return; else close the programs that keep the host busy"
)
"""Why an entrant of a GPU has no samples."""
COSTS = {"host_s": call_costs.host_s, "graph_s": call_costs.graph_s}


class ShapePasses:
    """A shape whose entrants are prepared, between the passes over it."""

    def __init__(self, worker, shape: str):
        """Prepare `shape`, with what takes turns beside its contenders."""
        self.worker = worker
        self.shape = shape
        request = worker.request
        self.prepared = prepared = worker.prepare(shape, request.cases[shape])
        self.is_first = shape not in request.made and not request.apart
        """Whether no earlier worker measured the shape, and none shall beside this one."""
        if prepared.analysis == "throughput":
            datasheet = worker.chip["datasheet"]
            if probe := ceilings.probe_for(prepared.case, worker.probes, worker.ceilings, datasheet):
                prepared.entrants[probe.name] = probe
        if shape in request.made:  # who is out, is out
            for name in prepared.entrants.keys() - request.made[shape]["late"]:
                del prepared.entrants[name]
        self.seed = zlib.crc32(f"{worker.options.seed} {shape}".encode())
        self.entrants = [name * (not entrant.role) for name, entrant in prepared.entrants.items()]
        """As `StepBegan` has them."""
        self.line = request.made.get(shape) or self._first_line()
        """The last line of the journal about the shape, or its first, which is to come."""
        self.processes = 1 + self.line["processes"]
        self.planned_passes = worker.clock.passes * request.processes
        self.is_decided = worker.options.decide and prepared.analysis == "throughput"
        """Whether passes go on until a decision says when it is enough."""
        self.rounds = self._new_rounds()
        self.telemetry: dict = {}
        """The summary of the last pass."""
        self._rounds_told = 0

    def _new_rounds(self) -> Rounds:
        worker = self.worker
        request = worker.request
        passes = request.passes[self.shape]
        rule = StopRule.of_options(worker.options).part(passes, self.planned_passes)
        if self.is_decided:
            rule = replace(rule, width=0.0)
        seed = self.seed + request.process
        return Rounds(self.prepared, worker.clock, rule, seed=seed, passes=passes, mark=worker.mark)

    def _first_line(self) -> dict:
        """The line of the journal by which the shape is known, before its passes."""
        prepared = self.prepared
        case = prepared.case
        entrants = {}
        for name, entrant in prepared.entrants.items():
            fields = {"config": entrant.config, "relative_error": entrant.relative_error, "role": entrant.role}
            entrants[name] = fields | entrant.facts
        return {
            "kind": "shape",
            "id": self.shape,
            "op": case.op,
            "analysis": prepared.analysis,
            "params": asdict(case),
            "dtype": case.dtype,
            "work": asdict(case.work),
            "baseline": prepared.baseline,
            "cache": prepared.cache,
            "entrants": entrants,
            "seed": self.seed,
            "facts": case.facts | prepared.facts,
            "passes": 0,
            "processes": 0,
            "round_count": 0,
            "telemetry": {},
            "late": {},
            "apart": self.worker.request.apart,
        }

    def run_pass(self, *, is_last: bool) -> None:
        """Make a pass. Who raises is taken out, and the others begin the pass again."""
        prepared = self.prepared
        worker = self.worker
        apart = worker.request.apart
        while apart in prepared.contenders if apart else prepared.contenders:
            self._drop_rejected()
            worker.telemetry.start()
            worker.begin(
                Step.TURNS,
                self.shape,
                entrants=self.entrants,
                baseline=prepared.baseline,
                seconds=self.rounds.longest_pass_s,
            )
            try:
                self._try_pass(is_last)
            except KeyboardInterrupt:
                self.tell_turns(whole=False)
                raise
            except Exception as error:
                raised = error.name if isinstance(error, CallError) else ""
                stop_if_lost(worker.device, error, raised if raised in prepared.contenders else "")
                for name in [raised] if raised else list(prepared.entrants):
                    prepared.refuse(name, error)
                continue
            self.tell_turns(whole=True)
            if is_last and self.is_first:
                self._tell_timelines()
            break
        worker.tell_rejected(self.shape, prepared)
        if is_last:
            prepared.let_go()

    def _try_pass(self, is_last: bool) -> None:
        worker = self.worker
        with process_state.guarded(self.prepared.is_guarded) as changed:
            self.rounds.run_pass()
        if changed:
            raise Broken("", Outcome(FAILED, f"timed calls changed {', '.join(changed)}, which others share"))
        for wrong in worker.clock.ranks.gather(self.rounds.wrong, "results of timed calls"):  # on any rank
            for name, reason in wrong.items():
                self.prepared.reject(name, Outcome(FAILED, reason))
        self.telemetry = worker.telemetry.summary()
        if is_last:
            self._finish()

    def _drop_rejected(self) -> None:
        """Go on without who was rejected. Who is tried alone does not without the baseline."""
        apart = self.worker.request.apart
        for name, outcome in self.prepared.rejected.items():
            if apart not in ("", name) and name in self.prepared.suspected:
                raise Broken(name, replace(outcome, reason=outcome.reason.removeprefix(f"{name}: ")))
            self.rounds.drop(name)

    def tell_turns(self, *, whole: bool) -> None:
        """Tell the rounds since this was done last, without who was rejected."""
        self._drop_rejected()
        rounds = self.rounds
        before = self.line
        worker = self.worker
        new = rounds.rounds[self._rounds_told :]
        self._rounds_told = len(rounds.rounds)
        passes = before["passes"] + whole
        is_last = whole and passes == self.planned_passes
        is_over = is_last and (worker.request.apart or not self.is_decided)
        read = self.telemetry or worker.telemetry.summary()
        late = {}
        for name in rounds.times_s:
            newly_late = sum(name not in round_.time_s for round_ in new)
            late[name] = before["late"].get(name, 0) + newly_late
        sums = {
            "passes": passes,
            "processes": self.processes,
            "stopped_by": rounds.stopped_by if is_over else INTERRUPTED,
            "round_count": before["round_count"] + len(new),
            "telemetry": telemetry.merged(before["telemetry"], before["round_count"], read, len(new)),
            "late": late,
        }
        about = {"shape": self.shape, "apart": worker.request.apart}
        self.line = {"kind": "pass"} | about | sums
        about |= {"pass_index": before["passes"] + 1, "process": worker.request.process}
        lines = []
        for index, round_ in enumerate(new, before["round_count"]):
            lines.append({"kind": "round"} | asdict(round_) | about | {"index": index})
        worker.tell(JournalLines([before | sums, *lines]))

    def _tell_timelines(self) -> None:
        """Tell a timeline of each entrant that noted some: that of the sample nearest to its median."""
        for name, times in self.rounds.times_s.items():
            middle = sorted(times, key=times.__getitem__)[len(times) // 2]
            if timeline := self.rounds.timelines.get((name, middle)):
                self.worker.journal("timeline", shape=self.shape, contender=name, round=middle, **timeline)

    def _finish(self) -> None:
        """End the shape after its last pass: who has no sample, was faster than the chip can be, or computes something
        else by now, gets no number.

        What is long enough then runs alone for a while."""
        prepared = self.prepared
        worker = self.worker
        for name in list(prepared.entrants):
            if not self.rounds.times_s[name]:
                prepared.reject(name, Outcome(FAILED, f"{name}: {LATE}"))
        self._refuse_impossible_times()
        for name in prepared.contenders:
            if recheck := prepared.entrants[name].recheck:
                worker.begin(Step.RECHECK, self.shape, name=name)
                prepared.check_again(name, recheck)
        if not self.is_first:
            return
        if prepared.has_call_costs:
            self._measure_call_costs()
        if worker.device == "cuda" or worker.options.steady:
            self._measure_steady_state()

    def _refuse_impossible_times(self) -> None:
        """Take out each contender whose typical time is below the floor of its work: it did not do all of that."""
        worker = self.worker
        case = self.prepared.case
        try:
            least = floor.floor(case.work, worker.chip, case.dtype)
        except ValueError as error:
            return worker.note("floor", f"No floor under times of {case.dtype}: {error}.")
        for name in self.prepared.contenders:
            time = time_of(self.rounds.times_s[name])
            if time and time.value < least.seconds:
                reason = (
                    f"{name}: faster than the chip can be: {1e6 * time.value:.2f} us, where {least.why} take "
                    f"{1e6 * least.seconds:.2f} us; have each call do all of its work, and the current stream wait for "
                    "what it hands to another"
                )
                self.prepared.reject(name, Outcome(FAILED, reason))

    def _measure_call_costs(self) -> None:
        """Tell what a call of each contender takes of its host, and in a CUDA graph. What fails here keeps its
        rounds."""
        shape = self.shape
        worker = self.worker
        self.tell_turns(whole=False)  # the journal knows the shape before its costs
        for name in self.prepared.contenders:
            worker.begin(Step.CALL, shape, name=name)
            call = self.prepared.entrants[name].call
            costs = {}
            for cost, measured in COSTS.items():
                with worker.noting("calls", f"No {cost} of {shape}-{name}", name):  # not all can be captured
                    costs[cost] = measured(call, worker.clock)
            worker.journal("costs", shape=shape, contender=name, costs=costs)

    def _measure_steady_state(self) -> None:
        """Run blocks of the kernels that are long enough. What fails here keeps its rounds."""
        prepared = self.prepared
        worker = self.worker
        shape = self.shape
        medians_s = {}
        for name in prepared.contenders:
            medians_s[name] = median(self.rounds.times_s[name].values())
        names = steady.chosen(prepared, medians_s, worker.options)
        if not names:
            return
        self.tell_turns(whole=False)  # blocks are of a shape that is known
        for block in steady.blocks(names, seed=self.seed, count=worker.options.steady or steady.BLOCKS):
            name = block["contender"]
            worker.begin(Step.STEADY, shape, name=name, seconds=steady.DROPPED_S + steady.COUNTED_S)
            call = prepared.entrants[name].call
            try:
                told = steady.run_block(call, medians_s[name], worker.clock, worker.telemetry)
            except BaseException as error:
                stop_if_lost(worker.device, error, f"{name}-steady")
                worker.tell(Rejected(shape, f"{name}-steady", rejection(error)))
                names.remove(name)
            else:
                worker.journal("steady", shape=shape, **block, **told)
