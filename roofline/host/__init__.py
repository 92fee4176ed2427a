"""What any process asks of where it runs: the machine, its limits, its errors, and the command line."""
