"""What runs beside a matmul takes no more of an SM than is kept for it."""

TAKEN = """
import json
from beside import launches
from kernels.hopper import CTA_BYTES, KEPT, allotted
from kernels.inspect.cubin import compile_launch

taken = {}
for name, launch in launches().items():
    cubin, kept = compile_launch(launch, 90), KEPT["copier" if "copier" in name else "wait"]
    sizes = allotted(cubin.registers, launch.args["num_warps"]), cubin.shared_bytes + CTA_BYTES
    taken[name] = cubin.spills, sizes, kept
print(json.dumps(taken))
"""


def test_what_runs_beside_a_matmul_takes_no_more_of_an_sm_than_is_kept_for_it(printed_elsewhere):
    taken = printed_elsewhere(TAKEN)
    assert list(taken) == ["copier", "counting copier", "wait", "raise", "stamp", "gate", "clock"]
    for name, (spills, sizes, kept) in taken.items():
        assert not spills, name
        assert all(size <= limit for size, limit in zip(sizes, kept, strict=True)), (name, sizes, kept)
