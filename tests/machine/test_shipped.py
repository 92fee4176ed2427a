"""Every shipped configuration on the machine, by the command that users have: under two orders of events, exact.

A matmul in bf16 under the one and in fp16 under the other: what synchronises is the same.
"""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.registry import KERNELS
from kernels.tiles import table

ROOT = Path(__file__).parents[2]
SEEDS = 2
MATMULS = ("persistent",), ("tiled", "warpgroup", "decode")
WIDE = ("tiled",)  # in fp32, too
WAITING = "flagged", "flagged_spills", "flagged_rows"
LINKS = (*WAITING, "arms", "scatters", "layers", "copier", "gate", "wait", "clock", "stamp")


def machine(*arguments: str) -> subprocess.CompletedProcess:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kernels.machine", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)


def exact(names: tuple[str, ...], seeds: int, *arguments: str) -> list[str]:
    """Lines of cases, which are all exact and of all these kernels."""
    done = machine(*names, "--seeds", str(seeds), *arguments)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = [re.sub(" +", " ", line) for line in done.stdout.splitlines() if line.startswith("exact")]
    assert f"{len(found)} cases under {seeds} orders of events, 0 bad" in done.stdout
    assert {line.split()[1] for line in found} == set(names)
    return found


@pytest.mark.parametrize(
    ("names", "dtype", "seed"),
    [*((names, dtype, seed) for names in MATMULS for seed, dtype in enumerate(("bf16", "fp16"))), (WIDE, "fp32", 0)],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_every_shipped_configuration_is_exact(names, dtype, seed):
    found = exact(names, 1, "--seed", str(seed), "--only", f" {dtype} ")
    for entry in (entry for entry in table("sm90").entries if entry.kernel in names and dtype in entry.dtypes):
        for variant in KERNELS[entry.kernel].variants(entry.config):
            start = f"exact {entry.kernel} {variant} {dtype}"
            assert any(line.startswith(start) for line in found), start


def test_every_dtype_is_among_these():
    matmuls = {*MATMULS[0], *MATMULS[1]}
    declared = {(entry.kernel, dtype) for entry in table("sm90").entries for dtype in entry.dtypes}
    run = {(name, dtype) for name in matmuls for dtype in ("bf16", "fp16")} | {(name, "fp32") for name in WIDE}
    assert {pair for pair in declared if pair[0] in matmuls} == run


def test_links_are_exact():
    exact(LINKS, SEEDS)


BAD = {
    "tile": "argument KERNEL: no cases of tile, there are tiled, persistent,",
    "--gpu": "argument --gpu: torch finds no GPU here; leave it out",
    "--seeds 0": "argument --seeds: 0 is not 1 or more",
    "stamp --only no-case-is-called-so": "0 cases",
}
REFUSALS = """
import contextlib, io, json
import sys; sys.path.insert(0, 'tests/machine')
from command import main
found = {{}}
for line in {!r}:
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        try:
            code = main(line.split())
        except SystemExit as stop:
            code = stop.code
    found[line] = code, said.getvalue()
print(json.dumps(found))
"""


def test_without_the_tests_the_command_says_where_it_is(monkeypatch):
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    with pytest.raises(SystemExit, match=r"no .*tests/machine/command.py; run it in a checkout that has its tests"):
        runpy.run_path(str(ROOT / "kernels" / "machine" / "__main__.py"), run_name="__main__")


@pytest.fixture(scope="module")
def refusals(printed_elsewhere) -> dict[str, tuple[int, str]]:
    """Of one process: each would import for three seconds."""
    return printed_elsewhere(REFUSALS.format(list(BAD)))


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_clear_line(line, refusals):
    code, text = refusals[line]
    assert code != 0
    assert BAD[line] in text
    assert len(text.splitlines()) == 1
