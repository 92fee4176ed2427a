"""Plain values as JSON, and read as what a type says, by msgspec: what processes tell one another, and the lines of a
journal.

Nothing but the fields of a dataclass is set, and what it has no field for is passed over: a later version may have
written it. What does not fit is a ValueError that names its path. NaN and infinities are refused both ways.
"""

import json
from dataclasses import asdict
from typing import Any


def encoded(value: Any) -> bytes:
    """`value` as JSON, dataclasses by their fields. A name of a file may have what is no text: that is `?`."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, default=asdict).encode(errors="replace")


def decoded(text: str | bytes) -> Any:
    """The plain values of a JSON text. Raises ValueError."""
    import msgspec  # not before the pack that brings it is unpacked

    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read(kind: type, value: Any) -> Any:
    """A plain `value` as a `kind`. Raises ValueError."""
    import msgspec

    return msgspec.convert(value, kind)


def read_line(kinds: dict[str, type], line: Any) -> Any:
    """A plain `line` as the one of `kinds` that its `kind` names. Raises ValueError."""
    import msgspec

    kind: Any = msgspec.convert(line, dict).get("kind")
    if str(kind) not in kinds:
        raise ValueError(f"it is of unknown kind {kind!r:.60}")
    return msgspec.convert(line, kinds[kind])
