"""What pytest-benchmark is handed: readings that differ by the samples, a file by either of its ways of opening one."""

import pytest

from roofline.pytest_plugin.replay import LaterFile, ReplayTimer


def test_readings_differ_by_the_samples():
    timer = ReplayTimer()
    timer.load("fake", [2.0, 3.0])
    assert timer.__name__ == "fake"
    assert [-timer() + timer() for _ in range(2)] == [2.0, 3.0]
    with pytest.raises(StopIteration):
        timer()


def test_file_is_made_when_it_is_opened_either_way(tmp_path):
    later = LaterFile(lambda: tmp_path / "saved.json")
    assert not (tmp_path / "saved.json").exists()
    with later as file:
        file.write(b"one")
    assert (tmp_path / "saved.json").read_bytes() == b"one"
    with open(later, mode="wb") as file:
        file.write(b"two")
    assert (tmp_path / "saved.json").read_bytes() == b"two"
    assert str(later).endswith("saved.json")
