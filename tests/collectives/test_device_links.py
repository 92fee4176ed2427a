"""Links of a GPU without one: what is launched runs in the interpreter, or is only compiled. As compiled, links are
exact on the machine: tests/machine/links.py."""

from dataclasses import replace

import links
import pytest
import torch
import triton.language as tl

from collectives import all_gather_matmul, copier, matmul_reduce_scatter
from collectives.device_links import Route, copy_launch, describe
from collectives.links import LinkError, Transfer, WarmUp
from kernels.machine.device import Machine


def test_rows_that_are_not_aligned_are_refused():
    wide = torch.zeros(4, 9)
    with pytest.raises(ValueError, match="multiples of 16 bytes"):
        describe(Transfer(1, 0, wide[:, :8], torch.zeros(4, 8)))


def test_copier_waits_for_its_time_at_the_end_of_each_slice_and_transfer(interpreted_link, monkeypatch):
    shapes = (13, 24), (40, 1048)
    transfers = [Transfer(chunk, 0, *torch.zeros(2, *shape)) for chunk, shape in enumerate(shapes, 1)]
    route, dues = Route.of(transfers, "cpu", programs=3), []
    launch = copy_launch(route, torch.tensor([500]), 4e9)  # a nanosecond for each word
    launch.args["slice_rows"] = 8
    monkeypatch.setattr(copier, "_until", lambda due: dues.append(int(due.handle.data.item())))
    monkeypatch.setattr(copier, "globaltimer", lambda: tl.full((), 7, dtype=tl.int64))
    launch.run(route.flags.device)
    ends = [[8 * begin for begin in range(1, 1 + rows // 8)] + [rows] * (rows % 8 > 0) for rows in (13, 40)]
    (_, _, rows, words, *_), (*_, words_more, _, _) = route.table.tolist()
    of_first, of_second = {500 + words * end for end in ends[0]}, {words_more * end for end in ends[1]}
    assert set(dues) == of_first | {500 + words * rows + end for end in of_second}
    assert dues.count(max(dues)) >= 3  # no program is ahead of the others
    assert (route.arrivals == 7).all()


@pytest.mark.parametrize("arm", ["chunk_launches", "row_block_launches"])
def test_a_warm_up_takes_an_arm_through_the_matmuls_that_it_has_over_a_gpus_link(
    arm, interpreted_link, operands, monkeypatch
):
    launches, of_links = [], []
    monkeypatch.setattr(all_gather_matmul, "_add_product", lambda operands, *about, first: launches.append(about))
    for link in (interpreted_link(), WarmUp()):
        plans = dict(chunk_plan=(2, 4), block_plan=(3, 4))
        mine = operands(rows=16, **plans, matmul=lambda x, w, out: launches.append(x.shape))
        all_gather_matmul.ARMS[arm](mine, link)
        of_links.append(launches[:])
        launches.clear()
    assert of_links[0] == of_links[1]
    assert len(of_links[0]) == 2


@pytest.mark.parametrize(("arm", "count"), [("chunk_launches", 0), ("serial", 1)])
def test_first_chunk_that_is_missing_is_named_by_the_timeline(arm, count, interpreted_link, operands):
    """Not the last that was waited for, of a copier that ends early or never runs."""
    link, mine = interpreted_link(), operands(rows=16)
    move = link._move

    def move_some(route):
        if count:
            first = replace(route, transfers=route.transfers[:count])
            copy_launch(first, route.computed_ns, 1e9, timed=False).run(route.flags.device)

    link._move = move_some
    for _ in range(2):  # the flags that a run lacks are lacking in the next one too
        all_gather_matmul.ARMS[arm](mine, link)
        with pytest.raises(LinkError, match=rf"chunk {count + 1} .*rank {count + 1} sends to rank 0, has not arrived"):
            link.timeline()
        link._move = move


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
