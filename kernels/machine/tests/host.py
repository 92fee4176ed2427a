"""A thread of the host, whose writes to memory that the devices see are ordered by flags it raises."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from kernels.machine.core.machine import Machine
from kernels.machine.core.memory import starts
from kernels.machine.core.order import CLUSTER_BITS, GENERIC, UNFENCED, Attempt, Clock, Scope
from kernels.machine.launcher import address


class Host:
    """`steps` makes a generator that yields between its steps, of this thread."""

    def __init__(self, machine: Machine, steps: Callable[["Host"], Iterator]):
        self.machine, self.agent, self.steps = machine, machine.clusters << CLUSTER_BITS, steps(self)
        machine.clusters += 1
        machine.hosts.append(self)

    def begin(self, width: int) -> None:
        self.clock = Clock(width)
        self.clock.put(self.agent, 1, UNFENCED)

    def write(self, at: np.ndarray, data: np.ndarray, *, release: bool = False) -> None:
        """`data`, [n, size], at so many addresses; as a flag, with release at system scope."""
        memory, size = self.machine.memory, data.shape[1]
        scope = Scope("sys", -1, -1, -1) if release else None
        epoch = self.clock.item(GENERIC, self.agent)
        number = self.machine.ledger.note(self.agent, epoch, self, scope=scope)
        for region, which, places in memory.places(at, size, self):
            region.note_write(places, Attempt(self.clock, number, self))
            region.store(places, data[which])
            for start in starts(places, size) if release else ():
                region.publish(start, {scope: self.clock.copy()}, read=False)
        self.clock.put(self.agent, epoch + release, UNFENCED)

    def __repr__(self) -> str:
        return "the host"


def write(host: Host, target: Tensor, source: Tensor) -> None:
    """Have a thread of the host copy a matrix."""
    size, (rows, columns) = target.element_size(), target.shape
    at = address(host.machine, target) + size * (target.stride(0) * np.arange(rows)[:, None] + np.arange(columns))
    host.write(at.reshape(-1), source.contiguous().view(torch.uint8).numpy().reshape(-1, size))


def raise_flag(host: Host, flag: Tensor, value: int) -> None:
    """Have it store `value` in `flag`, int32 [1], with release at system scope."""
    host.write(np.array([address(host.machine, flag)]), np.array([[value]], np.int32).view(np.uint8), release=True)
