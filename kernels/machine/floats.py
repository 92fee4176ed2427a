"""Rounding: what floating-point instructions and conversions need beyond NumPy's own arithmetic.

PTX ISA 8.7, sections 9.7.3 (fp32, fp64), 9.7.4 (fp16, bf16) and 9.7.9.21 (cvt). A bf16 is its bits, or an fp32 once it
is read. What rounds twice rounds to odd first: then the second result is as if there had been no first (Boldo and
Melquiond, Emulation of FMA and correctly rounded sums, 2008).
"""

from inspect import isfunction
from math import inf, isfinite, nextafter

import numpy as np

from .integers import WORD

FP16, FP32, FP64 = (np.dtype(f"f{size}") for size in (2, 4, 8))
FRACTION = np.uint64((1 << 52) - 1)  # of an fp64's bits
# Bits of the significand, least exponent, largest value.
FORMATS = {
    "f32": (24, -126, 2.0**128 - 2.0**104), "tf32": (11, -126, 2.0**128 - 2.0**117), "f16": (11, -14, 65504.0),
    "bf16": (8, -126, 2.0**128 - 2.0**120), "e4m3": (4, -6, 448.0), "e5m2": (3, -14, 57344.0),
}  # fmt: skip
INTEGRAL = {
    "rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil,
    "rna": lambda x: np.trunc(x + np.copysign(0.5, x)),
}  # fmt: skip


def from_bf16(x):
    return (x.astype(np.uint32) << 16).view(FP32)


def to_bf16(x):
    """Bits of fp32 or fp64 rounded to the nearest, ties to even."""
    b = (x if x.dtype == FP32 else narrowed(x, "bf16").astype(FP32)).view(np.uint32)
    return np.where(np.isnan(x), 0x7FFF, (b + (0x7FFF + (b >> 16 & 1))) >> 16).astype(np.uint16)


def narrowed(x, kind: str, mode: str = "rn"):
    """fp64, exact or rounded to odd, to the values of a narrower format; beyond its largest to the next if there were
    no end, or in a direction to the largest."""
    precision, least, largest = FORMATS[kind]
    quantum = np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 1, least) - precision + 1)
    low, high = (-largest if mode in ("rz", "rp") else -inf), (largest if mode in ("rz", "rm") else inf)
    return np.where(np.isinf(x), x, np.clip(INTEGRAL[mode](x / quantum) * quantum, low, high))


def to_fp8(x, kind: str):
    """Bits of e4m3 or e5m2, .satfinite. Both are an fp16's upper ones, of e4m3 those of a 256th."""
    largest = FORMATS[kind][2]
    values = narrowed(np.clip(x.astype(FP64), -largest, largest), kind)
    half = (values if kind == "e5m2" else values / 256).astype(FP16).view(np.uint16)
    byte = half >> 8 if kind == "e5m2" else half >> 8 & 0x80 | half >> 7 & 0x7F
    return np.where(np.isnan(x), 0x7F, byte).astype(np.uint8)


def from_fp8(x, kind: str):
    x = x.astype(np.uint16)
    if kind == "e5m2":
        return (x << 8).view(FP16)
    values = ((x & 0x80) << 8 | (x & 0x7F) << 7).view(FP16) * FP16.type(256)
    return np.where(x & 0x7F == 0x7F, FP16.type(np.nan), values)


def extreme(a, b, choose, merge):
    """min or max, by NumPy's functions for numbers and, of zeros, for their signs: -0 is below 0."""
    word = WORD[a.itemsize]
    return np.where(a == b, merge(a.view(word), b.view(word)).view(a.dtype), choose(a, b))


def exact_sum(a, b):
    """Of two fp64 values that do not overflow, rounded to odd."""
    total = a + b
    part = total - a
    rest = (a - (total - part)) + (b - part)  # what total lacks, exactly (Knuth)
    is_even = (np.abs(rest) > 0) & (total.view(np.uint64) & 1 == 0)
    return np.where(is_even, np.nextafter(total, np.copysign(np.inf, rest)), total)


def odd(x):
    """Integers as fp64, rounded to odd."""
    if x.itemsize == 8:
        is_small = x < 1 << 53 if x.dtype.kind == "u" else np.abs(x) < 1 << 53
        x = np.where(is_small, x, (x >> 11 | (x & 2047 != 0)) << 11)
    return x.astype(FP64)


def fma(a, b, c):
    """Of fp32 or fp64, to the nearest."""
    if a.dtype == FP64:
        return exactly("rn", "fma", a, b, c)
    product = a.astype(FP64) * b
    total = product + c
    result = total.astype(FP32)
    rest = total - result  # a power of two if total is between two results: then its own rounding counts
    if np.count_nonzero(rest) and np.count_nonzero((rest.view(np.uint64) & FRACTION == 0) & (rest != 0)):
        return exact_sum(product, c).astype(FP32)
    return result


# What fp64 has no room for: to the nearest where that needs no more, and as a ratio, of each operand's two integers.
RATIOS = {
    "add": (np.add, lambda a, b, c, d: (a * d + b * c, b * d)), "mul": (np.multiply, lambda a, b, c, d: (a * c, b * d)),
    "fma": (lambda a, b, c: a * b + c, lambda a, b, c, d, e, f: (a * c * f + b * d * e, b * d * f)),
    "div": (np.divide, lambda a, b, c, d: (a * d, b * c)), "rcp": (np.reciprocal, lambda a, b: (b, a)),
    "sqrt": (np.sqrt, lambda a, b: (a, b)), "cvt": (lambda x: x.astype(FP64), lambda a, b: (a, b)),
}  # fmt: skip


def exactly(mode: str, operation: str, *operands):
    """fp64, each lane in Python's integers, whose quotient is rounded to the nearest."""
    plain, ratio = RATIOS[operation]
    power, results = 2 if operation == "sqrt" else 1, []
    for y, *given in zip(plain(*operands).tolist(), *(x.tolist() for x in operands), strict=True):
        n = d = 0
        if y == y and all(map(isfinite, given)):
            n, d = ratio(*(part for x in given for part in x.as_integer_ratio()))
        if n and d:
            try:
                y = n / d if power == 1 else y
            except OverflowError:
                y = inf if (n < 0) == (d < 0) else -inf
            if mode != "rn":
                p, q = y.as_integer_ratio() if isfinite(y) else (0, 1)
                rest = (n * q**power - p**power * d) * d if isfinite(y) else -y  # the sign of what y lacks
                if rest > 0 if mode == "rp" else rest < 0 if mode == "rm" else rest and (rest < 0) == (y > 0):
                    y = nextafter(y, dict(rp=inf, rm=-inf, rz=0.0)[mode])
        results.append(y)
    return np.array(results)


def to_integer(x, dtype, nan: int):
    """Of whole fp64 numbers those in range, the ends for what is beyond, and `nan`."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    is_inside = (x >= low) & (x < high + 1)
    ends = np.where(x > 0, dtype.type(high), np.where(x < 0, dtype.type(low), dtype.type(nan)))
    return np.where(is_inside, np.where(is_inside, x, 0).astype(dtype), ends)


def clipped(x, dtype):
    """Integers to the range of another type."""
    ends = [(np.iinfo(d).min, np.iinfo(d).max) for d in (x.dtype, dtype)]
    return np.clip(x, max(low for low, _ in ends), min(high for _, high in ends)).astype(dtype)


def pair(low, high):
    """[64], of which two and two make up a register."""
    both = np.empty(2 * len(low), low.dtype)
    both[::2], both[1::2] = low, high
    return both


FUNCTIONS = {name: function for name, function in globals().items() if isfunction(function)} | {
    # .ftz: subnormals to zeros of their sign; .sat: from 0 to 1, NaN to 0; .relu; .satfinite: infinity to the largest.
    "flush": lambda x: x * (np.abs(x) >= np.finfo(x.dtype).tiny),
    "saturated": lambda x: np.where(x > 0, np.minimum(x, 1), 0),
    "positive": lambda x: np.where(x <= 0, 0, x),
    "within": lambda x, kind: np.clip(x, -FORMATS[kind][2], FORMATS[kind][2]),
    # div.approx: a divisor beyond 2^126 gives 0, and NaN of infinity (9.7.3.8).
    "quotient": lambda a, b: np.where(np.abs(b) > 2.0**126, a * np.copysign(b.dtype.type(0), b), a / b),
    # The word of an fp64 that rcp and rsqrt.approx.ftz look at, and all that they give (9.7.3.14, 9.7.3.17).
    "upper": lambda x: (x.view(np.uint64) & np.uint64(0xFFFFFFFF << 32)).view(FP64),
}
