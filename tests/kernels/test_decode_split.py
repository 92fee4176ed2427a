"""How few rows are dealt to the SMs: every default shape as figured by hand."""

import pytest
import torch

from kernels import decode, tiles
from kernels.decode_split import Deal, choose
from roofline.operations.matmul import LAYERS, Matmul
from roofline.options import DEFAULTS

# By hand, for tiles of 128 rows, steps of 128 and 132 SMs: tiles, steps, split, longest run in steps.
# up, tp 1: 53248 / 128 = 416 tiles, 128 steps. 3.15 waves; in 4 parts of 32 steps 1664 = 12.6 waves: 13 x 32 of 403.4.
# up, tp 8: 52 tiles. In 5 parts of 25 or 26 steps 260 = 1.97 waves: 26 + 26 of 50.4.
# down: 16384 / 128 = 128 tiles, one wave of whole ones: 128 of 132; 53248 / 128 = 416 and 6656 / 128 = 52 steps.
BY_HAND = {
    ("up", 1): (416, 128, 4, 416),
    ("up", 8): (52, 128, 5, 52),
    ("down", 1): (128, 416, 1, 416),
    ("down", 8): (128, 52, 1, 52),
}


def few_rows() -> list[Matmul]:
    model, tokens, degrees, dtypes = DEFAULTS["cuda"].values()
    rows = [m for m in tokens if m <= decode.MOST_TOKENS]
    assert rows == [1, 16, 64]
    return [Matmul(model, layer, tp, m, dtype) for dtype in dtypes for layer in LAYERS for tp in degrees for m in rows]


@pytest.mark.parametrize("case", few_rows(), ids=lambda case: case.id)
def test_every_default_shape_is_dealt_as_figured_by_hand(case):
    config = tiles.choose("decode", "sm90", case.m, case.n, case.k, torch.bfloat16)
    deal_tiles, steps, split, longest = BY_HAND[case.layer, case.tp]
    deal = choose(case.n, case.k, config.block_n, config.block_k, 132)
    assert (deal.tiles, deal.steps, deal.split, max(deal.runs)) == (deal_tiles, steps, split, longest)
    assert (
        deal.efficiency == deal_tiles * steps / (132 * longest) == pytest.approx(0.9697, abs=1e-4)
    )  # 32 / 33, all of them
    assert deal.programs == (128 if split == 1 and deal_tiles == 128 else 132)


@pytest.mark.parametrize("sms", [1, 78, 114, 132])
@pytest.mark.parametrize(
    ("n", "k"), [(53248, 16384), (6656, 16384), (16384, 6656), (300, 1000), (1, 1), (128, 100_000)]
)
def test_a_deal_reads_everything_once_and_runs_are_even(sms, n, k):
    deal = choose(n, k, 128, 128, sms)
    assert sum(deal.runs) == deal.tiles * deal.steps
    assert len(deal.runs) == deal.programs <= sms
    part = -(-deal.steps // deal.split)
    assert max(deal.runs) - min(deal.runs) <= part + deal.parts // deal.programs
    assert deal.split == 1 or deal.steps // deal.split >= 4


def test_bad_deals_are_refused():
    for sizes in ((0, 8, 1, 4), (2, 0, 1, 4), (2, 8, 1, 0), (2, 8, 9, 4), (2, 8, 0, 4)):
        with pytest.raises(ValueError, match=r"it must be 1 or more|choose 1 to 8|choose 1 to 0"):
            Deal(*sizes)
