"""A worker: one process of a run, which prepares, checks and times cases, and tells what comes of each at once.

`run` is a plain function. It knows no pytest, no journal and no other process: what it learns it hands to `tell`, and
goes on once that returns. `worker.process` makes a process of it, `worker.passes` times a shape.

What it tells are `worker.messages`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from roofline import operations
from roofline.host import device_errors, machine, telemetry
from roofline.host.machine import anonymous
from roofline.operations.gathering import links_text
from roofline.protocol.messages import (
    Broke,
    Broken,
    Done,
    JournalLines,
    Kind,
    MachineFound,
    Message,
    Rejected,
    Request,
    ShapeChecked,
    Step,
    StepBegan,
)
from roofline.store.outcome import SKIPPED, Outcome
from roofline.worker import ceilings, launches, process_state, runner
from roofline.worker.alone import ALONE
from roofline.worker.bound import time
from roofline.worker.clocks import empty_call_s
from roofline.worker.passes import ShapePasses
from roofline.worker.prepared import PreparedCase, stop_if_lost
from roofline.worker.rounds import UNWATCHED, Mark

Tell = Callable[[Message], None]

NO_INSTRUMENTS = (
    "No instruments: samples wait behind a pre-roll in place of a gate, and the SM clock is not read, so nothing is "
    "known at equal clock; Triton loads kernels with a C compiler and Python's headers: install them (gcc, python3-dev)"
)


def run(request: Request, tell: Tell, runners: operations.Runners, mark: Mark = UNWATCHED) -> None:
    """Do what `request` says, and tell what comes of it. `mark[0]` is kept at the number of the entrant that is being
    called while entrants take turns, from 1, in the order of the last `StepBegan`; 0 between calls.

    Raises what `tell` raises, and KeyboardInterrupt where a signal asks for the end: whole rounds are told before.
    """
    worker = Worker(request, tell, runners, mark)
    try:
        match request.kind:
            case Kind.HELLO:
                worker.greet()
            case Kind.CHECK:
                worker.check()
            case Kind.MEASURE:
                worker.measure()
            case Kind.NAMES:
                launches.name_kernels(worker)
    except Broken as broken:
        tell(Broke(*broken.args))
    tell(Done())


class Worker:
    """A request as it goes on."""

    def __init__(self, request: Request, tell: Tell, runners: operations.Runners, mark: Mark):
        self.request = request
        self.tell = tell
        self.runners = runners
        self.mark = mark
        self.options = runners.options
        self.device = runners.options.device
        for shape in request.cases:
            runners.of(operations.find(shape)).earlier |= request.chosen

    def begin(self, step: Step, shape: str = "", **fields) -> None:
        """Tell what the worker does next; `fields` are further ones of `StepBegan`."""
        self.tell(StepBegan(step, shape, **fields))

    def journal(self, kind: str, **fields) -> None:
        """Tell a line for the journal."""
        self.tell(JournalLines([{"kind": kind} | fields]))

    def note(self, topic: str, text: str) -> None:
        self.journal("note", about=topic, text=anonymous(text))

    @contextmanager
    def noting(self, topic: str, text: str, name: str = "") -> Iterator[None]:
        """Note behind `text` why the context failed, in which `name` may be called: the worker goes on without it."""
        try:
            yield
        except BaseException as error:
            stop_if_lost(self.device, error, name)
            self.note(topic, f"{text}: {device_errors.reason(error)}.")

    def prepare(self, shape: str, names: list[str]) -> PreparedCase:
        """The prepared case of a runner. Where that fails before any contender is called, all are rejected."""

        def first_call(name: str, within_s: float | None = None) -> None:
            if reason := self.request.refused.get(f"{shape}-{name}"):
                raise RuntimeError(reason)
            self.begin(Step.CALL, shape, name=name, seconds=within_s)

        self.begin(Step.PREPARE, shape)
        case, _ = operations.parse(shape)
        prepared = PreparedCase(case, baseline="", device=self.device)
        if case.sets * case.work.device_bytes > machine.worker_bytes(self.device):
            reason = f"{prepared.memory}: choose fewer --ffn-tokens, a larger --ffn-tp or a smaller --ffn-model"
            for name in names:
                prepared.rejected[name] = Outcome(SKIPPED, f"{name}: {reason}")
            return prepared
        try:
            return self.runners.prepare(case, names, first_call)
        except BaseException as error:  # operands that do not fit, for one
            stop_if_lost(self.device, error)
            for name in names:
                prepared.refuse(name, error)
            return prepared

    def tell_rejected(self, shape: str, prepared: PreparedCase) -> None:
        """Tell who was rejected, and who changed what others share, once."""
        for name, words in prepared.changes.items():
            self.note(f"changes {name}", f"{name} changed what others share: {words}.")
        prepared.changes.clear()
        for name, outcome in prepared.rejected.items():
            self.tell(Rejected(shape, name, outcome, is_sure=name not in prepared.suspected))
        prepared.rejected.clear()

    def greet(self) -> None:
        """Tell what this machine is, and the clock that times the contenders on it."""
        loaded = list(self.runners.loaded.values())
        problem = machine.unusable_gpu() if self.device == "cuda" else ""
        with process_state.guarded(True):  # what the import of a file changes: the machine is told as it is measured
            for each in loaded:
                problem = problem or each.problem()
        if problem:
            return self.tell(MachineFound({"problem": problem}))
        clock = loaded[0].clock()
        fields = {
            "timer": clock.timer,
            "passes": clock.passes,
            "processes": clock.processes,
            "machine": machine.describe(self.device),
            "share_bytes": machine.worker_bytes(self.device),
        }
        self.tell(MachineFound(fields | loaded[0].ranks.metadata()))

    def check(self) -> None:
        """Prepare each shape with its contenders, and call once more who is right."""
        for shape, names in self.request.cases.items():
            prepared = self.prepare(shape, names)
            seconds = {}
            for name in prepared.contenders:
                self.begin(Step.CALL, shape, name=name)
                began = time.monotonic()
                prepared.call_again(name)
                seconds[name] = time.monotonic() - began
            self.tell_rejected(shape, prepared)
            facts = prepared.case.facts | prepared.facts
            self.tell(ShapeChecked(shape, seconds.get(prepared.baseline, 0.0), facts))
            prepared.let_go()

    def measure(self) -> None:
        """Make the passes that were asked for, of all shapes by turns."""
        first = next(iter(self.runners.loaded.values()))
        self.clock = first.clock()
        self.telemetry = telemetry.GpuTelemetry() if self.device == "cuda" else telemetry.CpuTelemetry()
        self.chip = machine.describe(self.device)
        with self.noting("instruments", NO_INSTRUMENTS):
            if make_instruments := first.instruments():
                self.clock.instruments = make_instruments()
        if self.telemetry.lacking:
            self.note("telemetry", self.telemetry.lacking)
        with self.clock.while_busy(self.telemetry.read):
            if self.request.when == "start":
                self.begin(Step.IDLE)
                self.journal("idle", empty_call_s=empty_call_s(self.clock))
            self.measure_ceilings(first)
            if self.request.when == "start" and self.device == "cuda" and first.ranks is ALONE:
                self.measure_links()
            self.measure_shapes()

    def measure_shapes(self) -> None:
        """Make passes over all shapes by turns. Of a shape that is done nothing is kept: its memory is the next
        one's."""
        shapes: dict[str, ShapePasses] = {}
        for index in range(1, max(self.request.passes.values()) + 1):
            for shape, passes in self.request.passes.items():
                if index == 1:
                    shapes[shape] = ShapePasses(self, shape)
                if index <= passes:
                    shapes[shape].run_pass(is_last=index == passes)
                if index == passes:
                    del shapes[shape]

    def measure_ceilings(self, first: runner.Runner) -> None:
        """Make the probes of the ceilings, and measure these, unless an earlier worker did. Where that fails, no
        fraction of the roof is known, and the worker goes on."""
        self.probes = []
        self.ceilings = list(self.request.ceilings)
        if not (self.request.when or self.ceilings):
            return
        self.begin(Step.CEILINGS)
        with self.noting("ceilings", "No shares of the roof: the ceilings could not be measured"):
            probes = first.probes()
            if self.request.when:
                seconds = min(ceilings.STOP_RULE.max_seconds, self.options.max_seconds)
                best, reasons = ceilings.measure(
                    probes,
                    self.clock,
                    when=self.request.when,
                    seed=self.options.seed,
                    device=self.device,
                    rule=replace(ceilings.STOP_RULE, max_seconds=seconds),
                )
                for ceiling in best:
                    self.ceilings.append(ceiling)
                    self.journal("ceiling", **ceiling)
                if reasons:
                    self.note("ceilings", f"No probe: {'; '.join(reasons)}.")
            self.probes = probes

    def measure_links(self) -> None:
        """Tell what links take from the matmul of the first gather, and lose to it. The worker goes on without that."""
        gathers = [shape for shape in self.request.cases if shape.startswith("all_gather_matmul-")]
        if not gathers:
            return
        case, _ = operations.parse(gathers[0])
        with self.noting("links", "Links were not probed"):
            links = self.runners.of(operations.find(case.op)).links(case, self.clock)
            self.journal("links", **links)
            self.note("links", links_text(links))
