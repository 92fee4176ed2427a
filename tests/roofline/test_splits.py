"""The best X and Y, against the closed forms of the source and against every other split."""

import math
from dataclasses import replace

import pytest
from account_settings import EXERCISE, H100, D, F, h100, made_up, tokens_each, v5p
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.account import splits
from roofline.account.communication_bound import WIRES
from roofline.account.meshes import Nodes, Sharding, Torus
from roofline.theory.models import Model

ALPHA = 4.6e14 / 1.8e11

quick = settings(deadline=None, derandomize=True, max_examples=25)


def degrees(split):
    return split.setting.sharding.fsdp, split.setting.sharding.tp


def test_best_whole_splits_of_64_v5p():
    best = splits.best_whole(v5p())
    assert (degrees(best), round(best.tokens)) == ((4, 16), 5111)
    assert all(type(degree) is int for degree in degrees(best))
    shared = splits.best_whole(v5p(wires="shared"))
    # Y = 8: 4 D F / (8 W 2) / (4 D F / 64 / C - 4 D / 8 / W)
    assert (degrees(shared), shared.tokens) == ((8, 8), pytest.approx(64 / 16 * ALPHA / (1 - 8 * ALPHA / F)))


def test_splits_at_the_edges():
    alone = v5p(degrees={})
    assert splits.best_whole(alone) == splits.Split(alone, 0)
    assert splits.best_real(alone).tokens == 0
    # 8 chips can all go to tensor parallelism, and then nothing is gathered.
    few = v5p(degrees={"fsdp": 8})
    assert (degrees(splits.best_whole(few)), splits.best_whole(few).tokens) == ((1, 8), 0)
    assert (degrees(splits.best_real(few)), splits.best_real(few).tokens) == ((1, 8), 0)


def test_where_the_wire_is_too_slow_for_every_token_there_is_no_best_split():
    hopeless = v5p(degrees={"pp": 4, "tp": 2}, flops=1e20)
    assert splits.best_whole(hopeless) is None
    assert splits.best_real(hopeless) is None


def test_a_split_has_an_axis_for_each_of_its_kinds():
    """On a ring FSDP and tensor parallelism cannot be used together."""
    assert [split.sharding.tp for split in splits.whole(EXERCISE)] == [1, 8]
    assert degrees(splits.best_real(replace(EXERCISE, flops=1e15))) == (8, 1)


def test_best_split_of_1024_h100():
    best = splits.best_whole(h100({"fsdp": 1024}))
    assert degrees(best) == (64, 16)
    # X of 64, each group in 64 different pairs of nodes: 63/64 over the port, beside 1/2 / 8 of the activations.
    network = 63 / 64 * 4 * D * F / 16 / 50e9
    per_token = 4 * D * F / 1024 / H100 - 2 * (1 / 2 / 8) * 2 * D / 64 / 50e9
    assert best.tokens == pytest.approx(network / per_token)
    # The real bound has two valleys, inside a node and between 8 and 16; the second one is the deeper.
    real = splits.best_real(h100({"fsdp": 1024}))
    assert real.tokens < 0.995 * best.tokens
    assert 14 < degrees(real)[1] < 16


def test_whole_splits_are_all_divisors_that_pack():
    odd = replace(v5p(degrees={"fsdp": 6, "tp": 2}), model=Model("odd", 64, 18, 4))
    assert [split.sharding.tp for split in splits.whole(odd)] == [1, 2, 3, 6]
    assert all(split.sharding.devices == 12 for split in splits.whole(odd))
    assert [split.sharding.tp for split in splits.whole(h100({"fsdp": 24 * 13}))] == [1, 2, 4, 8, 104]


@quick
@given(made_up(kinds=("fsdp", "tp")), st.sampled_from([*WIRES]))
def test_the_best_whole_split_beats_every_other(setting, wires):
    setting = replace(setting, wires=wires)
    others = list(splits.whole(setting))
    assert setting in others
    best = splits.best_whole(setting)
    bounds = [split.bound().tokens for split in others]
    assert (best is None) == (min(bounds) == math.inf)
    if best:
        assert best.tokens == min(bounds) == best.setting.bound().tokens


@quick
@given(made_up(kinds=("fsdp", "tp")), st.sampled_from([*WIRES]))
def test_the_best_real_split_is_not_worse_than_the_best_whole_one(setting, wires):
    setting = replace(setting, wires=wires)
    whole, real = splits.best_whole(setting), splits.best_real(setting)
    if whole:
        assert real.tokens <= whole.tokens * (1 + 1e-6)
    if real:
        x, y = degrees(real)
        assert x * y == pytest.approx(setting.sharding.devices)
        assert min(x, y) >= 1 - 1e-9


@quick
@given(st.integers(1, 3), st.floats(100, 10_000), st.integers(6, 14), st.booleans())
def test_closed_form_of_the_real_bound(m_x, alpha, power, added):
    """Alpha^2 / (M_X F), or four times that, where Y comes out above 4: at Y = 1 FSDP has the other axis, too,
    and at X = 1 tensor parallelism all."""
    f, chips = 2**17, 2**power
    most = f / alpha  # as far as the activations keep up
    y = most / 2 if added else most
    mesh = Torus(1e11, all_axes=m_x + 1)
    setting = replace(
        v5p(), model=Model("any", 1000, f, 3), flops=alpha * 1e11, mesh=mesh, sharding=Sharding(fsdp=chips),
        wires="shared" if added else "separate",
    )  # fmt: skip
    best = splits.best_real(setting)
    if y > 4.01 and most * (m_x + 1) < chips / 1.01:
        assert best.tokens / chips == pytest.approx((4 if added else 1) * alpha**2 / (m_x * f), rel=1e-5)
        assert degrees(best)[1] == pytest.approx(y, rel=1e-2)
    elif most > chips:
        assert degrees(best) == (1, chips)


def test_the_real_bound_at_the_kink_of_a_full_node():
    """tp beyond a node takes the network from the weights' gathers: the least may be at 8 exactly."""
    setting = replace(h100({"fsdp": 1024}), mesh=Nodes(8, 450e9, 5e9))
    real, whole = splits.best_real(setting), splits.best_whole(setting)
    assert real.tokens <= whole.tokens * (1 + 1e-9)
    assert tokens_each(whole.setting) == pytest.approx(whole.tokens / 1024)
