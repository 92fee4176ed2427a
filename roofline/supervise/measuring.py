"""The job that measures: process by process, passes over all shapes, and how long that still takes.

A run that decides goes on with what is undecided, and a suspect is measured alone.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from roofline.store.lines import as_read
from roofline.store.outcome import FAILED, Outcome
from roofline.store.run import INTERRUPTED, Shape
from roofline.supervise.blame import WorkerEnd
from roofline.supervise.jobs import Job
from roofline.supervise.plan import duration
from roofline.supervise.supervisor import Supervisor
from roofline.theory.work import Work
from roofline.worker import telemetry
from roofline.worker.messages import Kind, Request, ShapePrepared, Turns

UNMEASURED = Shape("", "", "", {}, "", Work(0, 0), "", "", {}, passes=0, processes=0)
"""A shape that has no rounds yet."""


class Measure(Job):
    """Makes the passes over all shapes, process by process."""

    def __init__(self, supervisor: Supervisor):
        super().__init__(supervisor)
        self.when = "resume" if supervisor.run.shapes else "start"
        self._since = time.monotonic()
        self._passes_before = self._passes_done()

    def next_request(self) -> Request | None:
        run = self.supervisor.run
        self.alone = ""
        self.supervisor.close_decided()
        passes = self.supervisor.passes_left()
        number = 1 + max((round_.process for shape in run.shapes.values() for round_ in shape.rounds), default=-1)
        if not passes:
            return self.request_alone(number)
        when, self.when = self.when, ""
        return self.supervisor.request(
            Kind.MEASURE,
            {shape: self.supervisor.left(shape) for shape in passes},
            passes=passes,
            process=number,
            processes=self.supervisor.processes,
            ceilings=self.supervisor.ceilings,
            when=when,
        )

    def request_alone(self, number: int) -> Request | None:
        """The request for the next suspect: of its shape, which is over for the others, all passes at once."""
        if not (suspect := self.next_suspect()):
            return None
        shape, name = suspect
        measured = self.supervisor.run.shapes.get(shape)
        if not measured or measured.stopped_by == INTERRUPTED:  # nobody else was measured on it
            return self.next_request()
        if name == measured.baseline and name in measured.measured:  # it took turns with the others since
            return self.request_alone(number)
        request = self.supervisor.request(
            Kind.MEASURE,
            {shape: [name]},
            passes={shape: self.supervisor.passes},
            process=number,
            ceilings=self.supervisor.ceilings,
        )
        return replace(request, entrants={shape: [*measured.late, name]})

    def begin(self, request: Request, cpu_s: Callable[[], float]) -> None:
        self._worker_since = time.monotonic()
        self._undecided = {shape.id for shape in self.supervisor.undecided} & request.cases.keys()
        self._prepared: dict[str, dict] = {}
        self._measured: set[str] = set()
        """Shapes that the worker told turns of."""
        super().begin(request, cpu_s)

    def _passes_done(self) -> int:
        return sum(shape.passes for shape in self.supervisor.run.shapes.values())

    def progress(self) -> tuple[str, float | None]:
        supervisor = self.supervisor
        done = self._passes_done()
        if self._undecided:
            return f"{done} passes, {len(self._undecided)} of {len(supervisor.planned)} shapes undecided: ", None
        left = sum(max(0, supervisor.planned_passes - made) for made in supervisor.passes_made().values())
        words = f"{done} of {done + left} passes"
        if made := done - self._passes_before:
            left_s = left * (time.monotonic() - self._since) / made  # the rest goes on as it went until now
            words += f", {duration(left_s + supervisor.plan.report_s)} left"
        return f"{words}: ", done / (done + left or 1)

    def culprits(self, end: WorkerEnd) -> list[str]:
        entrants = end.step.entrants
        prepared = self._prepared.get(end.step.shape)
        if not (entrants and prepared):
            return super().culprits(end)
        contenders = [name for name in entrants if "role" not in prepared["entrants"][name]]
        at_turn = entrants[end.marked - 1] if end.marked else ""
        if at_turn in contenders:
            return [at_turn]
        return [name for name in contenders if name != prepared["baseline"]] or contenders

    def on_prepared(self, message: ShapePrepared) -> None:
        self._prepared[message.line["id"]] = message.line
        self.step = replace(self.step, shape="")

    def on_turns(self, turns: Turns) -> None:
        """Journal new rounds, numbered behind those of earlier workers, behind the line of how far their shape is
        measured by now. The run gets the rounds themselves."""
        supervisor = self.supervisor
        is_new_process = turns.shape not in self._measured
        self._measured.add(turns.shape)
        shape = supervisor.run.shapes.get(turns.shape)
        if is_new_process and shape and not shape.passes:  # rounds of no whole pass
            shape = None
        header = {"kind": "pass", "shape": turns.shape} if shape else self._prepared[turns.shape]
        before = shape or UNMEASURED
        for index, round_ in enumerate(turns.rounds, before.round_count):
            round_.index = index
            round_.pass_index = before.passes + 1
            round_.process = self.request.process
        header = as_read(header | self._shape_fields(turns, before, is_new_process))
        if supervisor.write(header, *[round_.line(turns.shape) for round_ in turns.rounds]):
            supervisor.run.apply(header)
            supervisor.run.shapes[turns.shape].rounds += turns.rounds
            supervisor.add(*turns.timelines)
        self.step = replace(self.step, shape="")  # which is over

    def _shape_fields(self, turns: Turns, before: Shape, is_new_process: bool) -> dict:
        """The fields of a shape that `turns` change."""
        supervisor = self.supervisor
        prepared = self._prepared[turns.shape]
        passes = before.passes + turns.whole
        is_decided = supervisor.options.decide and prepared["analysis"] == "throughput"  # by `close_decided`
        is_last = turns.whole and passes == supervisor.planned_passes and not is_decided
        read = before.telemetry or turns.telemetry
        if turns.whole:
            cut_off = sum(round_.pass_index > before.passes for round_ in before.rounds)
            in_pass = cut_off + len(turns.rounds)
            read = telemetry.merged(before.telemetry, before.round_count - cut_off, turns.telemetry, in_pass)
        fields = {
            "passes": passes,
            "processes": before.processes + is_new_process,
            "stopped_by": (is_last and turns.stopped_by) or INTERRUPTED,
            "round_count": before.round_count + len(turns.rounds),
            "telemetry": read,
            "late": self._late(turns, before.late),
        }
        if self.alone:  # the shape is over for the others
            fields["entrants"] = prepared["entrants"] | before.entrants
            fields["stopped_by"] = before.stopped_by
        return fields

    def _late(self, turns: Turns, before: dict[str, int]) -> dict[str, int]:
        """The samples dropped by now, of each entrant that is still in."""
        late = {}
        for name, count in before.items():
            if self.alone or (turns.shape, name) in self.supervisor.suspects:  # it is in, and took no turn
                late[name] = count
        for name, count in turns.late.items():
            late[name] = count + before.get(name, 0)
        return late

    handlers = Job.handlers | {ShapePrepared: on_prepared, Turns: on_turns}

    def end(self, end: WorkerEnd) -> None:
        super().end(end)
        if self.supervisor.options.decide:
            line = {"kind": "process", "seconds": time.monotonic() - self._worker_since}
            self.supervisor.add(line | {"process": self.request.process, "planned": not self._undecided})
        if end.how or end.broke or self.supervisor.end_reason:
            return
        for shape, names in self.request.cases.items():
            for name in names:
                if shape not in self._measured and name in self.supervisor.left(shape):  # it is not asked for again
                    reason = f"{name}: its runner left it out, and did not say why"
                    self.supervisor.lose(shape, name, Outcome(FAILED, reason))
