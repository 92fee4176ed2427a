"""A clock for paced links of a CPU on which time passes only where somebody waits: no busy machine makes them late."""

import time


class LinkClock:
    """Stands in for `collectives.paced.WallClock`, one for each link.

    The link's thread sleeps until its consumer waits for what is not here yet, so computing takes no time. A consumer
    that looks at the flags itself is not seen to wait: after `let_go`, time passes by itself, and the thread's pauses
    are real, but short, and only they.
    """

    LONGEST_PAUSE_S, POLL_S = 0.05, 1e-4

    def __init__(self):
        self._now = self._until_s = self._asleep_until_s = 0.0
        self._here = None
        self._free = False

    def now(self) -> float:
        return self._now

    def let_go(self) -> None:
        self._free = True

    def pass_by(self, seconds: float) -> None:
        self._now += seconds

    def sleep(self, seconds: float) -> None:
        due_s = self._now + seconds
        if self._free:
            time.sleep(min(seconds, self.LONGEST_PAUSE_S))
        self._asleep_until_s = due_s
        while not (self._free or self._is_awaited(due_s)):
            time.sleep(self.POLL_S)
        self._asleep_until_s = 0.0
        self._now = max(self._now, due_s)

    def _is_awaited(self, due_s: float) -> bool:
        here = self._here
        return here is not None and not here() and due_s <= self._until_s

    def wait_for(self, change, here, until_s: float) -> None:
        self._until_s, self._here = until_s, here
        while not here() and (self._free or self._asleep_until_s <= until_s):
            change.wait(self.POLL_S)
        self._here = None
        if not here():
            self._now = until_s
