"""A share in a process of its own: begun, asked, listened to, and ended, whatever it is at.

The child connects to a socket in a folder of its own, so that it may be begun by a tool that it runs under. Its group
of processes is another one than the supervisor's: a terminal's Ctrl-C does not reach it, and all that it began ends
with it.
"""

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

from roofline.measure.share import Request

DEATH_S = 10.0
"""A process that was killed and is there for so long does not end: its device keeps it."""


class Child:
    """The supervisor's end of a share."""

    def __init__(self, request: Request, root: Path, under: tuple[str, ...] = ()):
        """Begin it in the folder `root`, by the command `under` where a tool is to begin it."""
        self._temporary = tempfile.TemporaryDirectory(prefix="roofline-share-")
        folder = Path(self._temporary.name)
        (folder / "mark").write_bytes(bytes(1))
        with (folder / "mark").open("r+b") as file:
            self._mark = mmap.mmap(file.fileno(), 1)
        self._output = (folder / "output").open("w+", encoding="utf-8", errors="replace")
        self._plug: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._plug.bind(str(folder / "socket"))
        self._plug.listen(1)
        self._channel: Connection | None = None
        self._ended = ""
        """How it ended, in words, once it was ended."""
        self._request = json.dumps(asdict(request)).encode()
        self.process = subprocess.Popen(
            [*under, sys.executable, "-m", "roofline.measure.share", str(folder)],
            cwd=root, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output, start_new_session=True,
        )  # fmt: skip

    @property
    def waits_at(self) -> socket.socket | Connection:
        """Return what becomes readable once it tells something, or ends after its first line."""
        return self._channel or self._plug

    @property
    def marked(self) -> int:
        """Return what it keeps `mark[0]` at, or kept when it ended."""
        return self._last_mark if self._ended else self._mark[0]

    @property
    def has_ended(self) -> bool:
        """Return whether its process has: what it told before may still be there."""
        return self.process.poll() is not None

    def receive(self) -> dict | None:
        """Return the next line that it told, once `waits_at` is readable; None where there is none yet. Raises EOFError
        once there is none to come."""
        try:
            if self._channel is None:
                plug, _ = self._plug.accept()
                self._channel = Connection(plug.detach())
                self._channel.send_bytes(self._request)
                return None
            return json.loads(self._channel.recv_bytes())
        except OSError:
            raise EOFError from None

    def acknowledge(self, *, stop: bool) -> None:
        """Let it go on, or tell it to end."""
        with suppress(OSError):
            self._channel.send_bytes(b"stop" if stop else b"")

    def end(self, within_s: float = 0.0) -> str:
        """End it, with all that it began, where it does not end by itself `within_s`; returns how it ended, in words.

        Raises RuntimeError where it does not end at all.
        """
        if self._ended:
            return self._ended
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        try:
            code = self.process.wait(DEATH_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError("a process that was killed does not end") from None
        self._last_mark = self.marked
        self._output.seek(0)
        self.printed = self._output.read()
        for file in (self._output, self._mark, self._plug, self._channel):
            if file:
                file.close()
        self._temporary.cleanup()
        self._ended = ended(code, self.printed)
        return self._ended


def ended(code: int, printed: str) -> str:
    """Return how a process ended, in words: by its exit code, and the last line of what it printed."""
    if code < 0:
        return f"signal {-code} ({signal.Signals(-code).name})"
    last = (printed.strip().splitlines() or ["it printed nothing"])[-1]
    return f"exit code {code}: {last}"
