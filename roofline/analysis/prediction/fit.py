"""Least squares for the constants of `cost_model`: relative errors, positive constants, a weak pull to priors."""

from dataclasses import replace

import numpy as np

from roofline.analysis.prediction.cost_model import SPREAD, STEP, Constants, Load, terms
from roofline.analysis.prediction.residual import MODEL_ERROR

TIGHT, ROUNDING, MOST_STEPS = 1e-10, 1e-12, 200


def fit(loads: list[Load], times_s: list[float], prior: Constants, free: tuple[str, ...]) -> tuple[Constants, float]:
    """The constants that explain `times_s` best, and the cost of it: the sum of squares of log(predicted / measured)
    over MODEL_ERROR, and of each of the `free` constants' log over its prior, over its SPREAD.

    Damped Gauss-Newton on logarithms (of p: that of p - 1), whose derivatives are exact, until nothing moves any more:
    noise in the last digits of the times moves the constants as little. Without cases the prior comes back.
    """
    if not loads:
        return prior, 0.0
    columns = Load(*(np.array(column, dtype=float) for column in zip(*loads, strict=True)))
    measured = np.log(np.array(times_s))
    spreads = np.array([SPREAD[name] for name in free])
    start = np.array([_inward(name, getattr(prior, name)) for name in free])

    def errors(at: np.ndarray) -> np.ndarray:
        """Of `at`, or of each row of it."""
        values = {name: _outward(name, at[..., i, None]) for i, name in enumerate(free)}
        off = np.log(terms(columns, replace(prior, **values)).time_s) - measured
        return np.concatenate([off / MODEL_ERROR, (at - start) / spreads], axis=-1)

    at, damping, now = start, 1e-2, errors(start)
    for _ in range(MOST_STEPS):
        slopes = errors(at + 1j * STEP * np.eye(len(free))).imag.T / STEP
        square = slopes.T @ slopes
        move = np.linalg.solve(square + damping * np.diag(np.diag(square)), -slopes.T @ now)
        then = errors(at + move)
        if then @ then <= (now @ now) * (1 + ROUNDING):
            at, now, damping = at + move, then, damping / 8
        else:
            damping *= 4
        if np.abs(move).max() < TIGHT:
            break
    found = {name: float(_outward(name, value)) for name, value in zip(free, at, strict=True)}
    return replace(prior, **found), float(now @ now)


def _inward(name: str, value: float) -> float:
    return float(np.log(value - 1 if name == "p" else value))


def _outward(name: str, value):
    return np.exp(value) + (1 if name == "p" else 0)


def shrunk(logs: list[float], spread: float) -> float:
    """The mean of `logs`, drawn towards 0 as `fit` draws to a prior; 0 of none."""
    return sum(logs) / (len(logs) + (MODEL_ERROR / spread) ** 2) if logs else 0.0
