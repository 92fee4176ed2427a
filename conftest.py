"""Loads the benchmark plugin, and makes sure that the packages are those of this checkout."""

import os
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest_plugins = ["roofline.pytest_plugin.hooks"]

ROOT = Path(__file__).parent
NEWEST_TRITON = 3, 9
"""The newest release whose compiled kernels were tried: constraints-newest.txt."""
PACKAGES = ("roofline", "kernels", "collectives")

collect_ignore = ["roofline/measure", "kernels/machine/tests"]
"""The first warns where it is imported; the others run where they are asked for, as by `make test-machine`."""

# How long idle workers spin, and the next contender waits (`clocks.CpuClock`): half a millisecond is still far longer
# than the gap between two calls. Both are read when the library is loaded, which is after this.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
# Hardware queues of a GPU, the most there are: streams that share one wait for one another. Read as CUDA starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
if "WORLD_SIZE" in os.environ:  # of a store that has ended, torch tells in forty lines, and `worker.ranks` in one
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def pytest_configure(config):
    if config.rootpath != ROOT:
        # pytest looks for its root beside every word on the command line that is an existing path.
        pytest.exit(
            f"pytest took {config.rootpath} for its root, not {ROOT}, so its settings were not read: "
            "write options that take a path with =, as in --ffn-results=DIR, and run from the checkout",
            returncode=2,
        )
    for name in PACKAGES:  # PyPI has others called `kernels` and `collectives`
        file = Path(find_spec(name).origin)
        if file.parent.parent != ROOT:
            pytest.exit(
                f"{name} is imported from {file}, not from this checkout {ROOT}: another package of that name is in "
                "the way; run pytest from the checkout, or pip uninstall it",
                returncode=2,
            )


def pytest_report_header():
    try:
        installed = version("triton")
    except PackageNotFoundError:
        return None
    release = tuple(int(part) for part in installed.split(".")[:2])
    newest = ".".join(map(str, NEWEST_TRITON))
    return f"Triton {installed} is newer than any that was tried ({newest})" if release > NEWEST_TRITON else None


def pytest_ignore_collect(collection_path, config):
    """Where benchmarks are timed, only they are imported: the tests need packages that the extra `bench` lacks."""
    others = {folder / name for folder in (ROOT, ROOT / "tests") for name in PACKAGES}
    # pytest does not ask about the folders of `testpaths` themselves, only about what is in them.
    return True if config.option.benchmark_only and others & {collection_path, *collection_path.parents} else None
