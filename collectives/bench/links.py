"""The links by the names of their kinds."""

import torch

from collectives.group_links import Gloo
from collectives.links import PacedThread, Preset
from roofline.theory.schedule import known_name

KINDS = ("paced", "preset")
"""Of one process, that owns the shards of all ranks."""


def emulated(kind: str, device: str, bytes_per_s: float | None, rank: int = 0, programs: int | None = None):
    """Return the link of `kind` on `device` (`cpu` or `cuda`), to the rank that gathers; `programs` of a GPU's copier,
    or its default. Raises ValueError for a kind that there is not, and for a bandwidth that is not above 0."""
    known_name("link", kind, KINDS)
    if kind == "preset":
        return Preset()
    if not bytes_per_s > 0:
        raise ValueError(f"a paced link of {bytes_per_s} bytes/s: it must be above 0")
    if device == "cpu":
        return PacedThread(bytes_per_s, rank)
    from collectives import device_links

    half = torch.cuda.get_device_properties(0).multi_processor_count // 2  # what is sent is computed on the others
    return device_links.PacedCopier(bytes_per_s, rank, programs or min(device_links.PROGRAMS, half))


def between(kind: str, ranks):
    """Return the link of `kind`, one of `theory.wires.OF_RANKS` or `ALL_GATHER`, between `ranks`."""
    if kind == Gloo.kind:
        return Gloo(ranks)
    from collectives import device_group_links as gpus

    return {link.kind: link for link in (gpus.Nccl, gpus.NcclAllGather, gpus.Symmetric)}[kind](ranks)
