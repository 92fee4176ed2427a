"""Ranks over a real wire: two network namespaces of this machine as two nodes, and a wire between them of 1 Gbit/s.

`make test-wire` runs it, as root, on a machine that is idle: no test of it is collected without being named. Each rank
has a core. Over loopback, the negative control, the same ranks hide nothing.
"""

import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest

import roofline
from roofline.analysis import overlap
from roofline.analysis.records import records_of
from roofline.operations import contenders
from roofline.theory.simulator import hidden_fraction

ROOT = Path(__file__).parents[1]
BITS_PER_S = 1e9
NODES = "roofline-wire-0", "roofline-wire-1"
ADDRESSES = "10.77.13.1", "10.77.13.2"
LIMIT_S = 170

PREFETCH = "--ffn-model=2048,4096", "--ffn-tp=1", "--ffn-tokens=512", "-k=weight_prefetch"
SHORT = *PREFETCH[:2], "--ffn-tokens=64", PREFETCH[3]
"""Over loopback its matmul and gather take about equally long, so that the hidden fraction is not of a tiny one."""
LAYER = "--ffn-model=2048,4096", "--ffn-tp=8", "--ffn-tokens=4096"
"""Matmul and gather take about as long on a core of some 70 GFLOP/s."""
BUCKETS = ",".join(f"bucketed_{size}" for size in ("128KiB", "256KiB", "512KiB", "1MiB", "2MiB", "4MiB"))
EXAMPLE = ROOT / "docs" / "examples" / "gradient_all_reduce.py"
GRADIENTS = f"--ffn-operations={EXAMPLE}", "--ffn-tokens=320", "--ffn-max-seconds=8", f"--ffn-contenders={BUCKETS}"
"""The backward pass takes about as long as the all-reduce, with the core's share of TCP."""

lacking = [name for name in ("ip", "tc", "taskset") if not shutil.which(name)]
lacking += ["root"] * (os.geteuid() != 0) + ["two cores"] * (os.cpu_count() < 2)
pytestmark = pytest.mark.skipif(bool(lacking), reason=f"needs {', '.join(lacking)}")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def shape_wire(verb: str, burst: str) -> None:
    for node in NODES:
        shape = f"qdisc {verb} dev wire root tbf rate {BITS_PER_S:.0f} burst {burst} latency 400ms".split()
        subprocess.run(["ip", "netns", "exec", node, "tc", *shape], check=True)


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
        shape_wire("add", "128kb")
        yield
    finally:
        for node in made:
            ip("netns", "delete", node)


def measure(folder: Path, arguments: tuple[str, ...], *, over_wire: bool):
    """Return the folder and the run that two ranks measured, each on a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"OMP_NUM_THREADS": "1"}
    common = ["-m", "pytest", "--benchmark-only", "-p", "no:cacheprovider", f"--ffn-results={folder}", *arguments]
    command = [sys.executable, "-m", "torch.distributed.run"]
    if over_wire:
        environment["GLOO_SOCKET_IFNAME"] = "wire"
        commands = [
            f"ip netns exec {node} taskset -c {cores[rank]}".split()
            + command
            + f"--nnodes=2 --node-rank={rank} --nproc-per-node=1 --master-addr={ADDRESSES[0]}".split()
            + common
            for rank, node in enumerate(NODES)
        ]
    else:
        commands = [[*command, "--nproc-per-node=2", *common]]
    agents = [
        subprocess.Popen(words, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for words in commands
    ]
    until = time.monotonic() + LIMIT_S
    try:
        outputs = [agent.communicate(timeout=max(1.0, until - time.monotonic()))[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    print(*outputs, sep="\n")
    assert [agent.returncode for agent in agents] == [0] * len(agents)
    (run,) = folder.glob("2*")
    return run, roofline.load(run)


@pytest.mark.parametrize("operation", ["weight_prefetch", "all_gather_matmul", "matmul_reduce_scatter", "ffn"])
def test_arms_over_the_wire(operation, wire, tmp_path):
    shape = PREFETCH if operation == "weight_prefetch" else (*LAYER, f"-k={operation}")
    _, run = measure(tmp_path, shape, over_wire=True)
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


def test_the_best_bucket_of_gradients_is_near_the_one_by_overhead_and_bandwidth(wire, tmp_path):
    """8 MiB in 128 layers are sent in buckets by factors of two, and one step off the model's best is let pass.

    A burst comes at once. A large one, saved up while nothing is sent, would hide what a collective costs beside its
    bytes.
    """
    shape_wire("change", "64kb")
    folder, run = measure(tmp_path, GRADIENTS, over_wire=True)
    example, (shape,) = contenders.module_of(EXAMPLE), run.shapes.values()
    rows = example.in_buckets(example.table(shape))
    best_bytes = 2**10 * rows.loc[rows["ms"].idxmin(), "bucket_KiB"]
    assert abs(math.log2(best_bytes / example.best_bucket_bytes(shape))) <= 1
    assert example.overhead_and_bandwidth(shape)[1] == pytest.approx(BITS_PER_S / 8, rel=0.25)
    swift = [f"bucketed_{size}" for size in ("512KiB", "1MiB", "2MiB")]
    assert all(record["ratio_low"] > 1 for record in records_of(run) if record["contender"] in swift)
    example.main(folder)
    assert (folder / f"{shape.id}.png").exists()


def test_loopback_hides_nothing_and_no_report_has_a_time_of_it(tmp_path):
    folder, run = measure(tmp_path, SHORT, over_wire=False)
    assert records_of(run) == []
    assert {missing.reason for missing in run.missing} == {run.void}
    assert not [path.name for path in folder.glob("*.svg")]
    (shape,) = run.shapes.values()
    names = "gemm torch", "link", "overlapped"
    rounds = zip(*(shape.times_s(name).values() for name in names), strict=True)
    assert median(hidden_fraction(*times) for times in rounds) < 0.4
