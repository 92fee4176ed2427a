"""Command lines whose errors are one line: what is wrong, and the nearest word that would be right."""

import argparse
import re

from roofline.theory.words import nearest, number

BENCH = "ROOFLINE_BENCH"
"""Environment variable: the words before `bench`, where a run was begun by `roofline bench`."""


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with bad input, with the nearest right word, and exits with code 2."""

    def error(self, message: str):
        words = list(_words(self))
        near = ""
        if "invalid choice" in message or "unrecognized" in message:
            wrong = message.partition("(choose from")[0].rpartition(": ")[2]
            for word in re.findall(r"[\w-]+", wrong):
                if word not in words:
                    near = near or nearest(word, words)
        self.exit(2, f"{self.prog}: {message}; {near}".rstrip("; ") + "\n")


def positive(text: str) -> float:
    """An option's number above 0."""
    value = number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def fraction(text: str) -> float:
    """An option's fraction, given as `3%` or `0.03`."""
    value = number(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share between 0 and 100 %: give it as 3% or 0.03")
    return value


def count(text: str, least: int = 1) -> int:
    """An option's whole number."""
    if not text.strip().isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
    return int(text)


def sizes(text: str) -> tuple[int, int, int]:
    """An option's M,N,K."""
    if len(numbers := text.split(",")) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not M,N,K, as in 4096,6656,16384")
    m, n, k = map(count, numbers)
    return m, n, k


def flops(text: str) -> float:
    """An option's FLOP/s. A number below any chip's lacks its unit."""
    value = positive(text)
    if value < 1e9:
        meant = f"{text}e12 FLOP/s, which is {text} TFLOP/s"
        raise argparse.ArgumentTypeError(f"{text!r} is below 1e+09: did you mean {meant}?")
    return value


def _words(parser):
    """Yield every option and choice of `parser` and of its commands."""
    for action in parser._actions:
        yield from action.option_strings
        for choice in action.choices or ():
            yield choice
            if isinstance(action.choices, dict):
                yield from _words(action.choices[choice])
