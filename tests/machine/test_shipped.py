"""Every shipped configuration on the machine, by the command that users have: under two orders of events, exact.

A matmul in bf16 under the one and in fp16 under the other: what synchronises is the same.
"""

import gc
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import command
import pytest
import torch

from kernels.registry import CONTENDERS
from kernels.tiles import table

ROOT = Path(__file__).parents[2]
MATMULS = ("persistent",), ("tiled", "warpgroup", "decode")
WIDE = ("tiled",)  # in fp32, too
WAITING = "flagged", "flagged_spills", "flagged_rows"
LINKS = (*WAITING, "arms", "scatters", "layers", "copier", "gate", "wait", "clock", "stamp")


def exact(names: tuple[str, ...], *arguments: str) -> list[str]:
    """Lines of cases, which are all exact and of all these kernels."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    words = [sys.executable, "-m", "kernels.machine", *names, *arguments]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [re.sub(" +", " ", line) for line in done.stdout.splitlines() if line.startswith("exact")]
    assert re.search(rf"{len(lines)} cases under \d orders of events, 0 bad", done.stdout)
    assert {line.split()[1] for line in lines} == set(names)
    return lines


@pytest.mark.parametrize(
    ("names", "dtype", "seed"),
    [*((names, dtype, seed) for names in MATMULS for seed, dtype in enumerate(("bf16", "fp16"))), (WIDE, "fp32", 0)],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_every_shipped_configuration_is_exact(names, dtype, seed):
    found = exact(names, "--seeds", "1", "--seed", str(seed), "--only", f" {dtype} ")
    for entry in (entry for entry in table("sm90").entries if entry.kernel in names and dtype in entry.dtypes):
        for variant in CONTENDERS[entry.kernel].load().variants(entry.config):
            start = f"exact {entry.kernel} {variant} {dtype}"
            assert any(line.startswith(start) for line in found), start


def test_every_kernel_and_dtype_is_among_these():
    matmuls = {*MATMULS[0], *MATMULS[1]}
    declared = {(entry.kernel, dtype) for entry in table("sm90").entries for dtype in entry.dtypes}
    run = {(name, dtype) for name in matmuls for dtype in ("bf16", "fp16")} | {(name, "fp32") for name in WIDE}
    assert {pair for pair in declared if pair[0] in matmuls} == run
    assert {name for name, _ in declared} == matmuls | {*WAITING, "signalled"}  # which is among the scatters


def test_links_are_exact():
    exact(LINKS)


def test_without_the_tests_the_command_says_where_it_is(monkeypatch):
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    with pytest.raises(SystemExit, match=r"no .*tests/machine/command.py; run it in a checkout that has its tests"):
        runpy.run_path(str(ROOT / "kernels" / "machine" / "__main__.py"), run_name="__main__")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tile", "argument KERNEL: no cases of tile, there are tiled, persistent,"),
        ("--gpu", "argument --gpu: torch finds no GPU here; leave it out"),
        ("--seeds 0", "argument --seeds: 0 is not 1 or more"),
        ("stamp --only no-case-is-called-so", "0 cases"),
    ],
)
def test_bad_input_is_one_clear_line(line, said, monkeypatch, capsys):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    with pytest.raises(SystemExit) as stop:
        sys.exit(command.main(line.split()))
    streams = capsys.readouterr()
    assert stop.value.code
    assert said in streams.out + streams.err
    assert len((streams.out + streams.err).splitlines()) == 1
