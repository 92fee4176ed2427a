"""The GPU run from its first shape to its report, without a GPU: with `stand_in`, as an H100, an A100 and a B200."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import ncu_sample
import pytest
import stand_in

from conftest import ROOT
from roofline.store import journal
from roofline.store.run import Run

HOW = (
    *("--ffn-device=cuda", "--ffn-dtype=fp16", "--ffn-model=128x512", "--ffn-tp=1"),
    *("--ffn-ranks=2", "--ffn-layers=up"),
)
REHEARSED = "import os, stand_in\nstand_in.install(os.environ[stand_in.NAMED])\n"
SITE = "import sys\nif sys.orig_argv[1] == '-m':\n    import rehearsed\n"
"""Of a process that the run begins: a worker, or a fresh one that goes on."""

LAUNCHES = {"serial", "chunk_launches", "row_block_launches"}
WAITING = {"chunk_outer", "tile_outer", "row_block"}


@dataclass
class Rehearsed:
    code: int
    text: str
    folder: Path

    @property
    def run(self) -> Run:
        return journal.load(self.folder)

    def measured(self, operation: str) -> set[str]:
        return {name for shape, about in self.run.shapes.items() if about.op == operation for name in about.measured}

    def reasons(self, outcome: str) -> list[str]:
        return [entry["reason"] for entry in self.run.missing if entry["outcome"] == outcome]


@pytest.fixture
def rehearse(tmp_path, zygote, environment):
    """`rehearse(card, *arguments)`: a run of the project's own benchmarks on a stand-in for `card`."""
    (tmp_path / "rehearsed.py").write_text(REHEARSED)
    (tmp_path / "sitecustomize.py").write_text(SITE)
    shutil.copytree(ROOT / "kernels" / "configs", tmp_path / "configs")
    tool = tmp_path / "bin" / "ncu"
    tool.parent.mkdir()
    tool.write_text(ncu_sample.FAKE)
    tool.chmod(0o755)

    def run(card, *arguments, how=HOW, fault="") -> Rehearsed:
        env = environment(FAKE_NCU_LOG=str(tmp_path / "asked"), PATH=f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
        env |= {stand_in.NAMED: card, stand_in.TABLES: str(tmp_path / "configs"), stand_in.FAULT: fault}
        env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{env['PYTHONPATH']}"
        results = tmp_path / "results"
        where = [f"--ffn-results={results}"] if how else []
        code, text = zygote.run(
            ["-p", "rehearsed", "-p", "no:cacheprovider", "--benchmark-only", *how, *where, *arguments],
            cwd=str(ROOT),
            env=env,
            file_bytes=None,
        )
        print(text)
        return Rehearsed(code, text, max(results.iterdir()))

    return run


def test_hopper_gets_the_whole_line_up_however_often_it_is_cut_off(rehearse):
    cut = rehearse("H100", "--ffn-tokens=16,1024", fault="kill decode_kernel")
    assert cut.code == -9
    done = rehearse("H100", f"--ffn-resume={cut.folder}", "--ffn-counters=2", how=(),
                    fault="lose copy_kernel")  # fmt: skip
    assert done.measured("matmul") == {"cublas", "persistent", "decode", "tiled", "warpgroup"}
    own = LAUNCHES | {f"{arm}_persistent" for arm in LAUNCHES}
    assert done.measured("all_gather_matmul") == own | WAITING
    assert done.measured("weight_prefetch") == {"serial", "overlapped", "serial_persistent", "overlapped_persistent"}


@pytest.mark.parametrize("card", ["A100", "B200"])
def test_any_card_gets_a_whole_run_and_what_needs_hopper_says_so(rehearse, card):
    found = rehearse(card, "--ffn-tokens=1024")
    assert found.code == 0
    assert found.measured("matmul") == {"cublas", "tiled"}
    assert found.measured("all_gather_matmul") == LAUNCHES
    assert found.measured("weight_prefetch") == {"serial", "overlapped"}
    assert not found.reasons("failed")
    assert found.reasons("skipped")
    assert all("Hopper" in reason for reason in found.reasons("skipped"))


def test_tuning(rehearse, tmp_path):
    found = rehearse("H100", "--ffn-tokens=16", "--ffn-tune")
    assert found.code == 0
    assert not found.reasons("failed")
