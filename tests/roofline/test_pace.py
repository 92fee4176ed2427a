"""Where chips and wires meet, against the figures of the sources and figures worked out by hand."""

import math
from dataclasses import replace

import pytest
from account_settings import EXERCISE, H100, D, F, h100, made_up, tokens_each, v5p
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.account.communication_bound import Bound
from roofline.account.meshes import Sharding, Torus

quick = settings(deadline=None, derandomize=True, max_examples=80)

WEIGHTS = 4 * D * F
"""Bytes of a block's weights in bf16; also the FLOP of a token in it."""


EXACT = replace(EXERCISE, mesh=replace(EXERCISE.mesh, exact=True))


@pytest.mark.parametrize(
    ("setting", "each"),
    [
        (EXERCISE, 2750),
        (replace(EXERCISE, sharding=Sharding(fsdp=4096)), 2750),
        (EXACT, 2406.25),  # 7/8 of it
        (replace(EXERCISE, gathered_itemsize=1), 2750 / 2),
        # The source's 850 on three axes.
        (v5p(flops=4.59e14, degrees={"fsdp": 512}), 850),
        # Inside a node, over 1024 GPUs, and as the source counts these.
        (h100({"fsdp": 8}), 7 / 8 * H100 / 450e9),
        (h100({"fsdp": 1024}), H100 / 400e9 * 127 / 128),
        (h100({"fsdp": 1024}, exact=False, flops=9.9e14), 2475),
        # One collective over both fabrics takes what the slower one does, also where collectives wait for each other.
        (h100({"fsdp": 1024}, wires="shared"), H100 / 400e9 * 127 / 128),
    ],
)
def test_tokens_on_each_device_at_the_bound(setting, each):
    assert tokens_each(setting) == pytest.approx(each)


def test_without_a_bound():
    """Y = 32: activations need F above 32 * 2555.6, so each token takes longer on the wire than on the chip."""
    assert v5p(degrees={"fsdp": 2, "tp": 32}).bound() == Bound(math.inf, "tp axes")
    assert v5p(degrees={"tp": 4}).bound() == Bound(0, "tp axes")
    assert v5p(degrees={}).bound() == Bound(0, None)


@pytest.mark.parametrize(("setting", "most"), [(EXERCISE, 19), (EXACT, 20)])
def test_tensor_parallelism_crosses_2750(setting, most):
    """Between 19 and 20 chips, or between 20 and 21 where the gather is exact."""
    for chips, tokens in ((most, 0), (most + 1, math.inf)):
        assert replace(setting, sharding=Sharding(tp=chips)).bound().tokens == tokens


@pytest.mark.parametrize(("wires", "fabric"), [("fabric", "node"), ("shared", "wires")])
def test_the_bound_names_what_the_chips_wait_for(wires, fabric):
    # Inside a node 2 * 7/8 of the activations take longer than the matmuls of a chip that is so fast.
    assert h100({"tp": 8}, flops=1e16, wires=wires).bound() == Bound(math.inf, fabric)


def test_terms_as_listed_by_hand():
    setting = h100({"fsdp": 128, "tp": 8})
    assert [(term.name, term.kind, term.fixed_bytes, term.token_bytes) for term in setting.terms] == [
        ("gather weights", "fsdp", WEIGHTS / 8, 0),
        ("gather activations", "tp", 0, 2 * D / 128),
        ("scatter partial sums", "tp", 0, 2 * D / 128),
    ]
    assert setting.math_flop == WEIGHTS / 1024
    assert replace(setting, gathers=4).terms[0].fixed_bytes == 4 * WEIGHTS / 8
    gated = replace(setting, model=replace(setting.model, matrices=3))
    assert (gated.math_flop, gated.terms[0].fixed_bytes) == (1.5 * WEIGHTS / 1024, 1.5 * WEIGHTS / 8)
    assert gated.terms[1].token_bytes == 2 * D / 128


# What holds for all


def at_most(left, right):
    return left <= right * (1 + 1e-9)


@quick
@given(made_up(), st.floats(1.01, 100))
def test_faster_chips_raise_the_bound_and_faster_wires_lower_it(setting, factor):
    bound = setting.bound().tokens
    assert at_most(bound, replace(setting, wires="shared").bound().tokens)
    assert at_most(bound, replace(setting, gathers=2).bound().tokens)
    assert at_most(bound, replace(setting, flops=setting.flops * factor).bound().tokens)
    names = ("axis_bytes_per_s",) if isinstance(setting.mesh, Torus) else ("link_bytes_per_s", "network_bytes_per_s")
    faster = replace(setting.mesh, **{name: getattr(setting.mesh, name) * factor for name in names})
    assert at_most(replace(setting, mesh=faster).bound().tokens, bound)
    # Only the balance counts.
    same = replace(setting, mesh=faster, flops=setting.flops * factor).bound().tokens
    assert same == pytest.approx(bound, rel=1e-6)


@quick
@given(made_up(), st.floats(1, 1e9))
def test_the_bound_is_where_the_times_cross(setting, tokens):
    bound = setting.bound().tokens
    for factor, faster in ((1.001, True), (0.999, False)):
        at = bound * factor if 0 < bound < math.inf else tokens
        keeps_up = setting.wire_s(at) <= setting.math_s(at) * (1 + 1e-9)
        assert keeps_up == (bound < math.inf and (bound == 0 or faster))
