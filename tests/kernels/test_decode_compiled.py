"""What the compiler made of the matmul for few rows, K split: rings, and the order of sums and counts. In a
subprocess: this one may be interpreting."""

import math

import pytest

COMPILED = """
import json, re, torch
from kernels import decode
from kernels.tiles import table
from kernels.inspect.cubin import compile_launch

found = []
for entry in (entry for entry in table("sm90").entries if entry.kernel == "decode"):
    cubin = compile_launch(decode.example(entry.config, torch.bfloat16), 90)
    allocated = re.findall(r"local_alloc : \\(\\) -> !ttg.memdesc<([0-9x]+)xbf16", cubin.ttgir)
    found.append({
        "ring": [list(map(int, a.split("x"))) for a in allocated],
        "order": re.findall(r"st\\.global\\.v4|bar\\.sync|atom\\.\\S+|ld\\.global\\.cg", cubin.ptx),
        "asked": re.findall(r"tt\\.store|\\w+\\.barrier|tt\\.atomic_rmw", cubin.ttgir),
        "pendings": re.findall(r"warp_group_dot_wait.*pendings = (\\d)", cubin.ttgir),
    })
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def compiled(printed_elsewhere) -> list[dict]:
    return printed_elsewhere(COMPILED)


def test_the_ring_keeps_100_to_200_kilobytes_in_flight(compiled):
    for found in compiled:
        stages, in_flight = found["ring"][0][0], sum(2 * math.prod(shape) for shape in found["ring"])
        in_flight -= in_flight // stages  # one is being multiplied
        assert len(found["ring"]) == 2, "w and x have a ring each"
        assert 100_000 <= in_flight <= 200_000, found
        assert "1" in found["pendings"], "a step waits for its own wgmma before it loads the next"


def test_sums_are_stored_before_they_are_counted_and_read_behind_the_count(compiled):
    for found in compiled:
        order, count = found["order"], found["order"].index("atom.global.gpu.acq_rel.add.u32")
        barrier = found["asked"][found["asked"].index("tt.atomic_rmw") - 1]
        assert barrier.endswith(".barrier"), "what stands in the PTX may be there by chance"
        stored = max(i for i, what in enumerate(order[:count]) if what == "st.global.v4")
        assert "bar.sync" in order[count - 1 : count]
        assert "ld.global.cg" not in order[:count]
        assert order.index("ld.global.cg", count) > order.index("bar.sync", count), order[stored:]
