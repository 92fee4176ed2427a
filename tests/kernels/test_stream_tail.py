"""The last wave of the persistent kernel, shared out along K: right, to the bit the same each time, and nothing left
behind."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import persistent, stream_tail
from kernels.contract import reason
from kernels.tiles import Config

TILE = Config(block_m=64, block_n=64, block_k=32, num_warps=4, num_stages=2, group_m=3, tail=132)
# By name, on the three programs of the interpreter: whole waves + tiles that are left.
SHAPES = {
    "0+1": (64, 64, 200),
    "0+2": (70, 64, 200),
    "1+1": (130, 128, 136),
    "2+2": (250, 128, 72),
    "0+1 of one step": (33, 24, 8),
    "fewer steps than programs": (64, 64, 64),
    "3+0": (190, 184, 64),
}


@pytest.fixture(autouse=True)
def runnable(device):
    probe = torch.zeros((16, 16), dtype=torch.float16, device=device)
    if why := reason(persistent.require, probe, probe):
        pytest.skip(why)


def whole_numbers(m, n, k, device):
    """Operands whose products and sums are exact in fp16."""
    generator = torch.Generator().manual_seed(m + n + k)
    x, w = (torch.randint(-2, 3, (rows, k), generator=generator).half().to(device) for rows in (m, n))
    return x, w, (x.double() @ w.double().T).half()


@pytest.mark.parametrize("tail", [1, 2, 3, 132])
@pytest.mark.parametrize("name", SHAPES)
def test_sums_of_several_programs_are_exact(name, tail, device):
    x, w, expected = whole_numbers(*SHAPES[name], device)
    out = torch.full(expected.shape, torch.nan, dtype=torch.float16, device=device)
    for config in (TILE, replace(TILE, subtile=2, flatten=True, raster="n")):
        persistent.matmul(x, w, out.fill_(torch.nan), replace(config, tail=tail))
        assert torch.equal(out, expected)


def test_nothing_beside_out_is_written(device, operands):
    case = operands(70, 57, 200, torch.float16)
    case.verify(persistent.matmul(case.x, case.w, case.out, TILE))


def test_sums_of_rows_beyond_2_to_31(device, assert_close):
    x, w, _ = whole_numbers(5, 8, 200, device)
    far = 2**29 + 8  # elements from row to row, as in test_matmul.py
    storage = torch.empty(2**31 + 4 * far + 1024, dtype=torch.float16, device=device)  # address space, not memory
    assert_close(persistent.matmul(x, w, storage.as_strided((5, 8), (far, 1), 2**31), TILE), x, w)


@pytest.mark.parametrize("name", ["0+1", "2+2"])
def test_nothing_but_what_was_left_is_read_and_counts_are_set_back(name, device, guarded_workspace):
    made = guarded_workspace(persistent)
    x, w, expected = whole_numbers(*SHAPES[name], device)
    for _ in range(3):
        assert torch.equal(persistent.matmul(x, w, config=TILE), expected)
    assert [sound() for sound in made] == [True] * 3


def test_nobody_adds_sums_up_before_all_are_there(device, monkeypatch):
    """As if one program were still at work: then nobody is the last, and the tile stays unwritten."""

    def one_short(*args):
        found = workspace(*args)
        return found._replace(counters=torch.full_like(found.counters, -1))

    workspace = persistent.workspace
    monkeypatch.setattr(persistent, "workspace", one_short)
    x, w, expected = whole_numbers(*SHAPES["0+1"], device)
    if device == "cuda":  # as many programs as SMs: K has steps for all of them
        x, w = x.repeat(1, 64), w.repeat(1, 64)
    out = torch.full_like(expected, torch.nan)
    assert persistent.matmul(x, w, out, TILE).isnan().all()


@pytest.mark.parametrize("shape", [(64, 64, 72), (70, 64, 72), (64, 64, 8)])
def test_more_programs_than_steps(shape, device, monkeypatch):
    """A program without a step leaves no sums: if it were waited for, nobody would be the last."""
    if device == "cpu":  # a GPU has more programs than these shapes have steps
        monkeypatch.setattr(persistent, "programs", lambda device: 8)
    x, w, expected = whole_numbers(*shape, device)
    out = torch.full_like(expected, torch.nan)
    assert torch.equal(persistent.matmul(x, w, out, TILE), expected)


def test_the_same_bits_each_time(device):
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn((rows, 1000), generator=generator).half().to(device) for rows in (70, 64))
    once, again = (persistent.matmul(x, w, config=TILE) for _ in range(2))
    assert torch.equal(once, again)
    reference = x.double() @ w.double().T
    assert (once.double() - reference).norm() / reference.norm() < 5e-4


@settings(max_examples=200, deadline=None, derandomize=True)
@given(tiles=st.integers(1, 131), tile_steps=st.integers(1, 900), more=st.integers(0, 131))
def test_every_step_has_one_program_and_a_program_at_most_two_tiles(tiles, tile_steps, more):
    sharers, steps = min(132, tiles + more), tiles * tile_steps
    begins = [stream_tail.first_step.fn(sharer, steps, sharers) for sharer in range(sharers + 1)]
    assert (begins[0], begins[-1]) == (0, steps)
    parts = [end - begin for begin, end in itertools.pairwise(begins)]
    assert max(parts) - min(parts) <= 1
    for sharer, (begin, end) in enumerate(itertools.pairwise(begins)):
        if begin < end:
            assert stream_tail.sharer_of.fn(begin, steps, sharers) == sharer
            assert stream_tail.sharer_of.fn(end - 1, steps, sharers) == sharer
            assert (end - 1) // tile_steps - begin // tile_steps <= 1


def test_without_a_last_wave_there_is_no_tail(device):
    x, w, _ = whole_numbers(*SHAPES["3+0"], device)
    if device == "cpu":
        assert "TAIL" not in persistent.prepare(x, w, torch.empty(190, 184).half(), TILE).args


@pytest.mark.parametrize(("k", "shared"), [(7_900_000, True), (8_000_000, False)])
def test_steps_that_32_bits_cannot_number_are_not_shared(k, shared, monkeypatch):
    """131 tiles of 125,000 steps along K among 132 programs. Rows overlap, so that they take no memory."""
    monkeypatch.setattr(persistent, "programs", lambda device: 132)
    x, w = (torch.empty(k + 8 * 8384, dtype=torch.float16).as_strided((rows, k), (8, 1)) for rows in (64, 131 * 64))
    config = Config(64, 64, 64, 4, 2, tail=132)
    launch = persistent.prepare(x, w, torch.empty((64, 131 * 64), dtype=torch.float16), config)
    assert launch.args.get("TAIL", False) == shared
    assert launch.grid == ((132,) if shared else (131,))
