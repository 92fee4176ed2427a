"""What the compiler made of the last wave, shared out along K: the order of sums and counts. In a subprocess: this one
may be interpreting."""

import pytest

COMPILED = """
import json, re, torch
from kernels import persistent
from kernels.tiles import Config
from kernels.inspect.cubin import compile_launch, offline

persistent.programs = lambda device: 132
x, w, out = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((2048, 4096), (6656, 4096), (2048, 6656)))
found = []
for tail in (112, 120):  # of 20 tiles; a multiple of 16, and not
    launch = persistent.prepare(x, w, out, Config(128, 256, 64, 8, 4, subtile=2, flatten=True, tail=tail))
    assert launch.args["sharers"] == tail
    cubin = compile_launch(launch, 90)
    order = re.findall(r"st\\.global\\.v4|bar\\.sync|atom\\.\\S+|ld\\.global\\S*", cubin.ptx)
    asked = re.findall(r"tt\\.store|\\w+\\.barrier|tt\\.atomic_rmw", cubin.ttgir)
    with offline(90):
        kernel = launch.kernel.warmup(grid=launch.grid, **launch.args)
    found.append([kernel.hash, asked, order])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def compiled(printed_elsewhere) -> list:
    return printed_elsewhere(COMPILED)


def test_sums_are_left_before_they_are_counted_and_read_behind_the_count(compiled):
    for *_, asked, order in compiled:
        count = asked.index("tt.atomic_rmw")
        assert asked[count - 1].endswith(".barrier"), "what stands in the PTX may be there by chance"
        count = order.index("atom.global.gpu.acq_rel.add.u32")
        assert order[count - 2 : count + 2] == ["st.global.v4", "bar.sync", order[count], "bar.sync"]
        loads = [i for i, what in enumerate(order) if what.startswith("ld.global")]
        assert loads[0] > count + 1
        assert {order[i] for i in loads} == {"ld.global.cg.v4.b32"}, "L1 may hold what was there before"


def test_sums_of_four_programs_are_under_way_at_once(compiled):
    """The sums of six, 32 of 256 columns at a time, are 48 trips to L2: at half a microsecond, one after another, twice
    what the model of waves allows."""
    for *_, order in compiled:
        loads = "".join("L" if what.startswith("ld.global") else " " for what in order).split()
        assert max(map(len, loads)) >= 4 * 4  # 128 x 32 sums of 4 programs, by 256 threads of 16 bytes


def test_the_number_of_programs_makes_no_other_kernel(compiled):
    (some, *_), (other, *_) = compiled
    assert some == other, "what is launched is not what `kernels.inspect.compiled` looked at"
