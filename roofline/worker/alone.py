"""One process without torchrun: the ranks that it is alone among, as what several do together asks for them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class Alone:
    """One process that owns the shards of all ranks."""

    rank, size, world = 0, 1, None

    @staticmethod
    def broadcast(value: Any) -> Any:
        """Rank 0's `value`, plain data; all ranks call this in the same order, as all that follow."""
        return value

    @staticmethod
    def gather(value: Any, step: str = "") -> list:
        """The `value` of each rank."""
        return [value]

    @staticmethod
    def together(step: str, call: Callable[[], Any]) -> Any:
        """The result of `call()` on this rank; but where it returns an `Outcome` on any, that of the first rank to do
        so. Raises `Broken` as `in_step` does."""
        return call()

    @staticmethod
    def in_step() -> AbstractContextManager:
        """A context whose body all ranks do together: where it raises on several ranks' behalf, it raises `Broken`."""
        return nullcontext()

    @staticmethod
    def metadata() -> dict:
        """The field `ranks` of a run's first line; all ranks call this."""
        return {}


ALONE = Alone()
