"""Where nothing is timed, no link depends on real time."""

import pytest


@pytest.fixture(autouse=True)
def untimed_links(request):
    if not request.config.option.benchmark_only:
        request.getfixturevalue("link_clocks")
