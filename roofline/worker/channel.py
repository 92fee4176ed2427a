"""The socket between a supervisor and a worker, seen from both ends: a request, and then messages, as JSON."""

import json
import socket
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection

from roofline.store.outcome import Outcome
from roofline.store.run import Round
from roofline.worker.messages import MESSAGES, Message, Request, Stopped


class Channel(Connection):
    """One end. A worker goes on once what it told is acknowledged."""

    def __init__(self, plug: socket.socket):
        super().__init__(plug.detach())

    def tell(self, message: Message) -> None:
        """Tell the supervisor, and wait until it has journalled that. Raises `Stopped` where it wants no more."""
        try:
            self.send_bytes(json.dumps({"message": type(message).__name__} | asdict(message)).encode())
            if self.recv_bytes():
                raise Stopped
        except (EOFError, OSError):
            raise Stopped from None

    def request(self) -> Request:
        """What the supervisor asks for."""
        return Request(**json.loads(self.recv_bytes()))

    def ask(self, request: Request) -> None:
        """Tell the worker what it is to do."""
        self.send_bytes(json.dumps(asdict(request)).encode())

    def receive(self) -> Message:
        """The next message. Raises OSError and EOFError once there is none to come."""
        fields = json.loads(self.recv_bytes())
        kind = MESSAGES[fields.pop("message")]
        if "rounds" in fields:
            fields["rounds"] = [Round(**round_) for round_ in fields["rounds"]]
        if "outcome" in fields:
            fields["outcome"] = Outcome(**fields["outcome"])
        return kind(**fields)

    def acknowledge(self, *, stop: bool) -> None:
        """Let the worker go on, or tell it to end."""
        with suppress(OSError):
            self.send_bytes(b"stop" if stop else b"")
