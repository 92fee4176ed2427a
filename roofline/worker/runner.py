"""What every operation brings to be run: a runner, found by the name that the operation is declared with."""

from roofline.worker import clocks, device_errors
from roofline.worker.alone import ALONE, Alone
from roofline.worker.ceilings import Probe
from roofline.worker.prepared import PreparedCase, unwatched
from roofline.worker.ranks import Ranks


class Runner:
    """Prepares the cases of one operation by `options`."""

    def __init__(self, options):
        self.options = options
        self.earlier: dict[str, dict] = {}
        """{shape: what an earlier worker chose}, which holds for all later ones: its `facts`, and what its entrants
        took (`medians_s`, empty where none was timed)."""
        self.ranks: Alone | Ranks = ALONE

    def prepare(self, case, names: list[str], first_call=unwatched) -> PreparedCase:
        """`names`, each checked on the device; where timed, with the baseline and references."""
        raise NotImplementedError

    def problem(self) -> str:
        """Why nothing can be run by these options, in a line; "" if it can."""
        return ""

    def clock(self):
        """What times the contenders: see `worker.clocks`."""
        return clocks.for_device(self.options.device) if self.ranks is ALONE else self.ranks.clock(self.ranks)

    def probes(self) -> list[Probe]:
        """Calls that reach for the ceilings."""
        return []

    def links(self, case, clock) -> dict:
        """What the links of this GPU take from the matmul of `case`, and lose to it; nothing where there are
        none."""
        return {}

    def instruments(self) -> type | None:
        """What makes the instruments of a `CudaClock`, or None."""


def equip(clock, make_instruments) -> str:
    """Give `clock` its instruments. Where they cannot be made it goes on without: returns a note of that, or ""."""
    try:
        clock.instruments = make_instruments and make_instruments()
        return ""
    except Exception as error:  # there is no C compiler, or no Python.h
        return (
            f"Instruments: none ({device_errors.reason(error)}). Samples wait behind a pre-roll in place of a gate, "
            "and the SM clock is not read, so nothing is known at equal clock. Triton loads kernels with the help of a "
            "C compiler and Python's headers: install them (gcc, python3-dev)."
        )
