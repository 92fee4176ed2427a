"""Statistics of timed samples: medians, paired ratios, and intervals that allow for correlation between neighbours.

Samples of one run are not independent: clocks drift, heat builds up, a neighbour on the host comes and goes. So
intervals come from a moving-block bootstrap (Kuensch 1989), whose blocks are as long as the lag-1 correlation asks for
(the AR(1) plug-in rule of Carlstein 1986). `tests/roofline/test_stats.py` states and tests their coverage.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 1000
FEW_BLOCKS = {0: 6.483, 1: 6.483, 2: 2.195, 3: 1.624}
"""Degrees of freedom -> Student's 97.5 % quantile over the normal one (of one degree where there is none)."""
FEWEST = 6
"""Below this many samples no interval is given: the extremes stand in for it."""


@dataclass(frozen=True)
class Interval:
    """A median with its interval at `CONFIDENCE`, in the unit of the samples."""

    median: float
    low: float
    high: float

    @property
    def relative_width(self) -> float:
        """Full width over the median."""
        return (self.high - self.low) / self.median if self.median else math.inf


def lag1_correlation(samples) -> float:
    """Correlation of each sample with the next; 0 where it is undefined (constant, or fewer than three samples)."""
    values = np.asarray(samples, dtype=float)
    if len(values) < 3:
        return 0.0
    centred = values - values.mean()
    energy = float(centred @ centred)
    return float(centred[:-1] @ centred[1:]) / energy if energy > 0 else 0.0


def block_length(samples) -> int:
    """How many neighbouring samples to keep together in a resample: 1 when uncorrelated, at most a fifth of them.

    The correlation is taken of the signs about the median, which one outlier in a hundred cannot hide or feign, and
    turned back into that of a Gaussian series, which is sin(pi/2 * that of its signs).
    """
    values = np.asarray(samples, dtype=float)
    signs = lag1_correlation(np.sign(values - np.median(values)))
    correlation = max(0.0, math.sin(math.pi / 2 * signs))
    if correlation >= 1:
        return max(1, len(values) // 5)
    ideal = (2 * correlation / (1 - correlation**2)) ** (2 / 3) * len(values) ** (1 / 3)
    return int(min(max(1, math.ceil(ideal)), max(1, len(values) // 5)))


def median_interval(samples, *, passes: int = 1, seed: int = 0) -> Interval:
    """Median of `samples` with its bootstrap interval. The same samples and seed give the same interval.

    Samples taken in several `passes`, of about as many each, are resampled by blocks as long as a pass: what differs
    from one pass to the next is then in the interval, however alike the samples within a pass are.
    With fewer than `FEWEST` samples the interval runs from the least to the greatest. Raises ValueError on none.
    """
    return _median_interval(np.asarray(samples, dtype=float).tobytes(), passes, seed)


@lru_cache(maxsize=4096)  # tables, plots and live lines ask for the same interval again and again
def _median_interval(samples: bytes, passes: int, seed: int) -> Interval:
    values = np.frombuffer(samples)
    if values.size == 0:
        raise ValueError("no samples: a median needs at least one")
    median = float(np.median(values))
    if len(values) < FEWEST:
        return Interval(median, float(values.min()), float(values.max()))
    length = max(block_length(values), math.ceil(len(values) / passes) if passes > 1 else 1)
    blocks = math.ceil(len(values) / length)
    # Circular blocks: every sample is as likely as any other to be drawn.
    starts = np.random.default_rng(seed).integers(0, len(values), size=(RESAMPLES, blocks, 1))
    picks = (starts + np.arange(length)).reshape(RESAMPLES, -1)[:, : len(values)]
    drawn = np.tile(values, 2)[picks]
    drawn.sort(axis=1)  # a fifth of the time of np.median
    medians = (drawn[:, (len(values) - 1) // 2] + drawn[:, len(values) // 2]) / 2
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    widen = _student_over_normal(blocks - 1)
    low, high = median - (median - float(low)) * widen, median + (float(high) - median) * widen
    return Interval(median, max(low, float(values.min())), min(high, float(values.max())))


def _student_over_normal(freedom: float) -> float:
    """Student's 97.5 % quantile over the normal one: few independent blocks show too little of their spread.

    First two terms of the Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5), exact where they are too few.
    """
    if freedom in FEW_BLOCKS:
        return FEW_BLOCKS[freedom]
    z, v = 1.959964, max(1.0, freedom)
    return 1 + (z**2 + 1) / (4 * v) + (5 * z**4 + 16 * z**2 + 3) / (96 * v**2)


def paired_ratio(numerator: dict[int, float], denominator: dict[int, float], *, passes: int = 1) -> Interval | None:
    """Median over rounds of numerator / denominator, both {round: seconds}; rounds that lack either are left out.

    Pairing within a round cancels what both met alike (drift, heat). None where no round has both.
    """
    rounds = sorted(numerator.keys() & denominator.keys())
    if not rounds:
        return None
    return median_interval([numerator[r] / denominator[r] for r in rounds], passes=passes)


def geometric_mean(values) -> float:
    """Geometric mean of positive numbers; NaN of none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
