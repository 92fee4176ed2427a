"""Which configurations of a kernel are worth timing."""
