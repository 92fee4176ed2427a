"""A launch, and the CTAs of its grid."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .cluster import Cluster, Turn
from .memory import PARAMETER_BYTES, PARAMETERS, Shared
from .order import CLUSTER_BITS, Agent, Clock, Scope
from .program import Program
from .warp import KINDS, Warp


@dataclass(eq=False)
class Launch:
    program: Program | None
    """None for a kernel that did not run on the machine, and has ended."""
    shape: tuple[int, int, int]
    """CTAs of its grid along x, y and z."""
    parameters: dict[str, int | bytes]
    """The values of its parameters: numbers, or the bytes of a structure."""
    after: tuple[int, ...] = ()
    """Numbers of launches that must end before it, with all that they do, as on one stream."""
    device: int = 0
    first: int = 0
    """The number of its first cluster."""
    is_early: bool = False
    """A programmatic dependent launch: it begins once each CTA of the last one of `after` lets it, or has ended."""
    waited: bool = True
    """Whether all of its CTAs that have ended, or let others begin, had waited for `after` by then."""
    is_free: bool = False
    """Whether all launches of `after` have ended, with all that they did."""
    symbols: dict[str, int] = field(default_factory=dict)
    """Addresses of its module's variables."""
    addresses: dict[str, int] = field(default_factory=dict)
    """Addresses of its parameters: a tensor map has its own, and others lie in `image`, which begins at PARAMETERS."""
    ways: dict[int, list[tuple[int, int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Of each cluster that has ended: the rank of each CTA, and each warp's number and way."""
    begun: int = 0
    start: Clock | None = None
    end: Clock | None = None

    def __post_init__(self) -> None:
        self.grid = math.prod(self.shape)
        self.run(range(self.grid))
        image = b""
        for name, value in self.parameters.items():
            image += bytes(-len(image) % PARAMETER_BYTES)
            is_map = isinstance(value, int) and self.program.kernel.parameters[name].size > 8
            self.addresses[name] = value if is_map else PARAMETERS + len(image)
            image += value if isinstance(value, bytes) else (value % 2**64).to_bytes(8, "little")
        self.image = np.frombuffer(image, np.uint8)

    def run(self, numbers: Sequence[int]) -> None:
        """Run no CTAs but those of these numbers, in whole clusters."""
        self.numbers = numbers
        self.left = len(numbers)

    @property
    def clusters(self) -> range:
        count = self.grid // self.program.cluster if self.program else 1
        return range(self.first, self.first + count)


class Cta:
    def __init__(self, machine: Any, launch: Launch, cluster: Cluster):
        self.machine = machine
        self.launch = launch
        self.program = program = launch.program
        self.number = launch.numbers[launch.begun]
        self.cluster = cluster
        self.rank = len(cluster.ctas)
        self.ended = False
        cluster.ctas.append(self)
        x, y, _ = launch.shape
        self.place = self.number % x, self.number // x % y, self.number // (x * y)
        self.count = program.warps
        self.first = (launch.first + self.number // program.cluster << CLUSTER_BITS) + self.rank * program.agents
        readers = Agent.BULK_WRITES * self.count if program.cluster == 1 else program.cluster * program.agents
        data = np.full(program.shared_bytes, machine.fill, np.uint8)
        self.shared = Shared(machine.ledger, data, self.first, cluster.ctas[0].first, readers)
        self.scope = Scope("cta", launch.device, self.first, cluster.ctas[0].first)
        # The warps of the cluster's other CTAs, which a scope of this CTA does not reach.
        self.unreached = np.zeros((program.cluster, program.agents), bool)
        self.unreached[:, : self.count] = True
        self.unreached[self.rank] = False
        self.unreached = np.flatnonzero(self.unreached)
        self.under_way = dict.fromkeys(KINDS, 0)  # how many events of each kind
        self.reached_by: dict[int, int] = {}  # warps of other CTAs, and the epoch when each last used its mbarriers
        self.barriers: dict = {}  # mbarriers by address
        self.loads: dict[int, tuple[int, int]] = {}  # agent and epoch of an mbarrier's TMA loads, by its address
        # Agents that loaded from the same addresses, by the load's line and the addresses. For the latest load they are
        # there by the addresses alone, too.
        self.loads_by: dict[Any, tuple[int, ...]] = {}
        self.named: dict[int, Turn] = {}  # the current turns of its barriers, by number
        self.spare_registers = 0
        self.waited = not launch.after  # whether it has waited for the launches before it
        self.lets = False  # whether it lets the launches behind it begin
        self.warps = [Warp(self, number) for number in range(self.count)]

    def end(self) -> None:
        """Release the memory that nobody looks at any more."""
        self.ended = True
        self.launch.ways[self.first >> CLUSTER_BITS] += [(self.rank, warp.number, warp.way) for warp in self.warps]
        self.shared.end()
        self.loads_by.clear()
        for warp in self.warps:
            warp.r = warp.local = warp.clock = None

    def let(self) -> None:
        """Let the launches behind its own begin, as far as this CTA is concerned."""
        if not self.lets:
            self.lets = True
            self.launch.waited &= self.waited
            self.machine._begin()

    def agent(self, kind: Agent, number: int) -> int:
        """The agent of a kind that belongs to a warp, or is an mbarrier's."""
        return self.first + kind * self.count + number
