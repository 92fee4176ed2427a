"""The passes of a worker over one shape: its entrants take turns, and whose results or times cannot be is taken out.

`worker.worker` makes the passes of all shapes by turns. Here is what a shape keeps between them.
"""

import zlib
from dataclasses import asdict, replace
from functools import partial

from roofline.operations.format import time_text
from roofline.store.outcome import FAILED, Outcome
from roofline.store.run import PROBE, Shape, groups_of
from roofline.store.stats import time_of
from roofline.theory import floor
from roofline.worker import call_costs, ceilings, device_errors, process_state, steady
from roofline.worker.messages import Rejected, ShapePrepared, Step, Turns, is_of_contender
from roofline.worker.prepared import Entrant, rejection, stop_if_lost
from roofline.worker.ranks import ALONE
from roofline.worker.rounds import CallError, Rounds, StopRule

LATE = "the host was late for every sample; close the programs that keep it busy"
WAITS = (
    "each call waits for the device, as by .item(), synchronize() or a copy to the host: then the host is late for "
    "every sample; have it enqueue its work and return"
)
"""Why an entrant of a GPU has no samples."""
ON_STREAM = {"cpu": "", "cuda": ", on the current stream or behind it: what it hands to another has to wait for that"}
"""Work on a stream that does not wait is over before the sample begins."""
COSTS = {"host_s": call_costs.host_s, "graph_s": call_costs.graph_s}


class ShapePasses:
    """A shape whose entrants are prepared, between the passes over it."""

    def __init__(self, worker, shape: str):
        """Prepare `shape`, with what takes turns beside its contenders."""
        self.worker = worker
        self.shape = shape
        request = worker.request
        self.prepared = prepared = worker.prepare(shape, request.cases[shape])
        self.is_first = shape not in request.entrants
        """Whether no earlier worker measured the shape."""
        is_below_roof = prepared.analysis == "throughput" and prepared.contenders
        if is_below_roof and (probe := ceilings.probe_for(prepared.case, worker.probes, worker.ceilings)):
            prepared.entrants[probe.name] = probe
        for name in list(prepared.entrants):  # who is out, is out
            if not self.is_first and name not in request.entrants[shape]:
                del prepared.entrants[name]
        self.seed = zlib.crc32(f"{worker.options.seed} {shape}".encode())
        self.rounds = self._new_rounds()
        self.telemetry: dict = {}
        """The summary of the last pass."""
        self._rounds_told = 0
        self._late_told: dict[str, int] = {}
        if prepared.contenders:
            worker.tell(ShapePrepared(self.described().line()))

    def _new_rounds(self) -> Rounds:
        worker = self.worker
        request = worker.request
        prepared = self.prepared
        passes = request.passes[self.shape]
        whole = StopRule.of_process(worker.options.max_seconds, request.processes, worker.device)
        rule = whole.part(passes, worker.clock.passes)
        if worker.options.decide and prepared.analysis == "throughput":  # which says when it is enough
            rule = replace(rule, width=0.0)
        calls = {}
        looks = {}
        for name, entrant in prepared.entrants.items():
            calls[name] = entrant.call
            if entrant.look:
                looks[name] = entrant.look
        return Rounds(
            calls,
            worker.clock,
            rule,
            seed=self.seed + request.process,
            passes=passes,
            mark=worker.mark,
            inputs=prepared.inputs,
            looks=looks,
        )

    def described(self) -> Shape:
        """The shape as it is prepared, without anything of its rounds."""
        prepared = self.prepared
        case = prepared.case
        entrants = {}
        for name, entrant in prepared.entrants.items():
            fields = {"config": entrant.config, "relative_error": entrant.relative_error}
            if entrant.role:
                fields["role"] = entrant.role
            entrants[name] = fields | entrant.facts
        return Shape(
            id=self.shape,
            op=case.op,
            analysis=prepared.analysis,
            params=asdict(case),
            dtype=case.dtype,
            work=case.work,
            baseline=prepared.baseline,
            cache=prepared.cache,
            entrants=entrants,
            seed=self.seed,
            facts=case.facts | prepared.facts,
        )

    def run_pass(self, *, is_last: bool) -> None:
        """Make a pass. Who raises is taken out, and the others begin the pass again."""
        prepared = self.prepared
        worker = self.worker
        while prepared.contenders:
            worker.telemetry.start()
            worker.begin(Step.TURNS, self.shape, entrants=self.rounds.names, seconds=self.rounds.longest_pass_s)
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
                    self.rounds.drop(name)
                continue
            self.tell_turns(whole=True)
            break
        worker.tell_rejected(self.shape, prepared)
        if is_last:
            prepared.let_go()

    def _try_pass(self, is_last: bool) -> None:
        worker = self.worker
        rounds = self.rounds
        before = process_state.noted() if self.prepared.is_guarded else []
        rounds.run_pass()
        self._refuse_who_changes(before)
        # on any rank
        for wrong in getattr(worker.clock, "ranks", ALONE).gather(rounds.wrong, "results of timed calls"):
            for name, reason in list(wrong.items()):
                self._refuse(name, reason)
        self.telemetry = worker.telemetry.summary()
        if is_last:
            self._finish()

    def _refuse(self, name: str, reason: str) -> None:
        """Take out an entrant that was timed, with its samples."""
        self.prepared.entrants.pop(name, None)
        self.prepared.rejected[name] = Outcome(FAILED, reason)
        self.rounds.drop(name)

    def _check_again(self, name: str, check) -> None:
        self.prepared.admit(name, partial(check, self.prepared.entrants[name]))
        if name in self.prepared.rejected:
            self.rounds.drop(name)

    def _refuse_who_changes(self, before: list) -> None:
        """Put back what the calls of a pass have changed of the process, and take out who does so again."""
        changed, _ = process_state.put_back(before)
        if not changed:
            return
        text = f"Timed calls of {self.shape} changed what others share, and felt it: {', '.join(changed)}."
        self.worker.note("process", text)
        for name in self.prepared.contenders:
            self._check_again(name, called_again)

    def tell_turns(self, *, whole: bool) -> None:
        """Tell the rounds since this was done last, and with the last ones their timelines."""
        rounds = self.rounds
        new = rounds.rounds[self._rounds_told :]
        late = {}
        for name, count in rounds.late.items():
            late[name] = count - self._late_told.get(name, 0)
        self._rounds_told = len(rounds.rounds)
        self._late_told = dict(rounds.late)
        timelines = self._typical_timelines() if rounds.stopped_by and self.is_first else []
        read = self.telemetry or self.worker.telemetry.summary()
        self.worker.tell(Turns(self.shape, whole, rounds.stopped_by, new, late, timelines, read))

    def _typical_timelines(self) -> list[dict]:
        """A timeline of each entrant that noted some: that of the sample nearest to its median."""
        lines = []
        for name, times in self.rounds.times_s.items():
            ranked = sorted(times, key=times.get)
            middle = ranked[len(ranked) // 2] if ranked else None
            if timeline := self.rounds.timelines.get((name, middle)):
                fields = {"kind": "timeline", "shape": self.shape, "contender": name, "round": middle}
                lines.append(fields | timeline)
        return lines

    def _finish(self) -> None:
        """End the shape after its last pass: who has no sample, was faster than the chip can be, or computes something
        else by now, gets no number.

        What is long enough then runs alone for a while."""
        prepared = self.prepared
        worker = self.worker
        waits = getattr(worker.clock, "waits", lambda call: False)  # which no call of a CPU does
        for name, times in self.rounds.times_s.items():
            if not times:
                reason = WAITS if waits(prepared.entrants[name].call) else LATE
                prepared.rejected[name] = Outcome(FAILED, f"{name}: {reason}")
        self._refuse_impossible_times()
        for name in prepared.contenders:
            if prepared.entrants[name].recheck:
                worker.begin(Step.RECHECK, self.shape, name=name)
                self._check_again(name, checked_again)
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
        limits = floor.rates(worker.chip, case.dtype, worker.ceilings + self._ceilings_beside())
        if isinstance(limits, str):
            return worker.note("floor", f"No floor under times of {case.dtype}: {limits}.")
        least = floor.floor(case.work, limits)
        for name, times_s in self.rounds.times_s.items():
            if name not in self.prepared.contenders or not times_s:
                continue
            time_s = time_of(times_s).value
            if time_s < least.seconds:
                self._refuse(
                    name,
                    f"{name}: faster than the chip can be: {time_text(time_s)}, where {least.why} take "
                    f"{time_text(least.seconds)}; have each call do all of its work{ON_STREAM[worker.device]}",
                )

    def _ceilings_beside(self) -> list[dict]:
        """What the probe beside the shape reached in its rounds, as a ceiling: the machine may have been busy when the
        ceilings of the run were measured."""
        reached = []
        for name, entrant in self.prepared.entrants.items():
            times_s = self.rounds.times_s.get(name)
            if entrant.role == PROBE and times_s:
                kind = entrant.facts["ceiling"]
                dtype = self.prepared.case.dtype if kind == "matmul" else None
                value = entrant.facts["amount"] / time_of(times_s).value
                reached.append({"ceiling": kind, "dtype": dtype, "value": value})
        return reached

    def _measure_call_costs(self) -> None:
        """Tell what a call of each contender takes of its host, and in a CUDA graph. What fails here keeps its
        rounds."""
        shape = self.shape
        worker = self.worker
        self.tell_turns(whole=False)  # the journal knows the shape before its costs
        for name in self.prepared.contenders:
            worker.begin(Step.CALL, shape, name=name, once=True)
            call = self.prepared.entrants[name].call
            costs = {}
            for cost, measured in COSTS.items():
                try:
                    costs[cost] = measured(call, worker.clock)
                except BaseException as error:  # not every contender can be captured
                    if not is_of_contender(error):
                        raise
                    stop_if_lost(worker.device, error, name)
                    worker.note("calls", f"No {cost} of {shape}-{name}: {device_errors.reason(error)}.")
            worker.journal("costs", shape=shape, contender=name, costs=costs)

    def _measure_steady_state(self) -> None:
        """Run blocks of the kernels that are long enough. What fails here keeps its rounds."""
        prepared = self.prepared
        worker = self.worker
        shape = self.shape
        times = self.rounds.times_s
        groups = groups_of(self.rounds.rounds)
        anchor = times.get(prepared.baseline)
        medians_s = {}
        for name, times_s in times.items():
            if times_s:
                medians_s[name] = time_of(times_s, groups, anchor or times_s).value
        names = steady.chosen(prepared, medians_s, worker.options)
        if not names:
            return
        self.tell_turns(whole=False)  # blocks are of a shape that is known

        def begins(name: str) -> None:
            worker.begin(Step.STEADY, shape, name=name, seconds=steady.DROPPED_S + steady.COUNTED_S, once=True)

        def failed(name: str, error: Exception) -> None:
            stop_if_lost(worker.device, error, f"{name}-steady")
            worker.tell(Rejected(shape, f"{name}-steady", rejection(error)))

        calls = {name: prepared.entrants[name].call for name in names}
        try:
            for block in steady.blocks(
                calls,
                medians_s,
                worker.clock,
                worker.telemetry,
                seed=self.seed,
                begins=begins,
                failed=failed,
                count=worker.options.steady or steady.BLOCKS,
            ):
                worker.journal("steady", shape=shape, **block)
        except Exception as error:  # of the clock
            worker.tell(Rejected(shape, "steady", Outcome(FAILED, device_errors.reason(error))))


def called_again(entrant: Entrant) -> Entrant:
    """The entrant, once it was called."""
    entrant.call()
    return entrant


def checked_again(entrant: Entrant) -> Entrant | Outcome:
    """The entrant, or why what it computes is no longer right."""
    try:
        return entrant.recheck() or entrant
    except Exception as error:
        if device_errors.lack(error):  # of memory, by now: that says nothing of what was timed
            return entrant
        raise
