"""FLOP/s against the roof and against the baseline."""
