"""What tests of several folders share: a process where Triton compiles, and links that depend on no real time."""

import fcntl
import hashlib
import json
import os
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from elsewhere import in_checkout
from link_clock import LinkClock

LONGEST = "test_rehearsal.py", "test_shipped.py", "test_planted.py", "test_ranks.py", "test_faults.py", "test_page.py"
ON_GPU = {"benchmarks", "test_faults.py"}
"""Folders and files of which `make gpu` runs what is not slow. Other files say themselves what is."""


def pytest_collection_modifyitems(items):
    """The longest files are the first of pytest's processes, which begin with equal parts of all tests: none is left
    to one process when the others are done. The tests of a file stay together, for their fixtures."""
    for item in items:
        if {item.path.parent.name, item.path.name} & ON_GPU and not item.get_closest_marker("slow"):
            item.add_marker("gpu")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    others = [item for item in items if item.path.name not in LONGEST]
    parts = []
    for worker in range(workers):
        files = LONGEST[worker::workers]
        parts += [item for item in items if item.path.name in files]
        parts += others[worker * len(others) // workers : (worker + 1) * len(others) // workers]
    items[:] = parts


@pytest.fixture(scope="session")
def commit_seed() -> int:
    """Of what the default tier picks: another one for each commit, the same wherever that is tested."""
    from roofline.host.checkout import commit_of

    return zlib.crc32(commit_of(Path(__file__).parent).removesuffix("+dirty").encode()) % 10_000


@pytest.fixture(scope="session")
def device() -> str:
    """A GPU where there is one and kernels are compiled, else the CPU."""
    import torch

    from kernels.contract import interpreted

    return "cpu" if interpreted() or not torch.cuda.is_available() else "cuda"


@pytest.fixture
def dtype(device, request):
    """The first or second of those that a kernel can be tested in here: the interpreter has no bf16, Hopper's TMA
    kernels no fp32."""
    import torch

    return (torch.float16, torch.float32 if device == "cpu" else torch.bfloat16)[request.param]


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """`once(name, make)`: the JSON that `make()` returns, made by the first of pytest's processes that asks for it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def run(name: str, make: Callable[[], Any]) -> Any:
        path = folder / hashlib.sha256(name.encode()).hexdigest()
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                path.write_text(json.dumps(make()))
        return json.loads(path.read_text())

    return run


@pytest.fixture(scope="session")
def elsewhere(once):
    """`elsewhere(function, *arguments)`: what a function of a module returns, as JSON has it, in a process where Triton
    compiles; this one may interpret.

    Each is forked from one that has imported torch and Triton, which takes most of the time.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "kernels.machine.tests.warm"])

    def run(function, *arguments):
        name = f"{function.__module__}.{function.__name__}{arguments}"
        return once(name, lambda: call(function, *arguments))

    def call(*function_and_arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("TRITON_INTERPRET", raising=False)
            patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
            patch.chdir(Path(__file__).parents[1])
            return pool.submit(in_checkout, *function_and_arguments).result(timeout=600)

    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        yield run


@pytest.fixture
def machine_of(monkeypatch):
    """`machine_of(**about)`: as if that were all that is known of the machine, with its sizes in bytes."""
    from kernels.bench import roof

    return lambda **about: monkeypatch.setattr(roof, "machine", lambda device: about)


@pytest.fixture
def small_cache(monkeypatch):
    """Operands rotate through a last-level cache of 1 MiB. A virtual machine may name that of its whole host, and eight
    times as much would be filled with normal values for each test."""
    from kernels.bench import roof

    describe = roof.machine
    monkeypatch.setattr(roof, "machine", lambda device: describe(device) | {"cache_bytes": 2**20})


@pytest.fixture
def link_clocks():
    """Each paced link of a CPU gets a `LinkClock`."""
    from collectives.paced import PacedThread

    init, clocks = PacedThread.__init__, []

    def with_clock(link, *args):
        init(link, *args)
        link.clock = LinkClock()
        clocks.append(link.clock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PacedThread, "__init__", with_clock)
        yield
    for clock in clocks:
        LinkClock.let_go(clock)  # or a thread that nobody waits for would look at it for ever
