"""What pytest says of the packages that it finds."""

import pytest

import conftest


@pytest.mark.parametrize(
    ("installed", "header"),
    [("3.7.1", None), ("3.9.4", None), ("3.10.0", "Triton 3.10.0 is newer than any that was tried (3.9)")],
)
def test_a_triton_that_nobody_tried_is_named(monkeypatch, installed, header):
    monkeypatch.setattr(conftest, "version", lambda package: installed)
    assert conftest.pytest_report_header() == header
