"""Kernels without a mistake are exact under eight orders of events, on every Triton: the machine accuses none."""

import re

import pytest
import torch

from kernels.machine.compile import Call
from kernels.machine.core.faults import FaultError
from kernels.machine.core.machine import Machine
from kernels.machine.launcher import address, enqueue
from kernels.machine.trial import difference
from kernels.machine.verdict import check

from .clean import TRIALS, Addresses, matmuls, orders, reductions, signals, warpgroups  # noqa: F401

SEEDS = 8
ALWAYS = {"layer_norm_backward_lock", "split_k_semaphore", "pipelined", "all_gather"}
NAMES = [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow) for name in TRIALS]


def judgement(name: str) -> str:
    """Return what the machine says of a kernel."""
    launched = TRIALS[name]()
    if isinstance(launched, list):
        return next(filter(None, (on_devices(name, seed) for seed in range(SEEDS))), "exact")
    verdict = check(launched.kernel, launched.grid, launched.args, expected=launched.expected, seeds=SEEDS)
    return "exact" if verdict and not re.search("note|perhaps", verdict.text) else str(verdict)


def on_devices(name: str, seed: int) -> str:
    """Return what is wrong when every device launches the kernel."""
    machine, launched = Machine(seed), TRIALS[name]()
    try:
        for device, trial in enumerate(launched):
            args = {name: table(machine, value) for name, value in trial.args.items()}
            enqueue(machine, Call(trial.kernel, trial.grid, args), device=device)
        machine.run()
    except FaultError as error:
        return f"{error.kind}: {error}"
    results = [(trial.args[name], wanted) for trial in launched for name, wanted in trial.expected.items()]
    return "; ".join(text for result in results for _, text in filter(None, [difference(*result, 0)]))


def table(machine: Machine, value):
    if isinstance(value, Addresses):
        return torch.tensor([address(machine, tensor) for tensor in value.tensors])
    return value


@pytest.mark.parametrize("name", NAMES)
def test_no_clean_kernel_is_accused(elsewhere, name):
    assert elsewhere(judgement, name) == "exact"
