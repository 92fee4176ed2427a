"""Every shipped configuration on the machine, by the command that users have: under two orders of events, exact."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import triton

from kernels.configs import table
from kernels.registry import KERNELS

ROOT = Path(__file__).parents[2]
SEEDS = 1 if triton.__version__.startswith("3.6") else 2
MATMULS = ("persistent",), ("tiled", "warpgroup", "persistent_sums", "decode")
LINKS = ("flagged", "flagged_spills", "arms", "scatters", "layers", "copier", "gate", "wait", "clock", "stamp")


def machine(*arguments: str) -> subprocess.CompletedProcess:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kernels.machine", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)


@pytest.mark.parametrize("names", [*MATMULS, LINKS], ids=lambda names: names[0])
def test_every_shipped_configuration_is_exact(names):
    done = machine(*names, "--seeds", str(SEEDS))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    exact = [re.sub(" +", " ", line) for line in done.stdout.splitlines() if line.startswith("exact")]
    assert f"{len(exact)} cases under {SEEDS} orders of events, 0 bad" in done.stdout
    assert {line.split()[1] for line in exact} == set(names)
    for entry in table("sm90").entries:
        variants = KERNELS[entry.kernel].variants(entry.config) if entry.kernel in names and names != LINKS else ()
        for start in (f"exact {entry.kernel} {variant} {dtype}" for variant in variants for dtype in entry.dtypes):
            assert any(line.startswith(start) for line in exact), start


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tile"], "argument KERNEL: no cases of tile, there are tiled, persistent,"),
        (["--mutants", "decod"], "argument KERNEL: no cases of decod, there are tiled, tiled-odd, persistent,"),
        (["--gpu"], "argument --gpu: torch finds no GPU here; leave it out"),
        (["--seeds", "0"], "argument --seeds: 0 is not 1 or more"),
        (["stamp", "--only", "nothing is called so"], "0 cases"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, said):
    done = machine(*arguments)
    assert done.returncode != 0
    assert said in done.stdout + done.stderr
    assert len((done.stdout + done.stderr).splitlines()) == 1
