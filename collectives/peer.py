"""A peer, `symm_mem`: torch's own fused all-gather matmul, over real GPUs, a process for each.

`torch.ops.symm_mem.fused_all_gather_matmul`, told to gather the last dimension, shards x as the arms of
`collectives.all_gather_matmul` do. Whole chunks are copied from the other GPUs' memory, on two streams by turns, and
behind each copy goes a matmul that adds to the result. It should win where the fabric is fast and chunks are wide: the
copies leave the SMs to the vendor's matmul. It loses where chunks are narrow, as each takes the whole result through
memory (torch's compiler does not choose it below 1024 columns a rank). It sums in the dtype of the result, which each
chunk rounds once more: in bf16 at P = 8 that leaves an error of 3.5e-3 on normal values, sums in fp32 leave 1.7e-3.
Source of the idea: torch's pull request 163068.

Its wire is the real fabric: its times may stand beside those of the arms, but a hidden fraction over an emulated link
says nothing of it. On a CPU the same processes run what torch's test mode does, gather first and multiply then, for
tests of the plumbing: no time of that ever becomes a number.
"""

import multiprocessing
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait

import torch
import torch.distributed as dist
from torch import Tensor

if dist.is_available():
    from torch.distributed import _symmetric_memory as symm_mem  # defines the operator

SETS, CALLS = 2, 8
"""Sets of x in rotation, so that what a call finds in a buffer is of another one; calls of a burst."""

PREROLL_CYCLES = 40_000_000
"""So long, some 20 ms, does each GPU spin while its host enqueues the burst: about 30 launches a call at P = 8."""

START_S, BURST_S = 120.0, 30.0
"""A process that takes longer than this to start or to prepare, and for a burst, will never be done."""


class PeerError(RuntimeError):
    """The group cannot run here, or a rank failed: the message names it and what it said."""


def fused_all_gather_matmul(x: Tensor, w: Tensor) -> Tensor:
    """torch's operator on this rank's chunk x[B, D/P] and its weights w[F_loc, D]: out[B, F_loc]. All ranks call it."""
    group = dist.group.WORLD.group_name
    return torch.ops.symm_mem.fused_all_gather_matmul(x, [w.T], x.ndim - 1, group, return_A=False)[1][0]


def why_not(ranks: int) -> str | None:
    """Why `ranks` GPUs cannot gather from one another here; None if they can."""
    if (gpus := torch.cuda.device_count()) < ranks:
        way_out = f"choose --ffn-ranks {gpus}" if gpus > 1 else "symm_mem takes two or more"
        return f"{ranks} ranks need {ranks} GPUs, there are {gpus}: {way_out}"
    if not hasattr(torch.ops.symm_mem, "fused_all_gather_matmul"):
        return f"torch {torch.__version__} has no symm_mem.fused_all_gather_matmul: install 2.11 or newer for CUDA"
    for gpu, other in ((a, b) for a in range(ranks) for b in range(a)):
        if not torch.cuda.can_device_access_peer(gpu, other):
            return f"GPU {gpu} cannot read GPU {other}'s memory: choose others with CUDA_VISIBLE_DEVICES"
    return None


class PeerGroup:
    """`ranks` processes, each with a GPU (`device` cuda) or none (cpu), that call `multiply(x, w)` together.

    One that raises, dies or gives no answer in time is a PeerError and ends the group. `close` kills all of them, which
    frees the GPUs' memory, and so does the end of the process that made them.
    """

    def __init__(self, ranks: int, device: str = "cuda", multiply: Callable = fused_all_gather_matmul):
        if device == "cuda" and (reason := why_not(ranks)):
            raise PeerError(reason)
        self.ranks, self._members, context = ranks, [], multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            about = (theirs, rank, ranks, device, multiply, f"file://{self._folder.name}/store")
            process = context.Process(target=_serve, args=about, daemon=True)
            process.start()
            theirs.close()  # only the process holds it now, and its end is the end of the pipe
            self._members.append((process, ours))
        self._answers(START_S, "start")

    def prepare(self, m: int, n: int, k: int, dtype: torch.dtype, seed: int, scale: float) -> float:
        """Make x[m, k], sharded by columns, and each rank's w[n, k]: normal values, w's times `scale`. Multiply them.

        Returns the relative Frobenius error against float64 on sampled rows, the largest of all ranks; NaN where an
        element was left unwritten. Raises ValueError where the ranks do not divide k.
        """
        if k % self.ranks:
            raise ValueError(f"{self.ranks} ranks do not divide k={k}: choose a divisor of it")
        return float(torch.tensor(self._ask(START_S, "prepare", m, n, k, dtype, seed, scale)).max())  # NaN if one is

    def seconds(self) -> float | None:
        """Of a call, on the slowest rank, in a burst after a barrier. None if a host was slower than the pre-roll."""
        times_s = self._ask(BURST_S, "burst")
        return None if None in times_s else max(times_s)

    __call__ = seconds
    """An entrant that times itself, see `roofline.measure.clocks`."""

    def close(self) -> None:
        for process, _ in self._members:
            process.kill()
        for process, pipe in self._members:
            process.join(BURST_S)
            pipe.close()
        self._members = []
        self._folder.cleanup()

    def _ask(self, within_s: float, command: str, *args) -> list:
        if not self._members:
            raise PeerError(f"{command}: the group was closed: open another")
        for _, pipe in self._members:
            with suppress(OSError):  # it is dead, and will not answer
                pipe.send((command, *args))
        return self._answers(within_s, command)

    def _answers(self, within_s: float, command: str) -> list:
        """One of each rank, or the group is over. A rank that died is the cause of what the others say."""
        answers, deadline = [None] * self.ranks, time.monotonic() + within_s
        missing = {pipe: rank for rank, (_, pipe) in enumerate(self._members)}
        try:
            while missing:
                ready = wait(list(missing), max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise PeerError(f"{command}: no answer within {within_s:g} s from ranks {[*missing.values()]}")
                for pipe in ready:
                    rank, failure = missing.pop(pipe), "its pipe broke"
                    with suppress(EOFError, OSError):
                        answers[rank], failure = pipe.recv()
                    if failure:
                        codes = [process.join(0.2) or process.exitcode for process, _ in self._members]
                        dead = [f"rank {r} died with exit code {c}" for r, c in enumerate(codes) if c is not None]
                        raise PeerError(f"{command}: {', '.join(dead) or f'rank {rank}: {failure}'}")
            return answers
        except BaseException:
            self.close()
            raise


def _serve(pipe, *args) -> None:
    """A process: answers commands by (result, None) or (None, what went wrong). Ends with its parent."""
    threading.Thread(target=lambda: (multiprocessing.parent_process().join(), os._exit(1)), daemon=True).start()
    warnings.simplefilter("ignore")  # that cuBLAS is not deterministic: see `prepare`
    member, command = _Member(), "start"
    while True:
        try:
            answer = getattr(member, command)(*args), None
        except Exception as error:
            answer = None, f"{type(error).__name__}: {error}"
        pipe.send(answer)
        command, *args = pipe.recv()


class _Member:
    """One rank, in its process. Its methods are the commands."""

    def start(self, rank: int, ranks: int, device: str, multiply: Callable, store: str) -> None:
        self.rank, self.ranks, self.multiply, self.gpu = rank, ranks, multiply, None
        if device == "cuda":
            self.gpu = torch.device("cuda", rank)
            torch.cuda.set_device(self.gpu)
        else:  # which has no kernel of the operator, but its meaning in collectives
            torch.library.impl("symm_mem::fused_all_gather_matmul", "CPU")(symm_mem._fused_all_gather_matmul_fallback)
        backend = "nccl" if self.gpu else "gloo"
        dist.init_process_group(backend, init_method=store, rank=rank, world_size=ranks, device_id=self.gpu)

    def prepare(self, m: int, n: int, k: int, dtype: torch.dtype, seed: int, scale: float) -> list[float]:
        def normal(number: int, rank: int, *shape: int) -> Tensor:
            generator = torch.Generator(self.gpu or "cpu").manual_seed(hash((seed, number, rank)))
            return torch.randn(shape, generator=generator, device=generator.device, dtype=dtype)

        width, rows, errors = k // self.ranks, torch.linspace(0, m - 1, min(m, 256)).long(), []
        self.w = normal(SETS, self.rank, n, k).mul_(scale)
        self.sets = [normal(number, self.rank, m, width) for number in range(SETS)]
        parts = [part.double().T for part in self.w.chunk(self.ranks, 1)]
        for number, x in 2 * list(enumerate(self.sets)):
            torch.set_deterministic_debug_mode("warn")  # memory is handed out full of NaN
            out = self.multiply(x, self.w)
            torch.set_deterministic_debug_mode("default")
            right = sum(normal(number, rank, m, width)[rows].double() @ part for rank, part in enumerate(parts))
            errors.append(torch.nan if out.isnan().any() else float((out[rows] - right).norm() / right.norm()))
        return errors

    def burst(self) -> float | None:
        dist.barrier()
        began = time.perf_counter()
        if self.gpu:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(PREROLL_CYCLES)
            start.record()
        for call in range(CALLS):
            self.multiply(self.sets[call % SETS], self.w)
        if not self.gpu:
            return (time.perf_counter() - began) / CALLS
        stop.record()
        late = start.query()
        torch.cuda.synchronize()
        return None if late else start.elapsed_time(stop) * 1e-3 / CALLS
