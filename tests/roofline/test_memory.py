"""What a worker may take of the memory, and that operands of a shape that is done are let go of."""

import dataclasses
import os
import shlex
import subprocess
import sys
import weakref

import pytest
from chosen_options import options
from fake_clock import FakeClock

from conftest import ROOT
from roofline import operations
from roofline.host import container
from roofline.protocol.messages import Done
from roofline.worker import worker
from roofline.worker.prepared import Entrant, PreparedCase
from roofline.worker.runner import Runner

SHAPES = [f"matmul-100x300-up-tp1-m{m}-fp32" for m in (16, 32, 64, 128, 256, 512)]


class Operand:
    """Stands for a tensor."""


@pytest.mark.parametrize(("kind", "passes", "at_once"), [("check", 1, 1), ("measure", 1, 1), ("measure", 2, 6)])
def test_operands_of_finished_shapes_are_let_go(tmp_path, monkeypatch, kind, passes, at_once):
    monkeypatch.setenv("PASSES", str(passes))
    operands, alive = weakref.WeakSet(), []

    class Keeper(Runner):
        def clock(self):
            return FakeClock()

        def prepare(self, case, names, first_call):
            operand = Operand()
            operands.add(operand)
            alive.append(len(operands))
            prepared = PreparedCase(case, "torch")
            prepared.entrants["torch"] = Entrant("torch", lambda: 1e-3 if operand else 0)
            return prepared

    operation = dataclasses.replace(operations.OPERATIONS["matmul"], runner=Keeper)
    monkeypatch.setitem(operations.OPERATIONS, "matmul", operation)
    runners, messages = operations.Runners(options(model="100,300", max_seconds="1")), []
    runners.of(operation)
    cases = {shape: ["torch"] for shape in SHAPES}
    asked = worker.Request(kind, {}, cases, passes=dict.fromkeys(SHAPES, passes))
    worker.run(asked, messages.append, runners)
    assert messages[-1] == Done()
    assert len(alive) == 6
    assert max(alive) == at_once


STRIKES = """
def strike(place, number, later=False):
    if (place, number, later) == ("first-numpy", 128, False):
        DEED
"""


GB = 10**9


V1, V2 = "4:memory:/docker/a\n3:cpu,cpuacct:/docker/a\n2:pids:/\n", "0::/pod/a\n"


CONTAINERS = [  # files of the machine, cores, what a worker may take
    ({}, 8, None),
    ({"proc/self/cgroup": V2, "cgroup/cpu.max": "max 100000", "cgroup/pod/a/memory.max": "max\n"}, 8, None),
    ({"proc/self/cgroup": V2, "cgroup/pod/a/cpu.max": "250000 100000\n"}, 2, None),
    ({"proc/self/cgroup": V2, "cgroup/pod/cpu.max": "50000 100000"}, 1, None),
    ({"proc/self/cgroup": "0::/\n", "cgroup/cpu.max": "300000 100000", "cgroup/memory.max": "2000000000"}, 3, 2 * GB),
    ({"proc/self/cgroup": V1, "cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us": "400000",
      "cgroup/cpu,cpuacct/docker/cpu.cfs_period_us": "100000"}, 4, None),
    ({"proc/self/cgroup": V1, "cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
      "cgroup/memory/docker/a/memory.limit_in_bytes": "9223372036854771712",
      "cgroup/memory/docker/memory.limit_in_bytes": "1000000000"}, 8, GB),
    ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   500000 kB\n"}, 8, 512_000_000),
]  # fmt: skip


@pytest.mark.parametrize(("files", "cores", "worker_bytes"), CONTAINERS)
def test_a_container_has_the_cores_and_the_memory_of_all_its_groups(tmp_path, monkeypatch, files, cores, worker_bytes):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(container, "PROC", tmp_path / "proc")
    monkeypatch.setattr(container, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(container, "affinity", lambda: 8)
    for cached in (container.memory_bytes, container.worker_bytes):
        monkeypatch.setattr(container, cached.__name__, cached.__wrapped__)
    assert container.cores() == cores
    assert container.worker_bytes() == (worker_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def test_limits_of_a_process_and_what_a_share_takes_of_them():
    code = "from roofline.host import container; from roofline.worker import process; process.bind('cpu')\n"
    code += "import resource; print(container.worker_bytes(), resource.getrlimit(resource.RLIMIT_DATA)[0])"
    for limits, expected in (("-v 4000000", "2048000000 2048000000"), ("-d 1000000", "1024000000 1024000000")):
        command = f"ulimit -S {limits}; exec {sys.executable} -c {shlex.quote(code)}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=ROOT)
        assert done.stdout.split("\n")[0] == expected, done.stderr


MEMORY = """
from roofline.host import container

container.worker_bytes = lambda: 500_000
"""


LACKS = [  # what the first call of numpy at m128 does, why it has no number
    ("bytearray(2**60)", "numpy: out of memory: it said no more"),
    ("numpy.empty(2**60, numpy.uint8)", "numpy: out of memory: Unable to allocate 1.00 EiB"),
    ("__import__('torch').empty(2**50, dtype=__import__('torch').uint8)", "out of memory: [enforce fail"),
]


@pytest.mark.parametrize(("deed", "reason"), LACKS)
def test_what_lacks_memory_says_how_much_its_operands_take(three_shapes, deed, reason):
    run = three_shapes("-k", "m128", more=STRIKES.replace("DEED", deed))
    assert [*run.reasons] == ["m128-numpy"]
    assert reason in run.reasons["m128-numpy"][1]
    assert "the operands take 0.00488 GB, a worker may take " in run.text


def test_a_shape_that_does_not_fit_costs_its_own_rows_and_is_known_before_it_begins(three_shapes):
    run = three_shapes(more=MEMORY.replace("500_000", "4_800_000"))
    assert "a worker may take 0.0 GB of memory" in run.text
    assert sorted(run.reasons) == ["m128-numpy", "m128-torch", "m256-numpy", "m256-torch"]
    assert {outcome for outcome, _ in run.reasons.values()} == {"skipped"}
    assert ": choose fewer --ffn-tokens, a larger --ffn-tp or a smaller --ffn-model" in run.reasons["m128-torch"][1]
    assert run.measured == ["m64-torch", "m64-numpy"]
