"""A package, for `python -m tests.hopper`: without this file, another `tests` that some wheel installed would hide it."""
