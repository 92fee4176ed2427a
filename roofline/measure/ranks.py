"""Real ranks: who a process is among those that torchrun started, and how they agree. Without torchrun it is alone.

What decides how a run goes on is decided by rank 0 and shared, through torchrun's own store: not over the group that
carries data, which is out of step once a rank has failed.

What all ranks do together is a scope with a name (`together`), and may hold others. A rank that fails in one raises an
alarm, and drops its end of the group: that releases the others at once, whatever they wait for within the scope. Then
all tell what they met, are in step again, and begin a fresh group. Each message says what it is about, so that ranks
that are at different things notice. A rank that leaves, or is not heard of any more, ends the run for all.
"""

import gc
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

from roofline.measure import device_errors
from roofline.measure.clocks import Call, CpuClock
from roofline.measure.machine import anonymous
from roofline.measure.prepared import Rejection, rejection
from roofline.measure.rounds import CallError

PATIENCE_S = float(os.environ.get("ROOFLINE_PATIENCE_S", "60"))
"""A rank that says nothing for so long has stopped, hangs, or was killed."""
LATE_S = PATIENCE_S / 2
"""What is sent between two ranks comes within so long; so does what a rank says once another has failed."""
LEAVING_S = 3.0
"""For all to leave where they were interrupted."""
LOOK_S, LONGEST_LOOK_S = 0.0005, 0.05
"""From one look into the store to the next. The longer nothing has come, the longer."""
INTERRUPTED = (-1,)
"""The scope of an alarm that ends the run, and is no evidence against any case."""
PIECE = 1 << 22
"""Characters of one message. torch's store takes 8 MiB."""
LEAST_SHARE = 0.95
"""Of a call, for which its thread had a core: a sample with less is dropped. Waiting for others' data counts as had."""
SETTINGS = ("GLOO_", "NCCL_", "TORCH_GLOO_")
"""Environment variables that set how ranks talk begin with these."""


class RankLostError(device_errors.RankError):
    """A rank has left, or says nothing any more: nothing more can be measured with it."""


class Released(BaseException):
    """Another rank has failed in the scope `args[0]`, which this one leaves: no `except Exception` keeps it there."""


class Failure(NamedTuple):
    """What was the first to fail, where all ranks did something together."""

    rank: int
    name: str
    """Of the entrant that was called, if the exception has it."""
    outcome: str
    """As of a `Rejection`."""
    why: str

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.why}"


class Alone:
    """One process that owns the shards of all ranks."""

    rank, size, world = 0, 1, None

    @staticmethod
    def share(value: Any, about: str = "") -> Any:
        """Rank 0's `value`, plain data; all ranks call this in the same order, as all that follow."""
        return value

    @staticmethod
    def gather(value: Any, about: str = "") -> list:
        """The `value` of each rank."""
        return [value]

    @staticmethod
    def together(about: str, call: Callable[[], Any]) -> tuple[Any, Failure | None]:
        """What `call()` returns on this rank, and None; but where it raises on any, or returns a `Rejection`, what
        failed first."""
        return call(), None

    @staticmethod
    def agreed(about: str, call: Callable[[], Any]) -> Any:
        """What `call()` returns on this rank. Raises a `RankError` on all where it raises on any: a `CallError` of it
        where the entrant is known."""
        return call()

    @staticmethod
    def metadata() -> dict:
        """What a run's first line says of its ranks, in the field `ranks`; all ranks call this."""
        return {}


class Ranks:
    """The ranks of a run; a store of torch.distributed is what they agree through."""

    late_s = LATE_S

    def __init__(self, store, rank: int, size: int):
        from torch.distributed import PrefixStore

        self.rank, self.size = rank, size
        self.ranks_a_node = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        self._store, self._group = PrefixStore("roofline", store), None
        self._steps = [0]
        """How many steps were taken in the run, in the scope that is open in it, and so on. They name a message."""
        self._alarms: dict[tuple[int, ...], list] = {}
        """By scope, () for the run: why, and who is silent."""
        self._heard = 0
        self._left = False
        self.interrupted, self.dropping = "", False
        """The signal that came to this rank or another; whether garbage is collected, where what it raises is lost."""
        self.silent: list[int] = []
        """Who gave no verdict on what was measured last."""
        self.links = WeakSet()
        """What has messages on their way in the group, each with a method `forget` that lets go of them."""
        self.loopback = True
        """Whether some talk inside a machine. Known once `metadata` was called."""
        self.world, self.clock = None, RanksCpuClock
        """Where ranks have GPUs, a `device_ranks.World`, which puts its clock here."""

    @property
    def group(self):
        """The process group of gloo that carries data and barriers. Made by all ranks when they first ask for it."""
        if self._group is None:
            from torch.distributed import ProcessGroupGloo

            store = self.fresh_store("group")
            self._group = ProcessGroupGloo(store, self.rank, self.size, timedelta(seconds=LATE_S))
        return self._group

    def fresh_store(self, name: str):
        """For a group that all ranks make now."""
        from torch.distributed import PrefixStore

        self.gather(None, f"a new {name}")  # which heeds alarms; what follows waits in C++
        return PrefixStore(f"{name} {self._steps}", self._store)

    def barrier(self) -> None:
        """Return once all ranks are here."""
        self.group.barrier().wait()

    def share(self, value: Any, about: str = "") -> Any:
        return self._exchange(about, value, [0])[0]

    def share_text(self, text: str) -> str:
        """Rank 0's `text`, of any length."""
        count = self.share(-(-len(text) // PIECE))
        return "".join(self.share(text[PIECE * piece :][:PIECE]) for piece in range(count))

    def gather(self, value: Any, about: str = "") -> list:
        return self._exchange(about, value, range(self.size))

    def together(self, about: str, call: Callable[[], Any]) -> tuple[Any, Failure | None]:
        found, refused, name, said = None, None, "", None
        self._steps[-1] += 1
        scope = tuple(self._steps)
        self._steps.append(0)
        try:
            self.share(None, about)  # so that who is at something else knows at once
            found = call()
            refused = found if isinstance(found, Rejection) else None
        except Released as released:
            if released.args != (scope,):
                raise
        except Exception as error:
            refused, name = rejection(error), error.name if isinstance(error, CallError) else ""
        self._steps = list(scope)
        if refused:
            # Before this rank lets go of the others: the first to fail is the cause, and the others fail by it.
            said = [self._ask(self._alarm, scope, about), self.rank, name, *refused]
            self.drop()
        within_s = LATE_S if refused else PATIENCE_S
        failed = [one for one in self._exchange(f"the end of {about}", said, range(self.size), within_s) if one]
        if failed and not refused:
            self.drop()
        return (None, Failure(*min(failed)[1:])) if failed else (found, None)

    def agreed(self, about: str, call: Callable[[], Any]) -> Any:
        found, failure = self.together(about, call)
        if failure and failure.name:
            raise CallError(failure.name) from device_errors.RankError(str(failure))
        if failure:
            raise device_errors.RankError(str(failure))
        return found

    def drop(self) -> None:
        """Leave the group: the others' calls over it raise, and the next is a fresh one."""
        self.dropping = True
        for link in self.links:
            link.forget()
        gc.collect()  # the group closes its sockets with the last reference to it
        self._group = None  # which is this one: it lets go of Python's lock, that threads of the group may wait for
        self.dropping = False

    def leave(self, why: str, scope: tuple[int, ...] = ()) -> None:
        """Take no further part in the run. Others that wait for this rank, or will, are released, and told `why`."""
        if not self._left:
            self._left = True
            with suppress(RuntimeError):  # the store is gone: who leaves needs it no more
                self._alarm(scope, f"{why} at rank {self.rank}" if scope else f"rank {self.rank}: {why}")
                self._store.set(f"left {self.rank}", "")
            self.drop()

    def metadata(self) -> dict:
        import torch

        named = (name for name in sorted(os.environ) if name.startswith(SETTINGS))
        own = {
            "settings": {name: anonymous(os.environ[name]) for name in named if not name.endswith(("_ID", "HOSTID"))},
            "threads": torch.get_num_threads(),
            "network": _network(),
        }
        each = self.gather(own, "what the ranks run on")
        settings, threads, networks = ([one[name] for one in each] for name in own)
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
        """Of calls that all ranks made and that took this one `times`: the slowest rank's, None where any has none,
        and each rank's own by name."""
        each = [*zip(*self.gather(times), strict=True)]
        said = [{f"rank{rank}_s": own for rank, own in enumerate(of_call)} for of_call in each]
        return [None if None in of_call else max(of_call) for of_call in each], said

    def await_left(self) -> None:
        """Return once all have left that are not `silent`; who does not, is."""
        with suppress(RankLostError):
            for _ in _looks(LEAVING_S):
                others = [rank for rank in range(self.size) if rank not in self.silent]
                if not (late := [rank for rank in others if not self._ask(self._store.check, [f"left {rank}"])]):
                    return
            self.silent += late

    def _exchange(self, about: str, value: Any, of: Iterable[int], within_s: float = PATIENCE_S) -> list:
        """What the ranks `of` say in this step; this one says `value`, if it is among them."""
        self._steps[-1] += 1
        keys = {rank: f"{'.'.join(map(str, self._steps))}/{rank}" for rank in of}
        if self.rank in keys:
            self._ask(self._store.set, keys[self.rank], json.dumps([about, value]))
        for _ in _looks(within_s):  # its own `wait` would heed no signal
            if self._ask(self._store.check, list(keys.values())):
                break
            self.heed(list(keys.values()))
        else:
            self.silent = [rank for rank, key in keys.items() if not self._ask(self._store.check, [key])]
            silent = f"rank {', '.join(map(str, self.silent))} of {self.size}"
            self._end(f"{silent} has said nothing for {within_s:g} s, at {about or 'a message'}")
        said = {rank: json.loads(self._ask(self._store.get, key)) for rank, key in keys.items()}
        for rank, (theirs, _) in said.items():
            if theirs != about:
                self._end(f"rank {rank} is at {theirs!r}, and rank {self.rank} at {about!r}: they are out of step")
        return [value for _, value in said.values()]

    def heed(self, waits_for: list[str] | None = None) -> None:
        """Raise what a signal asks for, or another rank's alarm; not that of one that had said all that this one
        `waits_for`, and then left."""
        while self._ask(self._store.check, [f"alarm {self._heard + 1}"]):
            self._heard += 1
            scope, *about = json.loads(self._ask(self._store.get, f"alarm {self._heard}"))
            self._alarms.setdefault(tuple(scope), about)
        self.interrupted = self.interrupted or self._alarms.get(INTERRUPTED, [""])[0]
        if self.interrupted:
            raise KeyboardInterrupt(self.interrupted)
        if self._alarms and waits_for and self._ask(self._store.check, waits_for):
            return
        if () in self._alarms:
            why, self.silent = self._alarms[()]
            self._end(why)
        for depth in range(1, len(self._steps)):
            if (scope := tuple(self._steps[:depth])) in self._alarms:
                raise Released(scope)

    def _ask(self, call: Callable, *given) -> Any:
        """What a `call` of the store returns. Raises RankLostError where the store is gone, with torchrun's agent on
        rank 0's node."""
        try:
            return call(*given)
        except RuntimeError:
            self._left, self.silent = True, [*range(self.ranks_a_node if self.rank else 0)]
            self._end(("rank 0's node" if self.rank else "torchrun") + " is gone: its store answers no more")

    def _alarm(self, scope: tuple[int, ...], why: str) -> int:
        """Tell all ranks that `scope` has failed; returns how many had by then."""
        number = self._store.add("alarms", 1)
        self._store.set(f"alarm {number}", json.dumps([scope, why, self.silent]))
        return number

    def _end(self, why: str) -> None:
        """Raise RankLostError, now and from here on, on all ranks."""
        device_errors.gone = device_errors.gone or why
        if () not in self._alarms and not self._left:
            self._ask(self._alarm, (), why)
        raise RankLostError(device_errors.gone)


class RanksCpuClock(CpuClock):
    """Wall time of a call that all ranks make together: each begins behind a barrier, and the slowest rank's is the
    sample. `said` has each rank's own. What takes turns is called within `agreed`."""

    processes = 1
    """A process is a rank, and lasts as long as the run."""

    def __init__(self, ranks: Ranks):
        super().__init__()
        self.ranks, self.share, self.agreed, self.said = ranks, ranks.share, ranks.agreed, []

    def _settle(self) -> None:
        super()._settle()
        self.ranks.barrier()

    def _wake(self, call: Call, pin: Callable[[], None]) -> None:
        """Not by time: what all ranks call, they call equally often."""
        call()
        self._settle()

    def _timed(self, call: Call) -> float | None:
        others_s, waited_s = _others_s(), _waited_s()
        time_s = super()._timed(call)
        lost_s = _waited_s() - waited_s - (_others_s() - others_s)
        return time_s if self.ranks.loopback or lost_s <= (1 - LEAST_SHARE) * time_s else None

    def turn(self, calls: list[Call]) -> list[float | None]:
        times, self.said = self.ranks.slowest(super().turn(calls))
        return times


def _looks(within_s: float) -> Iterator[None]:
    """Looks, with pauses that were meant to take `within_s` in all: more, where the machine is busy or was stopped."""
    waited_s = 0.0
    while waited_s <= within_s:
        yield
        pause_s = min(LOOK_S + waited_s / 20, LONGEST_LOOK_S)
        time.sleep(pause_s)
        waited_s += pause_s


def _waited_s() -> float:
    """For how long the calling thread could have run by now and had no core. 0 where Linux does not count that."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0


def _others_s() -> float:
    """CPU time of the other threads of this process: what those take from the calling one belongs to its work."""
    return time.process_time() - time.thread_time()


def _network() -> str:
    """The same on ranks between which nothing leaves the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/net")
    except OSError:
        return os.environ.get("GROUP_RANK", "0")


def of_environment() -> Alone | Ranks:
    """Who this process is by torchrun's variables."""
    if os.environ.get("WORLD_SIZE", "1") in ("", "1"):
        return ALONE
    if lacking := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
        raise ValueError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} without {', '.join(lacking)}: start several ranks with torchrun "
            "--nproc-per-node N -m pytest ..., or unset WORLD_SIZE"
        )
    from torch.distributed import rendezvous

    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=timedelta(seconds=PATIENCE_S))))
    except RuntimeError as error:
        raise OSError(f"torchrun's store does not answer: {error}") from None
    del os.environ["WORLD_SIZE"]  # a process that this one begins is no rank
    return Ranks(store, rank, size)


ALONE = Alone()
