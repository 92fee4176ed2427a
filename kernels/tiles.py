"""Which tile a kernel takes for a shape: read from checked-in JSON tables, so that nobody waits for an autotuner.

One file of `kernels/configs` per architecture. `sm90` holds what was chosen for Hopper, `generic` what fits every GPU
since Ampere (99 KB of shared memory; where there is more, `fitted` takes a deeper pipeline), `interpreter` small tiles
for Triton's interpreter, which is never timed.

The first measured entry that admits a shape is taken, on a device with as many SMs as it was measured on:
`kernels.trial` writes such entries, each for one shape. Without one, the first unmeasured entry is taken. For a kernel
that the table names as `modelled`, the unmeasured entries are candidates: the model of waves (kernels.waves) takes the
best for the shape and the device, with the group and raster that suit it. Among equals it takes the one that stands
first: 128x256 before 256x128, whose instructions read a fifth more shared memory for as many products
(kernels.warpgroup). What is untimed, as odd widths and clusters, is taken by a measured entry alone.

Fields of a configuration that are a kernel's own stand in that kernel's file, in its `Config`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

import torch

from kernels import registry, waves
from kernels.waves import GpuSpec
from roofline.theory import chips

FOLDER = Path(__file__).with_name("configs")
GENERIC = "generic"
LEAST_STAGES, MOST_STAGES = 3, 4
"""Stages of a pipeline that `fitted` makes: Triton's matmul tutorial has 3 to 5 for such GPUs."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
DTYPES["fp8_block"] = DTYPES["fp8"]  # with scales by block: see kernels.contract


@dataclass(frozen=True)
class Config(waves.Tile):
    """A tile and how it is pipelined. A kernel with more to choose has a class of its own, `Config` in its file."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int  # those that multiply
    num_stages: int
    group_m: int = 8
    subtile: int = 1  # parts in which a kernel that stores by TMA stores the epilogue; 2 halves its shared memory

    @property
    def triton(self) -> tuple[int, int]:
        """The release of Triton that it needs."""
        return 0, 0

    @property
    def is_untimed(self) -> bool:
        """Whether it has what no card has timed."""
        return False

    @property
    def is_odd(self) -> bool:
        """Whether its width is no power of two."""
        return self.block_n.bit_count() > 1

    @property
    def arguments(self) -> dict[str, int]:
        """The arguments of a Triton kernel for its tile and pipeline."""
        return dict(
            BLOCK_M=self.block_m, BLOCK_N=self.block_n, BLOCK_K=self.block_k,
            num_warps=self.num_warps, num_stages=self.num_stages,
        )  # fmt: skip

    def tile_counts(self, m: int, n: int) -> tuple[int, int]:
        """The rows and the columns of tiles that out[m, n] is cut into."""
        return -(-m // self.block_m), -(-n // self.block_n)  # triton.cdiv takes microseconds

    def changed(self, **values: Any) -> Self:
        """With these values of those fields that it has."""
        names = {field.name for field in fields(self)}
        return replace(self, **{name: value for name, value in values.items() if name in names})

    def ring_bytes(self, itemsize: int) -> int:
        """The shared memory that the stages take, of elements of `itemsize` bytes. An odd width takes as much as the
        next power of two: Gluon allocates no other.

        >>> Config(128, 208, 64, 8, 4).ring_bytes(2) == Config(128, 256, 64, 8, 4).ring_bytes(2) == 196_608
        True
        """
        columns = 1 << (self.block_n - 1).bit_length()
        return itemsize * self.num_stages * (self.block_m + columns) * self.block_k

    def __str__(self) -> str:
        words = [f"{self.block_m}x{self.block_n}x{self.block_k} warps{self.num_warps} stages{self.num_stages}"]
        words.append(f"group{self.group_m}")
        if self.subtile > 1:
            words.append(f"subtile{self.subtile}")
        return " ".join([*words, *self.own_words()])

    def own_words(self) -> list[str]:
        """What reports and case ids say of the fields that are a kernel's own."""
        return []


@dataclass(frozen=True)
class Entry:
    """One row of a table: the shapes and dtypes it is for, its configuration, and what is known about it."""

    kernel: str
    dtypes: tuple[str, ...]
    m_max: int | None  # None: no limit
    config: Config
    mma: str | None  # the instruction it must compile to on the table's target; None in the interpreter
    measured: dict | None
    """None: unmeasured. Else chip, date, shape and versions of the measurement that chose it."""
    m_min: int = 0
    n: int | None = None  # this N and no other; None: any
    k: int | None = None

    @property
    def is_taken(self) -> bool:
        """Whether `choose` may take it. What is untimed is for `kernels.trial` alone, until that has measured it."""
        return self.measured is not None or not self.config.is_untimed

    def admits(self, kernel: str, m: int, n: int, k: int, dtype: str) -> bool:
        if kernel != self.kernel or dtype not in self.dtypes:
            return False
        return self.m_min <= m <= (self.m_max or m) and self.n in (None, n) and self.k in (None, k)

    def measured_on(self, gpu: GpuSpec | None) -> bool:
        """Whether it was measured, on as many SMs as `gpu` has, as far as both are known: waves and tails are counted
        in SMs."""
        if self.measured is None or gpu is None:
            return self.measured is not None
        return self.measured.get("sms") in (None, gpu.sms)


@dataclass(frozen=True)
class Table:
    """All entries of one architecture."""

    target: int
    """The compute capability that they are compiled for; 0: they are not compiled."""
    shared_limit_bytes: int
    modelled: dict[str, list[str]]
    """Kernels for which the model of waves picks among the unmeasured entries, and the fields that it sets beside
    `group_m`."""
    rows: list[dict[str, Any]]

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """All, whose kernels this imports."""
        return _entries(self.rows)

    def of(self, kernel: str) -> tuple[Entry, ...]:
        """Those of one kernel."""
        return _entries([row for row in self.rows if row["kernel"] == kernel])


@cache
def table(arch: str) -> Table:
    """The checked-in table of `arch`, one of `architectures()`."""
    document = json.loads((FOLDER / f"{arch}.json").read_text())
    rows = [row for row in document.pop("entries") if row["kernel"] in registry.examples()]
    return Table(**document, rows=rows)


@cache
def triton_release() -> tuple[int, int]:
    """The release of Triton that is here; (0, 0) where there is none."""
    try:
        import triton
    except ImportError:
        return 0, 0
    major, minor = triton.__version__.split(".")[:2]
    return int(major), int(minor)


def _entries(rows: Sequence[dict[str, Any]]) -> tuple[Entry, ...]:
    """The entries of these rows that the Triton that is here can compile."""
    entries = map(_entry, rows)
    return tuple(entry for entry in entries if entry.config.triton <= triton_release())


def _entry(row: dict[str, Any]) -> Entry:
    kind = registry.load(f"{registry.module_of(row['kernel'])}:Config")
    names = [field.name for field in fields(kind) if field.name in row]
    config = kind(**{name: row[name] for name in names})
    others = {name: value for name, value in row.items() if name not in names}
    return Entry(**others | {"dtypes": tuple(row["dtypes"]), "config": config})


@cache
def architectures() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def choose_for(kernel: str, x: torch.Tensor, w: torch.Tensor) -> Config:
    """Choose for x[M, K] and w[N, K], by the device they are on."""
    m, k = x.shape
    return choose(kernel, arch_of(x.device), m, len(w), k, x.dtype, machine_of(x.device))


def was_tuned(kernel: str, x: torch.Tensor, w: torch.Tensor) -> bool:
    """Whether `choose_for` takes a measured entry that is for the shape of x[M, K] and w[N, K] alone."""
    (m, k), n = x.shape, len(w)
    gpu = machine_of(x.device)
    for entry in table(arch_of(x.device)).of(kernel):
        if entry.admits(kernel, m, n, k, DTYPE_NAMES[x.dtype]) and entry.measured_on(gpu):
            return (entry.m_min, entry.m_max, entry.n, entry.k) == (m, m, n, k)
    return False


@lru_cache(maxsize=4096)  # it stands in the path of every launch, and a tuned table is long
def choose(kernel: str, arch: str, m: int, n: int, k: int, dtype: torch.dtype, gpu: GpuSpec | None = None) -> Config:
    """The configuration for [m, n, k] in `dtype`, see above. Without a `gpu` nothing is modelled.

    ValueError when no entry admits the shape.
    """
    rows = table(arch)
    short = DTYPE_NAMES[dtype]
    entries = [entry for entry in rows.of(kernel) if entry.is_taken and entry.admits(kernel, m, n, k, short)]
    if not entries:
        raise ValueError(
            f"no {kernel} configuration for m={m}, n={n}, k={k} in {short} on {arch}; "
            f"add an entry to kernels/configs/{arch}.json"
        )
    if measured := next((entry.config for entry in entries if entry.measured_on(gpu)), None):
        return measured
    configs = [entry.config for entry in entries if not entry.measured] or [entry.config for entry in entries]
    if not gpu or kernel not in rows.modelled or not m * n * k:
        return configs[0]
    config = modelled(rows.modelled[kernel], configs, m, n, k, dtype.itemsize, gpu)
    if arch != GENERIC or short == "fp32":  # fp32 has no tensor cores to feed
        return config
    return fitted(config, dtype.itemsize, gpu.shared_bytes or rows.shared_limit_bytes)


def modelled(
    free: Sequence[str], candidates: Sequence[Config], m: int, n: int, k: int, itemsize: int, gpu: GpuSpec
) -> Config:
    """The best of `candidates` for a shape by the model of waves, with the group that suits it, and the raster and
    `flatten` where the kernel leaves those `free`. Among equals the first is taken, in the order that reads least from
    memory."""

    def cost(config: Config) -> waves.Cost:
        return waves.cost(m, n, k, itemsize, config, gpu)

    def orders(config: Config) -> list[Config]:
        orders = [replace(config, group_m=group) for group in waves.GROUPS]
        if "raster" in free:
            orders += [order.changed(raster="n") for order in orders]
        gang_m = waves.gang_of(-(-m // config.block_m))
        if "gang" in free and gang_m < gpu.sms and not config.is_odd:
            orders.append(config.changed(group_m=8, gang_m=gang_m, shared_waves=1))
        return orders

    ordered = [
        min(orders(config), key=lambda order: (cost(order).seconds, cost(order).memory_s)) for config in candidates
    ]
    best = min(ordered, key=lambda config: cost(config).seconds)
    if "flatten" in free:  # with several tiles to a program, loads of the next one start under the store of this one
        best = best.changed(flatten=cost(best).full_waves > 1)
    return best


def fitted(config: Config, itemsize: int, shared_bytes: int) -> Config:
    """`config` with a step along K and the stages that `shared_bytes` hold: a step of 64, where enough stages of that
    fit, else of 32.

    >>> str(fitted(Config(128, 256, 32, 8, 4), 2, 163 * 1024)), str(fitted(Config(128, 256, 32, 8, 4), 2, 99 * 1024))
    ('128x256x64 warps8 stages3 group8', '128x256x32 warps8 stages4 group8')
    """
    rows = config.block_m + config.block_n
    stages = {block_k: shared_bytes // (rows * block_k * itemsize) for block_k in (64, 32)}
    block_k = 64 if stages[64] >= LEAST_STAGES else 32
    return replace(config, block_k=block_k, num_stages=min(MOST_STAGES, stages[block_k]))


@cache
def machine_of(device: torch.device) -> GpuSpec | None:
    """The figures of a GPU that the model needs: those of its datasheet, or of an H100's with the SMs that it has. None
    for the CPU."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    datasheet = GpuSpec.of_chip(chips.chip_of_device(properties.name) or chips.find("H100 SXM"))
    shared_bytes = getattr(properties, "shared_memory_per_block_optin", None)
    return replace(datasheet, sms=properties.multi_processor_count, shared_bytes=shared_bytes)


def arch_of(device: torch.device) -> str:
    """The name of the table for a device: `interpreter` for the CPU, that of its compute capability for a GPU if there
    is one, else `generic`."""
    if device.type != "cuda":
        return "interpreter"
    name = "sm{}{}".format(*capability(device))
    return name if name in architectures() else GENERIC


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a GPU, asked once per device: it stands in the path of every launch."""
    return torch.cuda.get_device_capability(device)
