"""The roofline: what a machine's FLOP/s and bytes/s allow at an arithmetic intensity."""


def balance(flops: float, bandwidth_bytes_per_s: float) -> float:
    """FLOP per byte at which the two bounds meet (the ridge): below it the bytes set the pace, above it the FLOP.

    >>> balance(275e12, 100e9)
    2750.0
    """
    return flops / bandwidth_bytes_per_s


def bound(intensity: float, flops: float, bandwidth_bytes_per_s: float) -> str:
    """Which bound is the lower one at `intensity`: `memory` or `compute`."""
    return "memory" if intensity * bandwidth_bytes_per_s < flops else "compute"
