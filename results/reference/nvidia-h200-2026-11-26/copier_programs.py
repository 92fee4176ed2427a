"""Time `row_block` over a paced link by the number of the copier's programs, on this GPU: copier_programs.py CHECKOUT.

It needs a CHECKOUT of a commit that copier_programs.txt names."""

import math
import sys
from functools import partial
from statistics import median

sys.path.insert(0, sys.argv[1])

import torch

from collectives import all_gather_matmul, on_device
from collectives.device import PacedCopier
from collectives.transfers import Preset

M, D, F, P = 8192, 16384, 53248, 8
HOLD_CYCLES = 4_000_000
LINKS = (16, 272e9, (16, 32, 64, 132)), (16, 208e9, (32,)), (8, 272e9, (32, 132)), (32, 272e9, (32,))
"""Tensor parallelism, bytes/s, numbers of programs."""


def milliseconds(call, times: int = 25) -> float:
    """Return the median without the first three calls, each enqueued while the GPU is held."""
    measured = []
    for _ in range(times):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(HOLD_CYCLES)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        measured.append(start.elapsed_time(end))
    return median(measured[3:])


def gather(link, transfers) -> None:
    link.start(transfers)
    link.wait(len(transfers))
    link.finish()


def main() -> None:
    x = torch.randn(M, D, device="cuda", dtype=torch.bfloat16)
    shards = [shard.contiguous() for shard in x.chunk(P, 1)]
    gathered = torch.empty_like(x)
    for tp, bytes_per_s, counts in LINKS:
        w = torch.randn(F // tp, D, device="cuda", dtype=torch.bfloat16) / 128
        out = torch.empty(M, len(w), device="cuda", dtype=torch.bfloat16)
        right = (x @ w.T).float()
        operands = all_gather_matmul.Operands(shards, gathered, w, out, 0, blocks=8)
        gemm = milliseconds(partial(torch.mm, x, w.T, out=out))
        transfers = on_device.prepare(operands, "row_block", gemm / 1e3, x.nbytes * (P - 1) / P / bytes_per_s).transfers
        gathered.copy_(x)
        preset = milliseconds(partial(on_device.gather, operands, Preset(), "row_block"))
        for programs in counts:
            link = PacedCopier(bytes_per_s, programs=programs)
            error = 0.0
            for _ in range(2):
                out.fill_(math.nan)
                for transfer in transfers:
                    transfer.target.fill_(math.nan)
                on_device.gather(operands, link, "row_block")
                error = max(error, ((out.float() - right).norm() / right.norm()).item())
            arm = milliseconds(partial(on_device.gather, operands, link, "row_block"))
            last = link.timeline().arrivals_s[-1] * 1e3
            comm = milliseconds(partial(gather, link, transfers), times=8)
            hidden = (gemm + comm - arm) / min(gemm, comm)
            print(
                f"tp{tp:<2} {bytes_per_s / 1e9:.0f} {programs:4} programs | gemm {gemm:.3f} comm {comm:.3f} "
                f"preset {preset:.3f} arm {arm:.3f} | hidden {hidden:.3f}  last {last:.3f}  err {error:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
