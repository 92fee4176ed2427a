"""Ranks that have a GPU each: torch.distributed's group over them, and the clock of what they do together.

They agree as other ranks do, through torchrun's store, and their hosts meet over gloo. The group here is of NCCL, and
symmetric memory exchanges its handles through the group's store. Where a rank fails, the supervisors end the workers of
all.

None of this was ever run on a GPU: tests have a stand-in for each call.
"""

import os
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from itertools import combinations

import torch
import torch.distributed as dist

from roofline.host.machine import native_atomics
from roofline.host.telemetry import nvml_handle
from roofline.worker.clocks import Call, CudaClock
from roofline.worker.ranks import LATE_S, Ranks

OVERLAPPING = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"
"""torch's variable that lets several ranks of one GPU share memory: for tests of what is right, not of time."""

TIMEOUT = timedelta(seconds=4 * LATE_S)
"""NCCL ends a process that waits for so long. A link gives up before that, and says what did not come."""


class World:
    """The GPUs of `ranks`, and their part of torch.distributed. Chooses this rank's GPU and their clock."""

    backend = "nccl"

    def __init__(self, ranks: Ranks):
        self._ranks = ranks
        ranks.clock = RanksCudaClock
        self.here = ranks.ranks_a_node
        self.gpus = torch.cuda.device_count()
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", ranks.rank)) % self.gpus)

    @property
    def group(self):
        """torch.distributed's own group, which all ranks make when they first ask for it."""
        if not dist.is_initialized():
            store = self._ranks.fresh_store("world")
            size = self._ranks.size
            dist.init_process_group(self.backend, store=store, rank=self._ranks.rank, world_size=size, timeout=TIMEOUT)
        return dist.group.WORLD

    @property
    def shared(self) -> bool:
        """True where some ranks have one GPU together: no time of theirs is one of a wire."""
        return self.here > self.gpus

    def why_not(self, kind: str) -> str | None:
        """Why the ranks cannot take the link `kind`; None if they can."""
        if kind == "nccl":
            too_few = f"{self.here} ranks share {self.gpus} GPUs, and NCCL takes one for each"
            return f"{too_few}: start torchrun --nproc-per-node {self.gpus}" if self.shared else None
        if self.here < self._ranks.size:
            return "symmetric memory is shared within a machine, and the ranks are on several: take nccl"
        if self.shared and os.environ.get(OVERLAPPING) != "1":
            return f"{self.here} ranks share {self.gpus} GPUs: for tests set {OVERLAPPING}=1"
        for peer, gpu in combinations(range(min(self.here, self.gpus)), 2):
            if not torch.cuda.can_device_access_peer(gpu, peer):
                return f"GPU {gpu} cannot read GPU {peer}'s memory: take nccl, or others by CUDA_VISIBLE_DEVICES"
            if not native_atomics(gpu, peer):  # by which torch's barrier has ranks meet
                return f"GPU {gpu} has no atomics in GPU {peer}'s memory: take nccl, or others by CUDA_VISIBLE_DEVICES"
        return None

    def align(self) -> None:
        """Let the current streams of all ranks go on together. Ranks that share a GPU do not: NCCL refuses that."""
        if not self.shared:
            dist.all_reduce(self._nothing, group=self.group)

    @cached_property
    def _nothing(self) -> torch.Tensor:
        return torch.zeros(1, device="cuda")

    def metadata(self) -> dict:
        """The words of a run about its ranks, in the place of those without GPUs; all ranks call this."""
        links = None
        with suppress(Exception):  # NVML has a type for each way in which it knows nothing
            nvml, handle = nvml_handle()
            links = 0
            for link in range(nvml.NVML_NVLINK_MAX_LINKS):
                links += nvml.nvmlDeviceGetNvLinkState(handle, link)
        each = self._ranks.gather([torch.cuda.current_device(), links], "what links their GPUs have")
        gpus, nvlinks = zip(*each, strict=True)
        fabric = {"peer_access": self.why_not("symmetric") is None, "nvlinks": [*nvlinks]}
        fields = {"backend": "nccl", "loopback": self.shared, "gpus": [*gpus], "fabric": fabric}
        if dist.is_nccl_available():
            fields["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        return fields


class RanksCudaClock(CudaClock):
    """Device time of a call that all ranks make together: their streams are aligned before each start event, and the
    slowest rank's time is the sample. `readings` has each rank's own."""

    processes = 1
    """A process is a rank, and lasts as long as the run."""

    def __init__(self, ranks: Ranks):
        super().__init__()
        self.ranks = ranks

    def turn(self, calls: list[Call]) -> list[float | None]:
        self.ranks.barrier()
        self._align()  # a group that is new begins here, and not behind the gate
        self.readings = []
        times, self.readings = self.ranks.slowest(super().turn(calls), self.readings)
        return times

    def _align(self) -> None:
        self.ranks.world.align()
