"""The kernels of the GPU links: run in the interpreter, or on a GPU, and compiled for Hopper wherever they are."""

import re
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton.language as tl

from collectives import all_gather_matmul, copier, device_links
from collectives.all_gather_matmul import ARMS
from collectives.device_links import Route, copy_launch, describe
from collectives.links import LinkError, Transfer, WarmUp
from kernels.hopper import KEPT, allotted


def test_copier_waits_for_its_time_at_the_end_of_each_slice_and_transfer(device, monkeypatch):
    if device == "cuda":
        pytest.skip("on a GPU the links' tests see when transfers are here")
    shapes = (13, 24), (40, 1048)
    transfers = [Transfer(chunk, 0, *torch.zeros(2, *shape)) for chunk, shape in enumerate(shapes, 1)]
    route = Route.of(transfers, device, programs=3)
    launch, dues = copy_launch(route, torch.tensor([500]), 4e9), []  # a nanosecond for each word
    launch.args["slice_rows"] = 8
    monkeypatch.setattr(copier, "_until", lambda due: dues.append(int(due.handle.data.item())))
    monkeypatch.setattr(copier, "globaltimer", lambda: tl.full((), 7, dtype=tl.int64))
    launch.run(route.flags.device)
    ends = [[8 * begin for begin in range(1, 1 + rows // 8)] + [rows] * (rows % 8 > 0) for rows in (13, 40)]
    (_, _, rows, words, *_), (*_, more, _, _) = route.table.tolist()
    expected = {500 + words * end for end in ends[0]} | {500 + words * rows + more * end for end in ends[1]}
    assert set(dues) == expected
    assert dues.count(max(dues)) >= 3  # no program is ahead of the others
    assert (route.arrivals == 7).all()


def test_rows_that_are_not_aligned_are_refused():
    wide = torch.zeros(4, 9)
    with pytest.raises(ValueError, match="multiples of 16 bytes"):
        describe(Transfer(1, 0, wide[:, :8], torch.zeros(4, 8)))


@pytest.mark.parametrize("arm", ["chunk_launches", "row_block_launches"])
def test_a_warm_up_takes_an_arm_through_the_matmuls_that_it_has_over_a_gpus_link(
    arm, deferred_link, operands, monkeypatch
):
    launches, seen = [], []
    monkeypatch.setattr(all_gather_matmul, "_add_product", lambda operands, *about, first: launches.append(about))
    for link in (deferred_link(), WarmUp()):
        mine = operands(
            rows=16, chunk_plan=(2, 4), block_plan=(3, 4), matmul=lambda x, w, out: launches.append(x.shape)
        )
        ARMS[arm](mine, link)
        seen.append(launches[:])
        launches.clear()
    assert seen[0] == seen[1]
    assert len(seen[0]) == 2


@pytest.mark.parametrize(("arm", "count"), [("chunk_launches", 0), ("serial", 1)])
def test_first_chunk_that_is_missing_is_told_by_the_timeline(arm, count, deferred_link, operands):
    """Not the last that was waited for, of a copier that ends early or never runs."""
    link, mine = deferred_link(), operands(rows=16)

    def cut(route):
        if count:
            first = replace(route, transfers=route.transfers[:count])
            copy_launch(first, link._times, 1e9, timed=False).run(link._times.device)

    link._move = cut
    ARMS[arm](mine, link)
    missing = rf"chunk {count + 1} .*which rank {count + 1} sends to rank 0, has not arrived"
    with pytest.raises(LinkError, match=missing):
        link.timeline()
    del link._move
    ARMS[arm](mine, link)
    with pytest.raises(LinkError, match=missing):
        link.timeline()  # one run's flags are lacking for good: the sequence does not forgive


COMPILE = """
import json
import torch
from collectives import device_links
from collectives.links import Transfer
from kernels.inspect.cubin import compile_launch

source, target = torch.empty(8192, 2048, dtype=torch.bfloat16), torch.empty(8192, 16384, dtype=torch.bfloat16)
one = device_links.Route.of([Transfer(1, 0, source, target[:, :2048])], "cpu")
cubin = compile_launch(device_links.copy_launch(one, torch.zeros(64, dtype=torch.int64), 290e9), 90)
print(json.dumps([cubin.registers, cubin.spills, cubin.shared_bytes, cubin.ttgir]))
"""


def test_copier_of_one_transfer_is_as_small_and_loads_the_next_part_before_it_stores_the_last(printed_elsewhere):
    """Else nothing is in flight while a part is stored, and while the next is not yet due."""
    registers, *spills_and_shared, ttgir = printed_elsewhere(COMPILE)
    assert spills_and_shared == [False, 0]
    assert allotted(registers, device_links.WARPS) <= KEPT["copier"][0]
    inner = ttgir.rpartition("scf.for")[2].partition("scf.yield")[0]
    part = r"tensor<\d+x\d+x!tt.ptr<i32>"
    load = re.search(rf"(%\w+) = tt.load .*{part}", inner)
    store = re.search(rf"tt.store %\w+, (%\w+), .*{part}", inner)
    assert load.start() < store.start()
    assert load.group(1) != store.group(1)


LAUNCHED = """
import contextlib, ctypes, json, os, types

os.environ["TRITON_LIBCUDA_PATH"] = os.path.dirname("{libcuda}")
os.environ["TRITON_CACHE_DIR"] = os.path.dirname("{libcuda}")
cuda = ctypes.CDLL("{libcuda}")

import torch
import triton
from triton.backends.nvidia.driver import CudaDriver


def stream(priority=0):
    return types.SimpleNamespace(wait_stream=lambda other: None)


nothing = contextlib.nullcontext
for name, answer in dict(
    current_device=lambda: 0, get_device_capability=lambda device: (9, 0), device=nothing, stream=nothing,
    Stream=stream, current_stream=stream,
).items():
    setattr(torch.cuda, name, answer)
torch._C._cuda_getCurrentRawStream = lambda device: 0
triton.runtime.driver.set_active(CudaDriver())

from collectives import all_gather_matmul, device_links, matmul_reduce_scatter

device_links.DeviceLink.device = "cpu"
x, w, out = torch.zeros(16, 64), torch.zeros(16, 64), torch.zeros(16, 16)
gather = all_gather_matmul.Operands(x.chunk(4, 1), x.clone(), w, out, blocks=2)
scatter = matmul_reduce_scatter.Operands(x, w, out[:4], 4)
counts = []
for arm, operands in (
    *((arm, gather) for arm in all_gather_matmul.ARMS.values()),
    *((arm, scatter) for arm in matmul_reduce_scatter.ARMS.values()),
):
    link = device_links.PacedCopier(1e9, programs=3)
    for call in range(17):
        arm(operands, link)
        if call in (0, 16):
            counts.append([ctypes.c_int.in_dll(cuda, name).value for name in ("loaded", "launched", "shaped")])
print(json.dumps(counts))
"""


def test_triton_launches_what_links_run_and_loads_nothing_after_the_first_call(libcuda, printed_elsewhere):
    """Whatever numbers come: a module that is loaded while a kernel spins may wait for it. Each kernel leaves shared
    memory to the matmul."""
    if torch.cuda.is_available() or not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("the stand-in is for a machine without a driver; Triton's launcher takes Python's headers")
    counts = printed_elsewhere(LAUNCHED.replace("{libcuda}", str(libcuda)))
    assert counts[0][0] == counts[0][2] >= 3  # stamp, copy, wait
    before = [0, 0, 0]
    for first, last in zip(counts[0::2], counts[1::2], strict=True):
        assert last[1] - before[1] == 17 * (first[1] - before[1]) > 0
        assert (last[0], last[2]) == (first[0], first[2]) > (0, 0)
        before = last
