"""Integers and bits: what their instructions need beyond NumPy's own arithmetic.

PTX ISA 8.7, sections 9.7.1 (integers), 9.7.2 (carries), 9.7.8 (shifts) and 9.7.9.7 (prmt). Registers are arrays, signed
where the instruction's type is.
"""

import numpy as np

WORD = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def divide(a, b):
    """The quotient, rounded towards zero. A division by zero may give anything (9.7.1.8); here it gives 0."""
    is_zero = b == 0
    quotient = a // np.where(is_zero, 1, b)
    is_inexact = quotient * b != a
    is_negative = (a < 0) != (b < 0)
    return np.where(is_zero, 0, quotient + (is_inexact & is_negative))


def remainder(a, b):
    return a - divide(a, b) * b


def shift_left(a, by, shift=np.left_shift):
    """A shift by the width or more gives 0 (9.7.8.8)."""
    width = 8 * a.itemsize
    distance = np.minimum(by, width - 1)
    return np.where(by < width, shift(a, distance.astype(a.dtype)), 0)


def shift_right(a, by):
    """A shift by the width or more gives 0, or copies of the sign where the type has one."""
    if a.dtype.kind == "i":
        by = np.minimum(by, 8 * a.itemsize - 1)
    return shift_left(a, by, np.right_shift)


def high_half(a, b):
    wide = object
    if a.itemsize < 8:
        wide = f"{a.dtype.kind}{2 * a.itemsize}"
    product = a.astype(wide) * b
    upper = product >> 8 * a.itemsize
    return upper.astype(a.dtype)


def carry(a, b, carried):
    """The carry out of a + b + carried (9.7.2.1)."""
    word = WORD[a.itemsize]
    a = a.view(word)
    total = a + b.view(word) + carried
    return (total < a) | (total == a) & carried


def bit_length(a):
    a = a.astype(np.uint64)
    _, high = np.frexp(a >> 32)
    _, low = np.frexp(a & 0xFFFFFFFF)
    length = np.where(high > 0, high + 32, low)
    return length.astype(np.uint32)


def reverse(a):
    data = a.view(np.uint8).reshape(-1, a.itemsize)
    unpacked = np.unpackbits(data, axis=1, bitorder="little")
    packed = np.packbits(unpacked[:, ::-1], axis=1, bitorder="little")
    return packed.view(a.dtype)[:, 0]


def field(a, start, length):
    """bfe: `length` bits from `start` on; in a signed type the field's highest bit extends them (9.7.1.19)."""
    width = 8 * a.itemsize
    start = start & 255
    length = length & 255
    above = width - np.minimum(start + length, width)
    bits = shift_right(shift_left(a, above), above + start)
    return np.where(length == 0, 0, bits)


def mask(start, length):
    """bmsk: ones in `length` bits from `start` on (9.7.1.25)."""
    ones = length | ~length
    return shift_left(~shift_left(ones, length), start)


def insert(a, into, start, length):
    """bfi: `into`, where the lowest `length` bits of `a` take the place of those from `start` on (9.7.1.20)."""
    start = start & 255
    chosen = mask(start, (length & 255).astype(a.dtype))
    return into & ~chosen | shift_left(a, start) & chosen


def permute(a, b, selector):
    """prmt: each byte is one of the eight of `a` and `b`, or copies of its sign (9.7.9.7)."""
    chosen = selector[:, None] >> np.arange(0, 16, 4)
    both = np.stack((a, b), axis=1).view(np.uint8)
    out = np.take_along_axis(both, chosen & 7, axis=1)
    signs = (out >> 7) * 255
    words = np.where(chosen & 8, signs, out).view(np.uint32)
    return words[:, 0]


def funnel(low, high, by):
    """The upper half of two words, shifted left by up to 32 bits (9.7.8.7)."""
    both = high.astype(np.uint64) << 32 | low
    upper = both << by >> 32
    return upper.astype(np.uint32)


def dot_bytes(a, b, total):
    """dp4a: `total`, plus the products of the four bytes of `a` and `b` (9.7.1.23)."""
    x = a.view(f"{a.dtype.kind}1").astype(np.int32)
    y = b.view(f"{b.dtype.kind}1")
    products = (x * y).reshape(-1, 4)
    sums = products.sum(1, dtype=np.int32)
    return sums.view(np.uint32) + total
