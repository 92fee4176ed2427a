"""The socket between a supervisor and a worker, seen from both ends: a request, and then messages, as JSON."""

import socket
from contextlib import suppress
from multiprocessing.connection import Connection

from roofline.store import typed
from roofline.worker.messages import MESSAGES, Message, Request, Stopped


class Channel(Connection):
    """One end. A worker goes on once what it told is acknowledged."""

    def __init__(self, plug: socket.socket):
        super().__init__(plug.detach())

    def tell(self, message: Message) -> None:
        """Tell the supervisor, and wait until it has journalled that. Raises `Stopped` where it wants no more."""
        try:
            self.send_bytes(typed.encoded({"kind": type(message).__name__} | vars(message)))
            if self.recv_bytes():
                raise Stopped
        except (EOFError, OSError):
            raise Stopped from None

    def request(self) -> Request:
        """What the supervisor asks for."""
        return typed.read(Request, typed.decoded(self.recv_bytes()))

    def ask(self, request: Request) -> None:
        """Tell the worker what it is to do."""
        self.send_bytes(typed.encoded(request))

    def receive(self) -> Message:
        """The next message. Raises OSError and EOFError once there is none to come, and ValueError for what is
        none."""
        return typed.read_line(MESSAGES, typed.decoded(self.recv_bytes()))

    def acknowledge(self, *, stop: bool) -> None:
        """Let the worker go on, or tell it to end."""
        with suppress(OSError):
            self.send_bytes(b"stop" if stop else b"")
