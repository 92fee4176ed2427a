"""What runs in another process for a test: see `printed_elsewhere`."""

import contextlib
import io
import json


def printed(code: str):
    """The JSON that `code` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {"__name__": "__main__"})
    return json.loads(out.getvalue())
