"""The process of a worker: takes a request from the supervisor, does it, and tells what comes of it.

    python3 -m roofline.worker.process SOCKET FILE

Both are numbers of descriptors that it inherits: of its end of the channel, and of a file whose first byte is the mark.
"""

import ctypes
import faulthandler
import mmap
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import replace

from roofline import operations
from roofline.host import container
from roofline.operations.contenders import loaded
from roofline.operations.options import options_of
from roofline.protocol.messages import Channel, Request, Step, StepBegan, Stopped, interrupt
from roofline.worker.ranks import of_worker
from roofline.worker.worker import run


def bind(device: str) -> None:
    """Tie this process's life to the one that began it. On a CPU, refuse it memory before the machine has none."""
    with suppress(OSError, AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if device == "cpu":
            _, most = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (container.worker_bytes(), most))


def bring_runners(request: Request) -> None:
    """Give each operation of `request` the runner that it names."""
    for name, (of_runner, of_case) in request.runners.items():
        module = sys.modules[loaded(of_case).__module__]
        for value in vars(module).values():  # most register themselves as that is imported
            if isinstance(value, operations.Operation) and value.name == name:
                operations.OPERATIONS.setdefault(name, value)
        operations.OPERATIONS[name] = replace(operations.OPERATIONS[name], runner=loaded(of_runner))


def main(plug: int, file: int) -> None:
    """Do what the supervisor asks for, and tell it what comes of that."""
    for number in (plug, file):
        os.set_inheritable(number, False)  # by what a contender begins
    channel = Channel(socket.socket(fileno=plug))
    request = channel.request()
    device = request.options["device"]
    bind(device)
    faulthandler.register(signal.SIGUSR1, file, all_threads=False)
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is meant for the supervisor
    os.register_at_fork(after_in_child=channel.close)  # what a contender forks says nothing in the worker's name
    sys.path[:] = request.path or sys.path
    sys.argv[:] = [""]  # what a user's file may read is not ours
    mark = mmap.mmap(file, 1)
    with suppress(Stopped, KeyboardInterrupt):
        channel.tell(StepBegan(Step.START))
        bring_runners(request)
        ranks = of_worker(request.world) if request.world else None
        if ranks and device == "cuda":
            from roofline.worker.device_ranks import World

            ranks.world = World(ranks)
        run(request, channel.tell, operations.Runners(options_of(request.options), ranks), mark)
    os._exit(0)  # what was imported takes long to end


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
