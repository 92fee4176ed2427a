"""Loads the benchmark plugin, and makes sure that `kernels` is the one of this checkout."""

from pathlib import Path

import pytest

pytest_plugins = ["roofline.plugin"]


def pytest_configure(config):
    import roofline

    root = Path(__file__).parent
    found = Path(roofline.__file__).parent.parent
    if found != root:
        raise pytest.UsageError(
            f"roofline is imported from {found}, not from this checkout {root}; pip uninstall roofline"
        )


def pytest_collection_modifyitems(config, items):
    # PyPI has other packages called `kernels` and `collectives`; from the checkout ours must win.
    import sys

    root = Path(__file__).parent
    for name in ("kernels", "collectives"):
        module = sys.modules.get(name)
        if module and Path(module.__file__).parent.parent != root:
            raise pytest.UsageError(
                f"{name} is imported from {module.__file__}, not from {root}: another package of that name is in the "
                "way; run pytest from the checkout, or pip uninstall it"
            )
