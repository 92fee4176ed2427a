"""Tuning from end to end, on made-up kernels and a fake clock: what wins is saved, what fails costs nothing else."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

from kernels import configs
from kernels.configs.table_writer import as_text
from roofline.report.tuning import Verdict, verdict
from roofline.store import journal

ROOT = Path(__file__).parents[2]
FAKE = (Path(__file__).parent / "tune_project.py").read_text()
TABLES = Path("kernels", "configs")
SHAPES = {m: f"tune_fake-64x128-up-tp1-m{m}-fp32" for m in (64, 128, 256, 512)}
NOW, FAST = "16x16x16_w4_s3_g8", "16x16x16_w4_s4_g8"
ENTRY = {"kernel": "fake", "dtypes": ["fp32"], "m_max": None, "n_max": None, "block_m": 16, "block_n": 16}
ENTRY |= {"block_k": 16, "num_warps": 4, "num_stages": 3, "group_m": 8, "mma": None, "measured": None}
TABLE = {"target": 90, "shared_limit_bytes": 232448, "entries": [ENTRY, ENTRY | {"kernel": "other"}]}
ASKED = ("--ffn-model=64,128", "--ffn-layers=up", "--ffn-tp=1", "--ffn-dtype=fp32")


@dataclass
class Chain:
    """One tuning in three runs, and the rows of the table after each."""

    runs: list
    tables: list[list[dict]]

    @property
    def text(self) -> str:
        return "".join(run.text for run in self.runs)


def project(root: Path) -> Path:
    """A checkout of nothing but the benchmark and its table."""
    (root / "benchmarks").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "benchmarks" / "test_tune.py", root / "benchmarks")
    (root / TABLES).mkdir(parents=True)
    (root / TABLES / "sm90.json").write_text(as_text(TABLE))
    for arguments in (("init",), ("add", "."), ("-c", "user.name=x", "-c", "user.email=x", "commit", "-m", "first")):
        subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True)
    return root


ENV = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}


@pytest.fixture(scope="module")
def chain(run_project, tmp_path_factory):
    """The tuning of the made-up kernel on four shapes: killed while it saves the second, gone on with until its time is
    over, and gone on with to its end."""
    root = project(tmp_path_factory.mktemp("tuning"))
    asked = ("--ffn-tune=0.6", "--ffn-contenders=fake", *ASKED)
    found = Chain([], [])
    for arguments, kills in (((*asked, "--ffn-tokens=64,128,256,512"), "2"), ((), "0"), ((), "0")):
        resumed = [f"--ffn-resume={run.folder}" for run in found.runs[-1:]]
        run = run_project(
            "--benchmark-only", *arguments, *resumed, tests="", conftest=FAKE, env=ENV | {"FSYNC_KILLS": kills},
            root=root,
        )  # fmt: skip
        run.left = journal.load(run.folder).missing
        found.runs.append(run)
        found.tables.append(entries(root))
    return found


@pytest.fixture(scope="module")
def whole(chain):
    return chain.runs[-1]


def entries(root) -> list[dict]:
    return json.loads((root / TABLES / "sm90.json").read_text())["entries"]


def verdicts(outcome) -> dict[int, Verdict]:
    run = journal.load(outcome.folder)
    return {m: verdict(run, shape) for m, shape in SHAPES.items()}


def test_the_planted_fastest_wins_and_equal_ones_leave_the_incumbent(whole):
    found = verdicts(whole)
    assert [found[m].winner for m in SHAPES] == [FAST, "incumbent", "incumbent", FAST]
    assert found[64].ratio.low == pytest.approx(1.1)
    assert found[128].ratio.value == 1
    assert found[256].ratio.low < 1 < found[256].ratio.high


def test_what_wins_is_saved_with_its_conditions_and_so_is_what_stays(whole):
    saved = {row["m_max"]: row for row in entries(whole.root)}
    assert list(saved) == [512, 256, 128, 64, None]
    assert [saved[m]["num_stages"] for m in SHAPES] == [4, 3, 3, 4]
    assert saved[64]["m_min"] == 64
    assert (saved[64]["n"], saved[64]["k"], saved[64]["dtypes"]) == (128, 64, ["fp32"])
    measured = saved[64]["measured"]
    assert measured.pop("ratio") == pytest.approx([1.1] * 3, rel=1e-4)
    assert len(measured.pop("date")) == 10
    assert len(commit := measured.pop("commit")) >= 7
    assert "dirty" not in commit  # nothing but the table differs
    assert measured == {
        "chip": "NVIDIA H200", "sms": 132, "shape": "64x128-up-tp1-m64-fp32", "triton": "3", "torch": "2",
        "over": "16x16x16 warps4 stages3 group8", "tried": 4,
    }  # fmt: skip
    assert saved[128]["measured"]["over"] is None
    assert (whole.folder / "sm90.json").read_text() == (whole.root / TABLES / "sm90.json").read_text()


def test_the_saved_table_overrides_for_exactly_those_shapes(whole, monkeypatch):
    monkeypatch.setattr(configs, "table", cache(lambda arch: configs.read(whole.root / TABLES / f"{arch}.json")))
    for *shape, stages in ((64, 128, 64, 4), (65, 128, 64, 3), (63, 128, 64, 3), (64, 256, 64, 3), (64, 128, 65, 3)):
        assert configs.choose("fake", "sm90", *shape, torch.float32).num_stages == stages


def test_what_raises_is_wrong_spills_or_dies_is_named_and_loses_nothing_else(whole):
    assert whole.code == 1  # of the wrong one, and those that raised
    told = {
        entry["case"].rpartition("-")[2]: (entry["outcome"], entry["reason"])
        for entry in journal.load(whole.folder).missing
        if entry["case"].startswith(SHAPES[512])
    }
    assert told.keys() == {f"16x16x16_w4_s{stages}_g8" for stages in (5, 6, 7, 8)}
    assert told["16x16x16_w4_s5_g8"][0] == "failed"
    assert "no such instruction" in told["16x16x16_w4_s5_g8"][1]
    assert "is above 1e-05" in told["16x16x16_w4_s6_g8"][1]
    assert told["16x16x16_w4_s7_g8"] == ("skipped", "pruned, spills: 8 bytes of stack, 0 allowed")
    assert "the tenth is too much" in told["16x16x16_w4_s8_g8"][1]
    found = verdicts(whole)[512]
    assert (found.tried, found.pruned) == (1, {"shared memory": 1, "spills": 1})
    assert verdicts(whole)[64].tried == 4


def test_the_report_and_the_terminal_say_what_is_taken_from_now_on(chain, whole):
    report = (whole.folder / "report.md").read_text()
    won = "| 64x128-up-tp1-m64-fp32 | fake | 16x16x16 warps4 stages4 group8 | 16x16x16 warps4 stages3 group8 | 1.100 ["
    assert "\n## Tuned\n" in report
    assert won in report
    assert "| 64x128-up-tp1-m128-fp32 | fake | 16x16x16 warps4 stages3 group8 | the same | 1.000 [" in report
    assert "| 4 | shared memory: 1, spills: 1 |" in report
    assert f"| {SHAPES[64]} | {FAST} | 16x16x16 warps4 stages4 group8 |" in report
    assert f"{SHAPES[64]:<48} 16x16x16 warps4 stages3 group8 -> 16x16x16 warps4 stages4 group8" in chain.text
    assert f"{SHAPES[256]:<48} 16x16x16 warps4 stages3 group8 stays" in chain.text
    assert not (whole.folder / "memory_roofline.svg").exists()


def test_a_kill_while_saving_leaves_the_table_whole_and_the_entry_is_written_later(chain):
    assert chain.runs[0].code == -9
    assert [row["m_max"] for row in chain.tables[0]] == [64, None, None]
    assert [row["m_max"] for row in chain.tables[1]] == [256, 128, 64, None, None]
    names = {path.name for path in (chain.runs[0].root / TABLES).iterdir()}
    assert {name for name in names if name.endswith(".json")} == {"sm90.json"}


def test_shapes_beyond_the_time_are_not_run_which_is_no_failure(chain):
    """Two shapes had their rounds before; the third begins in time, the fourth does not."""
    run = chain.runs[1]
    assert run.code == 0
    left = {(entry["outcome"], entry["reason"]) for entry in run.left if entry["case"].startswith(SHAPES[512])}
    assert left == {("not_run", "the 0.6 s of --ffn-tune were over")}
    assert "go on with it: python3 -m pytest --benchmark-only --ffn-resume=" in run.text
    assert not journal.load(run.folder).unfinished  # after the third


def test_at_last_the_kernels_take_turns_each_as_it_was_just_tuned(run_project, tmp_path):
    """`other` is faster than `fake` before, and at M = 128, where all of that one's configurations are alike."""
    root = project(tmp_path / "project")
    asked = ("--ffn-tune=60", *ASKED, "--ffn-tokens=64,128")
    run = run_project("--benchmark-only", *asked, tests="", conftest=FAKE, env=ENV, root=root)
    assert run.code == 0, run.text
    table = configs.read(root / TABLES / "sm90.json")
    assert [(pick.kernel, pick.m, pick.n, pick.k) for pick in table.picks] == [
        ("other", 128, 128, 64), ("fake", 64, 128, 64),
    ]  # fmt: skip
    assert table.picks[0].measured["ratio"] == pytest.approx([1 / 0.95] * 3, rel=1e-4)
    assert table.picks[0].measured["over"] == "fake its tile"
    found = verdict(journal.load(run.folder), "tune_matmul-64x128-up-tp1-m64-fp32")
    assert (found.best, found.stays) == ("other", True)
    assert found.ratio.value == pytest.approx(1 / 1.1 / 0.95)
    report = (run.folder / "report.md").read_text()
    assert "| 64x128-up-tp1-m128-fp32 | matmul | other its tile | fake its tile | 1.053 [" in report


def test_what_would_be_tried_is_listed_without_a_gpu_and_exists_only_there():
    asked = "--ffn-model=xxl --ffn-tokens=2048 --ffn-tp=8 --ffn-tune --ffn-contenders=persistent --ffn-layers=up"
    env = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET" and "XDIST" not in n}
    command = f"-m pytest --benchmark-only --collect-only -q tests/benchmarks {asked}"
    done = subprocess.run(
        [sys.executable, *command.split()], cwd=ROOT, env=env | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    ids = [line for line in done.stdout.splitlines() if "::" in line]
    assert all("test_tune[tune_persistent-xxl-up-tp8-m2048-bf16-" in line for line in ids)
    assert len(ids) == len(set(ids))
    assert 8 <= len(ids) <= 17
    assert "incumbent]" in ids[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--benchmark-only", "--ffn-tune"], "Triton kernels are never timed on a CPU"),
        (["--ffn-tune"], "--ffn-tune measures: it needs --benchmark-only"),
        (["--benchmark-only", "--ffn-tune=tests"], "--ffn-tune 'tests': it must be a number of seconds above 0"),
    ],
)
def test_tuning_that_makes_no_sense_is_one_line_and_exit_code_2(run_project, arguments, said):
    outcome = run_project(*arguments)
    assert outcome.code == 2
    assert said in outcome.text
    assert len(outcome.text.strip().splitlines()) == 1
    assert outcome.folder is None
