"""How super-tiles and steps along K are dealt to gangs, by hand."""

import pytest

from kernels.stream_k import deal


@pytest.mark.parametrize(
    ("supers", "steps", "gangs", "shared_waves", "dealt"),
    [  # gangs, whole super-tiles of each, steps of each in the run, one more for so many, is there a run
        (32, 4, 12, 0, (12, 2, 0, 8, False)),
        (32, 4, 12, 1, (12, 2, 2, 8, True)),  # 2 waves, and 8 of 4 steps are left
        (32, 4, 12, 2, (12, 1, 6, 8, True)),  # 20 of 4 steps
        (24, 4, 12, 2, (12, 2, 0, 0, False)),  # two waves, and nothing is left
        (2, 1, 12, 2, (2, 0, 0, 2, False)),  # two steps in all
        (102, 4, 132, 2, (132, 0, 3, 12, True)),
        (397, 4, 132, 2, (132, 2, 4, 4, True)),  # 133 in the last two waves
    ],
)
def test_super_tiles_are_dealt(supers, steps, gangs, shared_waves, dealt):
    assert tuple(deal(supers, steps, gangs, shared_waves).values()) == dealt
