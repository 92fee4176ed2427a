"""Waiting for another process, with a bound."""

import os
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = float(os.environ.get("ROOFLINE_PATIENCE_S", "60"))
"""A supervisor that says nothing for so long, where others wait for its word, has stopped or was killed."""
LOOK_S, LONGEST_LOOK_S = 0.0005, 0.05
"""From one look to the next. The longer nothing has come, the longer."""


def wait_for(answer: Callable[[], Any], within_s: float) -> Any:
    """The result of `answer()` as soon as that is true, or after pauses meant to take `within_s` in all: more, where
    the machine is busy or was stopped."""
    waited_s = 0.0
    while not (answered := answer()) and waited_s <= within_s:
        pause_s = min(LOOK_S + waited_s / 20, LONGEST_LOOK_S)
        time.sleep(pause_s)
        waited_s += pause_s
    return answered
