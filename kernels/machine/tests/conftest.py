"""What the tests share: a process where Triton compiles, whatever interprets in this one."""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest


@pytest.fixture(scope="session")
def elsewhere():
    """`elsewhere(function, *args)`: what a function of a module gives in another process.

    Each is forked from one that has imported torch and Triton, which takes most of the time.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "kernels.machine.tests.warm"])

    def run(function, *args):
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("TRITON_INTERPRET", raising=False)
            patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
            return pool.submit(function, *args).result(timeout=600)

    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        yield run
