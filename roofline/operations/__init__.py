"""What is measured: the cases of each operation, their ids and sweeps. Needs no torch."""
