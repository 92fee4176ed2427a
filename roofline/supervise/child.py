"""The supervisor's end of a worker: it is begun, asked, listened to, and ended, whatever it is at.

`worker.process` is what runs there. Its group of processes is another one than the supervisor's: a terminal's Ctrl-C
does not reach it, and all that it began ends with it.
"""

import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path

from roofline.host import container, orphans
from roofline.host.orphans import DEATH_S
from roofline.host.waiting import place_of, wait_for
from roofline.protocol.messages import (
    MESSAGE_S,
    Broke,
    Channel,
    Done,
    JournalLines,
    Message,
    Request,
    Step,
    StepBegan,
)
from roofline.store.lines import plain

KEPT_BYTES, LONGEST_LAST = 2**16, 1000
"""So many bytes of a worker's output are kept, the last ones, and so many characters of its last line."""


HUNG = "hung"
"""How a worker ended that came to its limit, or went on when that of another rank ended."""


@dataclass(frozen=True)
class WorkerEnd:
    """The end of a worker: how and where, as ranks tell one another where it was not well."""

    step: StepBegan
    how: str = ""
    """In words, or `HUNG`; empty where it did what it was asked for, or told that it broke."""
    marked: int = 0
    """As `Child.marked` has it."""
    broke: Broke | None = None
    stands: str = ""
    """The place where it hung, as `it stood at mine.py:12`; where all ranks do, that of each."""
    rank: str = ""
    """Whose worker it was; empty without ranks, and where all of them hung."""

    @property
    def is_well(self) -> bool:
        """True where it did what it was asked for."""
        return not (self.how or self.broke)

    @property
    def is_hung(self) -> bool:
        return self.how == HUNG

    @property
    def excuse(self) -> tuple[bool, ...]:
        """The rank of an end by how well another's excuses it: who raises may have lost a peer, and who goes on may
        wait for one; who is in no call does."""
        return self.is_hung, bool(self.broke), not self.marked


class Told:
    """A worker that runs now: what it is asked for, and what it has told by now."""

    limit_s = deadline = 0.0
    """How long, and until when, its present step may take, once somebody waits for the end of that."""
    is_stopped = False
    """Whether it was told to."""

    def __init__(self, request: Request):
        self.request = request
        self.began = time.monotonic()
        self.step = StepBegan(Step.START)
        self.is_done = False
        self.broke: Broke | None = None
        self.done: set[str] = set()
        """Shapes that were checked."""

    @property
    def marked(self) -> int:
        """The value that it keeps `mark[0]` at, or kept when it ended."""
        return 0

    @property
    def seconds(self) -> float:
        """Those since it began."""
        return time.monotonic() - self.began

    def take(self, message: Message) -> None:
        """Note what the worker is at since it told `message`."""
        match message:
            case StepBegan():
                self.step = message
                self.limit_s = 0.0
            case JournalLines():  # the step at that shape is over
                self.step = replace(self.step, shape="")
            case Broke():
                self.broke = message
            case Done():
                self.is_done = True

    def ended(self, how: str = "", stands: str = "") -> WorkerEnd:
        """The end of the worker, which did well, or told that it broke, or ended by `how`, and where it `stands`."""
        return WorkerEnd(self.step, how, self.marked, self.broke, stands)


ANSWER_S = 1.0
"""A process is waited for so long to say where it stands."""


class Child(Told):
    """A worker in a process of its own, as its supervisor sees it."""

    def __init__(self, request: Request, root: Path | None):
        """Begin it in the folder `root`."""
        super().__init__(request)
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 it lives as long as the worker
        """Its first byte is the worker's mark; behind it the worker writes where it stands."""
        self._file.write(bytes(1))
        self._mark = mmap.mmap(self._file.fileno(), 1)
        self._ended = ""
        """How it ended, in words, once it was ended."""
        self.is_held = False
        """Whether it was killed and is there all the same."""
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours, MESSAGE_S)
        """It becomes readable once the worker tells something, or ends."""
        numbers = theirs.fileno(), self._file.fileno()
        reader, writer = os.pipe()
        self._printed = b""
        self._reader = threading.Thread(target=self._read, args=[reader], daemon=True)
        with theirs, open(writer, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "roofline.worker.process", *map(str, numbers)], pass_fds=numbers,
                cwd=root, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env=container.threads() | os.environ,
            )  # fmt: skip
        orphans.BEGUN.add(self.process.pid)
        self._reader.start()
        with suppress(OSError):  # it has ended already
            self.channel.ask(request)  # some 20 KB, which a socket keeps until they are read

    def _read(self, pipe: int) -> None:
        """Read what it prints, and keep the end of that."""
        with open(pipe, "rb", buffering=0) as file:
            while text := file.read(KEPT_BYTES):
                self._printed = (self._printed + text)[-KEPT_BYTES:]

    @property
    def marked(self) -> int:
        return self._mark[0]

    @property
    def is_over(self) -> bool:
        """True where its process has ended, and nothing that it told is left to hear. What it forked may hold on."""
        return self.process.poll() is not None and not wait([self.channel], 0)

    def has_told(self, within_s: float = 0.0) -> bool:
        """True where it tells something `within_s`, or is over: then there is something to hear."""
        return self.is_over or bool(wait([self.channel], within_s))

    def go_on(self, *, stop: bool = False) -> None:
        """Let it go on with what it tells, or tell it to end."""
        self.is_stopped |= stop
        self.channel.acknowledge(stop=stop)

    def stop(self) -> None:
        """Have it tell its whole rounds and end, if it was not told to."""
        if not self.is_stopped:
            self.is_stopped = True
            self.process.terminate()

    def stand(self) -> WorkerEnd:
        """The end of it; or where it goes on, that it hangs, and at which line its Python stands."""

        def answer() -> bool | str:
            return self.process.poll() is not None or place_of(os.pread(self._file.fileno(), KEPT_BYTES, 1))

        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGUSR1)
        place = wait_for(answer, ANSWER_S)
        if place is True:  # its peers may hear of that before it is over
            return self.ended(self.end())
        return self.ended(HUNG, f"it stood at {place}" if place else "it does not tell where it stood")

    def hear(self) -> Message | WorkerEnd:
        """The next message, or once there is none to come, how it ended; where it tells nothing, it hangs."""
        if not self.has_told():
            return self.stand()
        try:
            if self.is_over:
                raise EOFError
            message = self.channel.receive()
        except (EOFError, OSError):
            how = self.end(within_s=2.0)
            return self.ended("" if self.is_done else how)
        except ValueError as error:
            self.end()
            return self.ended(f"a message that cannot be read: {error}")
        self.take(message)
        return self.ended() if self.broke else message

    def end(self, within_s: float = 0.0) -> str:
        """End it, with all that it began, where it does not end by itself `within_s`; returns how it ended, in words.

        One that does not end within `DEATH_S` of that `is_held`, and left to itself.
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
            code, self.is_held = -signal.SIGKILL, True
        orphans.end()
        self._reader.join(1.0)  # something that it began may still hold the pipe
        self.channel.close()
        self._file.close()
        self._ended = end_text(code, self._printed.decode(errors="replace"))
        return self._ended


def end_text(code: int, printed: str) -> str:
    """The end of a process in words: by its exit code, and the last line that it printed.

    >>> end_text(-9, ""), end_text(-40, ""), end_text(3, "no room")
    ('signal 9 (SIGKILL)', 'signal 40', 'exit code 3: no room')
    """
    if code < 0:
        named = f" ({signal.Signals(-code).name})" if -code in {*signal.Signals} else ""  # real-time ones have none
        return f"signal {-code}{named}"
    last = (printed.strip().splitlines() or ["it printed nothing"])[-1]
    return f"exit code {code}: {plain(last[-LONGEST_LAST:])}"
