"""Folders for as long as a process lives. What a kill left of them goes when the next one is made."""

import os
import shutil
import socket
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path

PREFIX = f"roofline-{zlib.crc32(socket.gethostname().encode()):08x}-"
"""Folders of this machine begin so, with the number of their process behind it. Others may use the same parent."""

LONGEST_PARENT = 60
"""Bytes of a path under which the path of a socket still has less than the 104 that macOS allows, and Linux 108."""


def folder() -> tempfile.TemporaryDirectory:
    """Make a folder for temporary files: in /tmp where the usual one's path is too long for a socket."""
    usual = tempfile.gettempdir()
    parent = Path(usual if len(os.fsencode(usual)) <= LONGEST_PARENT else "/tmp")
    for left in parent.glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError):  # it is gone meanwhile, or no name of ours
            try:
                os.kill(int(left.name.removeprefix(PREFIX).partition("-")[0]), 0)  # whether it is alive
            except ProcessLookupError:
                if left.stat().st_uid == os.getuid():
                    shutil.rmtree(left)
    return tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", dir=parent, ignore_cleanup_errors=True)
