"""The loops of compiled kernels, and what is told of two that differ. Compiling happens in another process."""

import pytest

from kernels import flagged, persistent, warpgroup
from kernels.inspect import Job
from results import loops

SMALL = {
    "persistent": persistent.Config(64, 64, 64, 4, 3),
    "warpgroup": warpgroup.Config(128, 64, 64, 8, 3),
    "flagged_alone": flagged.Config(128, 64, 64, 8, 3, subtile=4),
    "pieces_counters": flagged.Config(128, 64, 64, 8, 3, subtile=4),
    "copier": "",
}
"""Of the matmuls, a step along K is four instructions of each warpgroup."""


def small_profiles() -> dict:
    jobs = [Job(kernel, config, "bf16", 90, 232_448, None) for kernel, config in SMALL.items()]
    return {job.kernel: loops.profile_of(job) for job in jobs}


@pytest.fixture(scope="module")
def profiles(elsewhere):
    return elsewhere(small_profiles)


@pytest.mark.slow
def test_a_loop_has_what_multiplies_loads_and_waits_in_a_step(profiles):
    found = {kernel: profile["loops"] for kernel, profile in profiles.items()}
    assert {kernel: {*of_kernel} for kernel, of_kernel in found.items()} == {
        "persistent": {"HGMMA"},
        "warpgroup": {"HGMMA", "UTMALDG"},
        "flagged_alone": {"HGMMA", "UTMALDG"},
        "pieces_counters": {"HGMMA", "UTMALDG"},
        "copier": {"LDG"},
    }
    for of_kernel in found.values():
        assert "UTMASTG" not in str(of_kernel), "tiles are stored outside"
    multiply, wait = "HGMMA.64x64x16.F32.BF16", "SYNCS.PHASECHK.TRANS64.TRYWAIT"
    step = found["persistent"]["HGMMA"]
    assert [step[name] for name in (multiply, "UTMALDG.2D", "WARPGROUP.DEPBAR.LE gsb0, 0x1")] == [4, 2, 1]
    assert step[wait] == 2, "it is tried once more behind the kernel's last instruction"
    consumers, producer = found["warpgroup"]["HGMMA"], found["warpgroup"]["UTMALDG"]
    assert [consumers[name] for name in (multiply, wait)] == [2 * 4, 2 * 2]
    assert [producer[name] for name in ("UTMALDG.2D", wait)] == [2, 2]
    assert found["copier"]["LDG"]["LDG.E.128"] == found["copier"]["LDG"]["STG.E.128"] == 4


@pytest.mark.slow
def test_consumers_pay_nothing_for_what_the_producer_waits_for(profiles):
    loop, plain = (profiles[name]["loops"]["HGMMA"] for name in ("flagged_alone", "warpgroup"))
    assert sum(loop.values()) <= sum(plain.values()) + 4, "of both: a tile that is cut begins at any step"
    named = {name for name in plain if loops.NAMED.match(name)}
    assert {name: loop[name] for name in named} == {name: plain[name] for name in named}


@pytest.mark.slow
def test_a_tile_that_is_told_of_is_waited_for_once(profiles):
    """Its parts are only read before the next ones take their room."""
    assert profiles["pieces_counters"]["store_waits"]["whole"] == 1
    assert profiles["copier"]["store_waits"] == {"read": 0, "whole": 0}
