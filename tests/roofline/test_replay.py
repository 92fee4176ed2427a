"""What pytest-benchmark is handed: readings that differ by the samples, a file by either of its ways of opening one."""

import pytest

from roofline.pytest_plugin.replay import Nowhere, ReplayTimer


def test_readings_differ_by_the_samples():
    timer = ReplayTimer()
    timer.load("fake", [2.0, 3.0])
    assert timer.__name__ == "fake"
    assert [-timer() + timer() for _ in range(2)] == [2.0, 3.0]
    with pytest.raises(StopIteration):
        timer()


def test_file_that_keeps_nothing_is_opened_either_way():
    with Nowhere() as file, open(Nowhere(), mode="wb") as other:
        assert file.write(b"one") == other.write(b"two") == 3
