"""Taking turns: contenders are timed in rounds, each in another order, until their times are known well enough.

Drift, heat and the state that a predecessor leaves behind then hit all contenders alike, and ratios can be paired
within a round.
"""

import math
import mmap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from roofline.host.device_errors import CallError
from roofline.protocol.messages import is_of_contender
from roofline.protocol.stop_rule import PATIENCE, StopRule
from roofline.store.run import Round, groups_of
from roofline.store.stats import time_of
from roofline.worker.bound import os
from roofline.worker.clocks import Call
from roofline.worker.prepared import PreparedCase

Mark = bytearray | mmap.mmap
UNWATCHED = bytearray(1)
"""A mark that nobody looks at."""

LOOKED_AT = 1 / 8
"""The fraction of rounds whose last result is looked at, beside the first of each entrant in a process; with a user's
contender, the fraction of all calls."""
LONGEST_UNSEEN = 8
"""After so many rounds without a look, an entrant is looked at once more at the end."""

WRONG = (
    "the result of a timed call was wrong: {}, though the check's was right: it may reuse an earlier result, or what "
    "it hands to a thread or a stream goes on when it returns; have it wait for that"
)
NO_TIME = (
    "a timed call took no time: none of its work came between the two events around it; have it work on the current "
    "stream, and have that wait for what it hands to another"
)


class Rounds:
    """The rounds of one shape, in one pass or in several with other shapes between them.

    What slows a shared machine down comes and goes within seconds: passes apart from one another meet more of it than
    the same time at one go, and their differences are in the interval.
    """

    def __init__(
        self,
        prepared: PreparedCase,
        clock,
        rule: StopRule,
        *,
        seed: int,
        passes: int = 1,
        mark: Mark = UNWATCHED,
    ):
        """The entrants of `prepared` take turns. The same seed gives the same orders. `mark[0]` is the number of the
        entrant that is being called, in their order from 1, and 0 between calls.

        What a call notes of a sample, with what the clock said of it, are the round's values; a `timeline` among them,
        a dict, is kept apart.

        Its `inputs` change before each round. After some rounds the `look` of the last entrant, if it has one, is given
        what its call returned; no call can tell which rounds these are.
        """
        self.rounds: list[Round] = []
        self.times_s: dict[str, dict[int, float]] = {name: {} for name in prepared.entrants}
        """{entrant: {round: seconds}} of those that are still in. A sample that a late host spoilt is absent."""
        self.timelines: dict[tuple[str, int], dict] = {}
        """{(entrant, round): what its sample noted}."""
        self.wrong: dict[str, str] = {}
        """Why what a timed call of an entrant computed is wrong, by its name."""
        self.stopped_by = ""
        """`width` (known well enough), `time` (the cap) or `rounds` (the most rounds); empty while it goes on."""
        self._mark = mark
        self._returned: dict[str, object] = {}
        """{entrant: what its last call returned}, of whom that is looked at."""
        self._entrants: dict[str, Call] = {}
        self._looks: dict[str, Callable[[object], Callable[[], str]]] = {}
        self._has_guests = False
        """Whether a user's contender takes turns."""
        for number, (name, entrant) in enumerate(prepared.entrants.items(), 1):
            self._entrants[name] = self._named(name, entrant.call, number)
            self._has_guests = self._has_guests or entrant.facts.get("of_user", False)
            if entrant.look:
                self._looks[name] = entrant.look
        self._clock = clock
        self._rule = rule
        self._passes = passes
        self._ranks = clock.ranks
        self._inputs = prepared.inputs
        self._looked_at: dict[str, int] = {}
        self._rng = np.random.default_rng(seed)
        self._chance = np.random.default_rng([seed, 1])
        self._look = rule.min_rounds
        self._spent_s = 0.0
        self._passed = 0

    def _named(self, name: str, call: Call, number: int) -> Call:
        """`call`, whose exceptions are `CallError`s that name it. While it runs, or wakes its threads, `mark[0]` is
        `number`. Where its result is looked at, it is kept."""
        mark = self._mark
        returned = self._returned  # and not these rounds: what they hold is let go with them

        def guarded(function: Callable, number: int) -> Callable:
            def run():
                mark[0] = number
                try:
                    result = function()
                    if name in returned:
                        returned[name] = result
                    return result
                except BaseException as error:
                    if not is_of_contender(error):
                        raise
                    raise CallError(name) from error
                finally:
                    mark[0] = 0

            return run

        wake = call.wake and guarded(call.wake, number)
        return replace(call, run=guarded(call.run, number), wake=wake, notes=call.notes and guarded(call.notes, 0))

    @property
    def longest_pass_s(self) -> float:
        """The seconds that the rule leaves a pass, beside its first round."""
        return PATIENCE * self._rule.max_seconds / self._passes + (self._rule.warmup_s or 0.0)

    def drop(self, name: str) -> None:
        """Go on without `name`, and forget its samples."""
        for of_entrant in (self._entrants, self._looks, self.wrong, self.times_s):
            of_entrant.pop(name, None)
        for round_ in self.rounds:
            round_.time_s.pop(name, None)
            round_.values.pop(name, None)

    def run_pass(self) -> None:
        """Run rounds up to this pass's share of the rule's time and rounds, in the first pass after a warm-up.

        Whole rounds are in `rounds` as soon as they are done, and stay there when this is interrupted. The first pass
        runs one at least; where rounds are long, and so ahead of their share, a later one may run none. There are
        `rule.min_rounds` in all, unless those take `PATIENCE` times the time. The last pass notes what stopped it.
        Raises `CallError` where a call raises, and what the clock raises.
        """
        try:
            with self._ranks.in_step():
                self._run_pass()
        finally:
            self._inputs.restore()

    def _run_pass(self) -> None:
        if not self._passed:
            self._warm_up()
        rule = self._rule
        fraction = (self._passed + 1) / self._passes
        began = self._clock.now()
        spent_s = self._spent_s
        while not (stopped_by := self._ranks.broadcast(self._enough(fraction))):
            self._round()
            self._spent_s = spent_s + self._clock.now() - began
            if fraction == 1 and len(self.rounds) >= self._look:
                self._look = math.ceil(len(self.rounds) * rule.check_every)
                if self._narrow():
                    stopped_by = "width"
                    break
        self._passed += 1  # not if a call raised: then this pass begins again
        if fraction == 1:
            for name in self._looks:
                if len(self.rounds) - self._looked_at.get(name, -math.inf) > LONGEST_UNSEEN:
                    with self._looking([name]):
                        self._clock.turn(self._changed([name]))
            self.stopped_by = stopped_by

    def _enough(self, fraction: float) -> str:
        """The rule that says so, where so large a `fraction` of all passes has its rounds; else empty."""
        rule = self._rule
        done = len(self.rounds)
        if done >= rule.max_rounds * fraction:
            return "rounds"
        cap_s = rule.max_seconds * fraction * (1 if done >= rule.min_rounds * fraction else PATIENCE)
        return "time" if done and self._spent_s >= cap_s else ""

    def _warm_up(self) -> None:
        """Warm up by time: a 20 ms kernel and a 20 us kernel need the same while to reach their clocks."""
        if self._rule.warmup_s is None:
            return
        deadline = self._clock.now() + self._rule.warmup_s
        calls = list(self._entrants.values())
        again = True
        self._clock.warm(calls)
        while again:
            self._clock.turn(calls)
            again = self._ranks.broadcast(self._clock.now() < deadline)

    def _round(self) -> None:
        """Run a round. It has the samples that are good; who has none was late, or is `wrong`."""
        order = self._rng.permutation(list(self._entrants)).tolist()
        round_ = Round(len(self.rounds), order, {}, {}, self._passed + 1)
        times: list[float | None] = []
        readings: list[dict] = []
        for calls, looked_at in self._turns(order, times):
            with self._looking(looked_at):
                times += self._clock.turn(calls)
            readings += self._clock.readings or [{}] * (len(times) - len(readings))
        notes = {name: call.notes() for name, call in self._entrants.items() if call.notes}
        for name, time_s, reading in zip(order, times, readings, strict=True):
            if time_s is None:
                continue
            if time_s <= 0:
                self.wrong.setdefault(name, f"{name}: {NO_TIME}")
                continue
            round_.time_s[name] = self.times_s[name][round_.index] = time_s
            values = notes.get(name, {}) | reading
            if timeline := values.pop("timeline", None):
                self.timelines[name, round_.index] = timeline
            if values:
                round_.values[name] = values
            if listen := self._entrants[name].listen:
                listen(time_s)
        self.rounds.append(round_)

    def _turns(self, order: list[str], times: list) -> Iterator[tuple[Iterable[Call], list[str]]]:
        """The turns of the clock that a round takes: calls, and the name of the last where that is looked at. It then
        has a turn of its own. Beside guests a turn goes as far as `_until_drawn`; `times` has those that are over."""
        if self._has_guests:
            while len(times) < len(order):
                looked_at: list[str] = []
                yield self._until_drawn(order[len(times) :], looked_at), looked_at
            return
        *others, last = order
        was_looked_at = last in self._looked_at
        if last not in self._looks or (was_looked_at and self._chance.random() >= LOOKED_AT):
            yield self._changed(order), []
            return
        if others:
            yield self._changed(others), []
        yield self._changed([last]), [last]

    def _changed(self, names: list[str]) -> list[Call]:
        """The calls of `names`, with other inputs than in the last turn."""
        self._inputs.change()
        return [self._entrants[name] for name in names]

    def _until_drawn(self, names: list[str], looked_at: list[str]) -> Iterator[Call]:
        """The calls of `names`, each with inputs of its own, until one is `looked_at`. That is drawn when it has
        returned: no frame and no seed tells before."""
        for name in names:
            self._returned[name] = None
            yield from self._changed([name])
            if name in self._looks and os.urandom(1)[0] < 256 * LOOKED_AT:
                looked_at.append(name)
                return
            del self._returned[name]

    @contextmanager
    def _looking(self, looked_at: list[str]) -> Iterator[None]:
        """A turn of the clock, at whose end what the call of the one that is `looked_at` returned is looked at, before
        anything waits for it; why that is wrong, if it is, is noted."""
        problems: list[Callable[[], str]] = []

        def begin_look() -> None:
            for name in looked_at:
                problems.append(self._looks[name](self._returned[name]))

        self._returned |= dict.fromkeys(looked_at)
        try:
            with self._clock.while_busy(begin_look):
                yield
        finally:
            self._returned.clear()
        for name, problem in zip(looked_at, problems, strict=True):
            try:
                words = problem()
            except Exception as error:
                raise CallError(name) from error
            if words:
                self.wrong[name] = f"{name}: {WRONG.format(words)}"
            self._looked_at[name] = len(self.rounds)

    def _narrow(self) -> bool:
        groups = groups_of(self.rounds)
        for times_s in self.times_s.values():
            time = time_of(times_s, groups)
            if not (time and time.high - time.low < self._rule.width * time.value):
                return False
        return True


def take_turns(prepared: PreparedCase, clock, rule: StopRule, *, seed: int) -> Rounds:
    """All rounds of the entrants of `prepared`, in one pass."""
    rounds = Rounds(prepared, clock, rule, seed=seed)
    rounds.run_pass()
    return rounds
