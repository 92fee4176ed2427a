"""A package, for `python -m tests.hopper`: else another `tests`, which some wheel brought, would hide it."""
