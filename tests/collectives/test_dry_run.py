"""What a dry run compiles ahead is what a launch looks up: for Hopper, without a GPU, in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from kernels.registry import CONTENDERS

LINKS = {"copy_kernel", "wait_kernel", "raise_kernel", "stamp_kernel"}
INSTRUMENTS = {"gate_kernel", "clock_kernel"}
MATMULS = {
    f"{name}_kernel"
    for name, ours in CONTENDERS.items()
    if ours.kind == "triton" and ours.default and (not ours.dtypes or "bf16" in ours.dtypes)
}
ARMS = {"flagged_kernel", "flagged_spills_kernel", "pieces_kernel", "add_kernel"}
OTHERS = {"forward_kernel", "delta_kernel", "dkdv_kernel", "dq_kernel", "gated_kernel"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """The compile cache of the dry runs."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def printed(cache) -> list:
    """What the processes of `dry_runs` print, one after another: a first and a second dry run, one in which a kernel
    raises, and launches on tensors that have memory."""
    env = os.environ | {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    env.pop("TRITON_INTERPRET", None)
    command = [sys.executable, str(Path(__file__).with_name("dry_runs.py"))]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert not done.returncode, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_first_dry_run_compiles_every_kernel_and_a_second_one_none(printed, cache):
    (launched, compiled, failures), (launched_again, compiled_again, _), *_ = printed
    assert failures == []
    assert launched.keys() == compiled.keys() == LINKS | INSTRUMENTS | MATMULS | ARMS | OTHERS
    assert compiled["wait_kernel"] == 2  # its times align, or do not
    assert sum(compiled.values()) == len(list(cache.iterdir()))
    assert launched_again == launched
    assert compiled_again == {}


@pytest.mark.slow
def test_a_contender_that_raises_is_told(printed):
    _, _, failures, _ = printed
    assert failures
    assert all("m16-bf16: decode: RuntimeError: no such kernel" in failure for failure in failures)


@pytest.mark.slow
def test_a_launch_on_tensors_with_memory_finds_its_entry(printed):
    *_, (found, compiled) = printed
    assert found.pop("persistent_kernel") > 1
    assert found == {"gate_kernel": 1, "clock_kernel": 1, "stamp_kernel": 1, "wait_kernel": 2}
    assert compiled == {}
