"""When a shape has rounds enough."""

from dataclasses import dataclass, replace

from roofline.store.run import FEWEST_ROUNDS

PATIENCE = 3
"""Times the cap on a shape's time that its fewest rounds may take."""


@dataclass(frozen=True)
class StopRule:
    """When to stop. Fixed before the first sample is seen."""

    max_seconds: float
    """Cap on the time of one shape's rounds, all contenders together, but for the fewest. A pass in which a call raises
    begins again."""
    width: float = 0.01
    """Stop once every contender's interval is narrower than this fraction of its time; looked at in the last pass."""
    min_rounds: int = FEWEST_ROUNDS
    max_rounds: int = 600
    check_every: float = 1.2
    """The width is looked at after `min_rounds`, and then each time that there are this many times as many rounds."""
    warmup_s: float | None = 0.2

    @classmethod
    def of_options(cls, options) -> "StopRule":
        """The rule for all passes over a shape, by which they are planned and made. On a CPU what was checked is
        warm."""
        return cls(
            max_seconds=options.max_seconds,
            min_rounds=cls.min_rounds,
            warmup_s=cls.warmup_s if options.device == "cuda" else None,
        )

    def part(self, passes: int, of: int) -> "StopRule":
        """The rule for `passes` of the `of` passes that are planned."""
        return replace(
            self,
            max_seconds=self.max_seconds * passes / of,
            min_rounds=-(-self.min_rounds * passes // of),
            max_rounds=self.max_rounds * passes // of,
        )
