"""Real ranks as shares see them: who a share is among those of an epoch, and how they agree.

Shares agree through torchrun's own store, not over the group that carries data, which is out of step once a rank has
failed. Verdicts that need no restart, as a wrong result, are agreed there (`Ranks.together`). Who raises is out of
step: `Broken` ends the epoch for all (`supervise.epochs`). Without torchrun a share is `ALONE`.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from roofline.worker.clocks import Call, CpuClock
from roofline.worker.machine import anonymous
from roofline.worker.messages import is_of_contender
from roofline.worker.prepared import Broken, Rejection, rejection
from roofline.worker.rounds import CallError

PATIENCE_S = float(os.environ.get("ROOFLINE_PATIENCE_S", "60"))
"""A supervisor that says nothing for so long, where others wait for its word, has stopped or was killed."""
LATE_S = PATIENCE_S / 2
"""What is sent between two ranks comes within so long."""
LOOK_S, LONGEST_LOOK_S = 0.0005, 0.05
"""From one look into the store to the next. The longer nothing has come, the longer."""
LEAST_SHARE = 0.95
"""Of a call, for which its thread had a core: a sample with less is dropped. Waiting for others' data counts as had."""
SETTINGS = ("GLOO_", "NCCL_", "TORCH_GLOO_")
"""Environment variables that set how ranks talk begin with these."""


class Alone:
    """One process that owns the shards of all ranks."""

    rank, size, world = 0, 1, None

    @staticmethod
    def share(value: Any, about: str = "") -> Any:
        """Return rank 0's `value`, plain data; all ranks call this in the same order, as all that follow."""
        return value

    @staticmethod
    def gather(value: Any, about: str = "") -> list:
        """Return the `value` of each rank."""
        return [value]

    @staticmethod
    def together(about: str, call: Callable[[], Any]) -> tuple[Any, Rejection | None]:
        """Return what `call()` returns on this rank, and None; but where it returns a `Rejection` on any, None and that
        of the first rank to do so. Raises `Broken` where it raises on several ranks' behalf."""
        return call(), None

    @staticmethod
    def agreed(about: str, call: Callable[[], Any]) -> Any:
        """Return what `call()` returns on this rank. Raises `Broken` where it raises on several ranks' behalf."""
        return call()

    @staticmethod
    def metadata() -> dict:
        """Return what a run's first line says of its ranks, in the field `ranks`; all ranks call this."""
        return {}


ALONE = Alone()


class Ranks:
    """The shares of an epoch; a store of torch.distributed is what they agree through. A share waits there as long as
    its supervisor lets it."""

    late_s = LATE_S

    def __init__(self, store, rank: int, size: int, *, epoch: int = 0):
        from torch.distributed import PrefixStore

        self.rank, self.size = rank, size
        self.ranks_a_node = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        self.store, self._group = PrefixStore(f"epoch {epoch}", store), None
        self._steps = 0
        self.loopback = True
        """Whether some talk inside a machine. Known once `metadata` was called, and told to later shares."""
        self.world, self.clock = None, RanksCpuClock
        """Where ranks have GPUs, a `device_ranks.World`, which puts its clock here."""

    @property
    def group(self):
        """Return the process group of gloo that carries data and barriers. Made by all ranks when they first ask for
        it."""
        if self._group is None:
            from torch.distributed import ProcessGroupGloo

            store = self.fresh_store("group")
            self._group = ProcessGroupGloo(store, self.rank, self.size, timedelta(seconds=LATE_S))
        return self._group

    def fresh_store(self, name: str):
        """Return a store for a group that all ranks make now."""
        from torch.distributed import PrefixStore

        self.gather(None, f"a new {name}")
        return PrefixStore(f"{name} {self._steps}", self.store)

    def barrier(self) -> None:
        """Return once all ranks are here."""
        self.group.barrier().wait()

    def share(self, value: Any, about: str = "") -> Any:
        return self._exchange(about, value, [0])[0]

    def gather(self, value: Any, about: str = "") -> list:
        return self._exchange(about, value, range(self.size))

    def together(self, about: str, call: Callable[[], Any]) -> tuple[Any, Rejection | None]:
        result = self.agreed(about, call)
        verdicts = self.gather(result if isinstance(result, Rejection) else None, about)
        for rank, (outcome, reason) in ((rank, verdict) for rank, verdict in enumerate(verdicts) if verdict):
            return None, Rejection(outcome, f"rank {rank}: {reason}")
        return result, None

    def agreed(self, about: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except BaseException as error:
            if not is_of_contender(error):
                raise
            raise Broken(error.name if isinstance(error, CallError) else "", rejection(error)) from error

    def metadata(self) -> dict:
        import torch

        named = (name for name in sorted(os.environ) if name.startswith(SETTINGS))
        mine = {
            "settings": {name: anonymous(os.environ[name]) for name in named if not name.endswith(("_ID", "HOSTID"))},
            "threads": torch.get_num_threads(),
            "network": _network(),
        }
        each = self.gather(mine, "what the ranks run on")
        settings, threads, networks = ([of_rank[name] for of_rank in each] for name in mine)
        self.loopback = len({*networks}) < self.size
        about = {
            "backend": "gloo",
            "world": self.size,
            "nodes": int(os.environ.get("GROUP_WORLD_SIZE", "1")),
            "ranks_a_node": self.ranks_a_node,
            "interfaces": [of_rank.get("GLOO_SOCKET_IFNAME") for of_rank in settings],
            "settings": settings[0],
            "threads": threads,
            "loopback": self.loopback,
        }
        return {"ranks": about | (self.world.metadata() if self.world else {})}

    def slowest(self, times: list[float | None]) -> tuple[list[float | None], list[dict]]:
        """Return, of calls that all ranks made and that took this one `times`, the slowest rank's, None where any has
        none, and each rank's by name."""
        each = [*zip(*self.gather(times), strict=True)]
        of_ranks = [{f"rank{rank}_s": time_s for rank, time_s in enumerate(of_call)} for of_call in each]
        return [None if None in of_call else max(of_call) for of_call in each], of_ranks

    def _exchange(self, about: str, value: Any, of: Iterable[int]) -> list:
        """Return what the ranks `of` say in this step; this one says `value`, if it is among them.

        Raises RuntimeError where a rank is at another step."""
        self._steps += 1
        keys = {rank: f"{self._steps}/{rank}" for rank in of}
        if self.rank in keys:
            self.store.set(keys[self.rank], json.dumps([about, value]))
        for _ in looks(float("inf")):  # the store's `wait` would heed no signal
            if self.store.check(list(keys.values())):
                break
        messages = {rank: json.loads(self.store.get(key)) for rank, key in keys.items()}
        for rank, (theirs, _) in messages.items():
            if theirs != about:
                raise RuntimeError(f"rank {rank} is at {theirs!r}, and rank {self.rank} at {about!r}: out of step")
        return [value for _, value in messages.values()]


class RanksCpuClock(CpuClock):
    """Wall time of a call that all ranks make together: each begins behind a barrier, and the slowest rank's is the
    sample. `readings` has each rank's own. What takes turns is called within `agreed`."""

    processes = 1
    """A process is a rank, and lasts as long as the run."""
    LONG_S = float("inf")
    """Whether a call is woken must not depend on what it took on this rank: all ranks make as many calls."""

    def __init__(self, ranks: Ranks):
        super().__init__()
        self.ranks, self.share, self.agreed, self.readings = ranks, ranks.share, ranks.agreed, []

    def _settle(self) -> None:
        super()._settle()
        self.ranks.barrier()

    def _wake(self, call: Call, pin: Callable[[], None]) -> None:
        """Call once, not for a time: what all ranks call, they call equally often."""
        call()
        self._settle()

    def _timed(self, call: Call) -> float | None:
        before_s = waited_s() - others_s()
        time_s = super()._timed(call)
        lost_s = waited_s() - others_s() - before_s
        return time_s if self.ranks.loopback or lost_s <= (1 - LEAST_SHARE) * time_s else None

    def turn(self, calls: list[Call]) -> list[float | None]:
        times, of_ranks = self.ranks.slowest(super().turn(calls))
        self.readings = [waits | of_call for waits, of_call in zip(self.readings, of_ranks, strict=True)]
        return times


def looks(within_s: float) -> Iterator[None]:
    """Yield looks, with pauses meant to take `within_s` in all: more, where the machine is busy or was stopped."""
    waited_s = 0.0
    while waited_s <= within_s:
        yield
        pause_s = min(LOOK_S + waited_s / 20, LONGEST_LOOK_S)
        time.sleep(pause_s)
        waited_s += pause_s


def waited_s() -> float:
    """Return the seconds for which the calling thread could have run by now and had no core. 0 where Linux does not
    count that."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0


def others_s() -> float:
    """Return the CPU time of the other threads of this process: what those take from the calling one belongs to its
    work."""
    return time.process_time() - time.thread_time()


def _network() -> str:
    """Return the name of the network that this rank is on: the same where nothing leaves the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/net")
    except OSError:
        return os.environ.get("GROUP_RANK", "0")


def of_share(world: dict) -> Ranks:
    """Return who a share is, by what its supervisor says: `size`, `epoch` and `loopback`."""
    from torch.distributed import TCPStore

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=PATIENCE_S))
    ranks = Ranks(store, int(os.environ["RANK"]), world["size"], epoch=world["epoch"])
    ranks.loopback = world["loopback"]
    return ranks
