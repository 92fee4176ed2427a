"""The runner, which every operation brings to be run, found by the name that the operation is declared with."""

from functools import partial
from typing import Any

from roofline import operations
from roofline.operations.contenders import FIRST_CALL_S, Contender
from roofline.store.outcome import SKIPPED, Outcome
from roofline.worker import clocks
from roofline.worker.alone import ALONE, Alone
from roofline.worker.ceilings import Probe
from roofline.worker.prepared import Entrant, PreparedCase, unwatched
from roofline.worker.ranks import Ranks


class Runner:
    """Prepares the cases of one operation by `options`.

    `prepare` asks a subclass for the `operands` of a case, the `reference` of its results, a `candidate` for each
    contender, and the `references` beside them, in this order.
    """

    def __init__(self, options):
        self.options = options
        self.earlier: dict[str, dict] = {}
        """{shape: what an earlier worker chose}, which holds for all later ones: its `facts`, and what its entrants
        took (`medians_s`, empty where none was timed)."""
        self.ranks: Alone | Ranks = ALONE

    def contenders(self, case) -> dict[str, Contender]:
        """The contenders of `case` by name."""
        return {contender.name: contender for contender in operations.find(case.op).contenders}

    def baseline(self, case) -> str:
        """The contender that the others are compared with: the first that is timed on the device."""
        contenders = self.contenders(case)
        return next(name for name in contenders if self.options.device in contenders[name].devices)

    def operands(self, prepared: PreparedCase) -> Any:
        """The operands of a case's contenders; or the outcome of all of them, where none can. It fills in what of
        `prepared` follows from it: `cache`, `facts`, `inputs`."""
        raise NotImplementedError

    def reference(self, case, operands) -> Any:
        """The values that results are compared with."""

    def why_not(self, contender: Contender, case, operands) -> str | None:
        """Why `contender` cannot run `case`, or must not be timed, here; None if it can."""
        device = self.options.device
        if self.options.timed and device not in contender.devices:
            timed = [each.name for each in self.contenders(case).values() if device in each.devices]
            return f"{contender.name}: it is not timed on the {device}; take {', '.join(timed)}"
        lacking = contender.why_not(case, self.options, operands)
        return lacking and f"{contender.name}: {lacking}"

    def candidate(self, contender: Contender, prepared: PreparedCase, operands, reference) -> Entrant | Outcome:
        """`contender`, if what its first call computes is right; else why it is refused."""
        raise NotImplementedError

    def references(self, prepared: PreparedCase, operands) -> dict[str, Entrant]:
        """The entrants that take turns beside the contenders, by name, once these have been checked."""
        return {}

    def prepare(self, case, names: list[str], first_call=unwatched) -> PreparedCase:
        """The contenders of `names`, each checked on the device; where timed, with the baseline and references. All
        ranks do it in step, and what is refused on one of them is refused on all."""
        with self.ranks.in_step():
            contenders = self.contenders(case)
            prepared = PreparedCase(case, self.baseline(case), self.options.device, first_call=first_call)
            asked = dict.fromkeys([prepared.baseline, *names] if self.options.timed else names)
            operands = self.operands(prepared)
            if isinstance(operands, Outcome):
                prepared.rejected |= dict.fromkeys(asked, operands)
                return prepared
            reference = self.reference(case, operands)

            def check(name: str) -> Entrant | Outcome:
                prepared.load(name, contenders[name].load)
                if lacking := self.why_not(contenders[name], case, operands):
                    return Outcome(SKIPPED, lacking)
                return self.candidate(contenders[name], prepared, operands, reference)

            for name in asked:
                kind = contenders[name].first_call if name in contenders else ""
                step = f"checking {name} on {case.id}"
                check_together = partial(self.ranks.together, step, partial(check, name))
                prepared.enter(name, check_together, FIRST_CALL_S.get(kind))
            prepared.entrants |= self.references(prepared, operands)
            return prepared

    def problem(self) -> str:
        """Why nothing can be run by these options, in a line; "" if it can."""
        return ""

    def clock(self):
        """The clock of the contenders: see `worker.clocks`."""
        if self.ranks is ALONE:
            return clocks.for_device(self.options.device)
        return self.ranks.clock(self.ranks)

    def probes(self) -> list[Probe]:
        """Calls that reach for the ceilings."""
        return []

    def instruments(self) -> type | None:
        """The class of the instruments of a `CudaClock`, or None."""
