"""Who is told that a run is over: kernel names and counters come at its end."""


class Observer:
    """Told of a `Session`; does nothing of its own."""

    lacking = ""
    """In words, what the run lacks where `finished` is interrupted."""

    def finished(self) -> None:
        """All timing is over, and the run came to its end."""
