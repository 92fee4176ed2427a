"""The best X and Y, against the closed forms of the source and against every other split."""

from dataclasses import replace

import pytest
from account_settings import EXERCISE, H100, D, F, ask, h100, made_up, v5p
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.account import splits
from roofline.account.communication_bound import bound
from roofline.theory.chips import Chip, find
from roofline.theory.models import Model

ALPHA = 4.6e14 / 1.8e11

quick = settings(deadline=None, derandomize=True, max_examples=25)


def degrees(split):
    return split.fsdp, split.tp


def tokens(split):
    return bound(split).tokens


def test_best_whole_splits_of_64_v5p():
    best = splits.best_whole(v5p())
    assert (degrees(best), round(tokens(best))) == ((4, 16), 5111)
    shared = splits.best_whole(v5p(fabrics_overlap=False))
    # Y = 8: 4 D F / (8 W 2) / (4 D F / 64 / C - 4 D / 8 / W)
    assert (degrees(shared), tokens(shared)) == ((8, 8), pytest.approx(64 / 16 * ALPHA / (1 - 8 * ALPHA / F)))


def test_splits_at_the_edges():
    alone = v5p(degrees={})
    assert splits.best_whole(alone) == alone
    assert tokens(splits.best_real(alone)) == 0
    # 8 chips can all go to tensor parallelism, and then nothing is gathered.
    few = v5p(degrees={"fsdp": 8})
    for best in (splits.best_whole(few), splits.best_real(few)):
        assert (degrees(best), tokens(best)) == ((1, 8), 0)
    # On a ring FSDP and tensor parallelism cannot be used together.
    assert [split.tp for split in splits.whole(EXERCISE)] == [1, 8]
    assert degrees(splits.best_real(ask("exercise", {"fsdp": 8}, flops=1e15))) == (8, 1)


def test_best_split_of_1024_h100():
    best = splits.best_whole(h100({"fsdp": 1024}))
    assert degrees(best) == (64, 16)
    # X of 64, each group in 64 different pairs of nodes: 63/64 over the port, beside 1/2 / 8 of the activations.
    network = 63 / 64 * 4 * D * F / 16 / 50e9
    per_token = 4 * D * F / 1024 / H100 - 2 * (1 / 2 / 8) * 2 * D / 64 / 50e9
    assert tokens(best) == pytest.approx(network / per_token)
    # The real bound has two valleys, inside a node and between 8 and 16; the second one is the deeper.
    real = splits.best_real(h100({"fsdp": 1024}))
    assert tokens(real) < 0.995 * tokens(best)
    assert 14 < degrees(real)[1] < 16
    # Over a slow network tp beyond a node takes it from the weights' gathers: the least is at the kink.
    slow = ask(replace(find("H100 SXM"), port_bytes_per_s=5e9), {"fsdp": 1024})
    assert tokens(splits.best_real(slow)) <= tokens(splits.best_whole(slow)) * (1 + 1e-9)


def test_whole_splits_are_all_divisors_that_pack():
    odd = replace(v5p(degrees={"fsdp": 6, "tp": 2}), model=Model("odd", 64, 18, 4))
    assert [split.tp for split in splits.whole(odd)] == [1, 2, 3, 6]
    assert all(split.devices == 12 for split in splits.whole(odd))
    assert [split.tp for split in splits.whole(h100({"fsdp": 24 * 13}))] == [1, 2, 4, 8, 104]


@quick
@given(made_up(), st.booleans())
def test_the_best_splits_are_not_worse_than_any_other(question, fabrics_overlap):
    question = replace(question, fabrics_overlap=fabrics_overlap)
    whole, real = splits.best_whole(question), splits.best_real(question)
    assert question in splits.whole(question)
    assert tokens(whole) == min(map(tokens, splits.whole(question)))
    assert tokens(real) <= tokens(whole) * (1 + 1e-6)
    x, y = degrees(real)
    assert x * y == pytest.approx(question.devices)
    assert min(x, y) >= 1 - 1e-9


@quick
@given(st.integers(1, 3), st.floats(100, 10_000), st.integers(6, 14), st.booleans())
def test_closed_form_of_the_real_bound(m_x, alpha, power, added):
    """Alpha^2 / (M_X F), or four times that, where Y comes out above 4: at Y = 1 FSDP has the other axis, too,
    and at X = 1 tensor parallelism all."""
    f, chips = 2**17, 2**power
    most = f / alpha  # as far as the activations keep up
    y = most / 2 if added else most
    torus = Chip("any", {"bf16": alpha * 1e11}, "", links=m_x + 1, link_bandwidth_bytes_per_s=1e11, torus_axes=m_x + 1)
    question = ask(torus, {"fsdp": chips}, model=Model("any", 1000, f, 3), fabrics_overlap=not added)
    best = splits.best_real(question)
    if y > 4.01 and most * (m_x + 1) < chips / 1.01:
        assert tokens(best) / chips == pytest.approx((4 if added else 1) * alpha**2 / (m_x * f), rel=1e-5)
        assert degrees(best)[1] == pytest.approx(y, rel=1e-2)
    elif most > chips:
        assert degrees(best) == (1, chips)
