"""Shipped kernels on the machine, exact: by default one configuration of each in bf16, under one order of events, both
picked by the hash of the commit; with `-m slow` the whole table, by the command that users have."""

import gc
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import cases
import command
import links
import pytest
import torch
import waiting

from kernels.registry import CONTENDERS
from kernels.tiles import table

ROOT = Path(__file__).parents[2]
MATMULS = "persistent", "tiled", "warpgroup", "decode"
WAITING = "flagged", "flagged_spills", "pieces_flags"
ARMS = "arms", "scatters", "layers", "copier"
INSTRUMENTS = "gate", "wait", "clock", "stamp"


def picked(names: list[str], seed: int) -> list[cases.Case]:
    """Return the cases of a short run in bf16 of one configuration, table or arm of each kernel."""
    configurations = {name: {} for name in names}
    for case in [*cases.cases(), *waiting.cases(), *links.cases()]:
        configuration, bf16, _ = case.title.partition("bf16")
        if case.kernel in names and bf16 and not case.thorough:
            configurations[case.kernel].setdefault(configuration, []).append(case)
    return [case for by_title in configurations.values() for case in list(by_title.values())[seed % len(by_title)]]


def failures(names: list[str], seed: int) -> dict[str, str]:
    """Return what is wrong by case, of kernels as compiled: called where Triton compiles."""
    torch.set_num_threads(1)
    outcomes = {str(case): cases.run(case, seed).wrong for case in picked(names, seed)}
    assert len(outcomes) >= len(names)
    return {case: wrong for case, wrong in outcomes.items() if wrong}


@pytest.mark.parametrize("names", [MATMULS, WAITING, ARMS], ids=lambda names: names[0])
def test_one_configuration_of_each_kernel_is_exact(names, commit_seed, printed_elsewhere):
    code = f"import json, test_shipped; print(json.dumps(test_shipped.failures({[*names]}, {commit_seed})))"
    again = f"python -m kernels.machine {' '.join(names)} --seeds 1 --seed {commit_seed}"
    assert printed_elsewhere(code) == {}, f"to see it again: {again}"


def exact(*arguments: str) -> list[str]:
    """Return the cases that the command runs with `arguments`, which are all exact."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command_line = [sys.executable, "-m", "kernels.machine", *arguments]
    done = subprocess.run(command_line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [re.sub(" +", " ", line) for line in done.stdout.splitlines() if line.startswith("exact")]
    assert re.search(rf"{len(lines)} cases under \d orders of events, 0 bad", done.stdout)
    return lines


def test_instruments_are_exact():
    assert {line.split()[1] for line in exact(*INSTRUMENTS, "--seeds", "1")} == {*INSTRUMENTS}


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "seeds"), [("bf16", 8), ("fp16", 1), ("fp32", 1)])
@pytest.mark.parametrize("name", MATMULS)
def test_every_configuration_is_exact(name, dtype, seeds):
    entries = [entry for entry in table("sm90").entries if entry.kernel == name and dtype in entry.dtypes]
    if not entries:
        pytest.skip(f"the table has no {name} in {dtype}")
    lines = exact(name, "--seeds", str(seeds), "--only", f" {dtype} ")
    for entry in entries:
        for variant in CONTENDERS[name].load().variants(entry.config):
            start = f"exact {name} {variant} {dtype}"
            assert any(line.startswith(start) for line in lines), start


@pytest.mark.slow
def test_everything_that_waits_is_exact():
    exact(*WAITING, *ARMS, *INSTRUMENTS, "--seeds", "8")


def test_every_kernel_of_the_table_is_among_these():
    declared = {entry.kernel for entry in table("sm90").entries}
    assert declared == {*MATMULS, *WAITING, "pieces_counters"}  # which is among the scatters


def test_without_the_tests_the_command_says_where_it_is(monkeypatch):
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    with pytest.raises(SystemExit, match=r"no .*tests/machine/command.py; run it in a checkout that has its tests"):
        runpy.run_path(str(ROOT / "kernels" / "machine" / "__main__.py"), run_name="__main__")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("tile", "argument KERNEL: no cases of tile, there are tiled, persistent,"),
        ("--gpu", "argument --gpu: torch finds no GPU here; leave it out"),
        ("--seeds 0", "argument --seeds: 0 is not 1 or more"),
        ("stamp --only no-case-is-called-so", "0 cases"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(
        command, "os", SimpleNamespace(environ={})
    )  # not Triton's: kernels that it loads are interpreted
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    with pytest.raises(SystemExit) as stop:
        sys.exit(command.main(arguments.split()))
    streams = capsys.readouterr()
    assert stop.value.code
    assert message in streams.out + streams.err
    assert len((streams.out + streams.err).splitlines()) == 1
