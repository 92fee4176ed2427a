"""A process beside a timed run that ends it where it hangs.

A kernel that waits for what never comes keeps the main thread in C, where Python handles neither Ctrl-C nor SIGTERM. So
the run says what it begins and how long that may take. Past that, the watchdog notes in the journal that the case has
failed, says where everything lies, and kills the run and the processes it began. It also learns of each signal, from
Python's C code, which writes it into the same channel: a run that does not heed the first in time is killed, and so is
one that gets a second. A signal is no evidence against a case: then none is marked.

Only time in which the run could go on counts: none while it is stopped or a debugger is attached, and none in which
the watchdog itself did not run, as on a machine that sleeps. The watchdog ends with the run. Linux only: elsewhere
nobody watches.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from roofline.measure.signals import ways_on
from roofline.store import journal

TICK_S = 0.5
GRACE_S = 30.0
"""After a signal. What the host does in C and does end, as compiling a kernel, is mostly done by then."""
APART_S = 0.7
"""Signals closer together are one: `timeout` sends its own to the process and to its group."""

MESSAGE_BYTES = 1 << 20
BEGIN = (
    "import sys; sys.path.insert(0, sys.argv.pop()); from roofline.measure.watchdog import main; main(*sys.argv[1:])"
)


class Watchdog:
    """The run's end of it. Made in the main thread, while stdout is the terminal: what it says goes there."""

    def __init__(self, folder: Path, grace_s: float | None = None):
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        about = theirs.fileno(), os.getpid(), folder, grace_s or GRACE_S, Path(__file__).parents[2]
        command = [sys.executable, "-I", "-S", "-c", BEGIN, *map(str, about)]  # no site: it may import anything
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()
        signal.set_wakeup_fd(self._channel.fileno(), warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._leave)  # what is sent to a child is not meant for the run

    def expect(self, within_s: float = 0.0, why: str = "", cases: list[str] | None = None) -> None:
        """The run begins what shall be over `within_s` seconds from now; if it is not, `why` says how it failed, and
        which `cases` have failed with it. Without arguments: nothing is watched."""
        with suppress(OSError):  # it was killed, or does not read
            self._channel.send(json.dumps([within_s, why, cases or []]).encode())

    def close(self) -> None:
        self._leave()
        self._process.wait()

    def _leave(self) -> None:
        if self._channel.fileno() != -1:
            signal.set_wakeup_fd(-1)
            self._channel.close()


def main(descriptor: str, run: str, folder: str, grace_s: str) -> None:
    """The watchdog's end: the number of its socket, the process id of the run, its folder, and `GRACE_S`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)  # those are meant for the run
    pid, channel = int(run), socket.socket(fileno=int(descriptor))
    channel.settimeout(TICK_S)
    within_s, why, cases = 0.0, "", []
    quiet_s, asked_at = 0.0, None
    while os.getppid() == pid:
        try:
            message = channel.recv(MESSAGE_BYTES)
        except TimeoutError:
            quiet_s += 0.0 if _halted(pid) else TICK_S
            if within_s and quiet_s >= within_s:
                _end(pid, Path(folder), f"{why}: it was not over in {within_s:g} s, the limit", cases)
            continue
        if not message:
            return
        if len(message) > 1:
            (within_s, why, cases), quiet_s = json.loads(message), 0.0
        elif message[0] in (signal.SIGINT, signal.SIGTERM):
            name, now = signal.Signals(message[0]).name, time.monotonic()
            if asked_at is None:
                asked_at = now
                why, cases, quiet_s = f"{name} came, and what went on does not heed it", [], 0.0
                within_s = min(within_s, float(grace_s))
            elif now - asked_at >= APART_S:
                _end(pid, Path(folder), f"{name} came after another signal", [])


def _halted(pid: int) -> bool:
    """Whether the process is stopped, or a debugger is attached to it."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except (OSError, ValueError):
        return False
    return status["State"].split()[0] in "Tt" or status["TracerPid"].strip() != "0"


def _end(pid: int, folder: Path, why: str, cases: list[str]) -> None:
    """Note that `cases` failed, tell what to do, and kill the process `pid` with its descendants."""
    try:
        if cases:
            writer = journal.Journal(folder)
            writer.write(*({"kind": "not_measured", "case": c, "outcome": "failed", "reason": why} for c in cases))
        lines = ways_on(journal.load(folder), folder)
    except (OSError, ValueError) as error:
        lines = [f"{folder}: {error}"]
    try:
        what = [f"{', '.join(cases)}: {why}" if cases else why, "the run was killed"]
        print("", *what, *lines, sep="\n", flush=True)
    finally:
        for process in [pid, *_descendants(pid)]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        os._exit(0)


def _descendants(pid: int) -> list[int]:
    """Processes that it began, and so on, but this one: who waits for the end of the run's output waits for theirs."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            children.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found = [pid]
    for process in found:
        found += [child for child in children.get(process, []) if child != os.getpid()]
    return found[1:]
