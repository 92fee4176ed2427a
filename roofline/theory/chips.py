"""Published figures of chips, each with its source. Measured ceilings are never written here.

Rates are dense (no sparsity), in FLOP/s and bytes/s; sizes in bytes. `link_bandwidth_bytes_per_s` is one direction of
one link; a chip receives at most `links` times that. None means that the source does not say. Nodes and their network
are those of the vendor's own (DGX, HGX).
"""

import difflib
from dataclasses import dataclass, field, replace

GB, GIB, MIB = 10**9, 2**30, 2**20


@dataclass(frozen=True)
class Chip:
    """One chip as its vendor describes it. `device_names` are what the driver calls it."""

    name: str
    flops: dict[str, float]
    source: str
    sms: int | None = None
    flop_per_cycle: dict[str, int] = field(default_factory=dict)
    """The most that an SM can do in one cycle of its clock, by dtype: `flops` over SMs and the vendor's boost clock. Of
    a GeForce that is twice its rate in 16 bits, which is with sums in fp32."""
    cache_bytes: int | None = None
    memory_bytes: int | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    links: int = 1
    link_bandwidth_bytes_per_s: float | None = None
    torus_axes: int = 0
    """Of a chip whose links join it to its neighbours in a torus; 0 of one on a switch, in a node of `node_size`."""
    node_size: int = 1
    port_bytes_per_s: float | None = None
    """What one chip receives over the network, from other nodes or other tori."""
    device_names: tuple[str, ...] = field(default=(), repr=False)

    @property
    def received_bytes_per_s(self) -> float | None:
        """Return what one chip receives over all its links together."""
        return self.link_bandwidth_bytes_per_s and self.links * self.link_bandwidth_bytes_per_s


HOPPER_SXM_FLOPS = {"bf16": 989.4e12, "fp16": 989.4e12, "tf32": 494.7e12, "fp32": 66.9e12, "fp8": 1978.9e12}

AMPERE_SM = {"bf16": 2048, "fp16": 2048, "tf32": 1024, "fp32": 128}
ADA_SM = {"bf16": 1024, "fp16": 1024, "tf32": 512, "fp32": 256, "fp8": 2048}
HOPPER_SM = {"bf16": 4096, "fp16": 4096, "tf32": 2048, "fp32": 256, "fp8": 8192}
BLACKWELL_SM = {"bf16": 8192, "fp16": 8192, "tf32": 4096, "fp32": 256, "fp8": 16384}

CHIPS = {
    chip.name: chip
    for chip in (
        Chip(
            "H100 SXM", HOPPER_SXM_FLOPS,
            "NVIDIA H100 Tensor Core GPU Architecture whitepaper (SXM5, 80 GB HBM3); NVLink 4: 18 links of 25 GB/s; "
            "DGX H100: nodes of 8, a port of 400 Gbit/s each",
            sms=132, flop_per_cycle=HOPPER_SM,
            cache_bytes=50 * MIB, memory_bytes=80 * GB, memory_bandwidth_bytes_per_s=3.35e12,
            links=18, link_bandwidth_bytes_per_s=25e9, node_size=8, port_bytes_per_s=50e9,
            device_names=("NVIDIA H100 80GB HBM3",),
        ),
        Chip(
            "H100 PCIe", {"bf16": 756e12, "fp16": 756e12, "tf32": 378e12, "fp32": 51.2e12, "fp8": 1513e12},
            "NVIDIA H100 PCIe GPU product brief and H100 datasheet; NVLink bridges: 600 GB/s both ways, 12 links",
            sms=114, flop_per_cycle=HOPPER_SM,
            cache_bytes=50 * MIB, memory_bytes=80 * GB, memory_bandwidth_bytes_per_s=2.0e12,
            links=12, link_bandwidth_bytes_per_s=25e9, node_size=2,
            device_names=("NVIDIA H100 PCIe",),
        ),
        Chip(
            "H200", HOPPER_SXM_FLOPS,
            "NVIDIA H200 datasheet (SXM; same processor as the H100 SXM); cache: what the driver reports; DGX H200",
            sms=132, flop_per_cycle=HOPPER_SM,
            cache_bytes=60 * MIB, memory_bytes=141 * GB, memory_bandwidth_bytes_per_s=4.8e12,
            links=18, link_bandwidth_bytes_per_s=25e9, node_size=8, port_bytes_per_s=50e9,
            device_names=("NVIDIA H200",),
        ),
        Chip(
            "B200", {"bf16": 2.25e15, "fp16": 2.25e15, "tf32": 1.125e15, "fp32": 75e12, "fp8": 4.5e15},
            "NVIDIA HGX B200 datasheet, an eighth of the board with eight; SMs and cache: what the driver reports; "
            "DGX B200: nodes of 8, a port of 400 Gbit/s each",
            sms=148, flop_per_cycle=BLACKWELL_SM,
            cache_bytes=126 * MIB, memory_bytes=180 * GB, memory_bandwidth_bytes_per_s=7.75e12,
            links=18, link_bandwidth_bytes_per_s=50e9, node_size=8, port_bytes_per_s=50e9,
            device_names=("NVIDIA B200",),
        ),
        Chip(
            "A100 SXM", {"bf16": 312e12, "fp16": 312e12, "tf32": 156e12, "fp32": 19.5e12},
            "NVIDIA A100 80GB datasheet (SXM4) and A100 architecture whitepaper; NVLink 3: 12 links of 25 GB/s; "
            "DGX A100: nodes of 8, a port of 200 Gbit/s each",
            sms=108, flop_per_cycle=AMPERE_SM,
            cache_bytes=40 * MIB, memory_bytes=80 * GB, memory_bandwidth_bytes_per_s=2.039e12,
            links=12, link_bandwidth_bytes_per_s=25e9, node_size=8, port_bytes_per_s=25e9,
            device_names=("NVIDIA A100-SXM4-80GB",),
        ),
        Chip(
            "L40S", {"bf16": 362.05e12, "fp16": 362.05e12, "tf32": 183e12, "fp32": 91.6e12, "fp8": 733e12},
            "NVIDIA L40S datasheet; link: PCIe Gen4 x16, no NVLink; cache: Ada architecture whitepaper (AD102)",
            sms=142, flop_per_cycle=ADA_SM,
            cache_bytes=96 * MIB, memory_bytes=48 * GB, memory_bandwidth_bytes_per_s=864e9,
            link_bandwidth_bytes_per_s=32e9, device_names=("NVIDIA L40S",),
        ),
        Chip(
            "RTX 4090", {"bf16": 165.2e12, "fp16": 165.2e12, "tf32": 82.6e12, "fp32": 82.6e12, "fp8": 330.3e12},
            "NVIDIA Ada GPU architecture whitepaper (GeForce RTX 4090, 24 GB GDDR6X; tensor cores that accumulate in "
            "fp32); link: PCIe Gen4 x16, no NVLink",
            sms=128, flop_per_cycle=ADA_SM,
            cache_bytes=72 * MIB, memory_bytes=24 * GB, memory_bandwidth_bytes_per_s=1.008e12,
            link_bandwidth_bytes_per_s=32e9, device_names=("NVIDIA GeForce RTX 4090",),
        ),
        Chip(
            "TPU v5p", {"bf16": 459e12, "int8": 918e12},
            "Google Cloud TPU v5p documentation; links: How to Scale Your Model, chapter TPUs (3D torus, 6 links)",
            memory_bytes=95 * GIB, memory_bandwidth_bytes_per_s=2.765e12,
            links=6, link_bandwidth_bytes_per_s=90e9, torus_axes=3, port_bytes_per_s=6.25e9,
        ),
        Chip(
            "exercise", {"bf16": 275e12},
            "the exercise on overlapping a gather with a matmul: 275e12 FLOP/s over 100e9 bytes/s, balance 2750",
            link_bandwidth_bytes_per_s=100e9, torus_axes=1,
        ),
    )
}  # fmt: skip


def find(name: str) -> Chip:
    """Return the chip called `name` (case and spaces do not matter). Without its form that is the first of the table,
    as SXM before PCIe, and its source says so. Raises ValueError with the nearest name if unknown."""
    plain = {key.lower().replace(" ", "").replace("-", ""): chip for key, chip in CHIPS.items()}
    wanted = name.lower().replace(" ", "").replace("-", "")
    forms = [chip for chip in CHIPS.values() if chip.name.lower().split()[0] == wanted]
    if forms and wanted not in plain:
        others = "".join(f"; there is the {chip.name} too" for chip in forms[1:])
        return replace(forms[0], source=f"{forms[0].source}; {name!r} is taken for {forms[0].name}{others}")
    if wanted not in plain:
        near = [name for name in plain if name.startswith(wanted)] or difflib.get_close_matches(wanted, plain, n=1)
        hint = f"did you mean {plain[near[0]].name!r}? " if near else ""
        raise ValueError(f"unknown chip {name!r}: {hint}known are {', '.join(CHIPS)}")
    return plain[wanted]


def of_device(device_name: str) -> Chip | None:
    """Return the chip that a driver calls `device_name`, or None: an unknown chip has measured ceilings only.

    Names are compared whole, since a variant (NVL, 40GB, MIG) has other figures than its namesake.
    """
    return next((chip for chip in CHIPS.values() if device_name in chip.device_names), None)
