"""The wire between real ranks, measured alone: messages of several sizes, by all ranks at once and by one pair."""

import time
from functools import partial

import torch

from collectives.bench import links
from collectives.bench.operands import host_ahead
from collectives.bench.setting import alone
from collectives.group_links import shared
from collectives.links import Gather, Transfer
from roofline.measure.observer import Observer
from roofline.measure.prepared import FAILED
from roofline.measure.ranks import RankLostError, Ranks
from roofline.theory import schedule

SIZES = tuple(4**power * 2**10 for power in range(1, 8))
"""4 KiB to 16 MiB."""

ROUNDS, WARM_UP = 10, 2
LONGEST_S = 1.0
"""Where a message takes longer, there are no larger ones."""


class Messages(Observer):
    """Measures the wire of `ranks` before a session's first shape, and journals it: for each size `all`, a gather as
    arms make it, in which each rank receives a message from every other, and on a CPU `pair`, half of a round trip
    between the first two while the others are silent. A time of `all` is the slowest rank's, on a GPU by its events."""

    def __init__(self, session, ranks: Ranks, kind: str = "gloo"):
        """`kind` is the link of ranks that carries them."""
        self._session, self._ranks, self._kind = session, ranks, kind

    def begun(self) -> None:
        if self._session.run.messages:  # by another operation's observer
            return
        try:
            self._measure()
        except RankLostError as error:
            self._session.over = str(error)

    def _measure(self) -> None:
        ranks, patterns = self._ranks.size, ("all",) if self._ranks.world else ("all", "pair")
        for nbytes in SIZES:
            for pattern in patterns:
                about = f"messages of {nbytes} bytes, {pattern}"
                times, failure = self._ranks.together(about, partial(self._times, pattern, nbytes))
                if failure:
                    self._session.not_measured("messages", FAILED, str(failure))
                    return
                each = [*zip(*self._ranks.gather(times, about), strict=True)]
                times_s = [max(of_round) if pattern == "all" else of_round[0] / 2 for of_round in each]
                received = (ranks - 1) * nbytes if pattern == "all" else nbytes
                line = {"pattern": pattern, "nbytes": nbytes, "received_bytes": received, "times_s": times_s}
                self._session.add({"kind": "message", "link": self._kind} | line)
            if max(times_s) > LONGEST_S:
                return

    def _times(self, pattern: str, nbytes: int) -> list[float]:
        ranks, own, link = self._ranks.size, self._ranks.rank, links.between(self._kind, self._ranks)
        message, *landing = torch.ones(ranks + 1, 1, nbytes, dtype=torch.uint8, device=link.device)
        if self._kind == "symmetric":
            message = shared(message, self._ranks)
        others, times = schedule.arrival_order("direct", ranks, own)[1:], []
        gather = Gather((Transfer(rank, 0, message, landing[rank]) for rank in others), [message])
        for _ in range(WARM_UP + ROUNDS):
            self._ranks.barrier()
            host_ahead(link.device, len(gather))
            start = time.perf_counter()
            alone(link, gather) if pattern == "all" else self._round_trip(message, landing[0])
            times.append(max(link.timeline().arrivals_s) if self._ranks.world else time.perf_counter() - start)
        return times[WARM_UP:]

    def _round_trip(self, message: torch.Tensor, landing: torch.Tensor) -> None:
        group, rank = self._ranks.group, self._ranks.rank
        if rank > 1:
            return
        received = group.recv([landing], 1 - rank, 0)
        if rank:
            received.wait()
        sent = group.send([message], 1 - rank, 0)
        if not rank:
            received.wait()
        sent.wait()
