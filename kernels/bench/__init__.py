"""How the operation `matmul` runs: operands, checked contenders, probes."""
