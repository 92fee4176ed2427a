"""Without one of the folders of operations the rest works: a checkout is copied, and one taken out."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = "results/reference/nvidia-h100-80gb-hbm3-2026-11-26-6"
COMMANDS = (
    ["-m", "roofline", "csv", RUN],
    ["-m", "pytest", "-q", "--co", "--benchmark-only"],
    ["-m", "pytest", "-q", "--co"],
    ["-m", "pytest", "-q", "tests/test_ci.py", *(f"tests/roofline/test_{name}.py" for name in ("options", "visit"))],
    ["-m", "pytest", "-q", *(f"tests/roofline/test_{name}.py" for name in ("imports", "documents", "account"))],
    ["-m", "pytest", "-q", "tests/test_covering.py", "tests/kernels/test_compiled.py"],
)
"""What is run there: what all tests import, and those that name operations."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "step", "gated"])
def test_a_checkout_without_an_operation_is_whole(name, tmp_path):
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for file in filter(None, listed.split("\0")):
        is_of_it = file.startswith((f"kernels/{name}/", f"tests/{name}/"))
        if not is_of_it:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, tmp_path / file)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "TRITON"))}
    env |= {"PYTHONPATH": str(tmp_path)}
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
    for words in COMMANDS:
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
