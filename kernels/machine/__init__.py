"""Hopper without a GPU: the PTX that Triton emits for our kernels, executed by NumPy.

`python -m kernels.machine` runs every shipped configuration; docs/machine.md says what a pass proves. `run` takes a
launch to the machine, `static` tells what no run shows; what is run stands in tests/machine. The machine: `ptx` reads,
`program` makes ready, `device` schedules; instructions stand in `alu`, `access`, `lanes`, `control`, `sync`, `copies`,
`matrices` and `tensor_core`, what they work on in `memory` and `order`.
"""
