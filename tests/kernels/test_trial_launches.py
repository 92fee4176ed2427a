"""What is inspected for a trial is the launch of the card: for its number of SMs, in Triton's cache for the card."""

import os

import pytest
import triton

from kernels.experiments import trial_launches
from kernels.inspect import Job
from kernels.warpgroup import Config
from roofline.operations.matmul import Matmul
from roofline.theory.chips import find


def inspected(folder: str) -> list:
    """Of a launch its programs, whether they share, if the cache had it; problems of it, and of a wrong one."""
    os.environ["TRITON_CACHE_DIR"] = folder
    trial_launches.stand_in(find("H100 SXM"))
    case = Matmul("xxl", "up", 8, 512, "bf16")
    config = Config(256, 128, 64, 8, 4, subtile=4, gang_m=2, gang_n=13, shared_waves=2)
    job = Job("warpgroup", config, "bf16", 90, 232_448, None)
    launch = trial_launches.launch_of(job, case)
    hits = []
    triton.knobs.compilation.listener = lambda *, cache_hit, **about: hits.append(cache_hit)
    findings = [trial_launches.inspect_launch(job, case) for _ in range(2)]
    wrong = trial_launches.inspect_launch(Job("warpgroup", Config(128, 96, 64, 8, 4), "bf16", 90, 1, None), case)
    return [
        launch.grid[0],
        launch.args["SHARED"],
        hits[:1],
        findings[0].problems,
        wrong.problems,
    ]


@pytest.mark.slow
def test_a_launch_is_that_of_all_sms_of_the_chip(tmp_path, elsewhere):
    programs, shared, hits, problems, wrong = elsewhere(inspected, str(tmp_path))
    assert (programs, shared) == (130, True)  # five gangs of 26
    assert hits == [False]
    assert problems == []
    assert "of odd widths warpgroup has 128x208x64 and 128x104x64" in wrong[0]
    assert [*tmp_path.glob("*/warpgroup_kernel.cubin")]
