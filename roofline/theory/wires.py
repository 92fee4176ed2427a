"""Which wire is asked for: so many bytes/s, what balances a chip or a matmul, or a share of the memory's bandwidth.
Parses the option's words."""

import math
from dataclasses import dataclass

EXERCISE_BALANCE = 2750
"""FLOP per byte: 275e12 FLOP/s over 100e9 bytes/s, the machine of the exercise (2-byte elements)."""

NVLINK_BYTES_PER_S = 450e9
"""What one H100 or H200 receives over its NVLink port (datasheet: 900 GB/s in both directions together)."""

INFINIBAND_BYTES_PER_S = 50e9
"""A port of 400 Gbit/s (NDR)."""

LEAST_BYTES_PER_S = 1e6
"""Nobody means less: who writes 450 means GB/s."""

RANKS_TAKE = {"cpu": ("gloo",), "cuda": ("nccl", "symmetric")}
"""Links between the ranks that torchrun started, by device. All are measured unless one is asked for."""

OF_RANKS = tuple(kind for kinds in RANKS_TAKE.values() for kind in kinds)

ALL_GATHER = "nccl_all_gather"
"""What the baseline `serial` takes in the place of a link between GPUs where that is faster."""

HOW = {
    "gloo": "gloo, point to point",
    "nccl": "NCCL, a send and a receive at once for each transfer",
    "symmetric": "symmetric memory, pulled by the copy engine",
    ALL_GATHER: "NCCL's all-gather",
}
"""How those gather."""

LINKS = ("preset", *OF_RANKS)
"""Links whose bandwidth is not ours to choose: the one on which all has arrived before, and those of ranks."""


@dataclass(frozen=True)
class Wire:
    """A bandwidth that is asked for: what one rank receives, summed over its links.

    `kind` is `fixed` (`value` bytes/s), `balance` (`value` FLOP/byte under the chip's FLOP/s), `ridge` (as much as
    makes the unsplit matmul of the case take `value` times as long as its gather, by the rounds so far), `memory` (what
    comes is read and written at `value` times the bytes/s that a copy moves), or one of `LINKS`.
    """

    kind: str
    value: float

    @property
    def token(self) -> str:
        """Return its word in case ids: `450GBps`, `balance2750`, `ridge`, `ridge1.4`, `memory0.18`."""
        if self.kind == "fixed":
            return f"{self.value / 1e9:.6g}GBps"
        if self.kind in LINKS:
            return self.kind
        return self.kind + ("" if (self.kind, self.value) == ("ridge", 1) else f"{self.value:.6g}")

    def bytes_per_s(
        self, *, chip_flops: float, t_gemm_s: float, wire_bytes: int, copy_bytes_per_s: float = math.nan
    ) -> float | None:
        """Return the bandwidth, for a chip of `chip_flops` FLOP/s whose copies read and write `copy_bytes_per_s`
        together, and a case whose unsplit matmul takes `t_gemm_s`. None of one of `LINKS`."""
        if self.kind in LINKS:
            return None
        if self.kind == "fixed":
            return self.value
        if self.kind == "memory":
            return self.value * copy_bytes_per_s / 2
        return chip_flops / self.value if self.kind == "balance" else self.value * wire_bytes / t_gemm_s


def parse(text: str) -> Wire:
    """Return the wire that `text` means.

    >>> parse("100e9").token, parse("450GBps").value, parse("balance2750").kind, parse("memory0.18").value
    ('100GBps', 450000000000.0, 'balance', 0.18)

    Raises ValueError for anything but a number above 0 (bytes/s, or with GBps), `balanceX`, `ridge`, `ridgeX`,
    `memoryX` or one of `LINKS`.
    """
    if text in LINKS:
        return Wire(text, 0.0)
    for kind, default in (("balance", ""), ("ridge", "1"), ("memory", "")):
        if text.startswith(kind):
            return Wire(kind, _above_0(text.removeprefix(kind) or default, text))
    scale = 1e9 if text.endswith("GBps") else 1.0
    value = scale * _above_0(text.removesuffix("GBps"), text)
    if value < LEAST_BYTES_PER_S:
        hint = f": did you mean {text}GBps?" if scale == 1 else ""
        raise ValueError(f"{text!r} is {value:g} bytes/s, the least is {LEAST_BYTES_PER_S:g}{hint}")
    return Wire("fixed", value)


def _above_0(number: str, text: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(
            f"{text!r} is no bandwidth: give bytes/s (100e9, 450GBps), balance2750 (FLOP/byte), ridge (as fast as "
            "the matmul; ridge1.4: 1.4 times), memory0.18 (that share of what a copy moves) or preset; under "
            f"torchrun {', '.join(OF_RANKS)}"
        )
    return value
