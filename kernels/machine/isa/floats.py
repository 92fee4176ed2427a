"""Rounding: what floating-point instructions and conversions need beyond NumPy's own arithmetic.

PTX ISA 8.7, sections 9.7.3 (fp32, fp64), 9.7.4 (fp16, bf16) and 9.7.9.21 (cvt). A bf16 is kept as its bits, and becomes
an fp32 once it is read. A value that is rounded twice is rounded to odd first: then the result is as if it had been
rounded once (Boldo and Melquiond, Emulation of FMA and correctly rounded sums, 2008).
"""

from math import inf, isfinite

import numpy as np

from .integers import WORD

FP16 = np.dtype("f2")
FP32 = np.dtype("f4")
FP64 = np.dtype("f8")
FRACTION = (1 << 52) - 1  # the fraction among an fp64's bits
# Bits of the significand, least exponent, largest value.
FORMATS = {
    "f32": (24, -126, 2.0**128 - 2.0**104),
    "tf32": (11, -126, 2.0**128 - 2.0**117),
    "f16": (11, -14, 65504.0),
    "bf16": (8, -126, 2.0**128 - 2.0**120),
    "e4m3": (4, -6, 448.0),
    "e5m2": (3, -14, 57344.0),
}
INTEGRAL = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    "rna": lambda x: np.trunc(x + np.copysign(0.5, x)),
}


def from_bf16(x):
    return (x.astype(np.uint32) << 16).view(FP32)


def to_bf16(x):
    """The bf16 bits of fp32 or fp64, rounded to the nearest, ties to even."""
    if x.dtype != FP32:
        x = narrowed(x, "bf16").astype(FP32)
    b = x.view(np.uint32)
    is_odd = b >> 16 & 1
    upper_half = (b + (0x7FFF + is_odd)) >> 16
    bits = np.where(np.isnan(x), 0x7FFF, upper_half)
    return bits.astype(np.uint16)


def narrowed(x, kind: str, mode: str = "rn"):
    """Values of fp64, exact or rounded to odd, rounded to a narrower format. A value beyond the format's largest
    becomes the largest where the mode rounds towards it; otherwise it is rounded as if exponents had no end."""
    precision, least, largest = FORMATS[kind]
    _, exponents = np.frexp(x)
    exponents = np.maximum(exponents - 1, least)
    quantum = np.ldexp(1.0, exponents - precision + 1)
    low = -inf
    if mode in ("rz", "rp"):
        low = -largest
    high = inf
    if mode in ("rz", "rm"):
        high = largest
    values = INTEGRAL[mode](x / quantum) * quantum
    values = np.clip(values, low, high)
    return np.where(np.isinf(x), x, values)


def to_fp8(x, kind: str):
    """The bits of e4m3 or e5m2, as .satfinite has them. Both are upper bits of an fp16: e5m2 of the value itself, e4m3
    of a 256th of it."""
    values = narrowed(within(x.astype(FP64), kind), kind)
    if kind == "e5m2":
        byte = values.astype(FP16).view(np.uint16) >> 8
    else:
        half = (values / 256).astype(FP16).view(np.uint16)
        sign = half >> 8 & 0x80
        byte = sign | half >> 7 & 0x7F
    byte = np.where(np.isnan(x), 0x7F, byte)
    return byte.astype(np.uint8)


def from_fp8(x, kind: str):
    x = x.astype(np.uint16)
    if kind == "e5m2":
        return (x << 8).view(FP16)
    sign = (x & 0x80) << 8
    rest = x & 0x7F
    values = (sign | rest << 7).view(FP16) * 256
    return np.where(rest == 0x7F, np.nan, values)


def extreme(a, b, choose, merge):
    """min or max. `choose` is NumPy's function for the numbers, `merge` the one for the bits of equal numbers, by which
    -0 is below 0."""
    word = WORD[a.itemsize]
    merged = merge(a.view(word), b.view(word))
    return np.where(a == b, merged.view(a.dtype), choose(a, b))


def exact_sum(a, b):
    """The sum of two fp64 values, rounded to odd; it must not overflow."""
    total = a + b
    part = total - a
    rest = (a - (total - part)) + (b - part)  # what total lacks, exactly (Knuth)
    is_inexact = np.abs(rest) > 0
    is_even = total.view(np.uint64) & 1 == 0
    neighbour = np.nextafter(total, np.copysign(inf, rest))
    return np.where(is_inexact & is_even, neighbour, total)


def odd(x):
    """Integers as fp64, rounded to odd."""
    if x.itemsize == 8:
        lacks = x & 2047 != 0
        sticky = (x >> 11 | lacks) << 11
        is_exact = np.abs(x) < 1 << 53
        x = np.where(is_exact, x, sticky)
    return x.astype(FP64)


def fma(a, b, c):
    """a * b + c in fp32 or fp64, rounded once, to the nearest."""
    if a.dtype == FP64:
        return np.array([*map(fused, a.tolist(), b.tolist(), c.tolist())])
    product = a.astype(FP64) * b
    total = product + c
    result = total.astype(FP32)
    rest = total - result  # a power of two if total is halfway between two results: then its own rounding counts
    if np.count_nonzero(rest):
        has_no_fraction = rest.view(np.uint64) & FRACTION == 0
        if np.count_nonzero(has_no_fraction & (rest != 0)):
            return exact_sum(product, c).astype(FP32)
    return result


def fused(x: float, y: float, z: float) -> float:
    """x * y + z in fp64, by integers, whose quotient Python rounds to the nearest."""
    nearest = x * y + z
    if not all(map(isfinite, (x, y, z))):
        return nearest
    (a, b), (c, d), (e, f) = map(float.as_integer_ratio, (x, y, z))
    total = a * c * f + b * d * e
    if not total:
        return nearest
    try:
        return total / (b * d * f)
    except OverflowError:
        return nearest


def to_integer(x, dtype, nan: int):
    """Integers from whole fp64 numbers. A number out of range becomes the nearest end of the range, a NaN `nan`."""
    limits = np.iinfo(dtype)
    is_inside = (x >= limits.min) & (x < limits.max + 1)
    below = np.where(x < 0, dtype.type(limits.min), dtype.type(nan))
    ends = np.where(x > 0, dtype.type(limits.max), below)
    integers = np.where(is_inside, x, 0).astype(dtype)
    return np.where(is_inside, integers, ends)


def clipped(x, dtype):
    """Integers clipped to the range of another integer type."""
    source = np.iinfo(x.dtype)
    target = np.iinfo(dtype)
    low = max(source.min, target.min)
    high = min(source.max, target.max)
    return np.clip(x, low, high).astype(dtype)


def pair(low, high):
    """[64]: the low and the high half of each lane's register, one behind the other."""
    both = np.empty(2 * len(low), low.dtype)
    both[::2] = low
    both[1::2] = high
    return both


def flush(x):
    """.ftz: subnormals become zeros of their sign."""
    is_normal = np.abs(x) >= np.finfo(x.dtype).tiny
    return x * is_normal


def saturated(x):
    """.sat: values are clamped to 0 and 1, and NaN becomes 0."""
    return np.where(x > 0, np.minimum(x, 1), 0)


def positive(x):
    """.relu: values below 0 become 0."""
    return np.where(x <= 0, 0, x)


def within(x, kind: str):
    """.satfinite: infinity becomes the largest value."""
    largest = FORMATS[kind][2]
    return np.clip(x, -largest, largest)


def quotient(a, b):
    """div.approx: a divisor beyond 2^126 gives 0, or NaN where the dividend is infinite (9.7.3.8)."""
    zeros = a * np.copysign(0, b)
    return np.where(np.abs(b) > 2.0**126, zeros, a / b)


def upper(x):
    """The upper word of an fp64, with zeros below it: all that rcp.approx.ftz and rsqrt.approx.ftz read, and all that
    they give (9.7.3.14, 9.7.3.17)."""
    word = x.view(np.uint64) >> 32
    return (word << 32).view(FP64)
