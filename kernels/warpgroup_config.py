"""What `kernels.warpgroup` can be asked for: its tiles, how the last waves are shared, and what a card decides; and the
arguments of a kernel for its roles, also those of `kernels.flagged` and `kernels.pieces`.

Four ways are marked UNTIMED, here and at their branches. `kernels.trial` asks a card for each. A yes takes the mark
away, a no the branch.

- Odd widths, from Triton 3.9 on: 128x208, and 128x104 for half a wave of those, fill waves where N is 13 times a power
  of two. At up, tp 1, M = 256, 128x208 keeps the SMs busy for 0.97 of its waves, 128x256 for 0.79. Blocks are three
  parts and a rest, all powers of two wide (`kernels.wgmma`). By the arithmetic of `kernels.warpgroup` they ask for 135
  and 175 bytes of shared memory a cycle.
- Clusters of two CTAs, from 3.8 on: they have neighbouring tiles of the same columns, and w is loaded once for both.
  128x256x64 takes 32 KiB a step from L2 and not 48. To the kernel a cluster is one program with twice the rows. The
  first 128 are those of the first consumer of both CTAs, 64 in each, the next 128 those of the second. Each CTA loads
  its own rows of x. The first one loads w, by a multicast of TMA into the same stage of both, once all four consumers
  have read that stage: they arrive at a third mbarrier of the stage, `w_free`, which lies in the first CTA. Sums of a
  shared tile pass it by: behind them nothing is multicast. Triton makes the barriers of the cluster, behind the
  mbarriers' initialisation. At 256 rows this should win, where calls wait for L2: an H100's cuBLAS, which has clusters
  of 8 there, moves 0.48 GB through it and whole tiles here 0.69. Elsewhere gains of 0.6 to 3 % are published (fast.cu,
  777 to 799 TFLOP/s, with other changes at the same time; Triton's TLX, 672 to 676). It loses at 128 rows or fewer,
  where half of each cluster has none.
- Zigzag: every other piece of a program walks K backwards, and begins with what L2 still holds.
- Prefetch: descriptors are fetched before a load asks for them.
"""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from kernels import tiles
from kernels.contract import BLOCK
from kernels.ring import describe
from kernels.tiles import triton_release
from kernels.wgmma import CONSUMERS
from kernels.workspace import workspace

ODD_PARTS = {(128, 208, 64): (64, 16), (128, 104, 64): (32, 8)}
"""UNTIMED (odd widths): {tile: the columns of each of its first three parts, and of the rest}."""


THREADS, UNBOUND_REGISTERS, PRODUCER_REGISTERS = 384, 168, 24
"""Of a launch: those of two consumers, and four warps that the producer is given the registers of; the registers of
each where nothing bounds them; and those that setmaxnreg leaves the producer."""


@dataclass(frozen=True)
class Roles(tiles.Config):
    """A tile of two consumers and a producer, and the registers that a launch may take."""

    registers: int = UNBOUND_REGISTERS  # of a thread; with fewer, a copier has room on the SM (`kernels.flagged`)

    @property
    def triton(self) -> tuple[int, int]:
        """The release of Triton that it needs: 3.9 has `gl.inline_asm` for odd widths."""
        return (3, 9) if self.is_odd else (0, 0)

    @property
    def consumer_registers(self) -> int:
        """Those that setmaxnreg gives each thread of a consumer: what the producer leaves, in eights."""
        return (self.registers * THREADS // 128 - PRODUCER_REGISTERS) // 16 * 8

    def own_words(self) -> list[str]:
        return [f"registers{self.registers}"] if self.registers < UNBOUND_REGISTERS else []


@dataclass(frozen=True)
class Config(Roles):
    """The same, the order of tiles, and how the last waves are shared."""

    raster: str = "m"  # the dimension along which super-tiles are grouped, "m" or "n"
    gang_m: int = 1  # tiles along M that walk along K together (`kernels.stream_k`)
    gang_n: int = 1  # and along N
    shared_waves: int = 0  # 1: the rest of whole waves is cut along K; 2: the wave before it, too
    cluster: int = 1  # UNTIMED (clusters): 2: two tiles of a gang along M are one, and w is loaded once for both
    zigzag: bool = False  # UNTIMED (zigzag): every other piece of a program is walked through backwards
    prefetch: bool = False  # UNTIMED (prefetch): descriptors are fetched first of all

    @property
    def triton(self) -> tuple[int, int]:
        """The same; 3.8 has mbarriers of two CTAs."""
        return (3, 8) if self.cluster > 1 else super().triton

    @property
    def is_untimed(self) -> bool:
        """Whether it has what no card has timed, and a card is to decide."""
        is_odd = self.is_odd and self.registers == UNBOUND_REGISTERS
        return is_odd or self.cluster > 1 or self.zigzag or self.prefetch

    def own_words(self) -> list[str]:
        words = super().own_words()
        if self.cluster > 1:
            words.append(f"cluster{self.cluster}")
        if self.shared_waves:
            words.append(f"gang{self.gang_m}x{self.gang_n} shared{self.shared_waves}")
        return words + ["zigzag"] * self.zigzag + ["prefetch"] * self.prefetch + ["raster-n"] * (self.raster == "n")


def problem_of(config: tiles.Config, itemsize: int) -> str:
    """Why a configuration does not fit this kernel and operands of `itemsize` bytes, in words; empty if it does."""
    if config.num_warps != 8:
        return f"num_warps={config.num_warps}, warpgroup multiplies with 2 warpgroups of 4"
    if config.block_m % 128:
        return f"block_m={config.block_m}, 2 consumers of 64-row wgmma need a multiple of 128"
    size = config.block_m, config.block_n, config.block_k
    if config.is_odd and (size not in ODD_PARTS or config.shared_waves or config.cluster > 1 or itemsize != 2):
        return f"{config}, of odd widths warpgroup has 128x208x64 and 128x104x64, not shared, in no cluster, nor of fp8"
    if config.cluster not in (1, 2) or config.gang_m % config.cluster:
        return f"{config} in gangs of {config.gang_m}, a cluster is 2 tiles of a gang along M"
    if config.triton > triton_release():
        return "{} needs Triton {}.{} or later, this is {}.{}".format(config, *config.triton, *triton_release())
    if config.subtile not in (1, 2, 4):
        return f"subtile={config.subtile}, warpgroup stores in 1, 2 or 4 parts"
    if config.shared_waves and not may_share(config, itemsize):
        width, _ = sums_widths(config, itemsize)
        return f"subtile={config.subtile}, of a shared tile it stores at most {width} columns at a time"
    return ""


def may_share(config: tiles.Config, itemsize: int) -> bool:
    """Whether programs may share a tile along K: whether the sums of each part that is stored fit into a stage."""
    width, rest = sums_widths(config, itemsize)
    return bool(rest) or config.block_n // config.subtile <= width


def problem_by_block(config: Config) -> str:
    """Why a configuration does not fit scales by block, as `problem_of` says it."""
    if (config.block_n, config.block_k) != (BLOCK, BLOCK):
        return f"{config} has steps of {config.block_n}x{config.block_k} of w, a block has {BLOCK}x{BLOCK}"
    if config.cluster > 1 or config.zigzag:
        return f"{config}, by block there are no clusters, and each tile is walked through forwards"
    return ""


def sums_widths(config: tiles.Config, itemsize: int) -> tuple[int, int]:
    """The number of columns of a consumer's fp32 sums that pass through a stage at a time, where it has room for w, and
    those of an odd tile's last part, or 0."""
    parts = ODD_PARTS.get((config.block_m, config.block_n, config.block_k))
    return parts or (config.block_n * config.block_k * itemsize // (2 * config.block_m), 0)


def role_arguments(x: Tensor, w: Tensor, out: Tensor, config: tiles.Config) -> dict[str, Any]:
    """The arguments of a kernel for the roles and their tile. Raises ValueError as `prepare` does."""
    if not isinstance(config, Roles):
        raise ValueError(f"{config} is no tile of two consumers and a producer; take one of `kernels.warpgroup_config`")
    if problem := problem_of(config, x.element_size()):
        raise ValueError(f"{problem}; change the configuration")
    block_m = config.block_m * config.cluster
    rows = block_m // CONSUMERS.value
    parted, same = parts_of_ctas(config)
    wide, rest = ODD_PARTS.get((config.block_m, config.block_n, config.block_k), (config.block_n, 0))
    return dict(
        x_desc=describe(x, (config.block_m, config.block_k), parted),
        w_desc=describe(w, (wide, config.block_k), same),
        out_desc=describe(out, (rows, wide if rest else wide // config.subtile), parted),
        w_rest_desc=describe(w, (rest, config.block_k)) if rest else None,  # an odd tile's last part
        out_rest_desc=describe(out, (rows, rest)) if rest else None,
        BLOCK_M=block_m, BLOCK_N=config.block_n, STAGES=config.num_stages,
        BUFFERS=min(2, config.subtile),
        CONSUMER_REGISTERS=config.consumer_registers, PRODUCER_REGISTERS=PRODUCER_REGISTERS,
        maxnreg=config.registers if config.registers < UNBOUND_REGISTERS else None,
        num_warps=4,  # of the first consumer; warp_specialize adds the others
    )  # fmt: skip


def slot_arguments(x: Tensor, config: tiles.Config, count: int) -> dict[str, Any]:
    """The arguments of a kernel for so many `Slots`; None where there are none."""
    args = dict.fromkeys(("sums_desc", "sums_rest_desc", "sums_ptr", "slot_flags_ptr"))
    if count:
        rows, parted = config.block_m * config.cluster, parts_of_ctas(config)[0]
        size = count * rows * config.block_n
        kept = workspace(x.device, size, count * config.cluster * CONSUMERS.value)
        sums = kept.partials[:size].view(-1, config.block_n)
        width, rest = sums_widths(config, x.element_size())
        args |= dict(
            sums_ptr=sums,
            slot_flags_ptr=kept.counters,
            sums_desc=describe(sums, (rows // CONSUMERS.value, width), parted),
        )
        if rest:
            args["sums_rest_desc"] = describe(sums, (rows // CONSUMERS.value, rest))
    return args


def parts_of_ctas(config: tiles.Config) -> tuple[tuple, tuple]:
    """How the CTAs of a cluster part the rows of x and out, and how they share w."""
    return (((1, 0),), ((0, 0),)) if config.cluster > 1 else ((), ())


def whole_and_shared(config: Config) -> list[Config]:
    """A configuration without a shared wave, and with one where its tile may be shared."""
    configs = [replace(config, shared_waves=0)]
    if not config.is_odd:
        configs.append(replace(config, shared_waves=config.shared_waves or 2))
    return configs


def variants(config: Config) -> list[Config]:
    """The configurations of a tile that are code of their own."""
    configs = whole_and_shared(config)
    in_clusters = []
    if not config.is_odd:
        in_clusters = [replace(other, cluster=2, gang_m=2) for other in configs]
    every = [*configs, replace(configs[-1], zigzag=True, prefetch=True), *in_clusters]
    return [other for other in every if other.triton <= triton_release()]
