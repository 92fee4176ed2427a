"""Ranks over a real wire: two network namespaces of this machine as two nodes, and a wire between them of 1 Gbit/s.

`make test-wire` runs it, as root, on a machine that is idle: no test of it is collected without being named. Each rank
has a core.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest

import roofline
from conftest import ROOT
from roofline.analysis import overlap
from roofline.analysis.records import records_of

BITS_PER_S = 1e9
NODES = "roofline-wire-0", "roofline-wire-1"
ADDRESSES = "10.77.13.1", "10.77.13.2"
LIMIT_S = 170

PREFETCH = "--ffn-model=2048,4096", "--ffn-tp=1", "--ffn-tokens=512", "-k=weight_prefetch"
LAYER = "--ffn-model=2048,4096", "--ffn-tp=8", "--ffn-tokens=4096"
"""Matmul and gather take about as long on a core of some 70 GFLOP/s."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for namespaces and a shaped wire")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture(scope="module")
def wire():
    """Make two namespaces, and a wire between them whose two ends are shaped."""
    made = []
    try:
        for node in NODES:
            ip("netns", "add", node)
            made.append(node)
        first, second = (("wire", "netns", node) for node in NODES)
        ip("link", "add", *first, "type", "veth", "peer", "name", *second)
        for node, address in zip(NODES, ADDRESSES, strict=True):
            ip("-n", node, "link", "set", "lo", "up")
            ip("-n", node, "address", "add", f"{address}/24", "dev", "wire")
            ip("-n", node, "link", "set", "wire", "mtu", "9000", "up")
        shape = f"tc qdisc add dev wire root tbf rate {BITS_PER_S:.0f} burst 128kb latency 400ms"
        for node in NODES:
            ip("netns", "exec", node, *shape.split())
        yield
    finally:
        for node in made:
            ip("netns", "delete", node)


def measure(folder: Path, arguments: tuple[str, ...]):
    """Return the run that two ranks measured, each on a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "wire"}
    words = ["-m", "pytest", "--benchmark-only", "-p", "no:cacheprovider", f"--ffn-results={folder}", *arguments]
    agents = []
    for rank, node in enumerate(NODES):
        run = f"ip netns exec {node} taskset -c {cores[rank]} {sys.executable} -m torch.distributed.run --nnodes=2"
        where = f"--node-rank={rank} --nproc-per-node=1 --master-addr={ADDRESSES[0]}"
        output = dict(text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        agents.append(subprocess.Popen([*run.split(), *where.split(), *words], cwd=ROOT, env=environment, **output))
    until = time.monotonic() + LIMIT_S
    try:
        outputs = [agent.communicate(timeout=max(1.0, until - time.monotonic()))[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    print(*outputs, sep="\n")
    assert [agent.returncode for agent in agents] == [0] * len(agents)
    (run,) = folder.glob("2*")
    return roofline.load(run)


@pytest.mark.parametrize("operation", ["weight_prefetch", "all_gather_matmul", "matmul_reduce_scatter", "ffn"])
def test_arms_over_the_wire(operation, wire, tmp_path):
    shape = PREFETCH if operation == "weight_prefetch" else (*LAYER, f"-k={operation}")
    run = measure(tmp_path, shape)
    about = run.metadata["ranks"]
    assert (about["world"], about["nodes"], about["loopback"]) == (2, 2, False)
    assert {about["interfaces"][rank] for rank in range(2)} == {"wire"}
    overlapped = [record for record in records_of(run) if record["contender"] != "serial"]
    assert overlapped
    for record in overlapped:
        assert record["time_s"] == pytest.approx(expected_s(run, record), rel=0.15), record["contender"]
        if operation == "weight_prefetch":
            assert record["hidden_fraction"] > 0.6
            assert 8 * record["link_bytes_per_s"] == pytest.approx(BITS_PER_S, rel=0.15)  # TCP takes of both cores


def expected_s(run, record: dict) -> float:
    """Return the seconds of the arm's schedule with T_gemm as long as beside the link."""
    (shape,) = run.shapes.values()
    contended_s = median(shape.values("gemm beside link", "first_wait_s").values())
    return overlap.plan_of(shape, record["contender"]).ideal_s(contended_s, record["t_comm_s"])
