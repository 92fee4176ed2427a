"""Which wire is asked for: so many bytes/s, what balances a chip or a matmul, or a share of the memory's bandwidth; and
what moves the bytes. Parses the option's words."""

import math
import re
from dataclasses import dataclass

from roofline.theory.words import number

EXERCISE_BALANCE = 2750
"""FLOP per byte: 275e12 FLOP/s over 100e9 bytes/s, the machine of the exercise (2-byte elements)."""

LEAST_BYTES_PER_S = 1e6
"""Nobody means less: who writes 450 means GB/s."""

RANKS_TAKE = {"cpu": ("gloo",), "cuda": ("nccl", "symmetric")}
"""Links between the ranks that torchrun started, by device. All are measured unless one is asked for."""

OF_RANKS = (*RANKS_TAKE["cpu"], *RANKS_TAKE["cuda"])

ALL_GATHER = "nccl_all_gather"
"""The gather of the baseline `serial` in place of a link between GPUs where that is faster."""

PCIE = "pcie"
"""A real link of one GPU: the other ranks' shards lie in pinned host memory."""

PACED, ENGINE, COPIER = "paced", "engine", "copier"
"""The emulated link; how a token ends where copy engines move its bytes, or so many programs of the copier."""

PACED_ENGINE = f"{PACED}_{ENGINE}"

BY_ENGINE = PACED_ENGINE, PCIE, "symmetric"
"""Links whose bytes move without an SM: a kernel may have all registers beside them."""

HOW = {
    "gloo": "gloo, point to point",
    "nccl": "NCCL, a send and a receive at once for each transfer",
    "symmetric": "symmetric memory, pulled by the copy engine",
    ALL_GATHER: "NCCL's all-gather",
    PCIE: "PCIe from pinned host memory (real link, emulated ranks)",
    PACED_ENGINE: "paced by copy engines (emulated)",
}
"""The way that those gather, in words."""

LINKS = ("preset", *OF_RANKS, PCIE)
"""Links whose bandwidth is not ours to choose: the one on which all has arrived before, and the real ones."""


@dataclass(frozen=True)
class Wire:
    """A bandwidth that is asked for: what one rank receives, summed over its links.

    `kind` is `fixed` (`value` bytes/s), `balance` (`value` FLOP/byte under the chip's FLOP/s), `ridge` (as much as
    makes the unsplit matmul of the case take `value` times as long as its gather, by the rounds so far), `memory` (what
    comes is read and written at `value` times the bytes/s that a copy moves), or one of `LINKS`. `mover` is what moves
    the bytes of an emulated one: "engine", "copier32", or "" for the copier with its default.
    """

    kind: str
    value: float
    mover: str = ""

    @property
    def token(self) -> str:
        """The word of the wire in case ids, as `450GBps`, `balance2750`, `balance2750engine`, `ridge1.4`, `pcie`."""
        if self.kind in LINKS:
            return self.kind
        if self.kind == "fixed":
            return f"{self.value / 1e9:.6g}GBps{self.mover}"
        value = "" if (self.kind, self.value) == ("ridge", 1) else f"{self.value:.6g}"
        return self.kind + value + self.mover

    @property
    def link(self) -> str:
        """The kind of link that it takes."""
        if self.kind in LINKS:
            return self.kind
        return PACED_ENGINE if self.mover == ENGINE else PACED

    @property
    def programs(self) -> int | None:
        """The copier's programs that it names; None where that is left open."""
        return int(self.mover.removeprefix(COPIER)) if self.mover.startswith(COPIER) else None

    @property
    def needs_gpu(self) -> bool:
        """A GPU moves its bytes, whatever the ranks."""
        return self.kind == PCIE or bool(self.mover)

    def bytes_per_s(
        self, *, chip_flops: float, t_gemm_s: float, wire_bytes: int, copy_bytes_per_s: float = math.nan
    ) -> float | None:
        """The bandwidth, for a chip of `chip_flops` FLOP/s whose copies read and write `copy_bytes_per_s`
        together, and a case whose unsplit matmul takes `t_gemm_s`. None of one of `LINKS`."""
        match self.kind:
            case "fixed":
                return self.value
            case "balance":
                return chip_flops / self.value
            case "ridge":
                return self.value * wire_bytes / t_gemm_s
            case "memory":
                return self.value * copy_bytes_per_s / 2
        return None


def parse(text: str) -> Wire:
    """The wire that `text` means.

    >>> parse("100e9").token, parse("450GBps").value, parse("balance2750").kind, parse("memory0.18").value
    ('100GBps', 450000000000.0, 'balance', 0.18)
    >>> parse("balance2750engine").link, parse("ridgecopier132").programs, parse("pcie").link
    ('paced_engine', 132, 'pcie')

    Raises ValueError for anything but a number above 0 (bytes/s, or with GBps), `balanceX`, `ridge`, `ridgeX`,
    `memoryX`, each of them maybe with `engine` or `copierN` behind it, or one of `LINKS`.
    """
    if text in LINKS:
        return Wire(text, 0.0)
    pace, *movers = re.split(rf"({ENGINE}|{COPIER}[1-9]\d*)\Z", text)
    mover = "".join(movers)
    for kind, default in (("balance", ""), ("ridge", "1"), ("memory", "")):
        if pace.startswith(kind):
            return Wire(kind, _above_0(pace.removeprefix(kind) or default, text), mover)
    scale = 1e9 if pace.endswith("GBps") else 1.0
    value = scale * _above_0(pace.removesuffix("GBps"), text)
    if value < LEAST_BYTES_PER_S:
        hint = f": did you mean {pace}GBps{mover}?" if scale == 1 else ""
        raise ValueError(f"{text!r} is {value:g} bytes/s, the least is {LEAST_BYTES_PER_S:g}{hint}")
    return Wire("fixed", value, mover)


def _above_0(pace: str, text: str) -> float:
    value = number(pace)
    if not value > 0:
        raise ValueError(
            f"{text!r} is no bandwidth: give bytes/s (100e9, 450GBps), balance2750 (FLOP/byte), ridge (as fast as "
            "the matmul; ridge1.4: 1.4 times), memory0.18 (that share of what a copy moves), on a GPU with engine or "
            f"copier32 behind it, or pcie; preset; under torchrun {', '.join(OF_RANKS)}"
        )
    return value
