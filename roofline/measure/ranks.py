"""Real ranks: who a process is among those that torchrun started, and how they agree. Without torchrun it is alone.

Each rank has a supervisor, pytest's process, and its shares. They agree through torchrun's own store, not over the
group that carries data, which is out of step once a rank has failed. A run of shares, one on each rank, is an epoch:
rank 0 asks for it, and where one of its shares raises, dies or hangs, the first to say so in the store has ended it
for all (`Epochs`). Each supervisor kills its share then, and rank 0 asks for the next epoch with the rest.

Verdicts that need no restart, as a wrong result, are agreed inside the shares (`Ranks.together`).
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from roofline.measure import device_errors
from roofline.measure.clocks import Call, CpuClock
from roofline.measure.machine import anonymous
from roofline.measure.prepared import Rejection, rejection
from roofline.measure.rounds import CallError

PATIENCE_S = float(os.environ.get("ROOFLINE_PATIENCE_S", "60"))
"""A supervisor that says nothing for so long, where others wait for its word, has stopped or was killed."""
LATE_S = PATIENCE_S / 2
"""What is sent between two ranks comes within so long."""
BEAT_S, LOST_S = 1.0, PATIENCE_S / 4
"""From one sign of life of a supervisor to the next, and without one for so long it is lost."""
LEAVING_S = 5.0
"""For all to leave where they were interrupted."""
SECOND_S = 4.0
"""Who raised since another rank has died, or waits for one that hangs, lets that be known first."""
LOOK_S, LONGEST_LOOK_S = 0.0005, 0.05
"""From one look into the store to the next. The longer nothing has come, the longer."""
LEAST_SHARE = 0.95
"""Of a call, for which its thread had a core: a sample with less is dropped. Waiting for others' data counts as had."""
SETTINGS = ("GLOO_", "NCCL_", "TORCH_GLOO_")
"""Environment variables that set how ranks talk begin with these."""


class RankLostError(device_errors.RankError):
    """A rank has left, or says nothing any more: nothing more can be measured with it."""


class Broken(BaseException):
    """This rank's share is out of step with the others: no `except Exception` goes on with it. `args` are the name of
    the entrant that was called, if that is known, and its `Rejection`."""


class Released(BaseException):
    """Another rank has come to the end of what all do together, since it failed."""


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
    def together(about: str, call: Callable[[], Any]) -> tuple[Any, Rejection | None]:
        """What `call()` returns on this rank, and None; but where it returns a `Rejection` on any, that of the first to
        do so. In a share, raises `Broken` where it raises; else that counts as a `Rejection`."""
        return call(), None

    @staticmethod
    def agreed(about: str, call: Callable[[], Any]) -> Any:
        """What `call()` returns on this rank. Raises `Broken` in a share where it raises, else a `RankError` on all
        where it does so on any."""
        return call()

    @staticmethod
    def metadata() -> dict:
        """What a run's first line says of its ranks, in the field `ranks`; all ranks call this."""
        return {}


class Ranks:
    """The ranks of a run, as supervisors or as shares; a store of torch.distributed is what they agree through."""

    late_s = LATE_S

    def __init__(self, store, rank: int, size: int, *, epoch: int | None = None):
        """`epoch` is that of a share; of a supervisor it is None."""
        from torch.distributed import PrefixStore

        self.rank, self.size, self.epoch = rank, size, epoch
        self.ranks_a_node = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        place = "supervisors" if epoch is None else f"epoch {epoch}"
        self.store, self._group, self._left_groups = PrefixStore(place, store), None, []
        self._steps = [0]
        """How many steps were taken, in what all do together at present how many, and so on. They name a message."""
        self._left = False
        self.interrupted = ""
        """The signal that came to this rank or another."""
        self.silent: list[int] = []
        """Who gave no verdict on what was measured last."""
        self.loopback = True
        """Whether some talk inside a machine. Known once `metadata` was called, and told to shares."""
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
        result, refused = None, None
        self._steps[-1] += 1
        outer = list(self._steps)
        self._steps.append(0)
        try:
            result = call()
            refused = result if isinstance(result, Rejection) else None
        except Released:  # who failed says why
            pass
        except (Exception, SystemExit) as error:
            refused = self._refused(error)
        self._steps = outer
        # Who fails by another's failure fails later.
        refused = refused and [self.ask("add", "failures", 1), refused.outcome, f"rank {self.rank}: {refused.reason}"]
        failed = [one for one in self.gather(refused, f"the end of {about}") if one]
        if failed and self.epoch is None:  # the group may be out of step; nothing ends it, which may never return
            self._left_groups.append(self._group)
            self._group = None
        return (None, Rejection(*min(failed)[1:])) if failed else (result, None)

    def agreed(self, about: str, call: Callable[[], Any]) -> Any:
        if self.epoch is None:
            result, refused = self.together(about, call)
            if refused:
                raise device_errors.RankError(refused.reason)
            return result
        try:
            return call()
        except (Exception, SystemExit) as error:
            return self._refused(error)

    def _refused(self, error: BaseException) -> Rejection:
        """That of who raised. Raises `Broken` in a share."""
        if self.epoch is not None:
            raise Broken(error.name if isinstance(error, CallError) else "", rejection(error)) from error
        return rejection(error)

    def leave(self) -> None:
        """Take no further part in the run."""
        if not self._left:
            self._left = True
            with suppress(RuntimeError):  # the store is gone: who leaves needs it no more
                self.store.set(f"left {self.rank}", "")

    def metadata(self) -> dict:
        import torch

        named = (name for name in sorted(os.environ) if name.startswith(SETTINGS))
        mine = {
            "settings": {name: anonymous(os.environ[name]) for name in named if not name.endswith(("_ID", "HOSTID"))},
            "threads": torch.get_num_threads(),
            "network": _network(),
        }
        each = self.gather(mine, "what the ranks run on")
        settings, threads, networks = ([one[name] for one in each] for name in mine)
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
        of_ranks = [{f"rank{rank}_s": own for rank, own in enumerate(of_call)} for of_call in each]
        return [None if None in of_call else max(of_call) for of_call in each], of_ranks

    def await_left(self) -> None:
        """Return once all have left that are not `silent`; who does not, is."""
        with suppress(RankLostError):
            for _ in _looks(LEAVING_S):
                others = [rank for rank in range(self.size) if rank not in self.silent]
                if not (late := [rank for rank in others if not self.ask("check", [f"left {rank}"])]):
                    return
            self.silent += late

    def _exchange(self, about: str, value: Any, of: Iterable[int]) -> list:
        """What the ranks `of` say in this step; this one says `value`, if it is among them. A share waits as long as
        its supervisor lets it."""
        self._steps[-1] += 1
        keys = {rank: _key(self._steps, rank) for rank in of}
        if self.rank in keys:
            self.ask("set", keys[self.rank], json.dumps([about, value]))
        for _ in _looks(PATIENCE_S if self.epoch is None else 1e9):  # the store's own `wait` would heed no signal
            if self.ask("check", list(keys.values())):
                break
            if self.epoch is None:
                self._heed(keys, about)
        else:
            silent = [rank for rank, key in keys.items() if not self.ask("check", [key])]
            self.lose(silent, f"has said nothing for {PATIENCE_S:g} s, at {about or 'a message'}")
        messages = {rank: json.loads(self.ask("get", key)) for rank, key in keys.items()}
        for rank, (theirs, _) in messages.items():
            if theirs != about:
                self.lose([rank], f"is at {theirs!r}, and rank {self.rank} at {about!r}: they are out of step")
        return [value for _, value in messages.values()]

    def _heed(self, keys: dict[int, str], about: str) -> None:
        """Raise what ends the wait for `keys`: a signal, a rank that has left, or that is at the end of what all do
        together."""
        if self.interrupted:
            raise KeyboardInterrupt(self.interrupted)
        for rank, key in keys.items():
            ends = [_key([*self._steps[:depth], self._steps[depth] + 1], rank) for depth in range(len(self._steps) - 1)]
            ended = any(self.ask("check", [end]) for end in ends)
            left = rank != self.rank and self.ask("check", [f"left {rank}"])
            if (ended or left) and not self.ask("check", [key]):
                if ended:
                    raise Released
                self.lose([rank], f"has left, and others were at {about or 'a message'}")

    def lose(self, silent: list[int], why: str) -> None:
        """Raise RankLostError: the ranks `silent` take no part any more."""
        self.silent = silent
        raise RankLostError(f"rank {', '.join(map(str, silent))} of {self.size} {why}")

    def ask(self, call: str, *given) -> Any:
        """What a `call` of the store returns. Raises RankLostError where the store is gone, with torchrun's agent on
        rank 0's node."""
        try:
            return getattr(self.store, call)(*given)
        except RuntimeError:
            self._left, self.silent = True, [*range(self.ranks_a_node if self.rank else 0)]
            place = "rank 0's node" if self.rank else "torchrun"
            raise RankLostError(f"{place} is gone: its store answers no more") from None


def _key(steps: list[int], rank: int) -> str:
    return f"{'.'.join(map(str, steps))}/{rank}"


class Epochs:
    """What the supervisors of `ranks` say to one another while shares measure.

    Each has a sign of life in the store, from a thread: who is stopped or lost is known soon, and no case is blamed.
    """

    def __init__(self, ranks: Ranks):
        self.ranks, self.number = ranks, 0
        """That of the epoch that was begun last."""
        self._seen = dict.fromkeys(range(ranks.size), (b"", time.monotonic()))
        self._ends = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        count = 0
        while not self._ends.wait(BEAT_S):
            count += 1
            try:
                self.ranks.store.set(f"beat {self.ranks.rank}", str(count))
            except RuntimeError:  # the store is gone, which the supervisor notices
                return

    @property
    def world(self) -> dict:
        """What a share of this rank is told."""
        return {"size": self.ranks.size, "epoch": self.number, "loopback": self.ranks.loopback}

    def begin(self, request: dict) -> None:
        """Have all ranks begin a share that does what rank 0's `request` says."""
        self.number += 1
        self.ranks.ask("set", f"epoch {self.number}", json.dumps(request))

    def next(self) -> dict | None:
        """What rank 0 asks for in the next epoch; None where it asks for nothing yet."""
        if not self.ranks.ask("check", [f"epoch {self.number + 1}"]):
            return None
        self.number += 1
        return json.loads(self.ranks.ask("get", f"epoch {self.number}"))

    def is_settled(self, began: float) -> bool:
        """Whether what others say of something that `began` then would be known: all are alive, or one has ended the
        epoch."""
        now = time.monotonic()
        late = [rank for rank, (_, since) in self._seen.items() if now - since > 3 * BEAT_S and rank != self.ranks.rank]
        return bool(self.broken()) or (now - began > SECOND_S and not late)

    def break_off(self, verdict: dict) -> dict:
        """End the epoch by `verdict`, unless another rank did; returns the verdict that holds."""
        verdict = verdict | {"why": f"rank {self.ranks.rank}: {verdict['why']}"}
        key = f"broken {self.number}"
        if self.ranks.ask("add", f"{key} by", 1) == 1:
            self.ranks.ask("set", key, json.dumps(verdict))
        for _ in _looks(PATIENCE_S):
            if broken := self.broken():
                return broken
        self.ranks.lose([], "says not how the epoch ended")

    def broken(self) -> dict | None:
        """The verdict by which the epoch has ended; None while it goes on."""
        key = f"broken {self.number}"
        return json.loads(self.ranks.ask("get", key)) if self.ranks.ask("check", [key]) else None

    def tell(self, what: str, why: str = "") -> None:
        """Have all ranks know that the run is `over`, or `interrupted`."""
        with suppress(RankLostError):
            self.ranks.ask("set", what, why)

    def told(self, what: str) -> str | None:
        """Why the run is `over`, or was `interrupted`; None where it is not."""
        return self.ranks.ask("get", what).decode() if self.ranks.ask("check", [what]) else None

    def heed(self) -> None:
        """Raises RankLostError where a rank shows no sign of life."""
        now = time.monotonic()
        for rank, (last, since) in self._seen.items():
            key = f"beat {rank}"
            beat = self.ranks.ask("get", key) if self.ranks.ask("check", [key]) else b""
            if beat != last:
                self._seen[rank] = beat, now
            elif now - since > LOST_S and rank != self.ranks.rank:
                self.ranks.lose([rank], f"has said nothing for {LOST_S:g} s")

    def close(self) -> None:
        self._ends.set()


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


def of_share(world: dict) -> Ranks:
    """Who a share is, by what its supervisor says: `size`, `epoch` and `loopback`."""
    from torch.distributed import TCPStore

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=PATIENCE_S))
    ranks = Ranks(store, int(os.environ["RANK"]), world["size"], epoch=world["epoch"])
    ranks.loopback = world["loopback"]
    return ranks


ALONE = Alone()
