"""Waiting for another process, with a bound, and where one stands that does not go on."""

import os
import re
import time
from collections.abc import Callable
from sysconfig import get_path
from typing import Any

PATIENCE_S = float(os.environ.get("ROOFLINE_PATIENCE_S", "60"))
"""A supervisor that says nothing for so long, where others wait for its word, has stopped or was killed."""
LOOK_S, LONGEST_LOOK_S = 0.0005, 0.05
"""From one look to the next. The longer nothing has come, the longer."""

PLACE = re.compile(rf'File "(?!<frozen|{re.escape(get_path("stdlib"))}/(?!site-packages/))(?:.*/)?(.+)", line (\d+)')
"""A line of a dump of `faulthandler` that is of no module of the standard library."""


def wait_for(answer: Callable[[], Any], within_s: float) -> Any:
    """The result of `answer()` as soon as that is true, or after pauses meant to take `within_s` in all: more, where
    the machine is busy or was stopped."""
    waited_s = 0.0
    while not (answered := answer()) and waited_s <= within_s:
        pause_s = min(LOOK_S + waited_s / 20, LONGEST_LOOK_S)
        time.sleep(pause_s)
        waited_s += pause_s
    return answered


def place_of(dump: bytes) -> str:
    """The line at which the Python of a process stands, by a dump of `faulthandler`: the innermost that is not of the
    standard library, in which most wait. Empty where there is none yet.

    >>> within = f'File "<frozen os>", line 9 in f\\n  File "{re.__file__}", line 7 in sub'
    >>> place_of(f'{within}\\n  File "/home/me/mine.py", line 12 in f'.encode())
    'mine.py:12'
    """
    place = PLACE.search(os.fsdecode(dump))
    return ":".join(place.groups()) if place else ""
