"""What `decode` and `warpgroup` list to be tried, and what that needs of shared memory; the others: test_tuning.py."""

from dataclasses import replace

import pytest
import torch

from kernels import decode, warpgroup
from kernels.configs import Config, choose
from kernels.registry import KERNELS
from kernels.tuning import Problem, candidates
from roofline.theory.chips import find
from roofline.theory.waves import GpuSpec

H200 = GpuSpec.of_chip(find("H200"))
SHAPE = (2048, 6656, 16384)


def test_a_kernel_without_tails_tries_its_ring_and_its_orders(tables):
    found = candidates("warpgroup", *SHAPE, "bf16", H200).configs
    assert {(c.block_m, c.block_n) for c in found} == {(256, 128), (128, 256), (128, 128)}
    assert {(c.flatten, c.tail, c.num_warps) for c in found} == {(False, 0, 8)}
    first = found[0]
    assert replace(first, num_stages=3, subtile=2) in found
    assert {c.raster for c in found} == {"m", "n"}


@pytest.mark.parametrize("m", [1, 2, 16, 32, 64])
def test_few_rows_are_tried_in_other_splits_rings_and_warps(tables, m):
    found = candidates("decode", m, 6656, 16384, "bf16", H200).configs  # 52 tiles of 128: K is split by 5
    assert len(found) == KERNELS["decode"].space.most
    assert found[0] == choose("decode", "sm90", m, 6656, 16384, torch.bfloat16, H200)
    rows = max(16, m)
    assert {c.block_m for c in found} == ({1, 16} if m == 1 else {rows})
    assert {c.block_n for c in found} == {1: {8, 128}, 64: {128, 256}}.get(m, {128})
    base = next(c for c in found if c.block_m == rows)
    assert {2, 4} <= {c.split for c in found}  # less to add up, 79 % of the SMs' time
    assert 5 not in {c.split for c in found}  # that is its own
    for other in (replace(base, num_warps=8), replace(base, num_stages=base.num_stages - 1)):
        assert other in found
    shorter = [c for c in found if c.block_k < base.block_k and c.block_n == base.block_n]
    assert shorter
    assert all(c.block_k * c.num_stages == base.block_k * base.num_stages for c in shorter)
    assert all(decode.shared_bytes(c, 2) <= 232_448 for c in found)


def test_a_single_row_has_a_ring_of_its_own_size_in_shorter_steps(tables):
    found = candidates("decode", 1, 53248, 16384, "bf16", H200).configs
    sizes = {c.block_k: decode.shared_bytes(c, 2) for c in found if c.block_m == 1 and c.num_stages in (7, 13)}
    assert sizes == {2048: 221_184, 1024: 221_184}


def test_a_split_of_the_rules_own_is_no_other(tables):
    problem = Problem(16, 6656, 16384, 2, H200)
    base = Config(16, 128, 128, 4, 6, 1)
    assert problem.schedule(replace(base, split=5)) == problem.schedule(base) == base
    assert problem.schedule(replace(base, split=4)) == replace(base, split=4)


def test_more_rows_than_a_kernel_takes_are_refused(tables):
    with pytest.raises(ValueError, match=r"no decode configuration for m=65 in bf16 on sm90.*sm90.json"):
        candidates("decode", 65, 6656, 16384, "bf16", H200)


def test_shared_memory_of_the_other_kernels():
    """As compiled for sm_90a by Triton 3.7.1; `decode` takes up to a tile of fp32 more."""
    for config, compiled in (
        (Config(128, 256, 64, 8, 4, subtile=4), 229_576),
        (Config(256, 128, 64, 8, 4, subtile=4), 229_576),
        (Config(128, 128, 64, 8, 6, subtile=2), 229_608),
        (Config(128, 256, 64, 8, 3, subtile=2), 213_184),
        (Config(128, 128, 64, 8, 5, subtile=1), 196_832),
    ):
        assert compiled - 8 * (config.num_stages % 2) == warpgroup.shared_bytes(config, 2)
    for config, compiled in (
        (Config(16, 128, 128, 4, 6, 1), 229_424),
        (Config(16, 128, 64, 8, 12, 1), 229_472),
        (Config(32, 128, 128, 4, 5, 1), 221_224),
        (Config(64, 128, 128, 4, 4, 1), 213_024),
        (Config(64, 256, 64, 8, 4, 1), 229_408),
        (Config(1, 8, 2048, 8, 7, 1), 221_440),
        (Config(1, 8, 1024, 4, 13, 1), 221_312),
    ):
        assert 0.85 * compiled <= decode.shared_bytes(config, 2) <= compiled
