"""Who is told how a run goes: kernel names and counters come at its end, messages are measured at its beginning."""


class Observer:
    """Told of a `Session`; does nothing of its own."""

    lacking = ""
    """In words, what the run lacks where `finished` is interrupted."""

    def begun(self) -> None:
        """The ceilings are measured, and no shape of this process is yet."""

    def finished(self) -> None:
        """All timing is over, and the run came to its end."""
