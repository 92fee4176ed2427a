"""Published figures of chips, as `chips.toml` has them, each with its source.

Rates are dense (no sparsity), in FLOP/s and bytes/s; sizes in bytes. `link_bandwidth_bytes_per_s` is one direction of
one link; a chip receives at most `links` times that. None means that the source does not say. Nodes and their network
are those of the vendor's own (DGX, HGX).
"""

from dataclasses import dataclass, field

from roofline.theory.bounds import Roof
from roofline.theory.data import tables_of
from roofline.theory.work import peak_dtype

GB, GIB = 10**9, 2**30


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
    """The links of such a chip join it to its neighbours in a torus. 0: it is on a switch, in a node of `node_size`."""
    node_size: int = 1
    port_bytes_per_s: float | None = None
    """Bytes/s that one chip receives over the network, from other nodes or other tori."""
    device_names: list[str] = field(default_factory=list, repr=False)

    @property
    def received_bytes_per_s(self) -> float | None:
        """Bytes/s that one chip receives over all its links together."""
        return self.link_bandwidth_bytes_per_s and self.links * self.link_bandwidth_bytes_per_s


CHIPS = {name: Chip(name, **fields) for name, fields in tables_of(__file__, "chips.toml").items()}
"""By name, in the order of the file."""


def find(name: str) -> Chip:
    """The chip called `name` (case, spaces and hyphens do not matter). Raises ValueError that lists all if unknown."""
    for chip in CHIPS.values():
        if _plain(chip.name) == _plain(name):
            return chip
    raise ValueError(f"unknown chip {name!r}: known are {', '.join(CHIPS)}")


def _plain(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "")


def roof_of(datasheet: dict | None, dtype: str) -> Roof | None:
    """The roof for `dtype` by a `datasheet` as a run's metadata has it; None where it lacks one of the two bounds, or
    there is none."""
    sheet = datasheet or {}
    flops = sheet.get("flops", {}).get(peak_dtype(dtype))
    bytes_per_s = sheet.get("memory_bandwidth_bytes_per_s")
    return Roof(flops, bytes_per_s) if flops and bytes_per_s else None


def chip_of_device(device_name: str) -> Chip | None:
    """The chip that a driver calls `device_name`, or None: an unknown chip has measured ceilings only.

    Names are compared whole, since a variant (NVL, 40GB, MIG) has other figures than its namesake.
    """
    for chip in CHIPS.values():
        if device_name in chip.device_names:
            return chip
    return None
