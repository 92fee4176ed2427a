"""Questions of any process about where it runs: the machine, its limits, its errors, and the command line."""
