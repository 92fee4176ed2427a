"""A clock for paced links of a CPU on which time passes only where somebody waits: no busy machine makes them late."""

import time

import pytest


class LinkClock:
    """Stands in for `collectives.links.WallClock`, one for each link.

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


@pytest.fixture
def link_clocks():
    """Each paced link of a CPU gets a `LinkClock`, and what looks at its flags itself may do so for minutes."""
    from collectives import links

    init, signals, clocks = links.PacedThread.__init__, links.PacedThread.signals, []

    def with_clock(link, *args):
        init(link, *args)
        link.clock = LinkClock()
        clocks.append(link.clock)

    def let_go(link):
        link.clock.let_go()
        return signals(link)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(links.PacedThread, "__init__", with_clock)
        patch.setattr(links.PacedThread, "signals", let_go)
        patch.setattr(links, "PATIENCE_LOOKS", 10**7)
        yield
    for clock in clocks:
        clock.let_go()  # or a thread that nobody waits for would sleep for ever
