"""A clock by which each call takes what it returns, and a torch that a share of such calls imports at once."""

import os
import sys
import types

from roofline.worker.clocks import Clock
from roofline.worker.prepared import Entrant, PreparedCase

if "roofline.worker.process" in sys.orig_argv:
    sys.modules["torch"] = types.SimpleNamespace(get_num_threads=lambda: 1)


def case_of(calls):
    """Return a prepared case whose entrants are the `calls`."""
    return PreparedCase(None, "", entrants={name: Entrant(name, call) for name, call in calls.items()})


class FakeClock(Clock):
    """Calls return their seconds, or None where the host was late; time passes by what they took."""

    timer = "fake_clock_replay"

    def __init__(self):
        """In so many passes and processes as the environment variables PASSES and PROCESSES say."""
        self.passes, self.processes = (int(os.environ.get(name, "1")) for name in ("PASSES", "PROCESSES"))
        self.seconds, self.calls = 0.0, 0
        self.bursts = []
        """(call, calls) of each."""

    def now(self):
        return self.seconds

    def turn(self, calls):
        times = [call() for call in calls]
        self.calls += len(times)
        self.seconds += sum(time or 0.0 for time in times)
        self.look_while_busy()
        return times

    def burst(self, call, calls):
        seconds = sum(call() for _ in range(calls))
        self.look_while_busy()
        self.seconds += seconds
        self.bursts.append((call, calls))
        return seconds
