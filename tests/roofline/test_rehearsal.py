"""The GPU run from its first shape to its report, without a GPU: with `stand_in`, as an H100, an A100 and a B200."""

import os
import shutil
from pathlib import Path

import pytest
import stand_in

from conftest import ROOT
from roofline.store import journal

TESTS = Path(__file__).parent
HOW = (
    *("--benchmark-only", "--ffn-device", "cuda", "--ffn-dtype", "fp16", "--ffn-model", "128x512", "--ffn-tp", "1"),
    *("--ffn-ranks", "2"),
)


@pytest.fixture
def rehearse(tmp_path, zygote, environment):
    """`rehearse(card, *arguments)`: the output, and the run's folder."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'pytest' in sys.argv[0] or 'roofline.worker' in sys.orig_argv:\n"
        "    import os, stand_in\n    stand_in.install(os.environ[stand_in.NAMED])\n"
    )
    shutil.copytree(ROOT / "kernels" / "configs", tmp_path / "configs")

    def run(card, *arguments, how=HOW):
        path = os.pathsep.join(map(str, [tmp_path, TESTS, ROOT]))
        env = environment() | {"PYTHONPATH": path, stand_in.NAMED: card, "REHEARSAL_TABLES": str(tmp_path / "configs")}
        results = tmp_path / card
        code, text = zygote.run(
            [*how, f"--ffn-results={results}", *map(str, arguments)], cwd=str(ROOT), env=env, file_bytes=None
        )
        return code, text, next(results.iterdir())

    return run


@pytest.mark.parametrize("card", ["H100"])
def test_a_run(rehearse, card):
    code, text, folder = rehearse(card, "--ffn-tokens", "16", "-k", "test_matmul", "--ffn-layers", "up")
    print(text)
    run = journal.load(folder)
    assert code == 0
    assert not [entry for entry in run.missing if entry["outcome"] == "failed"]
