"""Links of a GPU without one: what is launched is done at once, or is only compiled. As compiled, links are exact on
the machine: tests/machine/links.py."""

import itertools

import links
import pytest
import torch
from gather_cases import Products, whole_numbers

from collectives import all_gather_matmul, device, ffn, matmul_reduce_scatter, signalled
from collectives.device import PacedCopier, copy_launch, describe
from collectives.transfers import LinkError, Transfer, WarmUp
from kernels.machine.device import Machine


def test_rows_that_are_not_aligned_are_refused():
    wide = torch.zeros(4, 9)
    with pytest.raises(ValueError, match="multiples of 16 bytes"):
        describe(Transfer(1, 0, wide[:, :8], torch.zeros(4, 8)))


@pytest.mark.parametrize("arm", ["chunk_launches", "row_block_launches"])
def test_a_warm_up_takes_an_arm_through_the_matmuls_that_it_has_over_a_gpus_link(arm, launched, operands):
    products, of_links = [], []
    for link in (PacedCopier(1e9), WarmUp()):
        mine = operands(rows=16, chunk_plan=(2, 4), block_plan=(3, 4))
        with Products(products):
            all_gather_matmul.ARMS[arm](mine, link)
        of_links.append(products[:])
        products.clear()
    assert of_links[0] == of_links[1]
    assert len(of_links[0]) == 2


@pytest.mark.parametrize(("arm", "count"), [("chunk_launches", 0), ("serial", 1)])
def test_first_chunk_that_is_missing_is_named_by_the_timeline(arm, count, launched, operands):
    """Not the last that was waited for, of a copier that ends early or never runs."""
    link, mine = PacedCopier(1e9), operands(rows=16)
    move = link.move

    def move_some(route):
        if count:
            link.launch(copy_launch(route.part(0, count), route.computed_ns, 1e9))

    link.move = move_some
    for _ in range(2):  # the flags that a run lacks are lacking in the next one too
        all_gather_matmul.ARMS[arm](mine, link)
        with pytest.raises(LinkError, match=rf"chunk {count + 1} .*rank {count + 1} sends to rank 0, has not arrived"):
            link.timeline()
        link.move = move


def scatter_and_layer() -> tuple[matmul_reduce_scatter.Operands, ffn.Operands]:
    """Return operands of both, whose parts are added by a kernel."""
    x, w, out = whole_numbers(0, 192, 40), whole_numbers(9, 80, 40), torch.empty(64, 80)
    scatter = matmul_reduce_scatter.Operands(x, w, out, 3)
    layer = ffn.Operands(w, whole_numbers(1, 40, 40), whole_numbers(2, 40, 40), torch.empty(20, 40), 4)
    return signalled.added_by_kernel(scatter), signalled.added_by_kernel(layer)


@pytest.mark.parametrize(
    ("arm", "order"),
    [
        ("scatter", ["matmul", "copy", "wait"]),
        ("serial", ["copy", "wait", "matmul", "copy", "wait"]),
        ("all_reduce", ["matmul", "copy", "wait", "copy", "wait"]),
    ],
)
def test_baseline_multiplies_while_nothing_of_the_link_is_on_the_device(arm, order, launched):
    scatter, layer = scatter_and_layer()
    operands, arm = (scatter, matmul_reduce_scatter.ARMS["serial"]) if arm == "scatter" else (layer, ffn.ARMS[arm])
    multiply, link = operands.matmul, PacedCopier(1e9)
    operands.matmul = lambda *tensors: (launched.append("matmul"), multiply(*tensors))
    arm(operands, link)
    steps = (name.removesuffix("_kernel") for name in launched)
    kept = (name for name in steps if name in ("matmul", "copy", "wait"))
    assert [name for name, _ in itertools.groupby(kept)] == order
    timeline = link.timeline()
    for transfer, ready_s, arrival_s in zip(timeline.transfers, timeline.ready_s, timeline.arrivals_s, strict=True):
        assert torch.equal(transfer.source, transfer.target)
        assert arrival_s >= ready_s + transfer.nbytes / 1e9 - 2e-9


def test_part_that_is_never_computed_is_named_by_the_timeline(launched):
    link, (scatter, _) = PacedCopier(1e9), scatter_and_layer()
    link.ready = lambda count: None
    matmul_reduce_scatter.ARMS["block_launches"](scatter, link)
    with pytest.raises(LinkError, match=r"chunk 1 .*which rank 1 sends to rank 0, has not arrived"):
        link.timeline()


def rows_before_their_slice(seed: int) -> tuple[int, int]:
    """Return how often a row was there before the slice before its own was due, and how many times were looked at. What
    is left of a transfer behind its last slice, and one that is less than a slice, have their time too."""
    rows, slice_rows, early, looks = 56, 16, [], set()
    source, target = torch.ones(rows, 16), torch.zeros(rows, 16)
    slice_ns, machine = slice_rows * source[0].nbytes / 1e-3, Machine(seed)

    def watches(host):
        while True:
            yield
            begun_ns, slices = int(link._times[0]), -(-int(target.all(dim=1).sum()) // slice_rows)
            if begun_ns and machine.time_ns not in looks:
                looks.add(machine.time_ns)
                early.append(machine.time_ns < begun_ns + (slices - 1) * slice_ns)

    with links.on(machine), pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "SLICE_BYTES", slice_rows * source[0].nbytes)
        link = links.Wire(1e6, programs=3)
        link.start([Transfer(1, 0, source, target), Transfer(2, 0, source[:4], torch.zeros(4, 16))])
        link.finish()
        machine.host(watches)
        machine.run()
    assert not link.wrong()
    return sum(early), len(looks)


def test_copier_brings_no_row_before_its_slice(printed_elsewhere):
    code = "import json, test_device_links; print(json.dumps(test_device_links.rows_before_their_slice(1)))"
    early, looks = printed_elsewhere(code)
    assert early == 0
    assert looks > 100


def kernels_compiled(calls: int) -> dict[str, list[int]]:
    """Return how many kernels each arm has taken after one call over the paced link, and after all."""
    x, w, out = torch.zeros(16, 64), torch.zeros(16, 64), torch.zeros(16, 16)
    gather = all_gather_matmul.Operands(x.chunk(4, 1), x.clone(), w, out, blocks=2)
    scatter = matmul_reduce_scatter.Operands(x, w, out[:4], 4)
    arms = [(name, arm, gather) for name, arm in all_gather_matmul.ARMS.items()]
    counts = {}
    for name, arm, operands in [*arms, ("scatter", matmul_reduce_scatter.ARMS["block_launches"], scatter)]:
        machine = Machine()
        with links.on(machine):
            link = links.Wire(1e9, programs=3)
            for _ in range(calls):
                arm(operands, link)
                counts.setdefault(name, []).append(len({id(launch.program) for launch in machine.launches}))
    return {name: [of_arm[0], of_arm[-1]] for name, of_arm in counts.items()}


def test_links_load_no_kernel_after_their_first_call_whatever_numbers_come(printed_elsewhere):
    """A module that is loaded while a kernel spins may wait for it. After 16 calls a number is a multiple of 16."""
    code = "import json, test_device_links; print(json.dumps(test_device_links.kernels_compiled(17)))"
    counts = printed_elsewhere(code)
    assert {name for name, (first, last) in counts.items() if first == last >= 3} == counts.keys()
