"""The job that measures: process by process, passes over all shapes, and how long that still takes.

A run that decides goes on with what is undecided, one of two checkouts takes turns with the other's, and a suspect is
measured alone.
"""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from roofline.store.outcome import FAILED, Outcome
from roofline.store.run import INTERRUPTED, Shape
from roofline.supervise.jobs import Job
from roofline.supervise.plan import Timed, duration
from roofline.supervise.supervisor import Supervisor
from roofline.worker import telemetry
from roofline.worker.messages import Kind, Request, ShapePrepared, StepBegan, Turns


class Measure(Job):
    """Makes the passes over all shapes, process by process."""

    def __init__(self, supervisor: Supervisor):
        super().__init__(supervisor)
        self.when = "resume" if supervisor.run.shapes else "start"
        self._turns: Iterator[list[Job]] = itertools.repeat([self])
        self._sides = [self]
        """With that of the other checkout, whose workers take turns with these."""
        self._timed, self._since = Timed(), time.monotonic()

    def alternate_with(self, base: "Measure") -> None:
        """Let the workers of another checkout take turns with these: A B B A, or B A A B, by the seed. What drifts
        evenly meets both alike."""
        draw = random.Random(self.supervisor.options.seed)

        def turns() -> Iterator[list[Job]]:
            ahead, behind = [self, base], [base, self]
            yield from (ahead, behind, behind, ahead)  # the first of all measures the ceilings
            while True:
                first, second = draw.sample([ahead, behind], 2)
                yield from (first, second, second, first)

        base.when, self._turns = "", turns()
        base._turns = self._turns
        self._sides = base._sides = [self, base]

    def next_jobs(self) -> list[Job]:
        return next(self._turns)

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

    def begin(self, request: Request, cpu_s: Callable[[], float] = lambda: 0.0) -> None:
        self._number, self._cases, self._worker_since = request.process, request.cases, time.monotonic()
        self._undecided = {shape.id for shape in self.supervisor.undecided} & request.cases.keys()
        self._prepared: dict[str, dict] = {}
        self._measured: set[str] = set()
        """Shapes that the worker told turns of."""
        self._timed.begin_process(time.monotonic())
        super().begin(request, cpu_s)

    def on_step(self, step: StepBegan) -> None:
        self._timed.begin_step(step, time.monotonic())
        super().on_step(step)

    def _passes_left(self) -> dict[str, int]:
        """{shape: passes} of the plan that are not made."""
        supervisor, left = self.supervisor, {}
        for name in filter(supervisor.left, supervisor.planned):
            shape = supervisor.run.shapes.get(name)
            count = supervisor.planned_passes - (shape.passes if shape else 0)
            if count > 0:
                left[name] = count
        return left

    def _left_s(self) -> float | None:
        return self._timed.left_s(self._passes_left(), self.supervisor.passes)

    def progress(self) -> tuple[str, float | None]:
        supervisor = self.supervisor
        done = sum(shape.passes for shape in supervisor.run.shapes.values())
        if self._undecided:
            return f"{done} passes, {len(self._undecided)} of {len(supervisor.planned)} shapes undecided: ", None
        asked, left_s = done + sum(self._passes_left().values()), [side._left_s() for side in self._sides]
        if None in left_s:
            wait_s = supervisor.plan.first_estimate_s * len(self._sides) - (time.monotonic() - self._since)
            words = f"measuring; first estimate in {duration(wait_s)}" if wait_s > 0 else "measuring; no estimate yet"
        else:
            words = f"{done} of {asked} passes, {duration(sum(left_s) + supervisor.plan.report_s)} left"
        return f"{words}: ", done / asked if asked else 1.0

    def culprits(self) -> list[str]:
        entrants, prepared = self.step.entrants, self._prepared.get(self.step.shape)
        if not (entrants and prepared):
            return super().culprits()
        contenders = [name for name in entrants if "role" not in prepared["entrants"][name]]
        at_turn = entrants[self.marked - 1] if self.marked else ""
        if at_turn in contenders:
            return [at_turn]
        return [name for name in contenders if name != prepared["baseline"]] or contenders

    def on_prepared(self, message: ShapePrepared) -> None:
        self._prepared[message.line["id"]] = message.line
        self.step = replace(self.step, shape="")

    def on_turns(self, turns: Turns) -> None:
        """Journal new rounds, numbered behind those of earlier workers, and how far their shape is measured by now."""
        is_new_process = turns.shape not in self._measured
        self._measured.add(turns.shape)
        shape = self.supervisor.run.shapes.get(turns.shape)
        if is_new_process and shape and not shape.passes:  # rounds of no whole pass
            shape = None
        for index, round_ in enumerate(turns.rounds, shape.round_count if shape else 0):
            round_.index = index
            round_.pass_index = shape.passes + 1 if shape else 1
            round_.process = self._number
        header = {"kind": "pass", "shape": turns.shape} if shape else self._prepared[turns.shape]
        self.supervisor.add_turns(header | self._shape_fields(turns, shape, is_new_process), turns)
        self.step = replace(self.step, shape="")  # which is over

    def _shape_fields(self, turns: Turns, shape: Shape | None, is_new_process: bool) -> dict:
        """The fields of a shape that `turns` change. `shape` is None where it has no rounds yet."""
        fields = {
            "passes": int(turns.whole),
            "processes": int(is_new_process),
            "stopped_by": turns.stopped_by if self._is_last(turns, shape) else INTERRUPTED,
            "round_count": len(turns.rounds),
            "telemetry": turns.telemetry,
            "late": turns.late,
        }
        if shape is None:
            return fields
        fields["passes"] += shape.passes
        fields["processes"] += shape.processes
        fields["round_count"] += shape.round_count
        fields["late"] = {}
        for name, count in shape.late.items():
            if self.alone or f"{turns.shape}-{name}" in self.supervisor.suspects:  # it is in, and took no turn
                fields["late"][name] = count
        for name, count in turns.late.items():
            fields["late"][name] = count + shape.late.get(name, 0)
        fields["telemetry"] = shape.telemetry
        if turns.whole:
            in_pass = len(turns.rounds) + sum(round_.pass_index > shape.passes for round_ in shape.rounds)
            before = fields["round_count"] - in_pass
            fields["telemetry"] = telemetry.merged(shape.telemetry, before, turns.telemetry, in_pass)
        if self.alone:  # the shape is over for the others
            fields["entrants"] = self._prepared[turns.shape]["entrants"] | shape.entrants
            fields["stopped_by"] = shape.stopped_by
        return fields

    def _is_last(self, turns: Turns, shape: Shape | None) -> bool:
        """Whether the plan asks for no more turns of the shape. `close_decided` ends one that is to be decided."""
        supervisor = self.supervisor
        analysis = shape.analysis if shape else self._prepared[turns.shape]["analysis"]
        if supervisor.options.decide and analysis == "throughput":
            return False
        passes = 1 + (shape.passes if shape else 0)
        return bool(turns.whole and turns.stopped_by) and passes == supervisor.planned_passes

    handlers = Job.handlers | {StepBegan: on_step, ShapePrepared: on_prepared, Turns: on_turns}

    def end(self, how: str, rank: str = "", limit: str = "") -> None:
        super().end(how, rank, limit)
        if self.supervisor.options.decide:
            seconds, is_planned = time.monotonic() - self._worker_since, not self._undecided
            line = {"kind": "process", "seconds": seconds, "process": self._number, "planned": is_planned}
            self.supervisor.add(line)
        if how or self.broke or self.supervisor.end_reason:
            return
        for shape, names in self._cases.items():
            for name in names:
                if shape not in self._measured and name in self.supervisor.left(shape):  # it is not asked for again
                    reason = f"{name}: its runner left it out, and did not say why"
                    self.supervisor.lose(shape, name, Outcome(FAILED, reason))
