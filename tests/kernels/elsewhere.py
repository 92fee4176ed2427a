"""What runs in another process for a test: see `printed_elsewhere`."""

import contextlib
import io
import json
import os
from pathlib import Path


def printed(code: str):
    """The JSON that `code` prints, run in the checkout: the process may have begun while a test was elsewhere."""
    os.chdir(Path(__file__).parents[2])
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {"__name__": "__main__"})
    return json.loads(out.getvalue())
