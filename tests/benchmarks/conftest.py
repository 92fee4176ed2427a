"""Where nothing is timed, no link depends on real time. An operation whose folder was taken out has no test."""

from pathlib import Path

import pytest

from roofline.operations import OPERATIONS

TESTS = [path.name for path in Path(__file__).parent.glob("test_*.py")]
collect_ignore = [name for name in TESTS if name.removeprefix("test_").removesuffix(".py") not in OPERATIONS]


@pytest.fixture(autouse=True)
def untimed_links(request):
    if not request.config.option.benchmark_only:
        request.getfixturevalue("link_clocks")
