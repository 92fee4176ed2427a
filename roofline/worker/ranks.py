"""Real ranks as workers see them: who a worker is among those of an epoch, and how they agree.

Workers agree through torchrun's own store, not over the group that carries data, which is out of step once a rank has
failed. Outcomes that leave all in step, as a wrong result, are agreed there (`Ranks.together`). Who raises is out of
step: `Broken` ends the run (`supervise.epochs`). Without torchrun a worker is `ALONE`.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from roofline.host.device_errors import CallError
from roofline.host.machine import recorded
from roofline.host.waiting import PATIENCE_S, wait_for
from roofline.protocol.messages import Broken, is_of_contender
from roofline.store.outcome import Outcome
from roofline.worker.clocks import Call, CpuClock
from roofline.worker.prepared import rejection

LATE_S = PATIENCE_S / 2
"""A link of a GPU, on which a kernel waits, gives up after so many seconds, and says what did not come."""
SETTINGS = ("GLOO_", "NCCL_", "TORCH_GLOO_")
"""Environment variables that set how ranks talk begin with these."""


class Ranks:
    """The workers of an epoch; a store of torch.distributed is what they agree through. A worker waits there as long as
    its supervisor lets it."""

    late_s = LATE_S

    def __init__(self, store, rank: int, size: int, *, epoch: int = 0):
        from torch.distributed import PrefixStore

        self.rank = rank
        self.size = size
        self.ranks_a_node = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        self.store = PrefixStore(f"epoch {epoch}", store)
        self._steps = 0
        self.world: Any = None
        self.clock: Any = RanksCpuClock
        """Where ranks have GPUs, a `device_ranks.World`, which puts its clock here."""

    @cached_property
    def loopback(self) -> bool:
        """Whether some talk inside a machine; all ranks ask for it in step."""
        return len(set(self.gather(_network(), "what network they are on"))) < self.size

    @cached_property
    def group(self):
        """The process group of gloo that carries data and barriers. Made by all ranks when they first ask for
        it."""
        from torch.distributed import ProcessGroupGloo

        store = self.fresh_store("group")
        try:
            return ProcessGroupGloo(store, self.rank, self.size, timedelta(days=1))  # a limit comes first
        except RuntimeError as error:
            if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
                raise RuntimeError(f"GLOO_SOCKET_IFNAME={interface}: {error}") from None
            raise

    def fresh_store(self, name: str):
        """A store for a group that all ranks make now."""
        from torch.distributed import PrefixStore

        self.gather(None, f"a new {name}")
        return PrefixStore(f"{name} {self._steps}", self.store)

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.group.barrier().wait()

    def broadcast(self, value: Any) -> Any:
        return self.gather(value)[0]

    def gather(self, value: Any, step: str = "") -> list:
        """Raises RuntimeError where a rank is at another step."""
        self._steps += 1
        keys = [f"{self._steps}/{rank}" for rank in range(self.size)]
        self.store.set(keys[self.rank], json.dumps([step, value]))
        wait_for(lambda: self.store.check(keys), float("inf"))  # its own `wait` would heed no signal
        values = []
        for rank, text in enumerate(self.store.multi_get(keys)):
            theirs, value = json.loads(text)
            if theirs != step:
                raise RuntimeError(f"rank {rank} is at {theirs!r}, and rank {self.rank} at {step!r}: out of step")
            values.append(value)
        return values

    def together(self, step: str, call: Callable[[], Any]) -> Any:
        with self.in_step():
            result = call()
        mine = (result.outcome, result.reason) if isinstance(result, Outcome) else None
        for rank, rejected in enumerate(self.gather(mine, step)):
            if rejected:
                outcome, reason = rejected
                return Outcome(outcome, f"rank {rank}: {reason}")
        return result

    @contextmanager
    def in_step(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not is_of_contender(error):
                raise
            name = error.name if isinstance(error, CallError) else ""
            raise Broken(name, rejection(error)) from error

    def metadata(self) -> dict:
        import torch

        mine = {}
        for name, value in recorded(SETTINGS).items():
            if not name.endswith(("_ID", "HOSTID")):
                mine[name] = value
        each = self.gather([mine, torch.get_num_threads()], "what the ranks run on")
        settings, threads = zip(*each, strict=True)
        fields = {
            "backend": "gloo",
            "world": self.size,
            "nodes": int(os.environ.get("GROUP_WORLD_SIZE", "1")),
            "ranks_a_node": self.ranks_a_node,
            "interfaces": [of_rank.get("GLOO_SOCKET_IFNAME") for of_rank in settings],
            "settings": settings[0],
            "threads": list(threads),
            "loopback": self.loopback,
        }
        if self.world:
            fields |= self.world.metadata()
        return {"ranks": fields}

    def slowest(self, times: list[float | None], readings: list[dict]) -> tuple[list[float | None], list[dict]]:
        """For calls that all ranks made, and that took this one `times`: the slowest rank's, None where any has none;
        and the clock's `readings`, if it has some, with each rank's own time."""
        slowest = []
        merged = []
        for index, of_call in enumerate(zip(*self.gather(times), strict=True)):
            slowest.append(None if None in of_call else max(of_call))
            of_ranks = {f"rank{rank}_s": time_s for rank, time_s in enumerate(of_call)}
            merged.append(readings[index] | of_ranks if readings else of_ranks)
        return slowest, merged


class RanksCpuClock(CpuClock):
    """Wall time of a call that all ranks make together: each begins behind a barrier, and the slowest rank's is the
    sample. `readings` has each rank's own. What takes turns is called within `in_step`."""

    processes = 1
    """A process is a rank, and lasts as long as the run."""
    LONG_S = float("inf")
    """Whether a call is woken must not depend on what it took on this rank: all ranks make as many calls."""

    def __init__(self, ranks: Ranks):
        self.ranks = ranks
        self.drops_reported = not ranks.loopback  # over which no sample is a time

    def _settle(self) -> None:
        super()._settle()
        self.ranks.barrier()

    def _wake(self, call: Call, pin: Callable[[], None]) -> None:
        """Call once, not for a time: what all ranks call, they call equally often."""
        call.run()
        self._settle()

    def turn(self, calls: list[Call]) -> list[float | None]:
        times, self.readings = self.ranks.slowest(super().turn(calls), self.readings)
        return times


def _network() -> str:
    """The name of the network that this rank is on: the same where nothing leaves the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/net")
    except OSError:
        return os.environ.get("GROUP_RANK", "0")


def of_worker(world: dict) -> Ranks:
    """The ranks of a worker, by what its supervisor says: `size` and `epoch`."""
    from torch.distributed import TCPStore

    address = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=PATIENCE_S))
    return Ranks(store, int(os.environ["RANK"]), world["size"], epoch=world["epoch"])
