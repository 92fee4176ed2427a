"""Kernels without a mistake are exact under eight orders of events, on every Triton: the machine accuses none. Without
what orders their accesses it accuses them."""

import re
import shutil
from pathlib import Path

import clean
import pytest
import torch
import triton
from clean import TRIALS, Addresses, attention, matmuls, orders, reductions, signals, warpgroups  # noqa: F401

from kernels.machine.check import check, difference
from kernels.machine.compile import Call
from kernels.machine.device import Machine
from kernels.machine.order import FaultError
from kernels.machine.run import address, enqueue

SEEDS = 8
ALWAYS = {"softmax", "layer_norm_backward_lock", "split_k_semaphore", "warp_specialised", "all_gather"}
WITHOUT_TMA = (
    "attention_bf16_causal",
    "attention_backward_fp16",
    "cross_entropy",
    "stream_k",
    "int8_matmul",
    "fp8_matmul",
)
NAMES = [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow) for name in TRIALS]


def triton_version() -> tuple[int, ...]:
    return tuple(map(int, triton.__version__.split(".")[:2]))


def judgement(name: str, arch: str = "sm_90a") -> str:
    """Return what the machine says of a kernel."""
    if triton_version() < TRIALS[name].since:
        return f"Triton {triton.__version__} cannot say it"
    launched = TRIALS[name].make()
    if isinstance(launched, list):
        return next(filter(None, (on_devices(name, seed) for seed in range(SEEDS))), "exact")
    verdict = check(
        launched.kernel,
        launched.grid,
        launched.args,
        expected=launched.expected,
        tolerance=launched.tolerance,
        seeds=SEEDS,
        arch=arch,
    )
    return "exact" if verdict and "note" not in verdict.text else str(verdict)


def on_devices(name: str, seed: int) -> str:
    """Return what is wrong when every device launches the kernel."""
    machine, launched = Machine(seed), TRIALS[name].make()
    try:
        for device, trial in enumerate(launched):
            args = {name: table(machine, value) for name, value in trial.args.items()}
            enqueue(machine, Call(trial.kernel, trial.grid, args), device=device)
        machine.run()
    except FaultError as error:
        return f"{error.kind}: {error}"
    results = [(trial.args[name], wanted) for trial in launched for name, wanted in trial.expected.items()]
    return "; ".join(text for result in results for _, text in filter(None, [difference(*result, None)]))


def table(machine: Machine, value):
    if isinstance(value, Addresses):
        return torch.tensor([address(machine, tensor) for tensor in value.tensors])
    return value


@pytest.mark.parametrize("name", NAMES)
def test_no_clean_kernel_is_accused(printed_elsewhere, name):
    text = printed_elsewhere(f"import json, test_clean as t; print(json.dumps(t.judgement({name!r})))")
    if text.startswith("Triton"):
        pytest.skip(text)
    assert text == "exact"


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT_TMA)
def test_none_is_accused_where_mma_multiplies(printed_elsewhere, name):
    """On Ampere; on Ada where that has no fp8."""
    arch = "sm_89" if "fp8" in name else "sm_80"
    code = f"import json, test_clean as t; print(json.dumps(t.judgement({name!r}, {arch!r})))"
    assert printed_elsewhere(code) == "exact"


ORDERING = {
    **dict.fromkeys(("barrier", "handover"), (r"tl\.debug_barrier\(\)", "pass")),
    "cluster": (r"gl\.barrier\(cluster=True\)", "pass"),
    "full": (r"mbarrier\.wait\(full.*", "pass"),
    "empty": (r"mbarrier\.wait\(empty.*", "pass"),
    "stored": (r"tma\.store_wait\(0\)", "pass"),
    "scope": (', scope="sys"', ""),
    **{word: (f'sem="{word}"', 'sem="relaxed"') for word in ("acquire", "release", "acq_rel")},
}
"""What orders accesses in a kernel's source, and what is there without it."""
LOCK = "handover acquire release"
NEEDS = {
    "cross_entropy": "barrier",
    "layer_norm_backward_last": "acq_rel",
    **dict.fromkeys(("layer_norm_backward_lock", "ticket_lock", "split_k_semaphore", "stream_k"), LOCK),
    "look_back_scan": "acquire release",
    **dict.fromkeys(("all_gather", "all_reduce", "all_gather_matmul"), f"{LOCK} scope"),
    "pipelined": "full stored",
    "warp_specialised": "full empty stored",
    "multicast": "full cluster stored",
    "multicast_ring": "full empty stored",
}
"""All of it, but for what compilers put there themselves: since Triton 3.9 a release has its barrier, the handover."""


@pytest.mark.slow
@pytest.mark.parametrize("need", [f"{name} {word}" for name, words in NEEDS.items() for word in words.split()])
def test_what_orders_accesses_is_needed(printed_elsewhere, tmp_path, need):
    name, word = need.split()
    if word == "handover" and triton_version() >= (3, 9):
        pytest.skip("the compiler puts a barrier before a release")
    family = Path(TRIALS[name].make.__code__.co_filename).name
    folder = shutil.copytree(Path(clean.__file__).parent, tmp_path / "clean")
    text, count = re.subn(*ORDERING[word], (folder / family).read_text())
    assert count
    (folder / family).write_text(text)
    verdict = printed_elsewhere(
        f"import json, sys; sys.path.insert(0, {str(tmp_path)!r}); import test_clean as t; "
        f"print(json.dumps(t.judgement({name!r})))"
    )
    if verdict.startswith("Triton"):
        pytest.skip(verdict)
    assert verdict.startswith(("race", "uninitialised", "misuse", "hang", "wrong"))
