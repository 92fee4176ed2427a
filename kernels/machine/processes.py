"""Processes that are forked to do a part of the work, and send what they find."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def forked(target: Callable, *args: Any) -> tuple[multiprocessing.Process, Connection]:
    """Start a forked process that calls `target` with these arguments and, last, a connection to send to. Returns the
    process, and the connection to receive from."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(*args, sender))
    process.start()
    sender.close()
    return process, receiver


IDLE_S = 60
"""A forked process that has used no CPU time for so long is given up."""


def seconds_of(process: int) -> list[str]:
    """The CPU time that a process has used: utime and stime (proc(5)). Empty once it has ended and was waited for."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()[11:13]


def received(process: multiprocessing.Process, receiver: Connection) -> Any:
    """What a forked process sends; a string that says what became of it if it sends nothing."""
    spent = None
    while not receiver.poll(IDLE_S):
        before = spent
        spent = seconds_of(process.pid)
        if spent == before:
            return f"did nothing for {IDLE_S} s"
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        return f"died with exit code {process.exitcode}"
